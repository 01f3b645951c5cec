"""Types of `dovetail.estimator.export`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.estimator.export import *
