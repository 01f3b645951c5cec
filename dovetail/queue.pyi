"""Types of `dovetail.queue`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.graph.ops.state.queue_api import *
