"""Types of `dovetail.contrib.tpu`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.tpu import *
