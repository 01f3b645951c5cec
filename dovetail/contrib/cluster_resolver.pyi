"""Types of `dovetail.contrib.cluster_resolver`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.cluster_resolver import *
