"""Types of `dovetail.graph_util`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.tensorflow.graph_util import *
