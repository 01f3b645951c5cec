"""Types of `dovetail.saved_model.constants`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.constants import *
