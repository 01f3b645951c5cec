"""Types of `dovetail.contrib.learn`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.learn import *
