"""Types of `dovetail.saved_model.builder`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.builder import *
