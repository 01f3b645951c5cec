"""Types of `dovetail.saved_model.tag_constants`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.saved_model.tag_constants import *
