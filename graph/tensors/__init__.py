"""Composite tensors: `indexed_slices` (rows and their indices) and `sparse_tensor` (indices and values).

Ops take and return them, so they are below `ops`. Ops that they use are registered in `core/operators.py` and `core/hooks.py`.

`ops` and packages above it may import this package.
"""
