"""How values of several replicas become one: which function, on which device."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.default_graph import get_default_graph
from ..graph.errors import UnimplementedError
from ..graph.indexed_slices import IndexedSlices
from ..graph.node import Tensor


class ReduceOp(enum.Enum):
    """How values are put together."""

    SUM = "SUM"
    """Their sum."""
    MEAN = "MEAN"
    """Their mean."""

    @classmethod
    def of(cls, op: Any) -> ReduceOp:
        """The member that is meant: itself, its name, or `VariableAggregation`'s word for it."""
        text = op if isinstance(op, str) else getattr(op, "name", op)
        try:
            return cls(str(text).upper())
        except ValueError:
            raise ValueError(f"Values are reduced by SUM or MEAN, not {op!r}") from None


class CrossDeviceOps:
    """How a strategy reduces values of several devices of one process."""

    def reduce(self, values: Sequence[Any], device: str, op: ReduceOp = ReduceOp.SUM) -> Any:
        """One value for `values`, one per replica, which are added in their order: tensors, or `IndexedSlices`."""
        raise NotImplementedError


class ReductionToOneDevice(CrossDeviceOps):
    """Bring all values to one device and reduce them there.

    Args:
        reduce_to_device: that device; None: where the result is wanted.
        accumulation_fn: function of a list of tensors that adds them; None: `add_n`.
    """

    def __init__(self, reduce_to_device: str | None = None, accumulation_fn: Any = None) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    def reduce(self, values: Sequence[Any], device: str, op: ReduceOp = ReduceOp.SUM) -> Any:
        """As `CrossDeviceOps.reduce`."""
        if len(values) == 1:
            return values[0]
        graph = get_default_graph()
        with graph.colocate_with(None, ignore_existing=True), graph.device(self.reduce_to_device or device):
            if any(isinstance(v, IndexedSlices) for v in values):
                return joined_slices(values, op, len(values))
            from ..graph.ops.arithmetic import add_n

            tensors = [convert(v) for v in values]
            total = (self.accumulation_fn or add_n)(tensors)
            return scaled(total, len(tensors)) if op is ReduceOp.MEAN else total


class HierarchicalCopyAllReduce(ReductionToOneDevice):
    """TensorFlow's reduction over two levels of GPUs. Here one level does: the result is copied from device to device."""

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self.num_packs = num_packs


class NcclAllReduce(CrossDeviceOps):
    """All-reduce by NCCL between the GPUs of a machine; not there yet.

    Raises:
        UnimplementedError: always.
    """

    def __init__(self, num_packs: int = 1) -> None:
        raise UnimplementedError(
            None, None,
            "Reducing with NCCL is not supported: leave cross_device_ops out, and the values are reduced on one device "
            "(ReductionToOneDevice)",
        )  # fmt: skip


def scaled(total: Tensor, count: int) -> Tensor:
    """A sum of `count` values, divided by it: rounded down for whole numbers."""
    from ..graph.ops.arithmetic import floordiv, multiply, truediv

    if not (total.dtype.is_floating or total.dtype.is_complex):
        return floordiv(total, count)
    if count & (count - 1) == 0:
        return multiply(total, convert(1.0 / count, total.dtype.base))  # exact
    return truediv(total, convert(float(count), total.dtype.base))


def joined_slices(values: Sequence[Any], op: ReduceOp, count: int) -> IndexedSlices:
    """The sum (or mean over `count`) of `IndexedSlices`: all their rows, one after another."""
    from ..graph.ops.joining import concat

    if not all(isinstance(v, IndexedSlices) for v in values):
        raise TypeError("Replicas gave IndexedSlices and tensors for one value; pass one kind from all of them")
    rows = concat([v.values for v in values], 0)
    if op is ReduceOp.MEAN:
        rows = scaled(rows, count)
    return IndexedSlices(rows, concat([v.indices for v in values], 0), values[0].dense_shape)


__all__ = ["CrossDeviceOps", "HierarchicalCopyAllReduce", "NcclAllReduce", "ReduceOp", "ReductionToOneDevice"]
