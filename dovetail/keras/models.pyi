"""Types of `dovetail.keras.models`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.keras.models import *
