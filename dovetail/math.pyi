"""Types of `dovetail.math`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.math import *
