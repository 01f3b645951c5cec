"""Accumulators. One op creates an accumulator and returns its handle, and the others take the handle.

`ConditionalAccumulator` and `SparseConditionalAccumulator` are TensorFlow 1's classes, which add these nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.default_graph import get_default_graph
from ...core.dtypes import FLOATS, Array, DType, as_dtype, int32, int64, resource
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, choice_attr, define_on_host, typed_attr
from ...core.shape import Dims, as_dims, compatible, text
from ...resources.accumulator import Accumulator, AccumulatorKind, DenseAccumulator, SparseAccumulator
from ...resources.queue import Queue
from ...resources.resource_manager import Context
from ...tensors.indexed_slices import IndexedSlices
from ..math.cast import cast
from ..math.common import allowed
from ..math.static_operands import no_cost
from .queue_api import FIFOQueue
from .queues import as_resource, component_types, define_fact, need_handle, need_scalar

REDUCTIONS = ("MEAN", "SUM")
ACCUMULATOR, ADDITION = "ResourceConditionalAccumulator", "ResourceAccumulatorApplyGradient"
"""The op that creates a dense accumulator, and the op that adds a gradient to one."""


def _infer_accumulator(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _sum_type(attrs)
    typed_attr(attrs, "shared_name", str)
    choice_attr(attrs, "reduction_type", REDUCTIONS)
    return [(resource, ())]


def _sum_type(attrs: Attrs) -> tuple[DType, Dims]:
    """The checked element type and shape of the sum."""
    return allowed(typed_attr(attrs, "dtype", DType), FLOATS), as_dims(attrs.get("shape"))


_known_kind = cache(AccumulatorKind)  # one object for each kind: it is compared in each step


def _maker(kind_of: type[Accumulator], sparse: bool) -> Any:
    def reference(context: Context, *, dtype: DType, shape: Dims, reduction_type: str, shared_name: str) -> Any:
        name = shared_name or context.node_name
        kind = _known_kind(sparse, dtype, shape, reduction_type)
        found = context.resources.get_or_create(context.container, name, Accumulator, lambda: kind_of(name, kind))
        if found.kind is not kind:
            found.kind.check_same(kind, name)
        return found

    return reference


for _op, _kind, _sparse in (
    (ACCUMULATOR, DenseAccumulator, False),
    ("SparseConditionalAccumulator", SparseAccumulator, True),
):
    define_on_host(_op, _infer_accumulator, _maker(_kind, _sparse), cost=no_cost, traits=Trait.STATE_HANDLE)


def _infer_apply(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    handle, local_step, gradient = inputs
    need_handle(handle)
    need_scalar(local_step, (int64,), "local_step")
    dtype, dims = _sum_type(attrs)
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
    dtype, _ = _sum_type(attrs)
    allowed(indices.dtype.base, (int64,))
    allowed(shape.dtype.base, (int64,))
    allowed(values.dtype.base, (dtype,))
    return []


def _apply_sparse(
    context: Context, accumulator: Any, local_step: Array, indices: Array, values: Array, shape: Array
) -> tuple[()]:
    as_resource(accumulator, SparseAccumulator, context).apply(indices, values, shape, int(local_step))
    return ()


define_on_host(ADDITION, _infer_apply, _apply, internal_attrs=("dtype", "shape"))
define_on_host("SparseAccumulatorApplyGradient", _infer_apply_sparse, _apply_sparse, internal_attrs=("dtype", "shape"))


def _infer_take(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    need_scalar(inputs[1], (int32,), "num_required")
    return [_sum_type(attrs)]


def _infer_take_sparse(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    ((dtype, dims),) = _infer_take(inputs, attrs)
    rows = None if dims is None else (None, *dims[1:])
    return [(int64, (None,)), (dtype, rows), (int64, (None if dims is None else len(dims),))]


for _op, _infer, _kind in (
    ("ResourceAccumulatorTakeGradient", _infer_take, DenseAccumulator),
    ("SparseAccumulatorTakeGradient", _infer_take_sparse, SparseAccumulator),
):
    define_on_host(
        _op,
        _infer,
        lambda context, accumulator, count, kind=_kind: as_resource(accumulator, kind, context).take(int(count)),
        traits=Trait.BLOCKING,
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
    tokens, counter = as_resource(queue, Queue, context), as_resource(accumulator, DenseAccumulator, context)
    taken = tokens.dequeue()  # the request to dequeue must be in the queue before it is counted
    counter.apply(_one(counter.kind.dtype.np), int(local_step))
    return taken


@cache
def _one(dtype: np.dtype[Any]) -> Array:
    one = np.ones((), dtype)
    one.flags.writeable = False
    return one


define_on_host("QueueDequeueCounted", _infer_dequeue_counted, _dequeue_counted, cost=no_cost, traits=Trait.BLOCKING)


def _infer_set_step(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    need_scalar(inputs[1], (int64,), "new_global_step")
    return []


def _set_step(context: Context, accumulator: Any, step: Array) -> tuple[()]:
    as_resource(accumulator, Accumulator, context).set_global_step(int(step))
    return ()


define_on_host("ResourceAccumulatorSetGlobalStep", _infer_set_step, _set_step, cost=no_cost)
define_fact("ResourceAccumulatorNumAccumulated", Accumulator, int32, lambda accumulator: accumulator.counted())


# --- TensorFlow 1's classes -------------------------------------------------------------------------------------------


class ConditionalAccumulatorBase:
    """The common base of accumulators.

    Attributes:
        dtype: element type.
        name: of the node that makes it.
        accumulator_ref: its handle.
    """

    _op = ""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        self._dtype = as_dtype(dtype).base
        self._dims: Dims = as_dims(shape)
        attrs = {**self._attrs, "reduction_type": reduction_type, "shared_name": shared_name or ""}
        self._handle = get_default_graph().create(self._op, (), attrs, name).outputs[0]
        self._name = self._handle.op.name

    @property
    def _attrs(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "shape": self._dims}

    @property
    def accumulator_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """Name of the node that creates the accumulator."""
        return self._name

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """Scalar int32: the number of gradients since the last `take_grad`."""
        name = name or f"{self._name}_NumAccumulated"
        return apply("ResourceAccumulatorNumAccumulated", (self._handle,), None, name)

    def set_global_step(self, new_global_step: TensorLike, name: str | None = None) -> Node:
        """A node that sets the global step. Later gradients with a lower local step are dropped."""
        step = cast(convert(new_global_step), int64)
        return make("ResourceAccumulatorSetGlobalStep", (self._handle, step), None, name)

    def _take(self, op: str, num_required: TensorLike, name: str | None) -> Node:
        with self._handle.graph.op_scope(name or op) as scope:
            count = convert(num_required, int32, name="num_required")
        return make(op, (self._handle, count), self._attrs, scope)

    def __repr__(self) -> str:
        return f"<dt.{type(self).__name__} '{self._name}' {self._dtype.name}>"


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Adds up gradients of several steps until there are enough.

    Args:
        dtype: element type. shape: shape of the gradients. None means any. shared_name: accumulators with the same name, container and task
        are the same, also in different sessions. None means the node's name. name: name of the node. reduction_type: "MEAN" or "SUM".

    Raises:
        ValueError: the reduction is unknown.

    >>> accumulator = ConditionalAccumulator(float32, shape=[2])
    >>> add = accumulator.apply_grad([1.0, 2.0], local_step=global_step)
    >>> mean = accumulator.take_grad(4)
    """

    _op = ACCUMULATOR

    def apply_grad(self, grad: TensorLike, local_step: TensorLike = 0, name: str | None = None) -> Node:
        """A node that adds a gradient. It is dropped if `local_step` is below the global step.

        Raises:
            ValueError: the shape does not fit. InvalidArgumentError if only the step knows.
        """
        value = convert(grad, self._dtype)
        step = cast(convert(local_step), int64)
        return make(ADDITION, (self._handle, step, value), self._attrs, name)

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> Tensor:
        """The mean or sum of the gradients. It waits until there are `num_required`, and then increments the global step."""
        return self._take("ResourceAccumulatorTakeGradient", num_required, name).outputs[0]


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Adds up rows of gradients (`IndexedSlices`) by their index. Arguments as for `ConditionalAccumulator`.

    For the mean, each row is divided by the number of gradients that contain it.
    """

    _op = "SparseConditionalAccumulator"

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(dtype, shape, shared_name, name, reduction_type)

    def apply_grad(
        self,
        grad_indices: TensorLike,
        grad_values: TensorLike,
        grad_shape: Any = None,
        local_step: TensorLike = 0,
        name: str | None = None,
    ) -> Node:
        """A node that adds `grad_values[i]` to row `grad_indices[i]`. `grad_shape` is the dense shape, None if it is unknown."""
        indices = cast(convert(grad_indices), int64)
        values = convert(grad_values, self._dtype)
        shape = convert([], int64) if grad_shape is None else cast(convert(grad_shape), int64)
        step = cast(convert(local_step), int64)
        inputs = (self._handle, step, indices, values, shape)
        return make("SparseAccumulatorApplyGradient", inputs, self._attrs, name)

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: TensorLike = 0, name: str | None = None
    ) -> Node:
        """`apply_grad` for `IndexedSlices`."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(indices, values, shape) of the reduced rows, sorted by index. It waits until there are `num_required` gradients."""
        indices, values, shape = self._take("SparseAccumulatorTakeGradient", num_required, name).outputs
        return indices, values, shape

    def take_indexed_slices_grad(self, num_required: TensorLike, name: str | None = None) -> IndexedSlices:
        """`take_grad` as `IndexedSlices`."""
        indices, values, shape = self.take_grad(num_required, name)
        return IndexedSlices(values, indices, shape)


def dequeue_counted(queue: FIFOQueue, counter: ConditionalAccumulator, local_step: Tensor) -> Tensor:
    """The next element of a queue of scalars. An accumulator counts the dequeue.

    The node first puts its request into the queue and then adds 1 to the accumulator. So when a step has taken n from the accumulator,
    n dequeues are waiting or have been served.
    """
    inputs = queue.queue_ref, counter.accumulator_ref, cast(local_step, int64)
    return apply("QueueDequeueCounted", inputs, {"component_types": tuple(queue.dtypes)}, None)
