"""Changes to some elements or slices of a variable, picked by coordinates: `scatter_nd_update` and its kin.

A coordinate, the last dimension of `indices`, may be shorter than the variable's rank; then it addresses a
slice. Where one occurs twice, both updates count, in order. One out of bounds is an error, and then nothing
has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import resource
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, Trait, define, nbytes, size
from ...resources.resource_manager import Context, VariableState, changing
from ..array.scatter import check_updates, combine_at, updates_fit
from ..math.static_operands import index_operand
from .variables import as_place, expect_type, place_of

Array = np.ndarray[Any, Any]


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    place, indices, updates = inputs
    dtype, dims = place_of(place)
    expect_type(updates, dtype, "updates")
    updates_fit(dims, indices, updates)
    return [(dtype.ref, dims)] if place.dtype.is_ref else []


def _scatter(ufunc: np.ufunc | None, is_ref: bool) -> Callable[..., Any]:
    def reference(context: Context, state: VariableState, indices: Array, updates: Array) -> Any:
        with changing([state]) as (value,):
            at = check_updates(value.shape, indices, updates)
            made = combine_at(value, at, updates, ufunc, int(np.prod(indices.shape[:-1])))
            if made is not value:
                value[...] = made
        return state if is_ref else ()

    return reference


def _cost(node: Node) -> Cost:
    _, indices, updates = node.inputs
    return Cost(float(size(updates)), 3 * nbytes(updates) + nbytes(indices))


for _name, _ufunc in {"Update": None, "Add": np.add, "Sub": np.subtract}.items():
    for _op, _is_ref in ((f"ScatterNd{_name}", True), (f"ResourceScatterNd{_name}", False)):
        define(
            _op,
            infer=_rule,
            reference=_scatter(_ufunc, _is_ref),
            cost=_cost,
            traits=Trait.STATEFUL,
            ref_inputs=(0,) if _is_ref else (),
        )


def _change(kind: str, ref: Any, indices: TensorLike, updates: TensorLike, name: str | None) -> Any:
    place = as_place(ref)
    dtype, _ = place_of(place)
    op = f"ResourceScatterNd{kind}" if place.dtype is resource else f"ScatterNd{kind}"
    with place.graph.op_scope(name or op) as scope:
        coordinates = index_operand(indices, "indices")
        new = updates if isinstance(updates, Tensor) else convert(updates, dtype, name="updates")
        node = make(op, (place, coordinates, new), None, scope)
    return node.outputs[0] if node.outputs else ref._after(node)


def scatter_nd_update(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = True, name: str | None = None
) -> Any:
    """Set elements or slices of a variable.

    Args:
        ref: a variable.
        indices: int32 or int64, shape `[..., k]`: coordinates.
        updates: shape `indices.shape[:-1] + ref.shape[k:]`.
        use_locking: accepted for TensorFlow 1's sake: changes are always atomic.

    Returns:
        What `dt.assign` returns: something that stands for the variable after the change.

    Raises:
        InvalidArgumentError: when run, a coordinate outside the variable; nothing has changed then.

    >>> op = scatter_nd_update(v, [[0, 1], [2, 3]], [10.0, 20.0])   # v[0, 1] = 10, v[2, 3] = 20
    """
    return _change("Update", ref, indices, updates, name)


def scatter_nd_add(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Add to elements or slices of a variable; see `scatter_nd_update`."""
    return _change("Add", ref, indices, updates, name)


def scatter_nd_sub(
    ref: Any, indices: TensorLike, updates: TensorLike, use_locking: bool = False, name: str | None = None
) -> Any:
    """Subtract from elements or slices of a variable; see `scatter_nd_update`."""
    return _change("Sub", ref, indices, updates, name)
