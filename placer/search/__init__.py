"""Finding placements: the problem as arrays, searches over it, and proofs of how good an answer is."""

SEARCHES = ("auto", "single", "heft", "m-etf", "contiguous", "local-search", "exact")
"""Their names: all of the portfolio together, or one part of it."""
