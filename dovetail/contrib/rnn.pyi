"""Types of `dovetail.contrib.rnn`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.rnn import *
