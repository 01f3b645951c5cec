"""Types of `dovetail.keras.initializers`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.initializers import *
