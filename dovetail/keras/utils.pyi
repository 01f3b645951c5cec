"""Types of `dovetail.keras.utils`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.utils import *
