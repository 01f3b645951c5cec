"""TensorFlow's ops that are composed of other ops in Dovetail, for `node_mapping.COMPOSED`.

Each function takes the node's attributes and inputs, and returns its output or a list of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.build import convert
from ..core.constant_value import static_value
from ..core.dtypes import int32, int64
from ..core.graph import Tensor
from ..formats.values import MisfitError
from ..ops.array.concat_stack import concat, stack, unstack
from ..ops.array.creation import fill, ones_like, zeros
from ..ops.array.dynamic_partition import unique
from ..ops.array.gather import gather, gather_densely, one_hot
from ..ops.array.segments import unsorted_segment_sum
from ..ops.array.sequences import reverse_sequence
from ..ops.array.shapes import expand_dims, invert_permutation, shape
from ..ops.array.sorting import argsort, searchsorted, sort, top_k
from ..ops.io.parsing import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature, parse_example
from ..ops.linalg.matrix_functions import cross
from ..ops.math.arithmetic import floormod, multiply, subtract
from ..ops.math.cast import cast
from ..ops.math.clip import clip_by_value
from ..ops.math.compare import equal, greater_equal, where
from ..ops.math.reduce import reduce_sum
from ..ops.math.scan import cumsum
from ..ops.math.special_functions import bessel_i0, bessel_i1, xdivy, xlogy
from ..ops.math.statistics import reduce_euclidean_norm
from ..ops.sparse.arrange import sparse_reorder, sparse_reshape
from ..ops.sparse.math import (
    sparse_segment_mean,
    sparse_segment_sqrt_n,
    sparse_segment_sum,
    sparse_softmax,
    sparse_tensor_dense_matmul,
)
from ..tensors.sparse_tensor import SparseTensor

Attrs = dict[str, Any]
Function = Callable[..., Any]


def _concat_offset(a: Attrs, axis: Tensor, *shapes: Tensor) -> list[Tensor]:
    """The offset of each tensor in the concatenation, for the gradient's `Slice`."""
    sizes = stack(shapes)  # [tensors, axes]
    rank = shape(shapes[0])[0]
    chosen = one_hot(floormod(axis, rank), rank, dtype=sizes.dtype)
    found = unstack(cumsum(sizes, 0, exclusive=True) * chosen, num=len(shapes))
    return list(found)


# --- sparse tensors ---------------------------------------------------------------------------------------------------


def _reordered(a: Attrs, indices: Tensor, values: Tensor, dims: Tensor) -> list[Tensor]:
    found = sparse_reorder(SparseTensor(indices, values, dims))
    return [found.indices, found.values]


def _reshaped(a: Attrs, indices: Tensor, dims: Tensor, wanted: Tensor) -> list[Tensor]:
    found = sparse_reshape(SparseTensor(indices, ones_like(indices[:, 0]), dims), wanted)
    return [found.indices, found.dense_shape]


def _filled(a: Attrs, indices: Tensor, values: Tensor, dims: Tensor, default: Tensor) -> list[Tensor]:
    """`SparseFillEmptyRows`: the elements with a default in each empty row, the mask of empty rows, and the new index of each element."""
    rows = indices[:, 0]
    is_empty = equal(unsorted_segment_sum(ones_like(rows), rows, dims[0]), 0)
    empty = where(is_empty)
    beside = zeros([shape(empty)[0], shape(indices)[1] - 1], int64)
    every = concat([indices, concat([empty, beside], 1)], 0)
    order = argsort(every[:, 0], stable=True)
    filler = fill(shape(empty)[:1], default)
    places = cast(invert_permutation(order), int64)[: shape(indices)[0]]
    return [gather(every, order), gather_densely(concat([values, filler], 0), order), is_empty, places]


def _filled_gradient(a: Attrs, places: Tensor, grad: Tensor) -> list[Tensor]:
    for_values = gather_densely(grad, places)
    return [for_values, subtract(reduce_sum(grad), reduce_sum(for_values))]


def _segments(function: Function) -> Function:
    def combine(a: Attrs, data: Tensor, indices: Tensor, ids: Tensor, count: Tensor | None = None) -> Any:
        return function(data, indices, ids, num_segments=count)

    return combine


def _shares(grad: Tensor, ids: Tensor, power: float) -> Tensor:
    """The gradient of each gathered row: the gradient of its segment, divided by a power of the segment's size."""
    rows = gather_densely(grad, ids)
    if not power:
        return rows
    sizes = unsorted_segment_sum(ones_like(cast(ids, grad.dtype)), ids, shape(grad)[0])
    weights = gather_densely(sizes**-power, ids)
    for _ in range(len(rows.dims or (0, 0)) - 1):
        weights = expand_dims(weights, -1)
    return multiply(rows, weights)


def _segments_gradient(power: float) -> Function:
    def gradient(a: Attrs, grad: Tensor, indices: Tensor, ids: Tensor, count: Tensor) -> Any:
        return unsorted_segment_sum(_shares(grad, ids, power), indices, count)

    return gradient


def _segments_gradient_of_rows(power: float) -> Function:
    """The gradient with respect to the gathered rows only, and their indices."""

    def gradient(a: Attrs, grad: Tensor, indices: Tensor, ids: Tensor, count: Tensor) -> list[Tensor]:
        picked = sort(unique(indices).y)
        places = searchsorted(picked, indices)
        return [unsorted_segment_sum(_shares(grad, ids, power), places, shape(picked)[0]), picked]

    return gradient


def _product(a: Attrs, indices: Tensor, values: Tensor, dims: Tensor, dense: Tensor) -> Any:
    sparse = SparseTensor(cast(indices, int64), values, dims)
    return sparse_tensor_dense_matmul(sparse, dense, a["adjoint_a"], a["adjoint_b"])


# --- examples ---------------------------------------------------------------------------------------------------------


def _known(tensor: Tensor) -> np.ndarray[Any, Any]:
    value = static_value(tensor)
    if value is None:
        raise MisfitError(f"{tensor.name} must be a constant")
    return np.asarray(value)


def _examples(
    serialized: Tensor, sparse_keys: Sequence[Any], sparse_types: Sequence[Any], dense_keys: Sequence[Any],
    dense_types: Sequence[Any], dense_shapes: Sequence[Any], defaults: Sequence[Tensor],
) -> list[Tensor]:  # fmt: skip
    features: dict[str, Any] = {k.decode(): VarLenFeature(t) for k, t in zip(sparse_keys, sparse_types, strict=True)}
    for key, dtype, dims, default in zip(dense_keys, dense_types, dense_shapes, defaults, strict=True):
        given = _known(default)
        if dims and dims[0] is None:
            value = given.item() if given.size else None
            features[key.decode()] = FixedLenSequenceFeature(dims[1:], dtype, True, value)
        else:
            features[key.decode()] = FixedLenFeature(dims, dtype, given if given.size or 0 in dims else None)
    found = parse_example(serialized, features)
    sparse = [found[k.decode()] for k in sparse_keys]
    parts = [[getattr(s, part) for s in sparse] for part in ("indices", "values", "dense_shape")]
    return [*parts[0], *parts[1], *parts[2], *(found[k.decode()] for k in dense_keys)]


def _parsed(a: Attrs, serialized: Tensor, names: Tensor, *others: Tensor) -> list[Tensor]:
    """`ParseExampleV2`, whose keys are vectors."""
    sparse, dense, ragged, *defaults = others
    if _known(ragged).size:
        raise MisfitError("ragged features are not supported")
    keys = _known(sparse).tolist(), _known(dense).tolist()
    return _examples(
        serialized, keys[0], a["sparse_types"], keys[1], [d.dtype for d in defaults], a["dense_shapes"], defaults
    )


def _parsed_v1(a: Attrs, serialized: Tensor, names: Tensor, *others: Tensor) -> list[Tensor]:
    """`ParseExample`, whose keys are scalars."""
    sparse, dense = len(a["sparse_types"]), len(a["dense_shapes"])
    keys = [_known(t).item() for t in others[: sparse + dense]]
    defaults = others[sparse + dense :]
    return _examples(
        serialized, keys[:sparse], a["sparse_types"], keys[sparse:], [d.dtype for d in defaults], a["dense_shapes"],
        defaults,
    )  # fmt: skip


# --- others -----------------------------------------------------------------------------------------------------------


def _hits(a: Attrs, true: Tensor, sampled: Tensor) -> list[Tensor]:
    """`ComputeAccidentalHits`: for each sampled class that is a true class, its row, its index among the samples, and -float32.max."""
    same = equal(expand_dims(true, 2), sampled)
    at = where(same)
    weights = fill(shape(at)[:1], np.float32(-np.finfo(np.float32).max))
    return [cast(at[:, 0], int32), at[:, 2], weights]


def _buckets(a: Attrs, x: Tensor) -> Any:
    bounds = np.array(a["boundaries"], np.float32)
    wide = cast(x, "float64" if x.dtype.name in ("float64", "int64") else "float32")
    reached = greater_equal(expand_dims(wide, -1), convert(bounds.astype(wide.dtype.np)))
    return reduce_sum(cast(reached, int32), -1)


def _top(a: Attrs, x: Tensor) -> list[Tensor]:
    return list(top_k(x, a["k"], a["sorted"]))


FUNCTIONS: dict[str, Function] = {
    "BesselI0": lambda a, x: bessel_i0(x),
    "BesselI1": lambda a, x: bessel_i1(x),
    "Bucketize": _buckets,
    "ClipByValue": lambda a, x, low, high: clip_by_value(x, low, high),
    "ComputeAccidentalHits": _hits,
    "ConcatOffset": _concat_offset,
    "Cross": lambda a, x, y: cross(x, y),
    "EuclideanNorm": lambda a, x, axes: reduce_euclidean_norm(x, axes, a["keep_dims"]),
    "ParseExample": _parsed_v1,
    "ParseExampleV2": _parsed,
    "ReverseSequence": lambda a, x, lengths: reverse_sequence(x, lengths, a["seq_dim"], a["batch_dim"]),
    "SparseFillEmptyRows": _filled,
    "SparseFillEmptyRowsGrad": _filled_gradient,
    "SparseReorder": _reordered,
    "SparseReshape": _reshaped,
    "SparseSoftmax": lambda a, indices, values, dims: sparse_softmax(SparseTensor(indices, values, dims)).values,
    "SparseTensorDenseMatMul": _product,
    "TopK": _top,
    "Xdivy": lambda a, x, y: xdivy(x, y),
    "Xlogy": lambda a, x, y: xlogy(x, y),
    **{f"SparseSegment{kind}{form}": _segments(function) for kind, function in (
        ("Sum", sparse_segment_sum), ("Mean", sparse_segment_mean), ("SqrtN", sparse_segment_sqrt_n),
    ) for form in ("", "WithNumSegments")},
    **{f"SparseSegment{kind}Grad{form}": make_gradient(power)
       for kind, power in (("Sum", 0.0), ("Mean", 1.0), ("SqrtN", 0.5))
       for form, make_gradient in (("", _segments_gradient), ("V2", _segments_gradient_of_rows))},
}  # fmt: skip
"""TensorFlow's op -> its function."""
