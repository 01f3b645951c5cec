"""Types of `dovetail.estimator`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.estimator import *
