"""Collective ops, and the check that replicas are equal.

A group is a list of devices. Each member runs a node on its device, with its rank, and the nodes wait for each other. The nodes may be in
one graph, or in the graphs of several clients that run the same program. Nodes with the same members and the same `instance` form one
collective. Their kernels describe the member's part (`collective_call`). The task's `CollectiveContext` runs it.
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
        raise TypeError(f"integers have no mean of type {dtype.name}: sum them, or cast them before")


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
        raise ValueError("needs a first axis, along which the members' values are concatenated")
    return [(x.dtype.base, None if x.dims is None else (None, *x.dims[1:]))]


def _infer_scatter(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    count = _check_group(attrs)
    (x,) = inputs
    _check_reduction(attrs, x.dtype.base)
    if x.dims is None:
        return [(x.dtype.base, None)]
    if x.dims == () or (x.dims[0] is not None and x.dims[0] % count):
        raise ValueError(f"needs a first axis whose size is a multiple of {count}, the number of members")
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
    """Whether all members of a group are GPUs, which may have direct links."""
    return all("/device:GPU:" in m for m in members)


def collective_call(kind: str, context: Context, values: Sequence[Any], attrs: Mapping[str, Any]) -> CollectiveCall:
    """One run of a member's node.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "barrier".
        context: the node that runs.
        values: the member's values, on the host or on a device.
        attrs: the node's attributes.

    Raises:
        InvalidArgumentError: values of these shapes cannot be concatenated, or divided among the members.
    """
    count = len(attrs["members"])
    if kind == "all_gather" and values[0].ndim == 0:
        raise invalid("A scalar has no first axis, along which values are concatenated", context.node_name)
    if kind == "reduce_scatter" and (values[0].ndim == 0 or len(values[0]) % count):
        raise invalid(
            f"A value of shape {values[0].shape} cannot be divided evenly among {count} members", context.node_name
        )
    instance = attrs["instance"] or context.node_name
    return CollectiveCall(kind, context.node_name, context.session, instance, context.run_number(), values, attrs)


def _run(kind: str, context: Context, *values: Any, **attrs: Any) -> Any:
    """The reference of the collective ops, for values in host memory."""
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
    """The cost of a ring algorithm: each element is added once per member, and each byte moves about twice."""
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
    """A device block for a member's node. If all members are GPUs, it requests the member's device. Otherwise it requests nothing."""
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
    """Reduce the values of all members element by element. Every member gets the same result, bit for bit.

    Args:
        value: a tensor of numbers, or a list of tensors of one type, which are sent together. Shapes must be the same for all members.
        members: the device of each member, in the order of ranks. The list must be the same for all members. A device without a task is
            a local device of the session.
        rank: the rank of this node's member. The node must run on the task of its device.
        reduction: "sum", "mean", "prod", "min" or "max".
        communication: "ring", "doubling", "nccl", or "auto" for NCCL if all members are GPUs that have it, or else by size.
        instance: the name of the collective, the same for the nodes of all members. None means the node's name.
        name: name of the node.

    Returns:
        A tensor, or a list of tensors, like `value`.

    Raises (when it runs):
        InvalidArgumentError: shapes or types differ between members, or the node runs on another task.
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
    """The values of all members, concatenated along the first axis in the order of ranks. That axis may differ. See `all_reduce`."""
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
    """Reduce the values of all members. Each member gets an equal part of the rows, in the order of ranks. See `all_reduce`."""
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
    """The value of the member `root`. The values of the others only give shape and type. See `all_reduce`."""
    attrs, x = _group(members, rank, instance) | {"root": int(root)}, convert(value)
    with _at(attrs["members"], rank):
        return apply("CollectiveBroadcast", (x,), attrs, name)


def barrier(members: Sequence[Any], rank: int, instance: str | None = None, name: str | None = None) -> Node:
    """A node that finishes when it has started on all members. See `all_reduce`."""
    attrs = _group(members, rank, instance)
    with _at(attrs["members"], rank):
        return make("CollectiveBarrier", (), attrs, name)


# --- checksums --------------------------------------------------------------------------------------------------------


def _checksum_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not isinstance(attrs["every"], int) or attrs["every"] < 1:
        raise ValueError("every must be a positive number of runs")
    if any(t.dtype.base is string for t in inputs):
        raise TypeError("strings have no checksum")
    return [(int64, (len(inputs),))]


def _checksum(context: Context, *values: Array, every: int) -> Array:
    if (context.run_number() + 1) % every:
        return np.zeros(len(values), np.int64)
    bits = [np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in values]
    return np.array([zlib.crc32(b.data) for b in bits], np.int64)


define("Checksum", _checksum_rule, _checksum, traits=Trait.STATEFUL)


def checksum(values: Sequence[TensorLike], every: int = 1, name: str | None = None) -> Tensor:
    """A vector of the CRC-32 of each tensor's bytes, int64, at every `every`-th run of the node. At other runs it is zeros."""
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
        return ()  # a replica with a newer session has other run numbers, and has computed no checksums
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
    """A node that fails its step with InternalError unless all rows of `sums` are equal, or one consists of zeros.

    Args:
        sums: checksums, int64 `[replicas, variables]`.
        variables: names of the variables, for the error.
        replicas: names of the replicas, for the error.
        name: name of the node.
    """
    attrs = {"variables": tuple(variables), "replicas": tuple(replicas)}
    return make("SameChecksums", [convert(sums, name="sums")], attrs, name)
