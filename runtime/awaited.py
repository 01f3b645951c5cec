"""Which tensors the receiving program can go on with as soon as they come, and which of it waits for others first.

A program runs in one order, and so do its receives. A tensor that it takes after another one from the same task is of no use
before that one: the gradient that is made first belongs to the last layer, and is taken last. Such a tensor loses nothing by
waiting for the one that is awaited, and both travel in one message.

    sent in the order          c  b  a        d
    taken in the order               a  b  c  d
    awaited                          a        d     c and b travel with a
"""

from __future__ import annotations

from collections import defaultdict

from ..placer.partition import Channel, Partitioned, task_of


def held(cut: Partitioned) -> frozenset[int]:
    """The channels between tasks whose tensors can wait for a later one that goes to the same program.

    Those of loops cannot: they come once per iteration.
    """
    pairs = {(c.source, c.destination) for c in cut.channels}
    if all(task_of(source) == task_of(destination) for source, destination in pairs):
        return frozenset()
    taken: dict[tuple[str, str], list[int]] = defaultdict(
        list
    )  # (sending, receiving device) -> channels, as they are taken
    for part in cut.partitions.values():
        for kind, what in part.steps:
            if kind == "recv" and isinstance(what, Channel) and what.loop is None:
                taken[what.source, what.destination].append(what.id)
    waiting = {pair: iter(channels) for pair, channels in taken.items()}
    following = {pair: next(channels) for pair, channels in waiting.items()}
    out = set()
    for part in cut.partitions.values():
        sent: set[int] = set()
        for kind, what in part.steps:
            if kind != "send" or not isinstance(what, Channel) or what.loop is not None or not what.crosses_tasks:
                continue
            sent.add(what.id)
            pair = what.source, what.destination
            if following.get(pair) != what.id:
                out.add(what.id)
            while following.get(pair, -1) in sent:
                following[pair] = next(waiting[pair], -1)
    return frozenset(out)
