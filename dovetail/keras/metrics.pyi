"""Types of `dovetail.keras.metrics`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.metrics import *
