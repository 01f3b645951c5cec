"""Finding placements: the problem as arrays, searches over it, and proofs of how good an answer is."""
