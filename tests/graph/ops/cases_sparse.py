"""Sparse tensors made dense."""

from __future__ import annotations

import numpy as np
from op_table import OpCase, index, real

from dovetail.graph.ops.sparse.arrange import sparse_to_dense

PLACES = index([[0, 1], [1, 3], [2, 0]])


def _dense(indices, values, default):
    out = np.full((3, 4), default)
    for at, value in zip(indices, np.broadcast_to(values, len(indices)), strict=True):
        out[tuple(at)] = value
    return out


def _matrix(indices, values, default):
    return sparse_to_dense(indices, [3, 4], values, default)


CASES = [
    OpCase("SparseToDense", _matrix, [PLACES, real(3), real()], _dense, ("float32", "int8")),
    OpCase(
        "SparseToDense", _matrix, [PLACES, real(3), real()], _dense, grad=(1, 2), unknown=("dims",), label="gradient"
    ),
    OpCase(
        "SparseToDense", _matrix, [PLACES, real(), real()], _dense, grad=(1, 2), unknown=("dims",), label="one value"
    ),
    OpCase("SparseToDense", _matrix, [index(np.zeros((0, 2))), real(0), real()], _dense, label="no values"),
]
