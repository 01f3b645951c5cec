"""Types of `dovetail.contrib.training`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.training import *
