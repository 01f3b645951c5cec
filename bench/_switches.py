"""Turns off one mechanism of the runtime in this process, for `ablation.py --runtime`: the runtime itself has no such switches.

The environment variable `BENCH_WITHOUT` names it. `turn_off` runs in every process of the cluster that goes without, before it has
servers and sessions; it replaces the few functions that the mechanism is reached through.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

NAME = "BENCH_WITHOUT"


def _module(path: str) -> Any:
    return importlib.import_module(f"dovetail.runtime.{path}")


def _replace(owner: Any, name: str, value: Any) -> None:
    """Replace what a module or class has under this name. AttributeError: it has no such thing any more."""
    getattr(owner, name)
    setattr(owner, name, value)


def _accumulates() -> None:
    access = importlib.import_module("dovetail.placer.partition.one_sided_access")
    _replace(access, "direct_additions", lambda *_: [])


def _coalescing() -> None:
    """Each tensor leaves at once."""
    scheduler = _module("worker.step_scheduler")

    def push(self: Any, destination: str, channel: Any, value: Any, more: bool) -> None:
        self._worker.send(scheduler.task_of(destination), self._number, {channel: value})

    _replace(scheduler.StepRunner, "push", push)


def _flush_heuristics() -> None:
    """What a program sends waits for the last one before it pauses; only large tensors leave at once."""
    _replace(_module("worker.step_scheduler"), "COALESCED_S", float("inf"))


def _inline_parts() -> None:
    _replace(_module("worker.worker"), "only_segment", lambda registered: None)


def _inline_segments() -> None:
    """The pool runs every segment."""
    _inline_parts()
    segment = _module("worker.step_scheduler").Segment
    _replace(segment, "is_short", property(lambda self: False, lambda self, value: None))


def _waiting_clients() -> None:
    """The pool runs the segments that are not short, although a client of the same process waits for them."""
    segment = _module("worker.step_scheduler").Segment
    _replace(segment, "is_brief", property(lambda self: False, lambda self, value: None))


def _colocated() -> None:
    _replace(_module("session.cluster_backend"), "find_colocated", lambda address, incarnation: None)


def _keeping_the_interpreter() -> None:
    stream = _module("transport.stream")
    _replace(stream.Stream, "_send_keeping_gil", lambda self, head: self._socket.send(head, stream._NOW))


def _waiting_on_the_stream() -> None:
    _replace(_module("transport.client").Connections, "_waits_on_stream", lambda self, peer, seconds: False)


def _busy_polling() -> None:
    _replace(_module("transport.event_loop").EventLoop, "expect_event", lambda self: None)


def _unix_streams() -> None:
    """Peers of one machine have TCP streams, and still map each other's memory."""
    peers = _module("transport.peers").Peers
    listen = peers.listen

    def begin(self: Any, *arguments: Any) -> int:
        port = listen(self, *arguments)
        self.listeners["unix"].offer = self.listeners["tcp"].offer
        return port

    peers.listen = begin


def _streams() -> None:
    """All stays with ZeroMQ."""
    _replace(_module("transport.stream_listener").StreamListener, "offer", lambda self, peer: None)


def _overlap() -> None:
    _replace(_module("master.lowering"), "overlap_collectives", lambda part, cut: list(part.steps))


def _result_areas() -> None:
    _replace(_module("collectives.shared_memory_algorithms").SharedMemoryAllReduce, "has_result_areas", False)


def _yields() -> None:
    """A member sleeps at once, instead of looking a few times first."""
    _replace(_module("collectives.shared_memory_algorithms"), "YIELDS", 0)


def _flat() -> None:
    """Small values are reduced in shares, too."""
    _replace(_module("collectives.shared_memory_algorithms"), "FLAT_BYTES", 0)


def _shared_gather() -> None:
    _replace(_module("collectives.launch"), "SharedMemoryGather", lambda value: None)


def _shared_scatter() -> None:
    _replace(_module("collectives.launch"), "SharedMemoryReduceScatter", lambda *arguments: None)


def _low_water() -> None:
    """The kernel wakes the reader of a long message over TCP for each packet."""
    _replace(_module("transport.stream").Stream, "_gather", lambda self, least: None)


MECHANISMS: dict[str, Callable[[], None] | dict[str, str]] = {
    "nothing": {},
    "one-sided reads": {"DOVETAIL_ONE_SIDED_READS": "0"},
    "one-sided updates": {"DOVETAIL_ONE_SIDED_UPDATES": "0"},
    "one-sided accumulates": _accumulates,
    "lent tensors, Unix streams": {"DOVETAIL_SHARED_MEMORY_MB": "0"},
    "Unix streams": _unix_streams,
    "streams": _streams,
    "waiting on one stream": _waiting_on_the_stream,
    "send coalescing": _coalescing,
    "send coalescing: flush heuristics": _flush_heuristics,
    "inline parts": _inline_parts,
    "inline segments": _inline_segments,
    "segments of waiting clients": _waiting_clients,
    "colocated servers": _colocated,
    "batch scheduling": {"DOVETAIL_SCHED_BATCH": "0"},
    "busy polling": _busy_polling,
    "keeping the interpreter": _keeping_the_interpreter,
    "overlapped collectives": _overlap,
    "result areas of collectives": _result_areas,
    "yielding before sleep": _yields,
    "flat all-reduce": _flat,
    "gather in shared memory": _shared_gather,
    "reduce-scatter in shared memory": _shared_scatter,
    "low-water mark of TCP streams": _low_water,
}
"""By name: the function that turns it off, or the settings that do."""


def environment(name: str) -> dict[str, str]:
    """The environment of the processes that go without a mechanism."""
    off = MECHANISMS[name]
    return dict(off) if isinstance(off, dict) else {NAME: name}


def turn_off() -> None:
    """Turn off the mechanism that the environment names, if it names one."""
    off = MECHANISMS.get(os.environ.get(NAME, ""))
    if callable(off):
        off()
