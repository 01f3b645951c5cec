"""Types of `dovetail.logging`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.programs.logging import *
