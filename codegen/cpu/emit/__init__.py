"""Code emission for CPUs: loop nests (`ir.loop_nest`) to readable Python modules that Numba compiles.

    nest         the nests of loops: pointwise, by rows, by columns, in pieces, into the rows of a table
    blocks       the innermost loops, and what is computed in blocks before them: random numbers, running sums
    expr         the value of one element as an expression
    philox       counter-based random numbers inside kernels
    instantiate  source texts of hand-written kernels, from a file of functions and a signature

This package knows `ir`, and names `vecmath` in the texts that it writes. `kernels` and `native` import it.
"""
