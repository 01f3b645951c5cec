"""Collectives in the graph: ops that run once per member, and wait for all of them; and the check that replicas are equal.

A group is a list of devices; each member runs its own node, on its device, with its rank. The nodes may be in one graph, or
in the graphs of several clients that run the same program: nodes with the same members and the same `instance` belong together.
Their kernels describe what the member brings (`collective_call`) and leave the rest to the task's `CollectiveContext`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.default_graph import get_default_graph
from ...core.device import canonical_name
from ...core.dtypes import FLOATS, Array, DType, int64, string
from ...core.errors import FailedPreconditionError, InternalError, invalid
from ...core.graph import Node, Tensor
from ...core.opdef import (
    Attrs,
    Cost,
    Output,
    Trait,
    choice_attr,
    define,
    define_on_host,
    nbytes,
    size,
    tuple_attr,
    typed_attr,
)
from ...core.shape import compatible, text
from ...resources.collective_context import REDUCTIONS, CollectiveCall
from ...resources.resource_manager import Context
from ..math.common import same_type

WAYS = ("auto", "ring", "doubling", "nccl")


def _check_group(attrs: Attrs) -> int:
    members, rank = tuple_attr(attrs, "members", str), attrs["rank"]
    if len(set(members)) != len(members):
        raise ValueError("a device is a member twice")
    if not isinstance(rank, int) or not 0 <= rank < len(members):
        raise ValueError(f"attribute rank must be in [0, {len(members)}), not {rank!r}")
    typed_attr(attrs, "instance", str)
    return len(members)


def _check_reduction(attrs: Attrs, dtype: DType) -> None:
    choice_attr(attrs, "reduction", REDUCTIONS)
    if not (dtype.is_floating or dtype.is_integer or dtype.is_complex):
        raise TypeError(f"values of type {dtype.name} cannot be reduced")
    if attrs["reduction"] == "mean" and not (dtype in FLOATS or dtype.is_complex):
        raise TypeError(f"whole numbers have no mean of type {dtype.name}: sum them, or cast them before")


def _infer_reduce(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check_group(attrs)
    if not inputs:
        raise ValueError("needs at least one value")
    choice_attr(attrs, "way", WAYS)
    _check_reduction(attrs, same_type(inputs))
    return [(t.dtype.base, t.dims) for t in inputs]


def _infer_gather(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check_group(attrs)
    (x,) = inputs
    if x.dims == ():
        raise ValueError("needs a first axis, along which the members' values are joined")
    return [(x.dtype.base, None if x.dims is None else (None, *x.dims[1:]))]


def _infer_scatter(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    count = _check_group(attrs)
    (x,) = inputs
    _check_reduction(attrs, x.dtype.base)
    if x.dims is None:
        return [(x.dtype.base, None)]
    if x.dims == () or (x.dims[0] is not None and x.dims[0] % count):
        raise ValueError(f"needs a first axis that {count} members can share evenly")
    return [(x.dtype.base, (None if x.dims[0] is None else x.dims[0] // count, *x.dims[1:]))]


def _infer_broadcast(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    count = _check_group(attrs)
    if not 0 <= attrs["root"] < count:
        raise ValueError(f"attribute root must be in [0, {count})")
    return [(inputs[0].dtype.base, inputs[0].dims)]


def _infer_barrier(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check_group(attrs)
    return []


# --- kernels ---------------------------------------------------------------------------------------------------------


def are_gpus(members: Sequence[str]) -> bool:
    """Whether all members of a group are GPUs, so that it may have links between its devices."""
    return all("/device:GPU:" in m for m in members)


def collective_call(kind: str, context: Context, values: Sequence[Any], attrs: Mapping[str, Any]) -> CollectiveCall:
    """One run of a member's node.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "barrier".
        values: what the member brings, on the host or on a device.

    Raises:
        InvalidArgumentError: values of these shapes cannot be joined or shared among the members.
    """
    count = len(attrs["members"])
    if kind == "all_gather" and values[0].ndim == 0:
        raise invalid("A scalar has no first axis, along which values are joined", context.node_name)
    if kind == "reduce_scatter" and (values[0].ndim == 0 or len(values[0]) % count):
        raise invalid(
            f"A value of shape {values[0].shape} cannot be shared evenly by {count} members", context.node_name
        )
    instance = attrs["instance"] or context.node_name
    return CollectiveCall(kind, context.node_name, context.session, instance, context.run_number(), values, attrs)


def _run(kind: str, context: Context, *values: Any, **attrs: Any) -> Any:
    """The reference of the collective ops: the member's values are in the host's memory."""
    members, way = attrs["members"], attrs.get("way", "auto")
    if way == "nccl" and not are_gpus(members):
        raise FailedPreconditionError(
            context.node_name,
            None,
            f"The {kind} asks for NCCL, but not all of its members are GPUs: {', '.join(members)}. "
            "Use communication 'auto' or 'ring'",
        )
    call = collective_call(kind, context, [np.asarray(v) for v in values], attrs)
    if kind == "barrier" or way not in ("auto", "nccl") or not are_gpus(members):
        return context.resources.collectives.run(call)
    return context.resources.collectives.run_on_link(call)


def _cost(node: Node) -> Cost:
    """A ring's: each byte is added once per member, and moves about twice."""
    moved = sum(nbytes(t) for t in node.inputs)
    return Cost(float(sum(size(t) for t in node.inputs)), 4.0 * moved)


for _name, _infer, _what in (
    ("CollectiveReduce", _infer_reduce, "all_reduce"),
    ("CollectiveGather", _infer_gather, "all_gather"),
    ("CollectiveReduceScatter", _infer_scatter, "reduce_scatter"),
    ("CollectiveBroadcast", _infer_broadcast, "broadcast"),
    ("CollectiveBarrier", _infer_barrier, "barrier"),
):
    define(
        _name,
        _infer,
        partial(_run, _what),
        cost=_cost,
        traits=Trait.STATEFUL | Trait.BLOCKING | Trait.COLLECTIVE,
        device_types=("CPU", "GPU"),
    )


def _group(members: Sequence[Any], rank: int, instance: str | None) -> dict[str, Any]:
    names = tuple(canonical_name(m if isinstance(m, str) else m.to_string()) for m in members)
    # A task's complete name has a replica, which is 0 where none is named.
    names = tuple(n if "/replica:" in n else n.replace("/task:", "/replica:0/task:") for n in names)
    return {"members": names, "rank": int(rank), "instance": instance or ""}


def _at(members: Sequence[str], rank: int) -> AbstractContextManager[None]:
    """Where a member's node goes: to its device, if all are GPUs; else it is left to the blocks around it."""
    if not are_gpus(members) or not 0 <= rank < len(members):
        return nullcontext()
    return get_default_graph().device(f"/device:{members[rank].partition('/device:')[2]}")


def all_reduce(
    value: Any,
    members: Sequence[Any],
    rank: int,
    reduction: str = "sum",
    communication: str = "auto",
    instance: str | None = None,
    name: str | None = None,
) -> Any:
    """What all members bring, reduced element by element; every member gets the same bits.

    Args:
        value: a tensor of number type, or a list of tensors of one type, which travel together. Of one shape in all members.
        members: device of each member, in the order of ranks; the same list in all of them. A device without a task is one of
            the session's own.
        rank: which of them this node is: it must run on that device's task.
        reduction: "sum", "mean", "prod", "min" or "max".
        communication: "ring", "doubling", "nccl" (all members are GPUs, which then need NCCL), or "auto": by NCCL where all members
            are GPUs that have it, else by size.
        instance: what the nodes that belong together have in common; None: the node's name.
        name: of the node.

    Returns:
        A tensor, or a list of tensors, like `value`.

    Raises (when it runs):
        InvalidArgumentError: members bring different shapes or types, or the node runs elsewhere.
        UnavailableError: a member is dead.
        AbortedError: a member's step ended early, or the member restarted.
        FailedPreconditionError: NCCL was requested, and a member does not have it. All members get the error.

    >>> total = all_reduce(gradient, ["/job:worker/task:0/cpu:0", "/job:worker/task:1/cpu:0"], rank=0, instance="g")
    """
    several = isinstance(value, (list, tuple))
    tensors = [convert(v) for v in value] if several else [convert(value)]
    attrs = _group(members, rank, instance) | {"reduction": str(reduction).lower(), "way": str(communication).lower()}
    with _at(attrs["members"], rank):
        outputs = list(make("CollectiveReduce", tensors, attrs, name).outputs)
    return outputs if several else outputs[0]


def all_gather(
    value: TensorLike, members: Sequence[Any], rank: int, instance: str | None = None, name: str | None = None
) -> Tensor:
    """What all members bring, joined along the first axis in the order of ranks. First sizes may differ; rest as `all_reduce`."""
    attrs, x = _group(members, rank, instance), convert(value)
    with _at(attrs["members"], rank):
        return apply("CollectiveGather", (x,), attrs, name)


def reduce_scatter(
    value: TensorLike,
    members: Sequence[Any],
    rank: int,
    reduction: str = "sum",
    instance: str | None = None,
    name: str | None = None,
) -> Tensor:
    """What all members bring, reduced; each member gets an equal share of the rows, in the order of ranks. Rest as `all_reduce`."""
    attrs, x = _group(members, rank, instance) | {"reduction": str(reduction).lower()}, convert(value)
    with _at(attrs["members"], rank):
        return apply("CollectiveReduceScatter", (x,), attrs, name)


def broadcast(
    value: TensorLike,
    members: Sequence[Any],
    rank: int,
    root: int = 0,
    instance: str | None = None,
    name: str | None = None,
) -> Tensor:
    """What member `root` brings. The others' values say only shape and type. Rest as `all_reduce`."""
    attrs, x = _group(members, rank, instance) | {"root": int(root)}, convert(value)
    with _at(attrs["members"], rank):
        return apply("CollectiveBroadcast", (x,), attrs, name)


def barrier(members: Sequence[Any], rank: int, instance: str | None = None, name: str | None = None) -> Node:
    """A node that ends when all members have come to it. Rest as `all_reduce`."""
    attrs = _group(members, rank, instance)
    with _at(attrs["members"], rank):
        return make("CollectiveBarrier", (), attrs, name)


# --- checksums --------------------------------------------------------------------------------------------------------


def _checksum_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not isinstance(attrs["every"], int) or attrs["every"] < 1:
        raise ValueError("every must be a positive number of runs")
    if any(t.dtype.base is string for t in inputs):
        raise TypeError("texts have no checksum")
    return [(int64, (len(inputs),))]


def _checksum(context: Context, *values: Array, every: int) -> Array:
    if (context.run_number() + 1) % every:
        return np.zeros(len(values), np.int64)
    bits = [np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in values]
    return np.array([zlib.crc32(b.data) for b in bits], np.int64)


define("Checksum", _checksum_rule, _checksum, traits=Trait.STATEFUL)


def checksum(values: Sequence[TensorLike], every: int = 1, name: str | None = None) -> Tensor:
    """The CRC-32 of each tensor's bytes, in one vector of int64, at each `every`-th run; at the others it is zeros."""
    return apply("Checksum", [convert(v) for v in values], {"every": every}, name)


def _same_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (sums,) = inputs
    wanted = len(attrs["replicas"]), len(attrs["variables"])
    if sums.dtype.base is not int64 or not compatible(sums.dims, wanted):
        raise ValueError(
            f"needs int64 of shape {text(wanted)}: a row for each replica, with a column for each variable"
        )
    return []


def _same(context: Context, sums: Array, *, variables: tuple[str, ...], replicas: tuple[str, ...]) -> Sequence[Array]:
    updates = context.run_number() + 1
    if not sums.any(1).all():
        return ()  # a replica with a newer session compares at other run numbers
    for name, column in zip(variables, sums.T.tolist(), strict=True):
        if len(set(column)) > 1:
            held = ", ".join(f"{replica} has {value:08x}" for replica, value in zip(replicas, column, strict=True))
            raise InternalError.of(
                f"The copies of the mirrored variable '{name}' differ after {updates} updates, by their checksums: {held}. "
                "Replicas must apply the same updates to the same values: is a copy changed by itself, or does a worker restore another "
                "checkpoint, run other steps, or run on another type of processor?",
            )
    return ()


define_on_host("SameChecksums", _same_rule, _same)


def check_same(sums: TensorLike, variables: Sequence[str], replicas: Sequence[str], name: str | None = None) -> Node:
    """A node that fails its step with InternalError unless all rows of `sums` are the same, or one is zeros.

    Args:
        sums: int64, a row for each replica, with a column for each variable.
        variables, replicas: their names, for the error.
    """
    attrs = {"variables": tuple(variables), "replicas": tuple(replicas)}
    return make("SameChecksums", [convert(sums, name="sums")], attrs, name)
