"""Code emission for CPUs: loop nests (`ir.loop_nest`) and their schedules to readable Python modules that Numba compiles.

    module       the text of a kernel: signature, header, body
    rows         reductions along rows, in passes; in pieces, if all there is is reduced
    columns      reductions whose results are vectors
    loops        single loops; what is computed in blocks before the innermost one: random numbers, running sums; nests without reductions
    expr         the value of one element as an expression
    philox       counter-based random numbers inside kernels
    instantiate  source texts of hand-written kernels, from a file of functions and a signature

This package knows `ir`, and names `vecmath` in the texts that it writes. `kernels` and `native` import it.
"""
