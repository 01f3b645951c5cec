"""Bessel functions, decompositions of matrices, patches of images, differences of lists."""

from __future__ import annotations

import numpy as np
import scipy.special
from op_table import OpCase, real

from dovetail.compat.tf1.image.patches import extract_image_patches
from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.ops.array.dynamic_partition import setdiff1d
from dovetail.graph.ops.linalg.matrix_functions import slogdet, svd
from dovetail.graph.ops.math.special_functions import bessel_i0, bessel_i0e, bessel_i1, bessel_i1e

SHAPE = [2, 5, 6, 2]
SQUARES = real(2, 3, 3) + 3 * np.eye(3)


def _patches(x):
    return extract_image_patches(x, [1, 2, 2, 1], [1, 1, 2, 1], [1, 2, 1, 1], "VALID")


def _patches_oracle(x):
    n, h, w, c = x.shape
    rows = []
    for i in range(h - 2):
        row = [x[:, i : i + 3 : 2, j : j + 2].reshape(n, 4 * c) for j in range(0, w - 1, 2)]
        rows.append(np.stack(row, 1))
    return np.stack(rows, 1)


def _back(grad):
    node = next(n for n in _patches(placeholder("float32", SHAPE)).graph.nodes if n.type == "ExtractImagePatches")
    return apply("ExtractImagePatchesBackprop", (grad, constant(SHAPE)), dict(node.attrs))


def _back_oracle(grad):
    basis = np.eye(int(np.prod(SHAPE))).reshape(-1, *SHAPE)
    return np.array([np.sum(_patches_oracle(one) * grad) for one in basis]).reshape(SHAPE)


CASES = [
    OpCase("BesselI0", bessel_i0, [real(5, low=-9, high=9)], scipy.special.i0, ("float32", "float64"), grad=True),
    OpCase("BesselI1", bessel_i1, [real(5, low=-9, high=9)], scipy.special.i1, ("float32", "float64"), grad=True),
    OpCase("BesselI0e", bessel_i0e, [real(5, low=-9, high=9)], scipy.special.i0e, ("float32", "float64"), grad=True),
    OpCase("BesselI1e", bessel_i1e, [real(5, low=-9, high=9)], scipy.special.i1e, ("float32", "float64"), grad=True),
    OpCase(
        "LogMatrixDeterminant", slogdet, [SQUARES], lambda x: list(np.linalg.slogdet(x)), ("float64",), grad=True
    ),
    OpCase(
        "Svd", lambda x: svd(x, compute_uv=False), [real(2, 4, 3)], lambda x: np.linalg.svd(x, compute_uv=False),
        ("float64",), grad=True,
    ),
    OpCase("ExtractImagePatches", _patches, [real(*SHAPE)], _patches_oracle, grad=True),
    OpCase("ExtractImagePatchesBackprop", _back, [real(2, 3, 3, 8)], _back_oracle, grad=True),
    OpCase(
        "ListDiff", setdiff1d, [np.array([3, 1, 2, 3]), np.array([1])], lambda x, y: [np.array([3, 2, 3]), np.array([0, 2, 3])],
        dynamic=True,
    ),
]  # fmt: skip
