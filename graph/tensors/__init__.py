"""Tensors in several parts: `indexed_slices` (rows and where they belong) and `sparse_tensor` (coordinates and values).

Ops take and give them, so they are below `ops`. What they need of ops is registered: `core/operators.py`, `core/hooks.py`.

`ops` and what is above may import it.
"""
