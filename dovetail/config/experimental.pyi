"""Types of `dovetail.config.experimental`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.names.config.experimental import *
