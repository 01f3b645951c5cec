"""Text: elements are bytes.

strings, split_join   matching, case, buckets, conversion to numbers; substrings, splitting, joining
regular_expressions   RE2
hashing               ids in vocabularies, crossed features
csv, printing         lines of CSV as columns; formatting and printing in a step
"""
