"""Barrier ops: one makes a barrier and gives out its handle, the others take the handle.

`Barrier` below is TensorFlow's class; the rules are in barrier_state.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph.core.build import TensorLike, apply, convert, make
from ....graph.core.dtypes import Array, DType, as_dtype, int32, int64, resource, string
from ....graph.core.errors import invalid
from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import Attrs, Output, Trait, define, typed_attr
from ....graph.core.shape import Dims, as_dims, is_static, text
from ....graph.ops.math.static_operands import no_cost
from ....graph.ops.state.queues import (
    as_resource,
    component_shapes,
    component_types,
    define_fact,
    infer_close,
    need_handle,
    need_scalar,
)
from ....graph.resources.resource_manager import Context, frozen
from .barrier_state import Barrier as BarrierState


def _infer_barrier(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if component_shapes(attrs, len(component_types(attrs))) is None:
        raise ValueError("there must be one shape per component")
    typed_attr(attrs, "shared_name", str)
    return [(resource, ())]


def _barrier(
    context: Context, *, component_types: tuple[DType, ...], shapes: tuple[Dims, ...], shared_name: str
) -> BarrierState:
    name = shared_name or context.node_name
    found = context.resources.get_or_create(
        context.container, name, BarrierState, lambda: BarrierState(name, component_types, shapes)
    )
    if (found.dtypes, found.shapes) != (component_types, shapes):
        raise invalid(
            f"Shared barrier '{name}' has component types or shapes other than those requested", context.node_name
        )
    return found


def _infer_insert(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, keys, values = inputs
    need_handle(handle)
    typed_attr(attrs, "component_index", int)
    if keys.dtype.base is not string:
        raise TypeError(f"keys must be texts, not {keys.dtype.base.name}")
    if values.dims == ():
        raise ValueError("values need a first axis: one row per key")
    return []


def _insert(context: Context, barrier: Any, keys: Array, values: Array, *, component_index: int) -> tuple[()]:
    found: BarrierState = as_resource(barrier, BarrierState, context)
    if 0 <= component_index < len(found.dtypes) and found.dtypes[component_index].np != values.dtype:
        raise invalid(
            f"Component {component_index} of {found} holds {found.dtypes[component_index].name}, not {values.dtype}",
            context.node_name,
        )
    found.insert_many(component_index, keys.ravel().tolist(), frozen(values))
    return ()


def _infer_take(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    need_scalar(inputs[1], (int32,), "num_elements")
    dtypes = component_types(attrs)
    shapes = component_shapes(attrs, len(dtypes)) or (None,) * len(dtypes)
    typed_attr(attrs, "allow_small_batch", bool)
    columns = [(d, None if dims is None else (None, *dims)) for d, dims in zip(dtypes, shapes, strict=True)]
    return [(int64, (None,)), (string, (None,)), *columns]


def _take(
    context: Context, barrier: Any, count: Array, *, component_types: tuple[DType, ...], allow_small_batch: bool
) -> Any:
    found: BarrierState = as_resource(barrier, BarrierState, context)
    if found.dtypes != component_types:
        raise invalid(f"{found} holds components of other types", context.node_name)
    return found.take_many(int(count), allow_small_batch)


def _close(context: Context, barrier: Any, *, cancel_pending_enqueues: bool) -> tuple[()]:
    as_resource(barrier, BarrierState, context).close(cancel_pending_enqueues)
    return ()


for _name, _infer, _reference, _traits in (
    ("Barrier", _infer_barrier, _barrier, Trait.STATE_HANDLE),
    ("BarrierInsertMany", _infer_insert, _insert, Trait.NONE),
    ("BarrierTakeMany", _infer_take, _take, Trait.BLOCKING),
    ("BarrierClose", infer_close, _close, Trait.NONE),
):
    define(
        _name,
        _infer,
        _reference,
        cost=no_cost,
        traits=Trait.STATEFUL | _traits,
        device_types=("CPU",),
        internal_attrs=("shapes",) if _name == "BarrierTakeMany" else (),
    )
define_fact("BarrierReadySize", BarrierState, int32, lambda barrier: barrier.ready_size)
define_fact("BarrierIncompleteSize", BarrierState, int32, lambda barrier: barrier.incomplete_size)


class Barrier:
    """Puts elements together from components that come by key, in any order and from any step.

    Args:
        types: element type per component. shapes: complete shape per component; None: all are scalars.
        shared_name: barriers of one name, container and task are one; None: the node's name.
        name: of the node.

    >>> barrier = Barrier((float32, int32), shapes=((), ()))
    >>> put = barrier.insert_many(0, keys=["a", "b"], values=[1.0, 2.0])
    >>> indices, keys, values = barrier.take_many(2)
    """

    def __init__(self, types: Any, shapes: Any = None, shared_name: str | None = None, name: str = "barrier") -> None:
        self._types = tuple(as_dtype(t).base for t in (types if isinstance(types, (list, tuple)) else [types]))
        given = [()] * len(self._types) if shapes is None else list(shapes)
        self._shapes = tuple(as_dims(s) for s in given)
        if len(self._shapes) != len(self._types):
            raise ValueError(f"There must be one shape per component: {len(self._types)}, not {len(self._shapes)}")
        for dims in self._shapes:
            if not is_static(dims):
                raise ValueError(f"A barrier needs complete shapes, not {text(dims)}")
        attrs = {"component_types": self._types, "shapes": self._shapes, "shared_name": shared_name or ""}
        self._handle = apply("Barrier", (), attrs, name)
        self._name = self._handle.op.name

    @property
    def barrier_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """Name of the node that makes it."""
        return self._name

    def insert_many(self, component_index: int, keys: TensorLike, values: TensorLike, name: str | None = None) -> Node:
        """A node that adds component `component_index` of each key: `values[i]` for `keys[i]`."""
        if not 0 <= component_index < len(self._types):
            raise ValueError(f"component_index must be in [0, {len(self._types)}), not {component_index}")
        with self._handle.graph.op_scope(name or f"{self._name}_BarrierInsertMany") as scope:
            inputs = (
                self._handle,
                convert(keys, string, "keys"),
                convert(values, self._types[component_index], "values"),
            )
        return make("BarrierInsertMany", inputs, {"component_index": int(component_index)}, scope)

    def take_many(
        self, num_elements: TensorLike, allow_small_batch: bool = False, timeout: None = None, name: str | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(indices, keys, components) of `num_elements` whole elements, in the order in which their keys came first.

        Args:
            allow_small_batch: take the remaining elements when it is closed. timeout: only None; give `RunOptions(timeout_in_ms)`.
        """
        if timeout is not None:
            raise ValueError("timeout must be None: limit the step with RunOptions(timeout_in_ms=...)")
        attrs = {
            "component_types": self._types, "shapes": self._shapes, "allow_small_batch": bool(allow_small_batch),
        }  # fmt: skip
        with self._handle.graph.op_scope(name or f"{self._name}_BarrierTakeMany") as scope:
            count = convert(num_elements, int32, "num_elements")
        indices, keys, *values = make("BarrierTakeMany", (self._handle, count), attrs, scope).outputs
        return indices, keys, values

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Node:
        """A node that rejects new keys; with `cancel_pending_enqueues` it rejects all inserts and drops incomplete elements."""
        attrs = {"cancel_pending_enqueues": bool(cancel_pending_enqueues)}
        return make("BarrierClose", (self._handle,), attrs, name or f"{self._name}_BarrierClose")

    def ready_size(self, name: str | None = None) -> Tensor:
        """Scalar int32: how many elements are whole."""
        return apply("BarrierReadySize", (self._handle,), None, name or f"{self._name}_BarrierReadySize")

    def incomplete_size(self, name: str | None = None) -> Tensor:
        """Scalar int32: how many lack a component."""
        return apply("BarrierIncompleteSize", (self._handle,), None, name or f"{self._name}_BarrierIncompleteSize")

    def __repr__(self) -> str:
        return f"<dt.Barrier '{self._name}'>"
