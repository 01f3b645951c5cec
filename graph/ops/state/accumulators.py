"""Accumulator ops: one makes an accumulator and gives out its handle, the others take the handle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...core.dtypes import FLOATS, Array, DType, int32, int64, resource
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, Trait, define, define_on_host, typed_attr
from ...core.shape import Dims, as_dims, compatible, text
from ...resources.accumulator import Accumulator, AccumulatorKind, DenseAccumulator, SparseAccumulator
from ...resources.queue import Queue
from ...resources.resource_manager import Context
from ..math.common import allowed
from .queues import as_resource, component_types, define_fact, free, need_handle, need_scalar

REDUCTIONS = ("MEAN", "SUM")
ACCUMULATOR, ADDITION = "ResourceConditionalAccumulator", "ResourceAccumulatorApplyGradient"
"""What makes a dense accumulator, and what adds to one."""


def _infer_accumulator(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _holds(attrs)
    typed_attr(attrs, "shared_name", str)
    if attrs.get("reduction_type") not in REDUCTIONS:
        raise ValueError(f"reduction_type must be one of {', '.join(REDUCTIONS)}, not {attrs.get('reduction_type')!r}")
    return [(resource, ())]


def _holds(attrs: Attrs) -> tuple[DType, Dims]:
    dtype = attrs.get("dtype")
    if not isinstance(dtype, DType):
        raise TypeError(f"attribute dtype must be an element type, not {dtype!r}")
    return allowed(dtype, FLOATS), as_dims(attrs.get("shape"))


def _maker(kind_of: type[Accumulator], sparse: bool) -> Any:
    def reference(context: Context, *, dtype: DType, shape: Dims, reduction_type: str, shared_name: str) -> Any:
        name = shared_name or context.node_name
        kind = AccumulatorKind(sparse, dtype, shape, reduction_type)
        found = context.resources.get_or_create(context.container, name, Accumulator, lambda: kind_of(name, kind))
        if found.kind is not kind:
            found.kind.check_same(kind, name)
        return found

    return reference


for _op, _kind, _sparse in (
    (ACCUMULATOR, DenseAccumulator, False),
    ("SparseConditionalAccumulator", SparseAccumulator, True),
):
    define(
        _op,
        infer=_infer_accumulator,
        reference=_maker(_kind, _sparse),
        cost=free,
        traits=Trait.STATEFUL | Trait.STATE_HANDLE,
        device_types=("CPU",),
    )


def _infer_apply(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, local_step, gradient = inputs
    need_handle(handle)
    need_scalar(local_step, (int64,), "local_step")
    dtype, dims = _holds(attrs)
    allowed(gradient.dtype.base, (dtype,))
    if not compatible(gradient.dims, dims):
        raise ValueError(
            f"the accumulator has shape {text(dims)}, the gradient {text(gradient.dims)}: they must be equal"
        )
    return []


def _apply(context: Context, accumulator: Any, local_step: Array, gradient: Array) -> tuple[()]:
    as_resource(accumulator, DenseAccumulator, context).apply(gradient, int(local_step))
    return ()


def _infer_apply_sparse(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, local_step, indices, values, shape = inputs
    need_handle(handle)
    need_scalar(local_step, (int64,), "local_step")
    dtype, _ = _holds(attrs)
    allowed(indices.dtype.base, (int64,))
    allowed(shape.dtype.base, (int64,))
    allowed(values.dtype.base, (dtype,))
    return []


def _apply_sparse(
    context: Context, accumulator: Any, local_step: Array, indices: Array, values: Array, shape: Array
) -> tuple[()]:
    as_resource(accumulator, SparseAccumulator, context).apply(indices, values, shape, int(local_step))
    return ()


define_on_host(ADDITION, infer=_infer_apply, reference=_apply, internal_attrs=("dtype", "shape"))
define_on_host(
    "SparseAccumulatorApplyGradient",
    infer=_infer_apply_sparse,
    reference=_apply_sparse,
    internal_attrs=("dtype", "shape"),
)


def _infer_take(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    need_scalar(inputs[1], (int32,), "num_required")
    return [_holds(attrs)]


def _infer_take_sparse(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    ((dtype, dims),) = _infer_take(inputs, attrs)
    rows = None if dims is None else (None, *dims[1:])
    return [(int64, (None,)), (dtype, rows), (int64, (None if dims is None else len(dims),))]


for _op, _infer, _kind in (
    ("ResourceAccumulatorTakeGradient", _infer_take, DenseAccumulator),
    ("SparseAccumulatorTakeGradient", _infer_take_sparse, SparseAccumulator),
):
    define(
        _op,
        infer=_infer,
        reference=lambda context, accumulator, count, kind=_kind: as_resource(accumulator, kind, context).take(
            int(count)
        ),
        traits=Trait.STATEFUL | Trait.BLOCKING,
        device_types=("CPU",),
        internal_attrs=("dtype", "shape"),
    )


def _infer_dequeue_counted(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    queue, accumulator, local_step = inputs
    need_handle(queue)
    if accumulator.dtype is not resource:
        raise TypeError(f"input 1 must be a handle, not a value of type {accumulator.dtype.name}")
    need_scalar(local_step, (int64,), "local_step")
    (dtype,) = component_types(attrs)
    return [(dtype, ())]


def _dequeue_counted(
    context: Context, queue: Any, accumulator: Any, local_step: Array, *, component_types: tuple[DType, ...]
) -> Any:
    line, counter = as_resource(queue, Queue, context), as_resource(accumulator, DenseAccumulator, context)
    taken = line.dequeue()  # enqueue the dequeue request first
    counter.apply(_one(counter.kind.dtype.np), int(local_step))
    return taken


@cache
def _one(dtype: np.dtype[Any]) -> Array:
    one = np.ones((), dtype)
    one.flags.writeable = False
    return one


define(
    "QueueDequeueCounted",
    infer=_infer_dequeue_counted,
    reference=_dequeue_counted,
    cost=free,
    traits=Trait.STATEFUL | Trait.BLOCKING,
    device_types=("CPU",),
)


def _infer_set_step(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    need_scalar(inputs[1], (int64,), "new_global_step")
    return []


def _set_step(context: Context, accumulator: Any, step: Array) -> tuple[()]:
    as_resource(accumulator, Accumulator, context).set_global_step(int(step))
    return ()


define_on_host("ResourceAccumulatorSetGlobalStep", infer=_infer_set_step, reference=_set_step, cost=free)
define_fact("ResourceAccumulatorNumAccumulated", Accumulator, int32, lambda accumulator: accumulator.counted())
