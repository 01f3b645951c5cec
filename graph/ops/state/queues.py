"""Queue ops. One op creates a queue and returns its handle, and the others take the handle.

Ops that may wait have the trait BLOCKING: their kernel returns a `Request` if it has to wait (`graph/resources/async_request.py`).
A queue is on a CPU, and the placer puts ops that take its handle on the same device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ...core.constant_value import static_value
from ...core.dtypes import Array, DType, bool_, int32, int64, resource
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define_on_host, tuple_attr, typed_attr
from ...core.shape import Dims, as_dims
from ...resources.queue import Queue, QueueKind
from ...resources.resource_manager import Context, frozen
from ..math.static_operands import no_cost

KINDS = ("FIFOQueueV2", "RandomShuffleQueueV2", "PaddingFIFOQueueV2", "PriorityQueueV2")


# --- rules ------------------------------------------------------------------------------------------------------------


def component_types(attrs: Attrs) -> tuple[DType, ...]:
    """The checked attribute `component_types`."""
    dtypes = tuple_attr(attrs, "component_types", DType)
    if not dtypes:
        raise TypeError("attribute component_types must hold at least one element type")
    if any(d.is_ref or d is resource for d in dtypes):
        raise TypeError("components are values: references and handles cannot be kept")
    return dtypes


def component_shapes(attrs: Attrs, count: int) -> tuple[Dims, ...] | None:
    """The checked attribute `shapes`: a shape per component, or None."""
    shapes = attrs.get("shapes")
    if shapes is None:
        return None
    if not isinstance(shapes, tuple) or len(shapes) != count:
        raise ValueError(f"there must be one shape per component: {count}, not {shapes!r}")
    return tuple([as_dims(s) for s in shapes])


def need_handle(tensor: Tensor) -> None:
    """TypeError unless the tensor is a handle."""
    if tensor.dtype is not resource:
        raise TypeError(f"input 0 must be a handle, not a value of type {tensor.dtype.name}")


def need_scalar(tensor: Tensor, dtypes: tuple[DType, ...], what: str) -> None:
    """TypeError or ValueError unless the tensor is a scalar of one of the types."""
    if tensor.dtype.base not in dtypes:
        raise TypeError(f"{what} must be {' or '.join(d.name for d in dtypes)}, not {tensor.dtype.base.name}")
    if tensor.dims not in (None, ()):
        raise ValueError(f"{what} must be a scalar, not of shape {tensor.shape}")


def as_resource(found: Any, kind: type[Any], context: Context) -> Any:
    """The resource of a handle. InvalidArgumentError if it is of another class."""
    if not isinstance(found, kind):
        raise invalid(
            f"'{context.node_name}' takes the handle of a {kind.__name__}, not of a {type(found).__name__}",
            context.node_name,
        )
    return found


# --- creation ---------------------------------------------------------------------------------------------------------


def _infer_queue(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    dtypes = component_types(attrs)
    component_shapes(attrs, len(dtypes))
    typed_attr(attrs, "capacity", int)
    typed_attr(attrs, "shared_name", str)
    for name in ("min_after_dequeue", "seed", "seed2"):
        if name in attrs:
            typed_attr(attrs, name, int)
    return [(resource, ())]


_known_kind = cache(QueueKind)  # one object for each kind: it is compared in each step


def _maker(op: str) -> Any:
    def reference(
        context: Context,
        *,
        component_types: tuple[DType, ...],
        shapes: tuple[Dims, ...] | None,
        capacity: int,
        shared_name: str,
        min_after_dequeue: int = 0,
        seed: int = 0,
        seed2: int = 0,
    ) -> Queue:
        name = shared_name or context.node_name
        kind = _known_kind(op, capacity, component_types, shapes, min_after_dequeue, (seed, seed2))
        queue = context.resources.get_or_create(context.container, name, Queue, lambda: Queue(name, kind))
        if queue.kind is not kind:
            queue.kind.check_same(kind, name)
        return queue

    return reference


for _op in KINDS:
    define_on_host(_op, _infer_queue, _maker(_op), cost=no_cost, traits=Trait.STATE_HANDLE)


def _infer_select(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    index, *handles = inputs
    need_scalar(index, (int32, int64), "the index")
    if not handles:
        raise ValueError("there must be at least one queue to select from")
    for t in handles:
        need_handle(t)
    return [(resource, ())]


def _select(context: Context, index: Array, *queues: Any) -> Any:
    if not 0 <= int(index) < len(queues):
        raise invalid(
            f"index {int(index)} is not in [0, {len(queues)}), the indices of the queues",
            context.node_name,
        )
    return queues[int(index)]


define_on_host("SelectHandle", _infer_select, _select, cost=no_cost)


# --- enqueue, dequeue, close ------------------------------------------------------------------------------------------


def _infer_enqueue(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    if len(inputs) < 2:
        raise ValueError("there are no components to enqueue")
    return []


def _infer_enqueue_many(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _infer_enqueue(inputs, attrs)
    for t in inputs[1:]:
        if t.dims == ():
            raise ValueError("components need a first axis for the elements")
    counts = {t.dims[0] for t in inputs[1:] if t.dims} - {None}
    if len(counts) > 1:
        raise ValueError(f"all components must have the same number of elements, not {sorted(filter(None, counts))}")
    return []


def _enqueue(context: Context, queue: Any, *components: Array) -> Any:
    return as_resource(queue, Queue, context).enqueue([[frozen(c) for c in components]])


def _enqueue_many(context: Context, queue: Any, *components: Array) -> Any:
    sizes = {len(c) for c in components}
    if len(sizes) != 1:
        raise invalid(f"All components must have the same number of elements, not {sorted(sizes)}", context.node_name)
    kept = [frozen(c) for c in components]
    return as_resource(queue, Queue, context).enqueue([[c[i, ...] for c in kept] for i in range(sizes.pop())])


def _infer_dequeue(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    dtypes = component_types(attrs)
    shapes = component_shapes(attrs, len(dtypes)) or (None,) * len(dtypes)
    return list(zip(dtypes, shapes, strict=True))


def _infer_dequeue_many(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_scalar(inputs[1], (int32,), "the number of elements")
    count = static_value(inputs[1])
    first = int(count) if count is not None and count >= 0 else None
    return [(d, None if dims is None else (first, *dims)) for d, dims in _infer_dequeue(inputs[:1], attrs)]


def _infer_dequeue_up_to(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_scalar(inputs[1], (int32,), "the number of elements")
    return [(d, None if dims is None else (None, *dims)) for d, dims in _infer_dequeue(inputs[:1], attrs)]


def _checked(context: Context, queue: Any, component_types: tuple[DType, ...]) -> Queue:
    found: Queue = as_resource(queue, Queue, context)
    if found.kind.dtypes != component_types:
        raise invalid(
            f"{found} holds elements of types [{', '.join(d.name for d in found.kind.dtypes)}], "
            f"not [{', '.join(d.name for d in component_types)}]",
            context.node_name,
        )
    return found


def _dequeue(context: Context, queue: Any, *, component_types: tuple[DType, ...]) -> Any:
    return _checked(context, queue, component_types).dequeue()


def _dequeue_many(
    fewer: bool, context: Context, queue: Any, count: Array, *, component_types: tuple[DType, ...]
) -> Any:
    return _checked(context, queue, component_types).dequeue_many(int(count), fewer=fewer)


def infer_close(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The rule of an op that closes a resource. It has no outputs."""
    need_handle(inputs[0])
    typed_attr(attrs, "cancel_pending_enqueues", bool)
    return []


def _close(context: Context, queue: Any, *, cancel_pending_enqueues: bool) -> Any:
    return as_resource(queue, Queue, context).close(cancel_pending_enqueues)


for _name, _infer, _reference in (
    ("QueueEnqueueV2", _infer_enqueue, _enqueue),
    ("QueueEnqueueManyV2", _infer_enqueue_many, _enqueue_many),
    ("QueueDequeueV2", _infer_dequeue, _dequeue),
    ("QueueDequeueManyV2", _infer_dequeue_many, partial(_dequeue_many, False)),
    ("QueueDequeueUpToV2", _infer_dequeue_up_to, partial(_dequeue_many, True)),
    ("QueueCloseV2", infer_close, _close),
):
    define_on_host(_name, _infer, _reference, traits=Trait.BLOCKING, internal_attrs=("shapes",))


def define_fact(
    name: str, kind: type[Any], dtype: DType, fact: Callable[[Any], Any], traits: Trait = Trait.NONE
) -> None:
    """Define an op that takes the handle of a resource and returns a scalar property of it, such as its size."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        need_handle(inputs[0])
        return [(dtype, ())]

    def reference(context: Context, handle: Any) -> Array:
        return np.asarray(fact(as_resource(handle, kind, context)), dtype.np)

    define_on_host(name, infer, reference, traits, cost=no_cost)


define_fact("QueueSizeV2", Queue, int32, len)
define_fact("QueueIsClosedV2", Queue, bool_, lambda queue: queue.is_closed)
