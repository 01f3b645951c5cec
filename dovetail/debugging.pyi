"""Types of `dovetail.debugging`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.debugging import *
