"""How far the clocks of tasks are off, from round trips.

A task is asked for its clock some times. When its answer arrives, the clock showed what it says at some moment between asking
and hearing: so the offset is known up to half of the round trip, and the shortest round trip tells most (Cristian, Probabilistic
clock synchronization, 1989). Processes of one machine have one clock; an offset that a measurement cannot tell from none is none,
so that the times of those are exact.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from .connections import Connections
from .recorder import UNKNOWN, Offset, clock
from .wire import Message, WireError

ROUNDS = 8  # round trips to each task
ROUND_S = 0.25  # a task that takes longer than this for one is not asked again


def offsets(connections: Connections, addresses: Mapping[str, str]) -> dict[str, Offset]:
    """The offset of each task (task -> address). Answers to other questions that arrive meanwhile are dropped."""
    return {task: _offset(connections, address) for task, address in addresses.items()}


def _offset(connections: Connections, address: str) -> Offset:
    best: tuple[int, int] | None = None  # round trip, offset
    for number in range(1, ROUNDS + 1):
        try:
            asked = clock()
            connections.send(address, Message("ping", {"seq": number}))
            answer = _answer(connections, address, number)
        except (OSError, WireError):
            break
        if answer is None:
            break
        heard, shown = answer
        if best is None or heard - asked < best[0]:
            best = heard - asked, shown - (asked + heard) // 2
    return UNKNOWN if best is None else settled(*best)


def settled(round_trip_ns: int, offset_ns: int) -> Offset:
    """What a round trip says: nothing at all, where that is possible.

    >>> settled(100, 30), settled(100, 70)
    (Offset(ns=0, uncertainty_ns=0), Offset(ns=70, uncertainty_ns=50))
    """
    half = (round_trip_ns + 1) // 2
    return Offset(0, 0) if abs(offset_ns) <= half else Offset(offset_ns, half)


def _answer(connections: Connections, address: str, number: int) -> tuple[int, int] | None:
    """When the answer came, and what the task's clock showed; None when it takes too long, or tells no clock."""
    end = time.monotonic() + ROUND_S
    while (left := end - time.monotonic()) > 0:
        for source, message in connections.poll(left):
            if source == address and message.kind == "pong" and message.fields["seq"] == number:
                shown = message.fields.get("clock")
                return None if shown is None else (clock(), shown)
    return None
