"""Types of `dovetail.contrib.legacy_seq2seq`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.compat.tf1.contrib.legacy_seq2seq import *
