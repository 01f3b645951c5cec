"""What all tests share: how hypothesis draws its examples, what Ctrl-C means to the processes that tests start, and a cache of kernels."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# `ci` draws the same examples on every run and has no deadline, so a slow machine fails nothing.
# HYPOTHESIS_PROFILE=explore draws new and more ones, to look for what nobody has seen yet.
settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A shell that starts the tests in the background makes them ignore SIGINT, and what is ignored is inherited by every child:
# tests that send one to a child would wait for ever. A handler of our own is not inherited, so children start with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kernels that a module's tests compile are kept in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


def pytest_collection_finish() -> None:
    """What there is when the tests begin stays: a test that collects garbage need not look through thousands of tests."""
    gc.collect()
    gc.freeze()
