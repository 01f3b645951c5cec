"""Types of `dovetail.estimator.inputs`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.estimator.inputs import *
