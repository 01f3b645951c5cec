"""`dt.strings`: string operations."""

from ...graph.ops.strings.printing import string_format as format
from ...graph.ops.strings.regular_expressions import regex_full_match, regex_replace
from ...graph.ops.strings.split_join import reduce_join, string_join as join, string_split_v2 as split, substr
from ...graph.ops.strings.strings import (
    as_string,
    string_length as length,
    string_lower as lower,
    string_strip as strip,
    string_to_hash_bucket as to_hash_bucket,
    string_to_hash_bucket_fast as to_hash_bucket_fast,
    string_to_hash_bucket_strong as to_hash_bucket_strong,
    string_to_number as to_number,
    string_upper as upper,
)
from ...public_paths import exported as _exported

__all__ = _exported(globals())
