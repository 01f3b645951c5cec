"""Types of `dovetail.onnx`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.interop.onnx import *
