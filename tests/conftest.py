"""What all tests share: how hypothesis draws its examples."""

import os

from hypothesis import settings

# `ci` draws the same examples on every run and has no deadline, so a slow machine fails nothing.
# HYPOTHESIS_PROFILE=explore draws new and more ones, to look for what nobody has seen yet.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
