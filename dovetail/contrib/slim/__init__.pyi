"""Types of `dovetail.contrib.slim`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.slim import *
