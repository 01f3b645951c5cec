"""Types of `dovetail.contrib.losses`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.losses import *
