"""Which tasks are started by the tensors that come to them, so that the client need not say `run` to them.

A task's part of a step that can do nothing before something comes from another task may as well begin when that comes: the
message with the tensors names the program (`carries`), and whoever gets it begins the step. Its end comes back in the same way. A
part whose programs all end with a send to another one does not report (`reports.py`). One that would have to, because it ends with
an update, sends an empty message at its end, which a part in the client's own process takes at its end: there, reporting is a call.

    client's process                     ps:0                 ps:1
    compute the gradients
    send ──── gradients, start ────────► apply
    send ──── gradients, start ──────────────────────────────► apply
    receive ◄──────── end ───────────────┘                    │
    receive ◄──────── end ────────────────────────────────────┘

Which parts: those without feeds and fetches each of whose programs begins with a receive. This cannot go round in a circle:
all programs of a step follow one order, in which a send stands before its receive. What a carried part takes first is so sent before it
takes anything, and if the sender is carried, too, it took something even earlier. So what is earliest comes from a part that
the client starts.

A carried part does not know the client. Its errors go to a task that waits for its end, through others or not, and reports:
that one fails, and tells the client. Whose end that is, is found by following last sends, as in `reports.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..graph.node import Node
from ..placer.partition import Channel, Partition, Partitioned, Step, task_of


def with_ends(cut: Partitioned, here: Collection[str]) -> Partitioned:
    """The same, with the messages by which parts that can be carried tell a part of the client's process that they have ended.

    Args:
        cut: what each device runs. here: the tasks whose servers are in the client's process.
    """
    to = _end_of(cut, here)
    if to is None:
        return cut
    channels, values = list(cut.channels), list(cut.values)
    partitions, taken = dict(cut.partitions), []
    for parts in _that_can_wait(cut, here).values():
        open_ends = [(p, last) for p in parts if not _ends_with_send(p) for last in [_last_node(p)]]
        for part, last in open_ends:
            if last is None:  # everything is in a loop: there is nothing to name the message by
                break
        else:
            for part, last in open_ends:
                assert last is not None
                end = Channel(len(channels), f"^{last.name}", part.device, to, 0, True, None, (), paces=True)
                channels.append(end)
                values.append(last)
                partitions[part.device] = replace(part, steps=(*part.steps, ("send", end)))
                taken.append(end)
    if not taken:
        return cut
    receives: list[Step] = [("recv", end) for end in taken]
    partitions[to] = replace(partitions[to], steps=(*partitions[to].steps, *receives))
    return Partitioned(partitions, channels, values, cut.guarded)


def carried(cut: Partitioned, here: Collection[str]) -> Mapping[str, str]:
    """The tasks that are started by what comes to them, each with the task that is told of their errors."""
    found = {}
    for task, parts in _that_can_wait(cut, here).items():
        if all(map(_ends_with_send, parts)):
            found[task] = task_of(_reporting(cut, parts[0]).device)
    return found


def carried_by(cut: Partitioned, task: str, started: Collection[str]) -> tuple[str, ...]:
    """The tasks, of those that are `started` by what comes to them, to which a task sends something."""
    sent = {task_of(c.destination): None for p in cut.partitions.values() if task_of(p.device) == task for c in p.sends}
    return tuple(t for t in sent if t in started and t != task)


def _that_can_wait(cut: Partitioned, here: Collection[str]) -> dict[str, list[Partition]]:
    """The parts that can do nothing before something comes, and to which the client has nothing to say."""
    by_task: dict[str, list[Partition]] = {}
    for part in cut.partitions.values():
        by_task.setdefault(task_of(part.device), []).append(part)
    if len(by_task) == 1:
        return {}
    return {
        task: parts
        for task, parts in by_task.items()
        if task not in here and not any(p.feeds or p.fetches for p in parts) and all(map(_begins_with_receive, parts))
    }


def _begins_with_receive(part: Partition) -> bool:
    """Whether a part does nothing first but take something; to make a constant, or to look up a variable's place, is nothing."""
    for kind, what in part.steps:
        if kind == "recv":
            return True
        if not (isinstance(what, Node) and what.type in _NOTHING and not what.controls):
            return False
    return False


_NOTHING = frozenset({"Const", "VariableV2", "VarHandleOp"})


def _ends_with_send(part: Partition) -> bool:
    return bool(part.steps) and part.steps[-1][0] == "send"


def _last_node(part: Partition) -> Node | None:
    """The last node that is in no loop."""
    depth = 0
    for kind, what in reversed(part.steps):
        depth += (kind == "end") - (kind == "loop")
        if isinstance(what, Node) and not depth:
            return what
    return None


def _reporting(cut: Partitioned, part: Partition) -> Partition:
    """Where one comes to, following last sends: they lead to ever later steps, so there is an end."""
    while _ends_with_send(part):
        what = part.steps[-1][1]
        assert isinstance(what, Channel)
        part = cut.partitions[what.destination]
    return part


def _end_of(cut: Partitioned, here: Collection[str]) -> str | None:
    """The device of the client's process on which ends are awaited: one that gives something back, if there is one."""
    parts = [p for p in cut.partitions.values() if task_of(p.device) in here]
    return next((p.device for p in parts if p.fetches), parts[0].device if parts else None)


__all__ = ["carried", "carried_by", "with_ends"]
