"""Types of `dovetail.strings`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.graph.ops.strings.printing import string_format as format
from dovetail.graph.ops.strings.regular_expressions import regex_full_match as regex_full_match, regex_replace as regex_replace
from dovetail.graph.ops.strings.split_join import (
    string_join as join, reduce_join as reduce_join, string_split_v2 as split, substr as substr,
)
from dovetail.graph.ops.strings.strings import (
    as_string as as_string, string_length as length, string_lower as lower, string_strip as strip, string_to_hash_bucket as
    to_hash_bucket, string_to_hash_bucket_fast as to_hash_bucket_fast, string_to_hash_bucket_strong as to_hash_bucket_strong,
    string_to_number as to_number, string_upper as upper,
)
__all__ = [
    "as_string", "format", "join", "length", "lower", "reduce_join", "regex_full_match", "regex_replace", "split", "strip", "substr",
    "to_hash_bucket", "to_hash_bucket_fast", "to_hash_bucket_strong", "to_number", "upper",
]
