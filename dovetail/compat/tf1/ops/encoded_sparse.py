"""Sparse tensors as texts, which queues can hold.

As strings, one for each element of a batch, sparse tensors of any size can be put into queues, which hold tensors of one size.
`EncodeSparse` makes a string of a sparse tensor, or one of each row. `DecodeSparse` joins several along a new first axis. The
result is as large as the largest of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgpack
import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import apply, make
from ....graph.core.dtypes import Array, DType, int64, string, text_array
from ....graph.core.errors import invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define, typed_attr
from ....graph.tensors.sparse_tensor import SparseTensor


def _infer_encode(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    indices, _, dense_shape = inputs
    if indices.dtype.base is not int64 or dense_shape.dtype.base is not int64:
        raise TypeError("indices and dense_shape must be int64")
    return [(string, (None,) if typed_attr(attrs, "many", bool) else ())]


def _encode(indices: Array, values: Array, dense_shape: Array, *, many: bool) -> Array:
    if not many:
        return text_array([_record(indices, values, dense_shape)], ())
    if not len(dense_shape):
        raise invalid("a sparse scalar has no rows")
    count, rows = int(dense_shape[0]), indices[:, 0]
    if len(rows) and (rows.min() < 0 or rows.max() >= count):
        raise invalid(f"a row of the sparse tensor lies outside its {count} rows")
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows[order], np.arange(count + 1))
    out: Array = np.empty(count, object)
    for i in range(count):
        kept = order[ends[i] : ends[i + 1]]
        out[i] = _record(indices[kept, 1:], values[kept], dense_shape[1:])
    return out


def _record(indices: Array, values: Array, dense_shape: Array) -> bytes:
    is_text = values.dtype == np.dtype(object)
    stored = [bytes(v) for v in values] if is_text else np.ascontiguousarray(values).tobytes()
    packed: bytes = msgpack.packb([dense_shape.tolist(), np.ascontiguousarray(indices).tobytes(), stored])
    return packed


def _infer_decode(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (texts,) = inputs
    rank, dtype = attrs.get("rank"), attrs.get("dtype")
    if texts.dtype.base is not string or (texts.dims is not None and len(texts.dims) != 1):
        raise TypeError("the sparse tensors must be a vector of texts")
    if not isinstance(dtype, DType) or not (rank is None or isinstance(rank, int)):
        raise TypeError("attributes dtype and rank must be an element type, and a number or None")
    whole = None if rank is None else rank + 1
    return [(int64, (None, whole)), (dtype.base, (None,)), (int64, (whole,))]


def _decode(texts: Array, *, dtype: DType, rank: int | None) -> tuple[Array, Array, Array]:
    try:
        records = [msgpack.unpackb(t) for t in texts]
        shapes = [np.array(shape, np.int64) for shape, _, _ in records]
        ranks = {len(s) for s in shapes} | (set() if rank is None else {rank})
        if len(ranks) > 1:
            raise ValueError(f"their ranks differ: {sorted(ranks)}")
        n = ranks.pop() if ranks else 0
        places, values = [np.zeros((0, n + 1), np.int64)], [np.zeros(0, dtype.np)]
        for i, (_, indices, stored) in enumerate(records):
            own = np.frombuffer(indices, np.int64)
            held = np.array([*stored, None], object)[:-1] if dtype is string else np.frombuffer(stored, dtype.np)
            places.append(np.insert(own.reshape(len(held), n), 0, i, axis=1))
            values.append(held)
    except (ValueError, TypeError, msgpack.UnpackException) as e:
        raise invalid(f"Sparse tensors of a batch cannot be put together: {e}") from None
    sizes = np.max([np.zeros(n, np.int64), *shapes], axis=0)
    return np.concatenate(places), np.concatenate(values), np.concatenate([[len(texts)], sizes]).astype(np.int64)


define("EncodeSparse", _infer_encode, _encode)


define("DecodeSparse", _infer_decode, _decode)


def encode_sparse(sp: SparseTensor, many: bool) -> Tensor:
    """A sparse tensor as a text; with `many`, each of its rows."""
    found: Tensor = apply("EncodeSparse", (sp.indices, sp.values, sp.dense_shape), {"many": many})
    return found


def decode_sparse(texts: Tensor, dtype: DType, rank: int | None) -> SparseTensor:
    """The sparse tensors of a vector of texts as one, along a new first axis; `rank`: of each, if it is known."""
    return SparseTensor(*make("DecodeSparse", (texts,), {"dtype": dtype, "rank": rank}).outputs)


explain_members(sys.modules[__name__])
