"""Types of `dovetail.test`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.programs.test import *
