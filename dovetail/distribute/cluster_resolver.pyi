"""Types of `dovetail.distribute.cluster_resolver`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.distribute.resolvers.cluster_resolver import *
