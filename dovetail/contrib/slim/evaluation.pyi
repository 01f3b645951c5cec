"""Types of `dovetail.contrib.slim.evaluation`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.slim.evaluation import *
