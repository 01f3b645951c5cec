"""Types of `dovetail.rnn.rnn_cell`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.rnn.rnn_cell import *
