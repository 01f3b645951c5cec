"""Ops on strings. Elements are bytes.

strings, split_join   case, length, hash buckets, conversion to and from numbers; substrings, splitting, joining, CSV
regular_expressions   matching and replacement by RE2
printing              formatting and printing in a step

Whatever is above `graph/ops` may import it, and other families of ops.
"""
