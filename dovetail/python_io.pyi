"""Types of `dovetail.python_io`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.io.records import *
