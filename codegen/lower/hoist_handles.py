"""Hoists variable lookups: one call looks up all variables of a part of a program and caches the handles.

A variable's node looks up its variable by name in every step. The result stays the same until the container is cleared. So such nodes
become one call, which caches the handles with the task's resources (`Resources.together`); clearing a container drops them. In a
step of a small network on a GPU, or on a CPU whose kernels are one call, the lookups take a quarter of the program's time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ...graph.resources.resource_manager import Context, Resources
from ..ir.program import Call, Instruction, Loop, Program
from .region import one_or_all, region_of

_HANDLES = frozenset(("VariableV2", "VarHandleOp"))
FEWEST = 2  # that are worth it


def hoist_handles(program: Program) -> Program:
    """Replace several calls that only look up variables by one call, inside loops too.

    It runs at the position of the first lookup, which is safe: no instruction removes a variable from its container.
    """
    if not any(type(step) is Loop or type(step) is Call and step.op in _HANDLES for step in program.instructions):
        return program
    return replace(program, instructions=tuple(_joined(program.instructions)))


def _joined(instructions: Iterable[Instruction]) -> Iterable[Instruction]:
    calls: list[Call] = []  # consecutive calls
    for step in instructions:
        if type(step) is Call:
            calls.append(step)
            continue
        yield from _of(calls)
        calls.clear()
        yield (
            replace(step, head=tuple(_joined(step.head)), body=tuple(_joined(step.body)))
            if type(step) is Loop
            else step
        )
    yield from _of(calls)


def _of(calls: Sequence[Call]) -> list[Call]:
    """Consecutive calls, with the variable lookups merged at the position of the first of them."""
    used: set[int] = set()  # slots
    found: dict[int, Call] = {}
    resources: Resources | None = None
    for i, call in enumerate(calls):
        of = resources_of(call)
        if of is not None and resources in (None, of) and not used.intersection(call.outputs):
            found[i], resources = call, of
        used.update(call.inputs, call.outputs)
    if resources is None or len(found) < FEWEST:
        return list(calls)
    joined = region_of(list(found.values()), {})
    first = min(found)
    one = joined.as_call(CachedHandles(resources, tuple(found.values())), f"Places of {len(found)} variables")
    return [*calls[:first], one, *[c for i, c in enumerate(calls) if i > first and i not in found]]


def resources_of(call: Call) -> Resources | None:
    """The resources in which a call looks up its variable; None if the call does something else."""
    kernel = call.kernel
    if call.op not in _HANDLES or call.frees or type(kernel) is not functools.partial or not kernel.args:
        return None
    return kernel.args[0].resources if isinstance(kernel.args[0], Context) else None


class CachedHandles:
    """Looks up several variables of a task.

    Attributes:
        calls: one for each.
        unfolds: as of `NativeRegion`.
    """

    unfolds = True

    def __init__(self, resources: Resources, calls: tuple[Call, ...]) -> None:
        self.calls = calls
        self._run = region_of(calls, {})
        self._resources = resources

    def __call__(self) -> Any:
        found = self._resources.together.get(self)
        if found is None:
            version = self._resources.version
            found = one_or_all(self._run.one_by_one(()))
            self._resources.keep_together(self, found, version)
        return found
