"""The ways of a kernel's collective: what its members must have in common, and the algorithms of one member.

There are three paths: messages (`algorithms.py`), a buffer in shared memory (`shared_memory_algorithms.py`), and the links between
GPUs, such as NCCL's (`device_link.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.resources.collective_context import CollectiveCall
from . import algorithms
from .algorithms import Array, flatten, unflatten
from .shared_memory_algorithms import (
    SCATTER_BYTES,
    SharedMemoryAllReduce,
    SharedMemoryGather,
    SharedMemoryReduceScatter,
    has_plain_bytes,
)


@lru_cache(1_000)
def described(kind: str, instance: str, members: int) -> str:
    return f"the {kind} '{instance}' of {members} members"


def signature(call: CollectiveCall) -> str:
    """What must be the same in all members besides the op: types, shapes, reduction."""
    values, attrs = call.values, call.attrs
    if call.kind == "barrier":
        return ""
    if call.kind == "all_gather":
        return f"{values[0].dtype}{list(values[0].shape[1:])}"
    how = (attrs["root"],) if call.kind == "broadcast" else (attrs["reduction"], attrs.get("way"))
    return _signature(how, tuple([v.dtype for v in values]), tuple([tuple(v.shape) for v in values]))


@lru_cache(1_000)
def _signature(how: tuple[Any, ...], dtypes: tuple[np.dtype[Any], ...], shapes: tuple[tuple[int, ...], ...]) -> str:
    words = [str(x) for x in how if x is not None]
    return " ".join(words + [f"{dtype}{list(shape)}" for dtype, shape in zip(dtypes, shapes, strict=True)])


_Way: TypeAlias = tuple[Callable[[], algorithms.MessageAlgorithm], SharedMemoryAllReduce | None, Callable[[Any], Any]]
"""Functions that make the message algorithm, the shared-memory algorithm, and the kernel's result from either's."""


def _all_reduce(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    reduction, way = attrs["reduction"], attrs["way"]
    shapes = [v.shape for v in values]

    def finish(result: Array) -> Any:
        result = _read_only(result)
        return result.reshape(shapes[0]) if len(shapes) == 1 else tuple(unflatten(result, shapes))

    def make_algorithm() -> algorithms.MessageAlgorithm:
        return algorithms.all_reduce(attrs["rank"], len(attrs["members"]), flatten(values), reduction, way)

    return make_algorithm, SharedMemoryAllReduce(values, reduction) if way == "auto" else None, finish


def _all_gather(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    return (
        lambda: algorithms.all_gather(attrs["rank"], len(attrs["members"]), value),
        SharedMemoryGather(value) if has_plain_bytes(value) else None,
        _read_only,
    )


def _reduce_scatter(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    (value,) = values
    reduction, count = attrs["reduction"], len(attrs["members"])
    return (
        lambda: algorithms.reduce_scatter(attrs["rank"], count, value, reduction),
        SharedMemoryReduceScatter(value, reduction, count) if value.nbytes <= SCATTER_BYTES else None,
        _read_only,
    )


def _broadcast(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    make = partial(algorithms.TreeBroadcast, attrs["rank"], len(attrs["members"]), values[0], attrs["root"])
    return make, None, np.array


def _barrier(values: Sequence[Array], attrs: Mapping[str, Any]) -> _Way:
    nothing = np.zeros(1, np.int8)
    make = partial(algorithms.RecursiveDoubling, attrs["rank"], len(attrs["members"]), nothing, "max")
    return make, SharedMemoryAllReduce((nothing,), "max"), lambda _: ()


WAYS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], _Way]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "barrier": _barrier,
}


def _read_only(array: Array) -> Array:
    """A read-only view: another member may use the same array."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
