"""Types of `dovetail.manip`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.names.manip import *
