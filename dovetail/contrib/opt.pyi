"""Types of `dovetail.contrib.opt`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.opt import *
