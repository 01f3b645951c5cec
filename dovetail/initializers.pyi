"""Types of `dovetail.initializers`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.initializers import *
