"""Types of `dovetail.image`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.image import *
