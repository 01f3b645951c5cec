"""`SparseTensor`: the elements of a tensor that are not zero, and their indices.

A `SparseTensor` is a triple of tensors. Functions of sparse tensors (`ops/sparse/`) consist of ops of dense tensors, so they are placed,
fused, differentiated and sent as all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.build import convert
from ..core.constant_value import static_dims
from ..core.dtypes import DType, int64
from ..core.graph import Graph, Node, Tensor
from ..core.nest import flatten
from ..core.operators import operators
from ..core.shape import Dims, TensorShape, merge


class SparseTensorValue(NamedTuple):
    """The value of a `SparseTensor` that a session returns or is fed, with arrays in place of tensors.

    Attributes:
        indices: index vectors of the elements, int64 of shape `[n, rank]`.
        values: the elements, of shape `[n]`.
        dense_shape: shape of the whole tensor, int64 of shape `[rank]`.

    >>> session.run(y, {x: SparseTensorValue([[0, 2], [1, 0]], [1.0, 2.0], [2, 3])})
    """

    indices: Any
    values: Any
    dense_shape: Any


class SparseTensor:
    """A tensor of which most elements are zero, or empty strings.

    Args:
        indices: index vectors of the other elements, int64 of shape `[n, rank]`. Most ops need them in row-major order and unique.
        values: the other elements, of any type and shape `[n]`.
        dense_shape: shape of the whole tensor, int64 of shape `[rank]`.

    Raises:
        ValueError: the shapes of the arguments do not fit each other.
        TypeError: `indices` or `dense_shape` are not integers.

    >>> SparseTensor(indices=[[0, 0], [1, 2]], values=[1.0, 2.0], dense_shape=[3, 4])
    """

    __slots__ = ("_dense_shape", "_indices", "_values")

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        self._indices = _coordinates(indices, "indices")
        self._values: Tensor = convert(values, name="values")
        self._dense_shape = _coordinates(dense_shape, "dense_shape")
        _check(self._indices.dims, self._values.dims, self._dense_shape.dims)

    @classmethod
    def from_value(cls, sparse_tensor_value: Any) -> SparseTensor:
        """The `SparseTensor` of a `SparseTensorValue`. A `SparseTensor` is returned unchanged."""
        if isinstance(sparse_tensor_value, SparseTensor):
            return sparse_tensor_value
        if not isinstance(sparse_tensor_value, SparseTensorValue):
            raise TypeError(f"Neither a SparseTensor nor SparseTensorValue: {sparse_tensor_value!r}.")
        return cls(*sparse_tensor_value)

    @property
    def indices(self) -> Tensor:
        """The index vectors of the elements, int64 of shape `[n, rank]`."""
        return self._indices

    @property
    def values(self) -> Tensor:
        """The elements, of shape `[n]`."""
        return self._values

    @property
    def dense_shape(self) -> Tensor:
        """The shape of the whole tensor, int64 of shape `[rank]`."""
        return self._dense_shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._values.dtype

    @property
    def op(self) -> Node:
        """The node that computes `values`."""
        return self._values.op

    @property
    def graph(self) -> Graph:
        """The graph of `values`."""
        return self._values.graph

    @property
    def shape(self) -> TensorShape:
        """The static shape of the whole tensor."""
        known = static_dims(self._dense_shape)
        return TensorShape(known if known is not None else (None,) * r if (r := self.rank) is not None else None)

    def get_shape(self) -> TensorShape:
        """As `shape` (TensorFlow 1's spelling)."""
        return self.shape

    @property
    def rank(self) -> int | None:
        """The static rank of the whole tensor, or None."""
        across = self._indices.dims[1] if self._indices.dims is not None else None
        along = self._dense_shape.dims[0] if self._dense_shape.dims is not None else None
        return across if across is not None else along

    def consumers(self) -> list[Node]:
        """The nodes that take one of the three tensors as input."""
        return list(dict.fromkeys(n for t in self._tensors() for n in t.consumers()))

    def eval(self, feed_dict: Any = None, session: Any = None) -> SparseTensorValue:
        """The value, from the given or default session. ValueError if there is no session."""
        run = session.run if session is not None else None
        if run is None:
            values = [t.eval(feed_dict) for t in self._tensors()]
            return SparseTensorValue(*values)
        value: SparseTensorValue = run(self, feed_dict)
        return value

    # --- arithmetic with dense tensors ------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> SparseTensor:
        product: SparseTensor = operators["sparse_mul"](self, other)
        return product

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseTensor:
        quotient: SparseTensor = operators["sparse_truediv"](self, other)
        return quotient

    __div__ = __truediv__

    # --- as a part of structures: see `graph.structure`, `runtime.fetches` ----------------------------------------------

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._indices, self._values, self._dense_shape

    _flow_parts = _tensors

    def _from_flow_parts(self, parts: Sequence[Tensor]) -> SparseTensor:
        return SparseTensor(*parts)

    def _flow_dims(self, shape: TensorShape | None) -> tuple[Any, ...]:
        """The shape invariants of the tensors in a loop. `shape` is that of `dense_shape`. If it is None, the static shape."""
        of_shape = self._dense_shape.shape if shape is None else shape
        rank = of_shape.as_list()[0] if of_shape.ndims == 1 else None
        return TensorShape([None, rank]), TensorShape([None]), TensorShape([rank])

    def _value(self, *arrays: Any) -> SparseTensorValue:
        return SparseTensorValue(*arrays)

    def _mapped(self, f: Callable[[Tensor], Tensor]) -> SparseTensor:
        return SparseTensor(self._indices, f(self._values), self._dense_shape)

    def __repr__(self) -> str:
        return (
            f"SparseTensor(indices={self._indices.name}, values={self._values!r}, dense_shape={self._dense_shape.name})"
        )


def _coordinates(value: Any, name: str) -> Tensor:
    if isinstance(value, TensorShape):
        value = value.as_list()
    has_tensors = any(isinstance(v, Tensor) or hasattr(v, "_as_tensor") for v in flatten(value))
    if not has_tensors:
        array = np.asarray(value)
        if array.size == 0 and array.dtype.kind == "f":
            value = array.astype(np.int64)  # an empty list
        elif array.dtype.kind not in "iuO":
            raise TypeError(f"{name} of a SparseTensor must be integers, not {array.dtype.name}")
    return convert(value, int64, name=name)


def _check(indices: Dims, values: Dims, shape: Dims) -> None:
    try:
        for dims, wanted in ((indices, (None, None)), (values, (None,)), (shape, (None,))):
            merge(dims, wanted)
        count = indices[0] if indices is not None else None
        merge((count,), values)
        rank = indices[1] if indices is not None else None
        merge((rank,), shape)
    except ValueError as e:
        raise ValueError(
            f"A SparseTensor needs indices [n, rank], values [n] and dense_shape [rank], not {indices}, {values} and {shape}: {e}"
        ) from None


def is_sparse(value: Any) -> bool:
    """Whether an object is a `SparseTensor` or a `SparseTensorValue`."""
    return isinstance(value, (SparseTensor, SparseTensorValue))
