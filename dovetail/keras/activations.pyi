"""Types of `dovetail.keras.activations`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.activations import *
