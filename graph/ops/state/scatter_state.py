"""Updates of parts of a variable: rows (scatter ops), coordinates (`scatter_nd_update`), slices (`v[1:, 0].assign(x)`).

The `indices` of a scatter op, of any shape, select rows of the variable. `updates` has one row per index, so its shape is `indices.shape +
variable.shape[1:]`, or it is a scalar for all rows. The last dimension of the `indices` of a scatter_nd op holds coordinates. A coordinate
that is shorter than the variable's rank addresses a slice.

If an index occurs twice, both updates are applied in order. If an index is out of bounds, the step fails and the variable is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.dtypes import Array, resource
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, Trait, define, nbytes, size
from ...core.operators import assignments
from ...core.shape import Dims, compatible, text
from ...resources.resource_manager import Context
from ...resources.variable import VariableState, changing
from ...tensors.indexed_slices import IndexedSlices
from ..array.scatter import combine_at, updates_fit
from ..array.shapes import reshape, shape
from ..array.slicing import MASKS, checked_index, sliced_dims
from ..math.common import named
from ..math.static_operands import index_operand, need_index
from .variables import (
    as_ref_or_handle,
    define_change,
    expect_type,
    read_variable,
    type_and_dims,
    type_and_dims_of_handle,
)


def check_bounds(indices: Array, rows: int, node_name: str, what: str) -> None:
    """InvalidArgumentError if an index is not in [0, rows). The error names the first one."""
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        where = ", ".join(map(str, at))
        raise invalid(
            f"'{node_name}': indices[{where}] = {indices[at]} is not in [0, {rows}), the rows of {what}", node_name
        )


def row_count(value: Array, node_name: str, what: str) -> int:
    """The number of rows of a value. InvalidArgumentError for a scalar, which has none."""
    if value.ndim == 0:
        raise invalid(f"'{node_name}': {what} is a scalar; it has no rows to select", node_name)
    rows: int = value.shape[0]
    return rows


def _slices_dims(indices: Dims, variable: Dims) -> Dims:
    return None if indices is None or variable is None else indices + variable[1:]


def _check_scatter(inputs: Sequence[Tensor], attrs: Attrs) -> None:
    variable, indices, updates = inputs
    dtype, dims = type_and_dims(variable)
    need_index(indices, "indices")
    expect_type(updates, dtype, "updates")
    if dims == ():
        raise ValueError("the variable is a scalar; it has no rows to change")
    expected = _slices_dims(indices.dims, dims)
    if updates.dims != () and not compatible(updates.dims, expected):
        raise ValueError(
            f"updates must have shape indices.shape + variable.shape[1:] = {text(expected)}, not {text(updates.dims)}"
        )


def _set(rows: Array, at: Array, updates: Array) -> None:
    rows[at] = updates


# How each op updates the selected rows in place. `.at` applies all updates of an index that occurs several times.
_COMBINE: dict[str, Callable[[Array, Array, Array], None]] = {
    "Update": _set,
    "Add": np.add.at,
    "Sub": np.subtract.at,
    "Mul": np.multiply.at,
    "Div": np.divide.at,
    "Min": np.minimum.at,
    "Max": np.maximum.at,
}


def _scatter(
    combine: Callable[[Array, Array, Array], None],
    context: Context,
    state: VariableState,
    indices: Array,
    updates: Array,
) -> None:
    indices, updates = np.asarray(indices), np.asarray(updates)
    what = f"variable '{state.name}'"
    with changing([state], indices) as (value,):
        check_bounds(indices, row_count(value, context.node_name, what), context.node_name, what)
        expected = indices.shape + value.shape[1:]
        if updates.ndim and updates.shape != expected:
            raise invalid(
                f"'{context.node_name}': updates have shape {text(updates.shape)}; "
                f"indices.shape + variable.shape[1:] is {text(expected)}",
                context.node_name,
            )
        combine(value, indices, updates)


def _scatter_cost(node: Node) -> Cost:
    _, indices, updates = node.inputs
    return Cost(size(updates), 3 * nbytes(updates) + nbytes(indices))


for _name, _combine in _COMBINE.items():
    define_change(f"Scatter{_name}", _check_scatter, partial(_scatter, _combine), _scatter_cost)


def scatter(kind: str, ref: Any, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Tensor | Node:
    """Add `Scatter<kind>` for a reference variable and return its reference, or `ResourceScatter<kind>` and return the node."""
    variable = as_ref_or_handle(ref)
    dtype, _ = type_and_dims(variable)
    op = f"ResourceScatter{kind}" if variable.dtype is resource else f"Scatter{kind}"
    if not (isinstance(indices, Tensor) and isinstance(updates, Tensor)):
        with variable.graph.op_scope(name or op) as name:
            indices = index_operand(indices, "indices")
            updates = updates if isinstance(updates, Tensor) else convert(updates, dtype, name="updates")
    node = make(op, (variable, indices, updates), None, name)
    return node.outputs[0] if node.outputs else node


def _public(ref: Any, kind: str, indices: TensorLike, updates: TensorLike, name: str | None) -> Any:
    changed = scatter(kind, ref, indices, updates, name)
    if isinstance(changed, Tensor):
        return changed
    return ref._after(changed)  # the value of a resource variable after the update


def scatter_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Set rows: `ref[indices, ...] = updates`. If an index occurs twice, the last update is used.

    Args:
        ref: a variable.
        indices: row numbers, int32 or int64 of any shape.
        updates: the rows, of shape `indices.shape + ref.shape[1:]`, or a scalar.
        use_locking: accepted without effect. Updates are always atomic.
        name: name of the node.

    Returns:
        The reference of a reference variable, or the value of a resource variable after the update.

    Raises:
        InvalidArgumentError: in a step, an index is out of bounds. The variable is unchanged.

    >>> op = dt.scatter_update(v, [0, 2], [[1.0, 2.0], [3.0, 4.0]])
    """
    return _public(ref, "Update", indices, updates, name)


class UpdateFunction(Protocol):
    """A function that changes parts of a variable."""

    def __call__(
        self, ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
    ) -> Any: ...


def _function(called: str, kind: str, text: str) -> UpdateFunction:
    """The function of the ops `Scatter<kind>` and `ResourceScatter<kind>`."""

    def function(
        ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
    ) -> Any:
        return _public(ref, kind, indices, updates, name)

    return named(function, kind, called, f"{text} Arguments as for `{called.rpartition('_')[0]}_update`.")


scatter_add = _function(
    "scatter_add", "Add", "Add to rows: `ref[indices, ...] += updates`. All updates of an index are applied."
)
scatter_sub = _function("scatter_sub", "Sub", "Subtract from rows: `ref[indices, ...] -= updates`.")
scatter_mul = _function("scatter_mul", "Mul", "Multiply rows: `ref[indices, ...] *= updates`.")
scatter_div = _function("scatter_div", "Div", "Divide rows of a floating type: `ref[indices, ...] /= updates`.")
scatter_min = _function(
    "scatter_min", "Min", "The minimum of rows and updates: `ref[indices, ...] = min(ref[indices, ...], updates)`."
)
scatter_max = _function(
    "scatter_max", "Max", "The maximum of rows and updates: `ref[indices, ...] = max(ref[indices, ...], updates)`."
)


# --- gather -------------------------------------------------------------------------------------------------
def _infer_gather(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, indices = inputs
    dtype, dims = type_and_dims_of_handle(handle)
    need_index(indices, "indices")
    if dims == ():
        raise ValueError("the variable is a scalar; it has no rows to gather")
    return [(dtype, _slices_dims(indices.dims, dims))]


def _gather(context: Context, state: VariableState, indices: Array) -> Array:
    value, indices = state.read(), np.asarray(indices)
    what = f"variable '{state.name}'"
    check_bounds(indices, row_count(value, context.node_name, what), context.node_name, what)
    rows: Array = value[indices]
    return rows


def _gather_gradient(node: Node, grad: Tensor) -> Sequence[Any]:
    handle, indices = node.inputs
    _, dims = type_and_dims(handle)
    tail = (dims or ())[1:]
    if dims is None or None in tail:
        raise ValueError(
            f"The gradient of '{node.name}' needs to know the variable's shape beyond its first size; "
            f"it is {text(dims)}"
        )
    rows = shape(read_variable(handle)) if None in dims else convert(list(dims), name="dense_shape")
    values = reshape(grad, (-1, *[d for d in tail if d is not None]))
    return IndexedSlices(values, reshape(indices, (-1,)), rows), None


define(
    "ResourceGather",
    _infer_gather,
    _gather,
    gradient=_gather_gradient,
    cost=lambda node: Cost(0.0, 2 * nbytes(node.outputs[0]) + nbytes(node.inputs[1])),
    traits=Trait.STATEFUL | Trait.READS_ONLY,
)


def resource_gather(handle: Tensor, indices: TensorLike, name: str | None = None) -> Tensor:
    """Rows of a resource variable, of shape `indices.shape + variable.shape[1:]`. Only these rows are read."""
    if not isinstance(indices, Tensor):
        with handle.graph.op_scope(name or "ResourceGather") as name:
            indices = convert(indices, name="indices")
    return apply("ResourceGather", (handle, indices), None, name)


# --- scatter_nd ------------------------------------------------------------------------------------------------------


def _check_nd(inputs: Sequence[Tensor], attrs: Attrs) -> None:
    variable, indices, updates = inputs
    dtype, dims = type_and_dims(variable)
    expect_type(updates, dtype, "updates")
    updates_fit(dims, indices, updates)


def _scatter_nd(ufunc: np.ufunc | None, context: Context, state: VariableState, indices: Array, updates: Array) -> None:
    with changing([state]) as (value,):
        combine_at(value, indices, updates, ufunc)


for _name, _ufunc in {"Update": None, "Add": np.add, "Sub": np.subtract}.items():
    define_change(f"ScatterNd{_name}", _check_nd, partial(_scatter_nd, _ufunc), _scatter_cost)


def scatter_nd_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Set elements or slices of a variable.

    Args:
        ref: a variable.
        indices: coordinates, int32 or int64 `[..., k]`.
        updates: the elements or slices, of shape `indices.shape[:-1] + ref.shape[k:]`.
        use_locking: accepted without effect. Updates are always atomic.
        name: name of the node.

    Returns:
        The reference of a reference variable, or the value of a resource variable after the update.

    Raises:
        InvalidArgumentError: in a step, a coordinate is out of bounds. The variable is unchanged.

    >>> op = scatter_nd_update(v, [[0, 1], [2, 3]], [10.0, 20.0])   # v[0, 1] = 10, v[2, 3] = 20
    """
    return _public(ref, "NdUpdate", indices, updates, name)


scatter_nd_add = _function("scatter_nd_add", "NdAdd", "Add to elements or slices of a variable.")
scatter_nd_sub = _function("scatter_nd_sub", "NdSub", "Subtract from elements or slices of a variable.")


# --- slices -----------------------------------------------------------------------------------------------------------


def _check_slice(inputs: Sequence[Tensor], attrs: Attrs) -> None:
    variable, begin, end, strides, value = inputs
    dtype, dims = type_and_dims(variable)
    expect_type(value, dtype, "value")
    wanted = sliced_dims(dims, begin, end, strides, attrs)
    if not compatible(value.dims, wanted):
        raise ValueError(f"the slice has shape {text(wanted)}, the value {text(value.dims)}")


def _assign(
    context: Context, state: VariableState, begin: Array, end: Array, strides: Array, value: Array, **masks: int
) -> None:
    with changing([state]) as (held,):
        at = checked_index(held.shape, begin, end, strides, masks)
        wanted = np.shape(held[at])
        if wanted != value.shape:
            raise invalid(f"The slice of the variable has shape {text(wanted)}, the value {text(value.shape)}")
        held[at] = value[()]  # [()] turns an array of one string into the string, which an object array must hold


define_change("StridedSliceAssign", _check_slice, _assign, lambda node: Cost(0.0, 2 * nbytes(node.inputs[4])))


def _assignment(piece: Tensor) -> Callable[..., Tensor]:
    """The method `assign` of a slice `v[...]`. AttributeError if the tensor is not a slice of a variable."""
    variable = piece
    if piece.op.type == "StridedSlice":
        variable = piece.op.inputs[0]
        while variable.op.type in ("Enter", "Switch", "Identity", "ReadVariableOp") and not _is_ref_or_handle(variable):
            variable = variable.op.inputs[0]
    if variable is piece or not _is_ref_or_handle(variable):
        raise AttributeError(f"{piece!r} is not a slice of a variable, so it has no 'assign'")

    def assign(value: TensorLike, name: str | None = None) -> Tensor:
        """Set the slice to a value of the same shape. Returns the whole value of the variable afterwards."""
        node: Node = piece.op
        is_ref = variable.dtype.is_ref
        op = "StridedSliceAssign" if is_ref else "ResourceStridedSliceAssign"
        with variable.graph.op_scope(name or op) as scope:
            new = convert(value, type_and_dims(variable)[0], name="value")
            attrs = {mask: node.attrs[mask] for mask in MASKS if mask in node.attrs}
            change = make(op, (variable, *node.inputs[1:], new), attrs, scope)
        if is_ref:
            return change.outputs[0]
        with variable.graph.control_dependencies([change]):
            return read_variable(variable)

    return assign


def _is_ref_or_handle(tensor: Tensor) -> bool:
    return tensor.dtype.is_ref or tensor.dtype is resource


assignments[:] = [_assignment]
