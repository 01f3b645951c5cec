"""Types of `dovetail.keras.layers`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.layers import *
