"""Types of `dovetail.sets`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.ops.sets import *
