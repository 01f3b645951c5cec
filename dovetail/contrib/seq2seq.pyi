"""Types of `dovetail.contrib.seq2seq`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.seq2seq import *
