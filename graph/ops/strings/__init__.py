"""Text: elements are bytes.

strings, split_join   matching, case, buckets, conversion to numbers; substrings, splitting, joining, CSV
regular_expressions   RE2
printing              formatting and printing in a step

Whatever is above `graph/ops` may import it, and other families of ops.
"""
