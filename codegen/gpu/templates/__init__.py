"""Triton kernels that are written by hand, one family a file: what generated loops cannot do well.

Each family has plain functions from element types, static facts and flags to `Routine`s (`codegen/gpu/ir.py`). Where one of
several may be the fastest, the function gives a list, likely ones first, for the autotuner to choose from. Sizes are parameters,
so one kernel serves all batch sizes; `aligned` says which facts about them may be relied on.
"""
