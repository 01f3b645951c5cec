"""Which tasks are started by the tensors that come to them, so that the client need not say `run` to them.

A task's part of a step that can do nothing before something comes from another task may as well begin when that comes: the
message with the tensors says which program it starts, and for which client. All else is as if the client had said it: the task
answers the client, who asks it for signs of life and tells it when the step is aborted.

    client        worker              ps:0        ps:1
    run ────────► compute
                  gradients, start ──► apply
                  gradients, start ──────────────► apply
         ◄──── done ───────────────────┘           │
         ◄──── done ───────────────────────────────┘

Which parts: those without feeds each of whose programs begins with a receive. (To read variables where they lie is no work, and
waits for no step: it is done when the tensors come.) This cannot go round in a circle: all programs of a step follow one order, in
which a send stands before its receive. What a carried part takes first is so sent before it takes anything, and if the sender is
carried, too, it took something even earlier. So what is earliest comes from a part that the client starts.

A task answers on the client's own connection, so it must know that. A client has a name for its connections, a random number, which
goes with each `run`, and a task remembers the connection on which it was heard (`callers.py`). Who has never been told so is told `run`
in any case. Whoever is named a client that he does not know begins nothing, but keeps the tensors: the client, which has no answer by
then, says `run` after all before it first asks for signs of life (`remote.py`). So nothing else needs care: if a message
that should have started a task is lost, that `run` starts it, and it finds out by itself that its tensors are overdue (`overdue.py`).
A step that is traced is begun by `run` everywhere, since all are to take notes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ..graph.core.node import Node
from ..graph.core.opdef import Trait
from ..placer.partition.partitioned_graph import Partition, Partitioned, task_of


class Carry(NamedTuple):
    """What tensors start where they come to: a program, for a client."""

    program: str
    client: int


def carried(cut: Partitioned) -> tuple[str, ...]:
    """The tasks that are started by what comes to them."""
    by_task: dict[str, list[Partition]] = {}
    for part in cut.partitions.values():
        by_task.setdefault(task_of(part.device), []).append(part)
    return tuple(
        task
        for task, parts in by_task.items()
        if len(by_task) > 1 and not any(p.feeds for p in parts) and all(map(_begins_with_receive, parts))
    )


def carried_by(cut: Partitioned, task: str, started: Collection[str]) -> tuple[str, ...]:
    """The tasks, of those that are `started` by what comes to them, to which a task sends something."""
    sent = {task_of(c.destination): None for p in cut.partitions.values() if task_of(p.device) == task for c in p.sends}
    return tuple(t for t in sent if t in started and t != task)


def _begins_with_receive(part: Partition) -> bool:
    """Whether a part does no work before it takes something."""
    for kind, what in part.steps:
        if kind != "read" and not (isinstance(what, Node) and _is_nothing(what)):
            return kind == "recv"
    return False


def _is_nothing(node: Node) -> bool:
    """Whether it is no work: to make a constant, or to look up the place of a variable, a queue, an accumulator."""
    return (node.type == "Const" or Trait.STATE_HANDLE in node.opdef.traits) and not node.controls


__all__ = ["Carry", "carried", "carried_by"]
