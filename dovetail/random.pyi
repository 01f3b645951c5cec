"""Types of `dovetail.random`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.random import *
