"""Types of `dovetail.sets`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.sets import *
