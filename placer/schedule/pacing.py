"""Flow control: receive scheduling keeps senders from running far ahead of their receivers.

A value is pushed as soon as it is made. Where a task makes values faster than another one uses them, they pile
up at the receiver. TensorFlow's option `enable_recv_scheduling` holds a receive back until its device has come
near the place where the value is needed. Here values are not pulled but pushed, so the send is delayed.

Theory. Give each step a start time: one later than the step before it on its device, and for a receive also one
later than its send (an ASAP analysis of the cut graph). Every edge leads to a later time. The times of a device
divide its part into at most `EPOCHS` epochs of equal length. What is received in epoch k may be sent when the
receiver has ended epoch k - `AHEAD`, and says so: by an empty message, the *pace*, one for each epoch and sender
at most, and none where the sender knows already. The sender takes it, and then sends, behind all its steps that
start no later than the receiver's last step of that epoch. So every edge, old or new, still leads to a later
time, and no partitions can wait for each other.

Only transfers between tasks are delayed: inside a task nothing is copied. What crosses inside a loop is not: a
receiver is never far behind there, since it hears of each iteration. Neither are reads of a variable's reference,
which must happen where they stand. And where a step has nodes that may wait for what another part of it puts into a
queue, there are edges that the graph does not show; then nothing is delayed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...graph.core.graph import Node, Tensor
from ..partition.partitioned_graph import Channel, Partitioned, Step

EPOCHS = 100  # TensorFlow's numbers, both
AHEAD = 6


def schedule_receives(cut: Partitioned) -> Partitioned:
    """The same partitions with delayed sends. The channels of flow control come after all others."""
    if any(n.opdef.is_blocking for n in cut.nodes):
        return cut
    parts = {device: _Part(p.steps) for device, p in cut.partitions.items()}
    times = start_times({device: p.steps for device, p in cut.partitions.items()})
    for device, part in parts.items():
        part.starts = times[device]
    delayed: dict[str, list[_DelayedSend]] = {device: [] for device in parts}
    for part in parts.values():
        for what in _delayed_by(part, parts, cut.values):
            delayed[what.channel.source].append(what)
    channels, values = list(cut.channels), list(cut.values)
    # By place: what goes before or behind a step, and the sends that have left theirs.
    before: dict[str, dict[int, list[Step]]] = {device: {} for device in parts}
    behind: dict[str, dict[int, list[Step]]] = {device: {} for device in parts}
    moved: set[int] = set()
    for device, part in parts.items():
        known = _KnownProgress(part, parts)
        for h in sorted(delayed[device], key=lambda h: (h.to, h.channel.id)):
            here = before[device].setdefault(h.to, [])
            source = h.channel.destination
            if not known.knows(source, h.until, h.to):
                pace = Channel(len(channels), f"^{h.node.name}", source, device, 0, True, None, (), paces=True)
                channels.append(pace)
                values.append(h.node)
                here.append(("recv", pace))
                behind[source].setdefault(h.until, []).append(("send", pace))
            here.append(("send", h.channel))
            moved.add(h.channel.id)
    if not moved:
        return cut
    partitions = {
        device: replace(p, steps=tuple(_with_moved_sends(p.steps, before[device], behind[device], moved)))
        for device, p in cut.partitions.items()
    }
    return Partitioned(partitions, channels, values, cut.predicated)


def _with_moved_sends(
    steps: Sequence[Step], before: Mapping[int, list[Step]], behind: Mapping[int, list[Step]], moved: set[int]
) -> list[Step]:
    out: list[Step] = []
    for i, step in enumerate(steps):
        out += before.get(i, ())
        kind, what = step
        if not (kind == "send" and isinstance(what, Channel) and what.id in moved):
            out.append(step)
        out += behind.get(i, ())
    return out + before.get(len(steps), [])


def start_times(steps: Mapping[str, Sequence[Step]]) -> dict[str, list[int]]:
    """Device -> the earliest start of each of its steps. A step takes 1, and a loop has one iteration."""
    times: dict[str, list[int]] = {device: [] for device in steps}
    sent: dict[int, int] = {}
    waiting: dict[int, str] = {}  # channel -> the device that waits for it
    todo = list(steps)[::-1]
    while todo:
        device = todo.pop()
        own, mine = steps[device], times[device]
        while len(mine) < len(own):
            kind, what = own[len(mine)]
            now = mine[-1] + 1 if mine else 0
            if isinstance(what, Channel):
                if kind == "send":
                    sent[what.id] = now
                    if what.id in waiting:
                        todo.append(waiting.pop(what.id))
                elif what.id in sent:
                    now = max(now, sent[what.id] + 1)
                elif kind == "recv":  # nothing is sent for a read
                    waiting[what.id] = device
                    break
            mine.append(now)
    return times


class _Part:
    """A device's steps, with tables of what every pass over them needs.

    Attributes:
        inside: for each place between steps, whether it is inside a loop; place i is before step i.
        node: for each step, the last node up to it that is in no loop.
        at: channel -> the place of its send.
        starts: for each step, when it starts.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.starts: list[int] = []
        self.inside: list[bool] = [False]
        self.node: list[Node | None] = []
        self.at: dict[int, int] = {}
        depth = 0
        last: Node | None = None
        for i, (kind, what) in enumerate(steps):
            depth += (kind == "loop") - (kind == "end")
            self.inside.append(depth > 0)
            if isinstance(what, Node) and not depth:
                last = what
            elif isinstance(what, Channel) and kind == "send":
                self.at[what.id] = i
            self.node.append(last)


@dataclass(frozen=True, slots=True)
class _DelayedSend:
    """A send that waits until its receiver has passed a step.

    Attributes:
        channel: what is sent. until: the number of that step. node: the last node that the receiver has run by then.
        to: the place among the sender's steps to which the send goes.
    """

    channel: Channel
    until: int
    node: Node
    to: int


def _delayed_by(part: _Part, parts: Mapping[str, _Part], values: Sequence[Tensor | Node]) -> list[_DelayedSend]:
    """The sends that a receiver holds back."""
    starts = part.starts
    length = starts[-1] // EPOCHS + 1 if starts else 1
    found = []
    for i, (kind, what) in enumerate(part.steps):
        if kind != "recv" or not isinstance(what, Channel) or not what.crosses_tasks or part.inside[i]:
            continue
        value = values[what.id]
        epoch = starts[i] // length - AHEAD
        if epoch < 0 or (isinstance(value, Tensor) and value.dtype.is_ref):
            continue
        until = bisect_right(starts, (epoch + 1) * length - 1) - 1
        while until >= 0 and part.inside[until + 1]:  # an epoch that ends in a loop ends behind it
            until += 1
        node = part.node[until] if until >= 0 else None
        if node is None or until >= i:
            continue
        sender = parts[what.source]
        to = max(sender.at[what.id], bisect_right(sender.starts, starts[until]))
        if not sender.inside[to]:
            found.append(_DelayedSend(what, until, node, to))
    return found


class _KnownProgress:
    """What a sender knows of other devices' progress at each of its steps, from what it has received before."""

    def __init__(self, part: _Part, parts: Mapping[str, _Part]) -> None:
        self._part, self._parts = part, parts
        self._place = 0
        self._passed: dict[str, int] = {}  # device -> the last of its steps that is known to have run

    def knows(self, device: str, until: int, place: int) -> bool:
        """Whether step `until` of a device is known to have run at this place; afterwards it is. Places must not fall."""
        while self._place < place:
            kind, what = self._part.steps[self._place]
            if kind == "recv" and isinstance(what, Channel) and not self._part.inside[self._place]:
                sent_at = self._parts[what.source].at[what.id]
                self._passed[what.source] = max(self._passed.get(what.source, -1), sent_at)
            self._place += 1
        passed = self._passed.get(device, -1)
        self._passed[device] = max(passed, until)
        return passed >= until


__all__ = ["AHEAD", "EPOCHS", "schedule_receives", "start_times"]
