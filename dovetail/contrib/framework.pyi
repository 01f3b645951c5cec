"""Types of `dovetail.contrib.framework`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.framework import *
