"""Types of `dovetail.saved_model.utils`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.utils import *
