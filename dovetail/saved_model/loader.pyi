"""Types of `dovetail.saved_model.loader`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.loader import *
