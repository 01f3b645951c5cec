"""Types of `dovetail.saved_model.signature_def_utils`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.signature_def_utils import *
