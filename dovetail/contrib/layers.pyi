"""Types of `dovetail.contrib.layers`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.layers import *
