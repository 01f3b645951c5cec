"""Rows of a tensor: what a gradient is when only a few rows of a large table were looked at.

An embedding table of a million rows gets a gradient in the hundred rows of a batch. `IndexedSlices` keeps
those rows and where they belong; the other rows are zero. An index may occur several times: its rows add up.
Optimizers apply such a gradient with scatter ops; anything else that needs a tensor gets the dense form, made
on the spot.
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
    """Rows of a tensor that is zero elsewhere.

    Attributes:
        values: the rows, shape `[n, ...]`.
        indices: where each belongs along the first axis, shape `[n]`, int32 or int64; repeated indices add up.
        dense_shape: shape of the whole tensor as an int vector; None when it is unknown.

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
        """Element type of the values."""
        return self.values.dtype

    @property
    def name(self) -> str:
        """Name of the values."""
        return self.values.name

    @property
    def op(self) -> Node:
        """The node that makes the values."""
        return self.values.op

    @property
    def graph(self) -> Graph:
        """The graph that it belongs to."""
        return self.values.graph

    @property
    def device(self) -> str:
        """What the node of the values asks for."""
        return self.values.device

    @property
    def shape(self) -> TensorShape:
        """Shape of the whole tensor, as far as it is known."""
        return TensorShape(None if self.dense_shape is None else static_dims(self.dense_shape))

    def get_shape(self) -> TensorShape:
        """Shape of the whole tensor (TF1's spelling)."""
        return self.shape

    def _as_tensor(self) -> Tensor:
        """The dense form, a new node each time.

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
        """The same rows with the opposite sign; other operators need the dense form."""
        return self._mapped(operators["neg"])

    # --- as a part of structures: see `graph.structure`, `runtime.fetches` ----------------------------------------------

    def _tensors(self) -> tuple[Tensor, ...]:
        parts = (self.values, self.indices)
        return parts if self.dense_shape is None else (*parts, self.dense_shape)

    _flow_parts = _tensors

    def _from_flow_parts(self, parts: Sequence[Tensor]) -> IndexedSlices:
        return IndexedSlices(*parts)

    def _flow_dims(self, shape: TensorShape | None) -> tuple[Any, ...]:
        """What holds of the parts in all iterations of a loop, where `shape` holds of the values: their own, if it is not told."""
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
    """What a session gives for `IndexedSlices`: arrays in place of its tensors.

    Attributes:
        values: the rows.
        indices: where each belongs.
        dense_shape: shape of the whole, or None.

    >>> session.run(dt.IndexedSlices([[1.0, 2.0]], [3])).indices
    array([3], dtype=int32)
    """

    values: Any
    indices: Any
    dense_shape: Any = None


def map_values(f: Callable[[Tensor], Tensor], x: Any) -> Any:
    """`f` of a tensor, or of the values of `IndexedSlices` or a `SparseTensor`, which keep their places."""
    mapped = getattr(x, "_mapped", None)
    return f(convert(x)) if mapped is None else mapped(f)
