"""Triton kernels that are written by hand, one algorithm a module: what generated loop nests do not do well.

    gemm.py                           matrix products: tiles, split k, persistent kernels with tensor descriptors
    attention.py                      flash attention, forward and backward
    conv.py                           convolutions as implicit GEMM, and their gradients
    strided_copy.py                   copies of boxes, transposes among them
    sort.py                           sorts within a block; sorts of longer rows
    tables.py                         rows by index, picked and put; segment reductions; an optimizer's step for some rows
    text.py                           a kernel from its body, arguments and grid; elementwise work on the tiles of products

Each module has plain functions from element types, static facts and flags to `Routine`s (`gpu/ir.py`). Where one of several may be the
fastest, the function gives a list, likely ones first, for the autotuner. Sizes are parameters, so one kernel serves all batch sizes;
of those that are `known` never to change, multiples of 16 give vector loads. `ops` and the launchers import this package; it
imports `emit` and `ir`.
"""
