"""Which tensors the receiving program can go on with as soon as they come, and which of it waits for others first.

A program runs in one order, and so do its receives. A tensor that it takes after another one from the same task is of no use
before that one: the gradient that is made first belongs to the last layer, and is taken last. Such a tensor loses nothing by
waiting for the one that is awaited, and both travel in one message.

    sent in the order          c  b  a        d
    taken in the order               a  b  c  d
    awaited                          a        d     c and b travel with a

What travels with a tensor may as well be received with it: that delays nothing, since it was sent before, and what is done with
several of them stands together, so that it can be done by one call (`received_together`).

    taken before      recv a, use a, recv b, use b, recv c, use c
    taken             recv a, recv b, recv c, use a, use b, use c
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ..placer.partition.partitioned_graph import Channel, Partitioned, task_of

AnyStep: TypeAlias = tuple[str, Any]
"""A step of a partition, or what `early.py` makes of one."""


def held(cut: Partitioned) -> dict[int, int]:
    """The channels between tasks whose tensors can wait for a later one that goes to the same program, each with the channel of that.

    Those of loops cannot: they come once per iteration.
    """
    pairs = {(c.source, c.destination) for c in cut.channels}
    if all(task_of(source) == task_of(destination) for source, destination in pairs):
        return {}
    taken: dict[tuple[str, str], list[int]] = defaultdict(
        list
    )  # (sending, receiving device) -> channels, as they are taken
    for part in cut.partitions.values():
        for kind, what in part.steps:
            if kind == "recv" and isinstance(what, Channel) and what.loop is None:
                taken[what.source, what.destination].append(what.id)
    waiting = {pair: iter(channels) for pair, channels in taken.items()}
    following = {pair: next(channels) for pair, channels in waiting.items()}
    out: dict[int, int] = {}
    for part in cut.partitions.values():
        sent: set[int] = set()
        for kind, what in part.steps:
            if kind != "send" or not isinstance(what, Channel) or what.loop is not None or not what.crosses_tasks:
                continue
            sent.add(what.id)
            pair = what.source, what.destination
            if following.get(pair, -1) not in (what.id, -1):
                out[what.id] = following[pair]
            while following.get(pair, -1) in sent:
                following[pair] = next(waiting[pair], -1)
    return out


def received_together(steps: Iterable[AnyStep], waiting: Mapping[int, int]) -> list[AnyStep]:
    """The steps of a part, with each receive of what is `held` right behind the one of what it comes with."""
    if not waiting:
        return list(steps)
    company: dict[int, list[AnyStep]] = defaultdict(list)
    kept: list[AnyStep] = []
    for step in steps:
        kind, what = step
        if kind == "recv" and isinstance(what, Channel) and what.id in waiting:
            company[waiting[what.id]].append(step)
        else:
            kept.append(step)
    if not company:
        return kept
    out: list[AnyStep] = []
    for step in kept:
        out.append(step)
        if step[0] == "recv" and isinstance(step[1], Channel):
            out += company.get(step[1].id, ())
    return out
