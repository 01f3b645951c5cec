"""Types of `dovetail.keras.losses`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.losses import *
