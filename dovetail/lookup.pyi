"""Types of `dovetail.lookup`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.lookup import *
