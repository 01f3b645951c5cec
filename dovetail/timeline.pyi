"""Types of `dovetail.timeline`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.runtime.observability.timeline import *
