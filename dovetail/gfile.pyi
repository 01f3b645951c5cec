"""Types of `dovetail.gfile`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.io.files import *
