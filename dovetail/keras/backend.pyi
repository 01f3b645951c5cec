"""Types of `dovetail.keras.backend`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.backend import *
