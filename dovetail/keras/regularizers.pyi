"""Types of `dovetail.keras.regularizers`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.regularizers import *
