"""Types of `dovetail.contrib.util`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.util import *
