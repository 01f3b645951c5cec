"""Stretches: runs of a program's launches that become one CUDA graph, started by one call.

A launch costs the host microseconds: allocating its results, looking up what fits the shapes, telling the driver. A training step
of a small model is mostly that. So steps that follow one another and run on the GPU alone are put together as a `Stretch`. It
runs them one by one at first, while kernels are chosen and compiled. When it meets the same shapes for the third time it captures
them: everything is launched once more, but only written down, as a CUDA graph. From then on, a run

    copies what comes in to where the graph reads it,    starts the graph,    and copies what is needed afterwards out of it.

Addresses are fixed in a graph. Its own memory stays with it. Variables have to be where they were, and an update in place needs a
variable that nobody else holds; each run looks whether that is so, and goes one by one where it is not. What cannot be
captured (a value that the host must see) stays one by one for good.

Taking a variable's place out of its container is no work for the GPU, and is done before a stretch, every time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.state import VariableState
from ..cuda.array import DeviceArray
from ..cuda.device import Device, NotCapturableError
from ..cuda.driver import CudaError
from ..cuda.graphs import Graph, capture
from ..program import Call, Instruction, Loop, Program
from .base import NodeError
from .cuda_state import held_alone
from .cuda_values import SMALL, OnShape, SmallOnHost, View
from .gathering import Run, constants_of, one_or_all, run_of
from .on_device import OnDevice

logger = logging.getLogger(__name__)

FEWEST = 4  # launching calls that are worth a graph: it costs two launches or so itself, and a copy for what comes in or goes out
ONE_BY_ONE = 2  # runs before a graph is captured: by then kernels are chosen, and the step is one that repeats
MOST_MISSED = 3  # runs in a row that a graph could not do, after which it is given up
MOST_GRAPHS = 4  # of a stretch, for as many shapes; each keeps the memory of all its results

_HANDLES = frozenset(("VariableV2", "VarHandleOp"))
_KINDS = (OnDevice, OnShape, View, SmallOnHost)
_WITHOUT_WORK = frozenset(("Identity", "StopGradient", "PreventGradient", "Read", "ReadVariableOp", "NoOp"))


def with_stretches(program: Program, device: Device) -> Program:
    """The program with stretches in the place of runs of launches, inside loops too."""
    constants = constants_of(program.slots)
    return replace(program, instructions=tuple(_gathered(program.instructions, constants, device)))


def _gathered(instructions: Iterable[Instruction], constants: dict[int, Any], device: Device) -> list[Instruction]:
    out: list[Instruction] = []
    run: list[Call] = []

    def close() -> None:
        handles = [c for c in run if c.op in _HANDLES]
        rest = [c for c in run if c.op not in _HANDLES]
        run.clear()
        if sum(isinstance(c.kernel, OnDevice) for c in rest) < FEWEST or any(c.frees for c in handles):
            out.extend([*handles, *rest])
            return
        joined = run_of(rest, constants)
        count = sum(isinstance(c.kernel, OnDevice) for c in rest)
        out.extend([*handles, joined.as_call(Stretch(device, joined), f"Stretch of {count} kernels")])

    for step in instructions:
        if isinstance(step, Call) and (isinstance(step.kernel, _KINDS) or step.op in _WITHOUT_WORK | _HANDLES):
            run.append(step)
            continue
        if run:
            close()
        if isinstance(step, Loop):
            step = replace(
                step,
                head=tuple(_gathered(step.head, constants, device)),
                body=tuple(_gathered(step.body, constants, device)),
            )
        out.append(step)
    if run:
        close()
    return out


@dataclass(slots=True)
class _Captured:
    """A graph, and what has to be so when it runs."""

    graph: Graph
    inputs: tuple[DeviceArray | None, ...]  # where the graph reads; None: a variable's place, or part of the key
    variables: tuple[tuple[int, int, tuple[int, ...]], ...]  # which input, and the address and shape of its value
    updated: tuple[int, ...]  # which inputs are variables that it changes
    outputs: tuple[Any, ...]
    missed: int = 0  # runs in a row in which something was not where it had been


class Stretch:
    """Several calls as one: one by one at first, then as a graph.

    Attributes:
        calls: what it runs.
        replays: how many runs were graphs.
    """

    def __init__(self, device: Device, run: Run) -> None:
        self.device = device
        self.calls = run.calls
        self.replays = 0
        self._run = run
        self._met: dict[Any, int] = {}
        self._captured: dict[Any, _Captured | None] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = self._key(inputs)
        if key is not None:
            captured = self._captured.get(key)
            if captured is None and self._is_due(key):
                captured = self._capture(key, inputs)
            if captured is not None:
                outputs = self._replay(captured, inputs)
                if outputs is not None:
                    captured.missed = 0
                    return one_or_all(outputs)
                captured.missed += 1
                if captured.missed > MOST_MISSED:
                    self._captured[key] = None  # its memory is of no use
        return one_or_all(self._one_by_one(inputs))

    @staticmethod
    def _key(inputs: Sequence[Any]) -> Any:
        """What a graph is made for: shapes, and the values of what is small and with the host; None when something else is."""
        key: list[Any] = []
        for x in inputs:
            if type(x) is DeviceArray:
                key.append((x.shape, x.dtype.str))
            elif isinstance(x, (np.ndarray, np.generic)) and x.size <= SMALL and not x.dtype.hasobject:
                key.append((x.shape, x.dtype.str, x.tobytes()))
            elif type(x) is not VariableState:
                return None
        return tuple(key)

    def _is_due(self, key: Any) -> bool:
        met = self._met[key] = self._met.get(key, 0) + 1 if len(self._met) <= 64 else 0
        return met == ONE_BY_ONE + 1 and len(self._captured) < MOST_GRAPHS

    def _one_by_one(self, inputs: Sequence[Any]) -> list[Any]:
        return self._run.one_by_one(inputs, NotCapturableError)

    # --- graphs ----------------------------------------------------------------------------------------------------

    def _capture(self, key: Any, inputs: Sequence[Any]) -> _Captured | None:
        device = self.device
        held = [device.copy(x, "a captured input") if type(x) is DeviceArray else None for x in inputs]
        try:
            with device.lock, capture(device) as graph:
                device.updates = []
                outputs = self._one_by_one([x if h is None else h for x, h in zip(inputs, held, strict=True)])
                updated = device.updates
        except (NotCapturableError, CudaError, NodeError) as e:
            logger.info("a stretch up to %s stays one by one: %s", self.calls[-1].node, e.__cause__ or e)
            return None
        finally:
            device.updates = None
        variables = tuple(
            (i, x._value.pointer, x._value.shape)
            for i, x in enumerate(inputs)
            if type(x) is VariableState and isinstance(x._value, DeviceArray)
        )
        changed = tuple(i for i, x in enumerate(inputs) if any(x is state for state in updated))
        made = self._captured[key] = _Captured(graph, tuple(held), variables, changed, tuple(outputs))
        return made

    def _replay(self, captured: _Captured, inputs: Sequence[Any]) -> list[Any] | None:
        """Run the graph; None: something is not where it was."""
        device = self.device
        with ExitStack() as entered:
            for state in sorted((inputs[i] for i in captured.updated), key=lambda s: (s.name, id(s))):
                entered.enter_context(state.lock)
            entered.enter_context(device.entered())
            if not all(_is_at(inputs[i], pointer, shape) for i, pointer, shape in captured.variables):
                return None
            if not all(held_alone(inputs[i]) for i in captured.updated):
                return None
            for x, there in zip(inputs, captured.inputs, strict=True):
                if there is not None:
                    device.copy_into(there, x)
            captured.graph.launch()
            self.replays += 1
            return [device.copy(y, self.calls[-1].node) if type(y) is DeviceArray else y for y in captured.outputs]


def _is_at(state: VariableState, pointer: int, shape: tuple[int, ...]) -> bool:
    value: Any = state._value
    return type(value) is DeviceArray and value.pointer == pointer and value.shape == shape
