"""Types of `dovetail.image`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.image import *
