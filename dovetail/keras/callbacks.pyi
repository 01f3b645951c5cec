"""Types of `dovetail.keras.callbacks`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.callbacks import *
