"""Coalesces adjacent additions to accumulators of other tasks (`placer/partition/one_sided_accumulates.py`) into one call.

Each target task gets one notification, after all additions for it, because each wake-up costs processor time. Tasks to which this
one writes nothing then are notified first, so that they work meanwhile. Messages that additions have been made are sent after all
of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from ...graph.core.graph import Node
from ...graph.ops.state.accumulators import ADDITION
from ..backend import NodeError
from ..ir.program import Call, Instruction, Send


class CoalescedAccumulates:
    """Several additions as one kernel.

    Attributes:
        calls: one for each.
        unfolds: as of `NativeRegion`.
    """

    unfolds = True

    def __init__(self, calls: Sequence[Call], nodes: Sequence[Node], tasks: Sequence[str]) -> None:
        self.calls = tuple(calls)
        numbered = groupby(range(len(calls)), lambda i: tasks[i])
        self._groups = tuple([tuple([(3 * i, nodes[i]) for i in group]) for _, group in numbered])

    def __call__(self, *inputs: Any) -> tuple[()]:
        for group in self._groups:
            told = None
            try:
                for at, node in group:
                    accumulator, step, gradient = inputs[at : at + 3]
                    try:
                        if accumulator.add(gradient, int(step)):
                            told = accumulator
                    except Exception as e:
                        raise NodeError(node) from e
            finally:
                if told is not None:
                    told.wake()
        return ()


def coalesce_accumulates(
    instructions: Iterable[Instruction], added: Mapping[int, tuple[Call, Node, str]], reaching: Iterable[Call]
) -> list[Instruction]:
    """Coalesce adjacent additions into one call. No slots have been freed yet.

    Args:
        added: `id` -> call that adds to another task's accumulator, with its node and that task.
        reaching: the calls that only look up an accumulator.
    """
    looks = {id(c) for c in reaching}
    out: list[Instruction] = []
    before: list[Instruction] = []
    together: list[tuple[Call, Node, str]] = []
    behind: list[Send] = []

    def close() -> None:
        nonlocal before, together, behind
        if together:
            to = {s.destination.partition("/device:")[0] for s in behind}
            together.sort(key=lambda a: (a[2] in to, a[2]))
            calls, nodes, tasks = zip(*together, strict=True)
            last = calls[-1]
            out.extend(before)
            if len(calls) == 1:
                out.append(last)
            else:
                given = tuple([i for c in calls for i in c.inputs])
                names = tuple([c.node for c in calls])
                kernel = CoalescedAccumulates(calls, nodes, tasks)
                out.append(Call(kernel, given, (), (), last.node, ADDITION, last.origin, names))
            out.extend(behind)
        else:
            out.extend(before)
        before, together, behind = [], [], []

    for step in instructions:
        if id(step) in added:
            together.append(added[id(step)])
        elif id(step) in looks:
            before.append(step)
        elif together and type(step) is Send and step.slot < 0:
            behind.append(step)
        else:
            close()
            out.append(step)
    close()
    return out


__all__ = ["CoalescedAccumulates", "coalesce_accumulates"]
