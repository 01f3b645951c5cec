"""Types of `dovetail.contrib.distribute`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.distribute import *
