"""Types of `dovetail.feature_column`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.feature_column import *
