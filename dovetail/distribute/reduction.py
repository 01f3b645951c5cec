"""Reduction of the replicas' values: the algorithms, and the devices of the results."""

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

# Maximum size of a bucket of gradients. It is large enough for a ring, and small enough to start early in the backward pass.
BUCKET_BYTES = 4 << 20
# The collection that counts the collectives between replicas of a graph.
_REPLICA_COLLECTIVES = "__replica_collectives"


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
    """Base of the algorithms by which a strategy reduces values of several devices. Subclasses override `to_one`."""

    def reduce(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any = None) -> Any:
        """Reduce a value over its replicas.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, or its name.
            per_replica_value: a `PerReplica`, or one value.
            destinations: a variable, a tensor or a device, whose device receives the result. If there are several devices, as for mirrored
                variables, the result is a `PerReplica` with a value on each device.
            options: accepted without effect.
        """
        values = per_replica_value.values if isinstance(per_replica_value, DistributedValues) else (per_replica_value,)
        return copy_to_each(self.to_one(values, device_of(destinations) or "", ReduceOp.of(reduce_op)), destinations)

    def batch_reduce(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any = None
    ) -> list[Any]:
        """Like `reduce`, for several pairs of value and destination."""
        return [self.reduce(reduce_op, value, destination) for value, destination in value_destination_pairs]

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Returns the value itself: it is sent to each device that uses it."""
        return tensor

    # --- for strategies ---------------------------------------------------------------------------------------------

    def to_one(self, values: Sequence[Any], device: str, op: ReduceOp) -> Any:
        """Reduce `values`, one per replica, to one value on a device. They are tensors or `IndexedSlices`."""
        raise NotImplementedError

    def to_all(
        self, rows: Sequence[Sequence[Any]], places: Sequence[str], devices: Sequence[str], op: ReduceOp
    ) -> list[Any]:
        """Reduces several rows of values, for all replicas.

        Args:
            rows: rows of values, one value per replica.
            places: the destination device of each row.
            devices: the replicas' devices.
            op: the reduction.

        Returns:
            For each row, one value on its destination device, or a `PerReplica`.
        """
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
        """Implements `CrossDeviceOps.to_one`."""
        if len(values) == 1:
            return values[0]
        graph = get_default_graph()
        with graph.colocate_with(None, ignore_existing=True), graph.device(self.reduce_to_device or device):
            if any(isinstance(v, IndexedSlices) for v in values):
                return concat_slices(values, op, len(values))

            tensors = [convert(v) for v in values]
            total = (self.accumulation_fn or add_n)(tensors)
            return scaled(total, len(tensors)) if op is ReduceOp.MEAN else total


class HierarchicalCopyAllReduce(ReductionToOneDevice):
    """TensorFlow's reduction over two levels of GPUs. Here it reduces on one device, and copies the result to the others.

    Args:
        num_packs: accepted without effect.

    Raises:
        ValueError: `num_packs` is negative.
    """

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__()
        self.num_packs = _packs(num_packs)


class NcclAllReduce(ReductionToOneDevice):
    """All-reduce with NCCL between the GPUs of the replicas.

    There is one collective per bucket of gradients. It starts during the backward pass, as soon as the bucket's gradients are computed.
    Each GPU applies the result to its copies. GPUs without NCCL reduce through host memory.

    Values with a single destination, `IndexedSlices`, and values of replicas that are not all on GPUs are reduced as in
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
        """Implements `CrossDeviceOps.to_all`."""
        if len(devices) == 1 or not are_gpus(devices):
            return super().to_all(rows, places, devices, op)
        dense, columns = dense_columns(rows, len(devices))
        made = get_default_graph().get_collection_ref(_REPLICA_COLLECTIVES)
        with get_default_graph().name_scope("reduce"):
            found = dict(zip(dense, all_reduce_buckets(columns, devices, devices, 0, "auto", made, op), strict=True))
            return [
                PerReplica(found[i]) if i in found else self.to_one(rows[i], places[i], op) for i in range(len(rows))
            ]


def all_reduce_buckets(
    columns: Sequence[Sequence[Tensor]],
    devices: Sequence[str],
    members: Sequence[str],
    first: int,
    way: str,
    made: list[Any],
    op: ReduceOp,
) -> list[Sequence[Tensor]]:
    """All-reduces the replicas' tensors in buckets. Returns, for each tensor, the result of each replica of this process.

    Args:
        columns: the tensors of each replica of this process, in the same order.
        devices: the devices of these replicas.
        members: the devices of all replicas, in all processes.
        first: the rank of this process's first replica.
        way: the algorithm: "auto", "ring" or "nccl".
        made: the collection that counts the collectives of the graph. It has the same length in all processes.
        op: the reduction.
    """
    graph = get_default_graph()
    out: list[dict[int, Tensor]] = [{} for _ in devices]
    places: dict[Tensor, list[int]] = {}
    for p, t in enumerate(columns[0]):
        places.setdefault(t, []).append(p)
    for bucket in buckets(columns[0]):
        reduction = collective_reduction(op, bucket[0].dtype, members)
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


def collective_reduction(op: ReduceOp, dtype: DType, members: Sequence[str]) -> str:
    """Returns the reduction of a collective: "mean" or "sum".

    A collective that computes the mean costs less than a division afterwards. Integers are divided with rounding, and on GPUs the division
    is fused with the kernel that uses the sum, so there the collective computes the sum.
    """
    is_mean = op is ReduceOp.MEAN and (dtype.is_floating or dtype.is_complex) and not are_gpus(members)
    return "mean" if is_mean else "sum"


def dense_columns(rows: Sequence[Sequence[Any]], count: int) -> tuple[list[int], list[list[Tensor]]]:
    """Returns the indices of the rows that have a tensor of each of `count` replicas, and each replica's tensors of these rows."""
    dense = [
        i for i, row in enumerate(rows) if len(row) == count and not any(isinstance(v, IndexedSlices) for v in row)
    ]
    return dense, [[convert(rows[i][rank]) for i in dense] for rank in range(count)]


def buckets(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Groups tensors into buckets of one type and at most `BUCKET_BYTES`.

    The last tensor comes first, because the backward pass computes its gradient first.
    """
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
    """Returns the device of a variable or tensor, or a given device; None: there is none."""
    if destination is None or isinstance(destination, str):
        return destination
    first = destination.values[0] if isinstance(destination, (DistributedValues, DistributedVariable)) else destination
    return getattr(first, "device", None) or None


def copy_to_each(value: Any, destinations: Any) -> Any:
    """Returns a `PerReplica` with a copy of the value on each destination. For a single destination, returns the value itself."""
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
    """Divides a sum of `count` values by `count`. Integers are rounded down."""
    if not (total.dtype.is_floating or total.dtype.is_complex):
        return floordiv(total, count)
    if count & (count - 1) == 0:
        return multiply(total, convert(1.0 / count, total.dtype.base))  # exact
    return truediv(total, convert(float(count), total.dtype.base))


def concat_slices(values: Sequence[Any], op: ReduceOp, count: int) -> IndexedSlices:
    """Returns the sum, or the mean over `count`, of `IndexedSlices`: the concatenation of their rows."""
    if not all(isinstance(v, IndexedSlices) for v in values):
        raise TypeError(
            "Some replicas pass IndexedSlices and others tensors for one value. All must pass the same kind"
        )
    rows = concat([v.values for v in values], 0)
    if op is ReduceOp.MEAN:
        rows = scaled(rows, count)
    return IndexedSlices(rows, concat([v.indices for v in values], 0), values[0].dense_shape)
