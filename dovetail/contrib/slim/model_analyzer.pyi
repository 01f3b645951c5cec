"""Types of `dovetail.contrib.slim.model_analyzer`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.slim.model_analyzer import *
