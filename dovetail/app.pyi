"""Types of `dovetail.app`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.programs.app import *
