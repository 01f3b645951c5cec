"""Types of `dovetail.strings`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.strings import *
