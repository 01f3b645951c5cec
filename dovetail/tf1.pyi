"""Types of `dovetail.tf1`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.importing import *
