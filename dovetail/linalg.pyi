"""Types of `dovetail.linalg`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.linalg import *
