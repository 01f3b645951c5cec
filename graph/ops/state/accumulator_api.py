"""Accumulators in programs: `ConditionalAccumulator` and `SparseConditionalAccumulator`, TensorFlow 1's classes."""

from __future__ import annotations

from typing import Any

from ...core.build import TensorLike, apply, convert, make
from ...core.default_graph import get_default_graph
from ...core.dtypes import DType, as_dtype, int32, int64
from ...core.graph import Node, Tensor
from ...core.shape import Dims, as_dims
from ...tensors.indexed_slices import IndexedSlices
from ..math.cast import cast
from . import accumulators as _accumulators  # (defines the ops)
from .queue_api import FIFOQueue


class ConditionalAccumulatorBase:
    """What both kinds share.

    Attributes:
        dtype: element type. name: of the node that makes it. accumulator_ref: its handle.
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
        if reduction_type not in _accumulators.REDUCTIONS:
            raise ValueError(
                f"reduction_type must be one of {', '.join(_accumulators.REDUCTIONS)}, not {reduction_type!r}"
            )
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
        """Name of the node that makes it."""
        return self._name

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """Scalar int32: how many gradients have come since the last take."""
        name = name or f"{self._name}_NumAccumulated"
        return apply("ResourceAccumulatorNumAccumulated", (self._handle,), None, name)

    def set_global_step(self, new_global_step: TensorLike, name: str | None = None) -> Node:
        """A node that sets the global step: gradients with a lower local step are dropped from then on."""
        step = cast(convert(new_global_step), int64)
        return make("ResourceAccumulatorSetGlobalStep", (self._handle, step), None, name)

    def _take(self, op: str, num_required: TensorLike, name: str | None) -> Node:
        with self._handle.graph.op_scope(name or op) as scope:
            count = convert(num_required, int32, name="num_required")
        return make(op, (self._handle, count), self._attrs, scope)

    def __repr__(self) -> str:
        return f"<dt.{type(self).__name__} '{self._name}' {self._dtype.name}>"


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Sums gradients of many steps, until enough have come.

    Args:
        dtype: element type. shape: what gradients must have; None: any.
        shared_name: accumulators of one name, container and task are one, whichever session made them; None: the node's name.
        name: of the node. reduction_type: "MEAN" or "SUM".

    Raises:
        ValueError: an unknown reduction.

    >>> accumulator = ConditionalAccumulator(float32, shape=[2])
    >>> add = accumulator.apply_grad([1.0, 2.0], local_step=global_step)
    >>> mean = accumulator.take_grad(4)
    """

    _op = "ResourceConditionalAccumulator"

    def apply_grad(self, grad: TensorLike, local_step: TensorLike = 0, name: str | None = None) -> Node:
        """A node that adds a gradient. One with a `local_step` below the global step is dropped.

        Raises:
            ValueError: its shape cannot fit. When it runs: InvalidArgumentError: its shape does not.
        """
        value = convert(grad, self._dtype)
        step = cast(convert(local_step), int64)
        return make("ResourceAccumulatorApplyGradient", (self._handle, step, value), self._attrs, name)

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> Tensor:
        """The mean (or sum) of the gradients, once there are `num_required` of them. The global step advances by 1."""
        return self._take("ResourceAccumulatorTakeGradient", num_required, name).outputs[0]


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Sums rows of gradients (`IndexedSlices`) by their index. Arguments as of `ConditionalAccumulator`.

    For the mean, each row is divided by the number of gradients that had it.
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
        """A node that adds rows: `grad_values[i]` to row `grad_indices[i]`, of a whole of `grad_shape` (None: unknown)."""
        indices = cast(convert(grad_indices), int64)
        values = convert(grad_values, self._dtype)
        shape = convert([], int64) if grad_shape is None else cast(convert(grad_shape), int64)
        step = cast(convert(local_step), int64)
        inputs = (self._handle, step, indices, values, shape)
        return make("SparseAccumulatorApplyGradient", inputs, self._attrs, name)

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: TensorLike = 0, name: str | None = None
    ) -> Node:
        """`apply_grad` of an `IndexedSlices`."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def take_grad(self, num_required: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(indices, values, shape) of the reduced rows, by rising index, once `num_required` gradients have come."""
        indices, values, shape = self._take("SparseAccumulatorTakeGradient", num_required, name).outputs
        return indices, values, shape

    def take_indexed_slices_grad(self, num_required: TensorLike, name: str | None = None) -> IndexedSlices:
        """`take_grad` as an `IndexedSlices`."""
        indices, values, shape = self.take_grad(num_required, name)
        return IndexedSlices(values, indices, shape)


def dequeue_counted(queue: FIFOQueue, counter: ConditionalAccumulator, local_step: Tensor) -> Tensor:
    """The next element of a queue of scalars; the accumulator counts the dequeue.

    The dequeue enters the queue first and then gives the accumulator a 1. So a step that has waited for n of them knows that n dequeues
    wait, or have been served.
    """
    inputs = queue.queue_ref, counter.accumulator_ref, cast(local_step, int64)
    return apply("QueueDequeueCounted", inputs, {"component_types": tuple(queue.dtypes)}, None)
