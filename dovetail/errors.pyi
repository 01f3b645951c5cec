"""Types of `dovetail.errors`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.errors import *
