"""Types of `dovetail.sparse`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.sparse import *
