"""`IndexedSlices`: some rows of a tensor, for the gradient of a large table of which a step uses a few rows.

In a step, an embedding table of a million rows may get a gradient in a hundred rows. `IndexedSlices` has these
rows and their indices. The other rows are zero. If an index occurs several times, its rows are added. Optimizers
apply such a gradient with scatter ops. Other ops convert it to a dense tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..core.build import convert
from ..core.constant_value import static_dims
from ..core.dtypes import DType
from ..core.graph import Graph, Node, Tensor
from ..core.hooks import hooks
from ..core.operators import TensorOperators, operators
from ..core.shape import TensorShape, text


class IndexedSlices(TensorOperators[Tensor]):
    """Some rows of a tensor, whose other rows are zero.

    Attributes:
        values: the rows, of shape `[n, ...]`.
        indices: the index of each row along the first axis, int32 or int64 of shape `[n]`. Rows of equal indices are added.
        dense_shape: shape of the whole tensor, an integer vector. None if it is unknown.

    >>> table_gradient = IndexedSlices(rows, ids, dense_shape=[1000, 16])
    >>> dt.convert_to_tensor(table_gradient)   # the dense form
    """

    __slots__ = ("dense_shape", "indices", "values")

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values: Tensor = convert(values, name="values")
        self.indices: Tensor = convert(indices, name="indices")
        self.dense_shape: Tensor | None = None if dense_shape is None else convert(dense_shape, name="dense_shape")

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.values.dtype

    @property
    def name(self) -> str:
        """The name of `values`."""
        return self.values.name

    @property
    def op(self) -> Node:
        """The node that computes `values`."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The graph of `values`."""
        return self.values.graph

    @property
    def device(self) -> str:
        """The device that the node of `values` requests."""
        return self.values.device

    @property
    def shape(self) -> TensorShape:
        """The static shape of the whole tensor."""
        return TensorShape(None if self.dense_shape is None else static_dims(self.dense_shape))

    def get_shape(self) -> TensorShape:
        """As `shape` (TensorFlow 1's spelling)."""
        return self.shape

    def _as_tensor(self) -> Tensor:
        """The dense tensor, from a new node at each call.

        Raises:
            ValueError: `dense_shape` is None.
        """
        if self.dense_shape is None:
            raise ValueError(
                f"{self!r} cannot become a tensor: it has no dense_shape, so the number of rows is not known"
            )
        made: Tensor = hooks.sum_rows(self.values, self.indices, self.dense_shape[0])
        return made

    def __neg__(self) -> Any:
        """The negated rows. Other operators need the dense form."""
        return self._mapped(operators["neg"])

    # --- as a part of structures: see `graph.structure`, `runtime.fetches` ----------------------------------------------

    def _tensors(self) -> tuple[Tensor, ...]:
        parts = (self.values, self.indices)
        return parts if self.dense_shape is None else (*parts, self.dense_shape)

    _flow_parts = _tensors

    def _from_flow_parts(self, parts: Sequence[Tensor]) -> IndexedSlices:
        return IndexedSlices(*parts)

    def _flow_dims(self, shape: TensorShape | None) -> tuple[Any, ...]:
        """The shape invariants of the tensors in a loop. `shape` is the invariant of `values`. If it is None, the static shapes."""
        if shape is None:
            return tuple([t.shape for t in self._tensors()])
        rows = shape.as_list()[:1] if shape.ndims is not None else [None]
        return (shape, TensorShape(rows), TensorShape([shape.ndims]))[: len(self._tensors())]

    def _value(self, *arrays: Any) -> IndexedSlicesValue:
        return IndexedSlicesValue(*arrays)

    def _mapped(self, f: Callable[[Tensor], Tensor]) -> IndexedSlices:
        return IndexedSlices(f(self.values), self.indices, self.dense_shape)

    def _as_graph_element(self) -> Tensor:
        return self._as_tensor()

    def __repr__(self) -> str:
        shape = text(self.shape.dims_tuple)
        return f"<dt.IndexedSlices values={self.values!r} indices={self.indices.name} dense_shape={shape}>"


class IndexedSlicesValue(NamedTuple):
    """The value of `IndexedSlices` that a session returns, with arrays in place of tensors.

    Attributes:
        values: the rows.
        indices: the index of each row.
        dense_shape: shape of the whole tensor, or None.

    >>> session.run(dt.IndexedSlices([[1.0, 2.0]], [3])).indices
    array([3], dtype=int32)
    """

    values: Any
    indices: Any
    dense_shape: Any = None


def map_values(f: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply `f` to a tensor, or to the values of `IndexedSlices` or a `SparseTensor`. The indices do not change."""
    mapped = getattr(x, "_mapped", None)
    return f(convert(x)) if mapped is None else mapped(f)
