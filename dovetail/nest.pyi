"""Types of `dovetail.nest`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.nest import *
