"""The `CollectiveContext` of a task: chooses how a kernel's collective runs, and makes the member's algorithm.

There are three paths: messages (`algorithms.py`), a buffer in shared memory (`shared_memory_algorithms.py`), and the links between
GPUs, such as NCCL's (`device_link.py`). The coordinator chooses between messages and shared memory when it knows the
members. Members on GPUs first agree whether all have a link. If one has none, all continue with values in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.errors import FailedPreconditionError
from ...graph.resources.collective_context import CollectiveCall, CollectiveContext, DeviceLink
from . import algorithms
from .algorithms import Array, flatten, unflatten
from .coordinator import Coordinator
from .device_link import LinkAgreement, LinkRefused, instances_without_link, refusal_text
from .shared_memory_algorithms import (
    SCATTER_BYTES,
    SharedMemoryAllReduce,
    SharedMemoryGather,
    SharedMemoryReduceScatter,
    has_plain_bytes,
)


class CollectiveLauncher(CollectiveContext):
    """Runs the collectives of a task's kernels.

    Args:
        coordinator: the task's coordinator. None: the process has no other tasks, and contains all members.
    """

    def __init__(self, coordinator: Coordinator | None = None) -> None:
        self.coordinator = Coordinator() if coordinator is None else coordinator

    def run(self, call: CollectiveCall) -> Any:
        make_algorithm, shared, finish = _WAYS[call.kind](call.values, call.attrs)
        return self._take_part(call, f"{call.kind} {signature(call)}", make_algorithm, finish, shared)

    def run_on_link(
        self, call: CollectiveCall, link: DeviceLink | None = None, make_job: Callable[[], Any] | None = None
    ) -> Any:
        without = instances_without_link(call.session)
        key = call.members, call.instance

        def run_on_host() -> Any:
            # Another instance: a part may reach a member that does not know yet that there is no link.
            values = [np.asarray(v) for v in call.values]
            return self.run(replace(call, instance=f"{call.instance} by messages", values=values))

        def finish(result: Any) -> Any:
            if not isinstance(result, LinkRefused):
                return result
            if call.attrs.get("way") == "nccl":
                text = f"The {call.kind} '{call.instance}' cannot go by NCCL: {refusal_text(result, call.members)}."
                raise FailedPreconditionError(call.node_name, None, f"{text} Or use communication 'auto' or 'ring'")
            without.add(key)
            return run_on_host()

        if key in without:
            return run_on_host()
        rows = len(call.values[0]) if call.values[0].ndim else 0
        job = None if link is None or make_job is None else make_job()
        agreement = LinkAgreement(call.rank, len(call.members), link, job, rows)
        return self._take_part(call, f"{call.kind} by a link {signature(call)}", lambda: agreement, finish)

    def _take_part(
        self, call: CollectiveCall, brought: str, make_algorithm: Callable[[], algorithms.MessageAlgorithm],
        finish: Callable[[Any], Any], shared: SharedMemoryAllReduce | None = None,
    ) -> Any:  # fmt: skip
        what = _described(call.kind, call.instance, len(call.members))
        key = call.instance, call.run
        return self.coordinator.take_part(
            call.session, call.members, call.rank, key, brought, what, make_algorithm, finish, shared
        )


@lru_cache(1_000)
def _described(kind: str, instance: str, members: int) -> str:
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


_WAYS: dict[str, Callable[[Sequence[Array], Mapping[str, Any]], _Way]] = {
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
