"""Types of `dovetail.contrib.metrics`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.metrics import *
