"""Turns off one mechanism of the runtime in this process, for `ablation.py --runtime`: the runtime itself has no such switches.

The environment variable `BENCH_WITHOUT` names it. `turn_off` runs in every process of the cluster that goes without, before it has
servers and sessions; it replaces the few functions that the mechanism is reached through.
"""

import importlib
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

NAME = "BENCH_WITHOUT"


def _module(path: str) -> Any:
    return importlib.import_module(f"dovetail.{path}")


def _replace(values: Mapping[str, Any]) -> None:
    """Replace what modules of Dovetail and their classes have. AttributeError: they have no such thing any more.

    Args:
        values: by `module:name` or `module:class.name`.
    """
    for place, value in values.items():
        path, _, names = place.partition(":")
        owner, (*classes, name) = _module(path), names.split(".")
        for each in classes:
            owner = getattr(owner, each)
        getattr(owner, name)
        setattr(owner, name, value)


def _never() -> property:
    """A property that is False, whatever it is set to."""
    return property(lambda self: False, lambda self, value: None)


def _coalescing() -> None:
    """Each tensor leaves at once."""
    scheduler = _module("runtime.worker.step_scheduler")

    def push(self: Any, destination: str, channel: Any, value: Any, more: bool) -> None:
        self._worker.send(scheduler.task_of(destination), self._number, {channel: value})

    _replace({"runtime.worker.step_scheduler:StepRunner.push": push})


def _keeping_the_interpreter() -> None:
    now = _module("runtime.transport.stream")._NOW
    _replace({"runtime.transport.stream:Stream._send_keeping_gil": lambda self, head: self._socket.send(head, now)})


def _unix_streams() -> None:
    """Peers of one machine have TCP streams, and still map each other's memory."""
    peers = _module("runtime.transport.peers").Peers
    listen = peers.listen

    def begin(self: Any, *arguments: Any) -> int:
        port = listen(self, *arguments)
        self.listeners["unix"].offer = self.listeners["tcp"].offer
        return port

    peers.listen = begin


def _without(place: str, value: Any) -> Callable[[], None]:
    return partial(_replace, {place: value})


_ONLY_SEGMENT = {"runtime.worker.worker:only_segment": lambda registered: None}
_ALGORITHMS = "runtime.collectives.shared_memory_algorithms"

MECHANISMS: dict[str, Callable[[], None] | dict[str, str]] = {
    "nothing": {},
    "one-sided reads": {"DOVETAIL_ONE_SIDED_READS": "0"},
    "one-sided updates": {"DOVETAIL_ONE_SIDED_UPDATES": "0"},
    "one-sided accumulates": _without("placer.partition.one_sided_access:direct_additions", lambda *_: []),
    "lent tensors, Unix streams": {"DOVETAIL_SHARED_MEMORY_MB": "0"},
    "Unix streams": _unix_streams,
    # All stays with ZeroMQ.
    "streams": _without("runtime.transport.stream_listener:StreamListener.offer", lambda self, peer: None),
    "waiting on one stream": _without(
        "runtime.transport.peers:Peers.wait_on_stream", lambda self, peer, seconds: False
    ),
    "send coalescing": _coalescing,
    # What a program sends waits for the last one before it pauses; only large tensors leave at once.
    "send coalescing: flush heuristics": partial(
        _replace, {f"runtime.worker.step_scheduler:{name}": float("inf") for name in ("COALESCED_S", "NEXT_S")}
    ),
    "inline parts": partial(_replace, _ONLY_SEGMENT),
    # The pool runs every segment.
    "inline segments": partial(_replace, _ONLY_SEGMENT | {"runtime.worker.step_scheduler:Segment.is_short": _never()}),
    # The pool runs the segments that are not short, although a client of the same process waits for them.
    "segments of waiting clients": _without("runtime.worker.step_scheduler:Segment.is_brief", _never()),
    # Tensors for a task in the client's process go to its server, whose I/O thread wakes the client's.
    "small tensors to clients": _without("runtime.worker.step_scheduler:INLINE_BYTES", -1),
    "colocated servers": _without("runtime.session.cluster_backend:find_colocated", lambda address, incarnation: None),
    "batch scheduling": {"DOVETAIL_SCHED_BATCH": "0"},
    "busy polling": _without("runtime.transport.event_loop:EventLoop.expect_event", lambda self: None),
    "keeping the interpreter": _keeping_the_interpreter,
    "overlapped collectives": _without(
        "runtime.master.lowering:overlap_collectives", lambda part, cut: list(part.steps)
    ),
    "result areas of collectives": _without(f"{_ALGORITHMS}:SharedMemoryAllReduce.has_result_areas", False),
    # A member sleeps at once, instead of looking a few times first.
    "yielding before sleep": _without(f"{_ALGORITHMS}:YIELDS", 0),
    # Small values are reduced in shares, too.
    "flat all-reduce": _without(f"{_ALGORITHMS}:FLAT_BYTES", 0),
    "gather in shared memory": _without("runtime.collectives.coordinator:SharedMemoryGather", lambda value: None),
    # Members exchange messages, in which large values are lent.
    "collectives in shared memory": _without("runtime.server.server:CollectiveMemory", lambda may_sleep: None),
    # Both ends check and pack the whole header of each message.
    "header templates": _without("runtime.wire.messages:_remember", lambda *_: None),
    # Each tensor has a frame of its own.
    "small tensors in headers": _without("runtime.wire.messages:INLINE_BYTES", -1),
    "large tensors without a copy": partial(
        _replace,
        dict.fromkeys(("runtime.wire.tensors:BORROW_BYTES", "runtime.transport.zmq_links:BORROW_BYTES"), math.inf),
    ),
    # Results are made in memory of their own, and copied into shared memory when they are sent.
    "send buffers": _without("codegen.options:_disabled", {"send buffers"}),
    "replicated constants": partial(
        _replace, {f"placer.partition.{name}:COPIED_BYTES": -1 for name in ("insert_channels", "one_sided_updates")}
    ),
    "control-edge reduction": partial(
        _replace,
        {
            f"placer.{name}:bypassed_noops": lambda *_: {}
            for name in ("pipeline", "plan", "partition.one_sided_updates")
        },
    ),
    # The kernel reads and writes as much of a long message at once as it can; nor is there a low-water mark.
    "pieces of long messages": partial(
        _replace, {"runtime.transport.stream:_PIECE": 1 << 30, "runtime.transport.stream:_GATHERED": math.inf}
    ),
    "joined header and frame": _without("runtime.transport.stream:_JOINED", -1),
    # The kernel wakes the reader of a long message over TCP for each packet.
    "low-water mark of TCP streams": _without("runtime.transport.stream:Stream._gather", lambda self, least: None),
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
