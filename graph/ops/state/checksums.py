"""Checksums of tensors, and the check that replicas are equal."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.dtypes import Array, int64, string
from ...core.errors import InternalError
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define, define_on_host
from ...core.shape import compatible, text
from ...resources.resource_manager import Context


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


define("Checksum", infer=_checksum_rule, reference=_checksum, traits=Trait.STATEFUL)


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
            raise InternalError(
                None, None,
                f"The copies of the mirrored variable '{name}' differ after {updates} updates, by their checksums: {held}. "
                "Replicas must apply the same updates to the same values: is a copy changed by itself, or does a worker restore another "
                "checkpoint, run other steps, or run on another type of processor?",
            )  # fmt: skip
    return ()


define_on_host("SameChecksums", infer=_same_rule, reference=_same)


def check_same(sums: TensorLike, variables: Sequence[str], replicas: Sequence[str], name: str | None = None) -> Node:
    """A node that fails its step with InternalError unless all rows of `sums` are the same, or one is zeros.

    Args:
        sums: int64, a row for each replica, with a column for each variable. variables, replicas: their names, for the error.
    """
    attrs = {"variables": tuple(variables), "replicas": tuple(replicas)}
    return make("SameChecksums", [convert(sums, name="sums")], attrs, name)
