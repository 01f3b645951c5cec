"""Types of `dovetail.flags`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.programs.flags import *
