"""Types of `dovetail.saved_model.main_op`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.main_op import *
