"""Reduction of the replicas' values: which function, on which device."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from ..graph.core.build import convert
from ..graph.core.default_graph import get_default_graph
from ..graph.core.dtypes import DType
from ..graph.core.graph import Tensor
from ..graph.core.opdef import nbytes
from ..graph.ops.array.concat_stack import concat
from ..graph.ops.array.identity_and_placeholders import identity
from ..graph.ops.math.arithmetic import add_n, floordiv, multiply, truediv
from ..graph.ops.state import collectives
from ..graph.ops.state.collectives import are_gpus
from ..graph.tensors.indexed_slices import IndexedSlices
from .values import DistributedValues, DistributedVariable, PerReplica

BUCKET_BYTES = 4 << 20  # gradients travel together up to here: large enough for the ring, small enough to begin early
_MADE = "__replica_collectives"  # the collection in which those of a graph are counted


class ReduceOp(enum.Enum):
    """How `strategy.reduce` combines the values of all replicas."""

    SUM = "SUM"
    """Their sum."""
    MEAN = "MEAN"
    """Their mean."""

    @classmethod
    def of(cls, op: Any) -> ReduceOp:
        """Convert a member, its name, or the equivalent `VariableAggregation`."""
        text = op if isinstance(op, str) else getattr(op, "name", op)
        try:
            return cls(str(text).upper())
        except ValueError:
            raise ValueError(f"Values are reduced by SUM or MEAN, not {op!r}") from None


class CrossDeviceOps:
    """Base of the ways in which a strategy reduces values of several devices. Subclasses override `to_one`."""

    def reduce(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None) -> Any:
        """Reduce `per_replica_value` over its replicas. The result is on the device of `destinations`: a variable, a tensor, or a device.

        If there are several devices, as for mirrored variables, the result is a `PerReplica` with a value on each device.
        """
        values = per_replica_value.values if isinstance(per_replica_value, DistributedValues) else (per_replica_value,)
        return on_each(self.to_one(values, device_of(destinations) or "", ReduceOp.of(reduce_op)), destinations)

    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any = None
    ) -> list[Any]:
        """Like `reduce`, for several pairs of value and destination."""
        return [self.reduce(reduce_op, value, destination) for value, destination in value_destination_pairs]

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """The value itself, which can be used on every device: it is sent where it is used."""
        return tensor

    # --- for strategies ---------------------------------------------------------------------------------------------

    def to_one(self, values: Sequence[Any], device: str, op: ReduceOp) -> Any:
        """Reduce `values`, one per replica, to one value on a device. They are tensors or `IndexedSlices`."""
        raise NotImplementedError

    def to_all(
        self, rows: Sequence[Sequence[Any]], places: Sequence[str], devices: Sequence[str], op: ReduceOp
    ) -> list[Any]:
        """For each row, values of replicas on `devices`: their reduced value for all, one on its device, or a `PerReplica`."""
        out = []
        for values, place in zip(rows, places, strict=True):
            with get_default_graph().name_scope("reduce"):
                out.append(self.to_one(values, place, op))
        return out


class ReductionToOneDevice(CrossDeviceOps):
    """Sends all values to one device, and reduces them there in order of replicas.

    Args:
        reduce_to_device: the device; None: the destination of the result.
        accumulation_fn: function that adds a list of tensors; None: `add_n`.
    """

    def __init__(self, reduce_to_device: str | None = None, accumulation_fn: Any = None) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn

    def to_one(self, values: Sequence[Any], device: str, op: ReduceOp) -> Any:
        """As `CrossDeviceOps.to_one`."""
        if len(values) == 1:
            return values[0]
        graph = get_default_graph()
        with graph.colocate_with(None, ignore_existing=True), graph.device(self.reduce_to_device or device):
            if any(isinstance(v, IndexedSlices) for v in values):
                return joined_slices(values, op, len(values))

            tensors = [convert(v) for v in values]
            total = (self.accumulation_fn or add_n)(tensors)
            return scaled(total, len(tensors)) if op is ReduceOp.MEAN else total


class HierarchicalCopyAllReduce(ReductionToOneDevice):
    """TensorFlow's reduction over two levels of GPUs. Here it uses one level: reduce on one device, and copy the result to the others.

    Raises:
        ValueError: `num_packs` is negative. Otherwise it has no effect.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self.num_packs = _packs(num_packs)


class NcclAllReduce(ReductionToOneDevice):
    """All-reduce with NCCL between the GPUs of the replicas.

    There is one collective for each bucket of gradients. It starts as soon as the bucket's gradients are computed, during the backward
    pass, and each GPU applies the result to its copies. GPUs without NCCL reduce through host memory.

    Values with a single destination, `IndexedSlices`, and values of replicas that do not have a GPU each, are reduced as in
    `ReductionToOneDevice`.

    Args:
        num_packs: accepted without effect; values are reduced in buckets of 4 MiB.

    Raises:
        ValueError: `num_packs` is negative.

    >>> strategy = MirroredStrategy(["/gpu:0", "/gpu:1"], cross_device_ops=dt.distribute.NcclAllReduce())
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self.num_packs = _packs(num_packs)

    def to_all(
        self, rows: Sequence[Sequence[Any]], places: Sequence[str], devices: Sequence[str], op: ReduceOp
    ) -> list[Any]:
        """As `CrossDeviceOps.to_all`."""
        if len(devices) == 1 or not are_gpus(devices):
            return super().to_all(rows, places, devices, op)
        dense, columns = parted(rows, len(devices))
        made = get_default_graph().get_collection_ref(_MADE)
        with get_default_graph().name_scope("reduce"):
            found = dict(zip(dense, all_reduced(columns, devices, devices, 0, "auto", made, op), strict=True))
            return [
                PerReplica(found[i]) if i in found else self.to_one(rows[i], places[i], op) for i in range(len(rows))
            ]


def all_reduced(
    columns: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    members: Sequence[str],
    first: int,
    way: str,
    made: list[Any],
    op: ReduceOp,
) -> list[Sequence[Tensor]]:
    """The sums, or means, over all members of what replicas on `devices` bring, each replica's own: for each row, one per replica.

    Args:
        columns: the tensors of each replica, in the same order.
        members: devices of all replicas; those here have the ranks from `first` on. way: how they reduce.
        made: what counts the collectives of the graph, alike in all processes.
    """
    graph = get_default_graph()
    out: list[dict[int, Tensor]] = [{} for _ in devices]
    places: dict[Tensor, list[int]] = {}
    for p, t in enumerate(columns[0]):
        places.setdefault(t, []).append(p)
    for bucket in buckets(columns[0]):
        reduction = reduction_of(op, bucket[0].dtype, members)
        made.append(devices[0])
        chosen = [places[t].pop() for t in bucket]
        for rank, device in enumerate(devices):
            tensors = [columns[rank][p] for p in chosen]
            with graph.colocate_with(None, ignore_existing=True), graph.device(device):
                found = collectives.all_reduce(tensors, members, first + rank, reduction, way, f"replicas {len(made)}")
                if op is ReduceOp.MEAN and reduction == "sum":
                    found = [scaled(total, len(members)) for total in found]
            out[rank].update(zip(chosen, found, strict=True))
    return [tuple(found[p] for found in out) for p in range(len(columns[0]))]


def reduction_of(op: ReduceOp, dtype: DType, members: Sequence[str]) -> str:
    """How a collective reduces: it gives means itself, which costs less than dividing afterwards, but of whole numbers and on GPUs.

    There the sums are divided by a kernel, which does something else with them besides.
    """
    is_mean = op is ReduceOp.MEAN and (dtype.is_floating or dtype.is_complex) and not are_gpus(members)
    return "mean" if is_mean else "sum"


def parted(rows: Sequence[Sequence[Any]], count: int) -> tuple[list[int], list[list[Tensor]]]:
    """The rows that have a tensor from each of `count` replicas, and for each replica its tensors of those rows."""
    dense = [
        i for i, row in enumerate(rows) if len(row) == count and not any(isinstance(v, IndexedSlices) for v in row)
    ]
    return dense, [[convert(rows[i][rank]) for i in dense] for rank in range(count)]


def buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors in groups of one type and at most `BUCKET_BYTES`, the last first: that gradient is known first."""
    out: list[list[Tensor]] = []
    open_: dict[Any, tuple[list[Tensor], float]] = {}
    for t in reversed(tensors):
        kind = t.dtype.base
        bucket, size = open_.get(kind, ([], 0.0))
        if not bucket or size + nbytes(t) > BUCKET_BYTES:
            bucket, size = [], 0.0
            out.append(bucket)
        bucket.append(t)
        open_[kind] = bucket, size + nbytes(t)
    return out


def device_of(destination: Any) -> str | None:
    """The device of a variable, a tensor, or a device; None: of no device."""
    if destination is None or isinstance(destination, str):
        return destination
    first = destination.values[0] if isinstance(destination, (DistributedValues, DistributedVariable)) else destination
    return getattr(first, "device", None) or None


def on_each(value: Any, destinations: Any) -> Any:
    """A value as it is for one destination; a `PerReplica` with the value on each device where destinations are several."""
    places = destinations.values if isinstance(destinations, (DistributedValues, DistributedVariable)) else ()
    if len(places) < 2:
        return value
    graph, out = get_default_graph(), []
    for place in places:
        with graph.colocate_with(None, ignore_existing=True), graph.device(device_of(place)):
            out.append(identity(value))
    return PerReplica(out)


def _packs(num_packs: int) -> int:
    if num_packs < 0:
        raise ValueError(f"num_packs must not be negative, not {num_packs}")
    return num_packs


def scaled(total: Tensor, count: int) -> Tensor:
    """A sum of `count` values, divided by it: rounded down for whole numbers."""
    if not (total.dtype.is_floating or total.dtype.is_complex):
        return floordiv(total, count)
    if count & (count - 1) == 0:
        return multiply(total, convert(1.0 / count, total.dtype.base))  # exact
    return truediv(total, convert(float(count), total.dtype.base))


def joined_slices(values: Sequence[Any], op: ReduceOp, count: int) -> IndexedSlices:
    """The sum (or mean over `count`) of `IndexedSlices`: all their rows, one after another."""
    if not all(isinstance(v, IndexedSlices) for v in values):
        raise TypeError("Replicas gave IndexedSlices and tensors for one value; pass one kind from all of them")
    rows = concat([v.values for v in values], 0)
    if op is ReduceOp.MEAN:
        rows = scaled(rows, count)
    return IndexedSlices(rows, concat([v.indices for v in values], 0), values[0].dense_shape)
