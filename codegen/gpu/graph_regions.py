"""Pass: runs of launches that become regions, each of which is captured as a CUDA graph and replayed by one call.

A launch costs the host microseconds, and a training step of a small model is mostly that. So consecutive calls that run on the GPU alone
become a `GraphRegion`. Lookups of variables' handles stay before it. The region itself copies values from the host that only it reads to
the device, and starts the copy of values that only the host reads.

A region runs launch by launch at first. When the same shapes come for the third time, everything is launched once more, but only
recorded. From then on, a run checks that no variable has moved, copies inputs to the addresses that the graph reads, and starts the graph.
It copies out the outputs that are needed afterwards. A step that only changes variables copies nothing, a fed value is copied straight
to its address in the graph, and the copy of a fetched value starts before the next call of the program.

A graph keeps its own memory, and its addresses are fixed. Variables must stay where they were, and an update in place needs a value that
only its variable refers to. Each run checks that, and runs launch by launch where it does not hold. A region that cannot be captured (a
value must be seen by the host) runs launch by launch for good. So does one whose graphs were dropped because memory ran out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...graph.core.errors import ResourceExhaustedError
from ...graph.resources.variable import VariableState
from ..ir.nodes import HANDLES, PASSED_ON
from ..ir.program import (
    Call,
    CapturedRegion,
    Instruction,
    Loop,
    NodeError,
    Program,
    Region,
    flattened,
    one_or_all,
    slots_read,
)
from ..target import GPU_SMALL_DOWNLOAD
from .driver.api import CudaError
from .driver.array import DeviceArray
from .driver.device import Device, Graph, NotCapturableError, capture
from .families import ASSIGNMENTS_IN_PLACE, HARMLESS, LAUNCHING, SHAPES, VIEWS, family_of, loads
from .residency import SMALL, belongs_on_device, received
from .transfers import TO_DEVICE, TO_HOST
from .variables import all_unshared

logger = logging.getLogger(__name__)

DUE = (3, 6, 12, 24)
"""Runs at which a graph is captured, until one succeeds: first kernels are chosen; later, another thread may hold a variable's value."""

MOST_MISSED = 3  # failed replays in a row after which a graph is dropped
MOST_GRAPHS = 4  # graphs per region, one per set of shapes; each keeps the memory of its results
MOST_MET = 64  # sets of shapes whose runs are counted


@dataclass(slots=True)
class _Captured:
    """A graph, and the conditions under which it may run.

    Attributes:
        places: inputs that are copied in, or variables with values in host memory, and their arrays in the graph.
        variables: inputs that are other variables, and the address and shape of their values.
        changed: those that it changes, in lock order.
        outputs: the results.
        missed: runs in a row in which a variable had moved.
    """

    graph: Graph
    places: tuple[tuple[int, DeviceArray], ...]
    variables: tuple[tuple[int, int, tuple[int, ...]], ...]
    changed: tuple[int, ...]
    outputs: tuple[Any, ...]
    missed: int = 0


class GraphRegion:
    """Several calls as one: launched one by one, or replayed as a CUDA graph.

    Args:
        device: the GPU on which they run.
        captured: the calls, with their kernels.

    Attributes:
        replays: number of runs that replayed a graph.
    """

    def __init__(self, device: Device, captured: CapturedRegion) -> None:
        self.device = device
        self.replays = 0
        self._run = captured.region
        self._fed, self._arrays, self._leaving = captured.fed, captured.arrays, captured.leaving
        self._met: dict[Any, int] = {}
        self._captured: dict[Any, _Captured | None] = {}
        device.pool.graphs.add(self)

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

    def give_up(self) -> bool:
        """Drop all graphs for good, because memory ran out. Returns whether there were any."""
        given_up = [key for key, captured in list(self._captured.items()) if captured is not None]
        self._captured.update(dict.fromkeys(given_up))
        return bool(given_up)

    def _key(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        """The key of a graph: shapes, and the values of small host inputs; None if there are inputs of another kind."""
        key: list[Any] = []
        for i, x in enumerate(inputs):
            kind = type(x)
            if kind is VariableState:
                x = x._value
                if type(x) is DeviceArray:  # which `_values` looks at
                    continue
                if x is None:
                    return None
            elif kind is DeviceArray:
                key += x.shape, x.dtype
                continue
            if not isinstance(x, (np.ndarray, np.generic)) or x.dtype.hasobject:
                return None
            if self._is_copied_in(i, x):
                key += x.shape, x.dtype
            elif x.size <= SMALL:
                key += x.shape, x.dtype, x.tobytes()
            else:
                return None
        return tuple(key)

    def _is_due(self, key: Any) -> bool:
        """Whether to capture now: at the third run; after failures a few times more, at growing intervals."""
        if key in self._captured or len(self._captured) >= MOST_GRAPHS:
            return False
        if len(self._met) > MOST_MET:
            self._met.clear()
        met = self._met[key] = self._met.get(key, 0) + 1
        return met in DUE

    def _one_by_one(self, inputs: Sequence[Any]) -> list[Any]:
        if self._fed:
            inputs = [received(self.device, x) if i in self._fed else x for i, x in enumerate(inputs)]
        return self._run.one_by_one(inputs, NotCapturableError)

    # --- graphs ----------------------------------------------------------------------------------------------------

    def _capture(self, key: Any, inputs: Sequence[Any]) -> _Captured | None:
        device = self.device
        try:
            places = self._places(inputs)
            given = [places.get(i, x) for i, x in enumerate(inputs)]
            states: dict[int, Any] = {i: x for i, x in enumerate(inputs) if type(x) is VariableState}
            twins = {i: VariableState(x.name, x.dtype) for i, x in states.items() if i in places}
            for i, twin in twins.items():
                given[i] = twin
                twin.move(places[i])
            with device.lock, capture(device) as graph:
                device.updates = []
                outputs = self._run.one_by_one(given, NotCapturableError)
                updated = device.updates
            if any(twin is x for twin in twins.values() for x in (*updated, *outputs)):
                raise NotCapturableError("a variable whose value is with the host is changed, or given to others")
            changed = [i for i, x in states.items() if any(x is state for state in updated)]
            changed.sort(key=lambda i: states[i].name)
            if len({states[i].name for i in changed}) < len(changed):
                raise NotCapturableError("an update of two variables of one name")
        except (NotCapturableError, CudaError, NodeError, ResourceExhaustedError) as e:
            last, why = self._run.calls[-1].node, e.__cause__ or e
            logger.info("the launches up to %s are not captured as a CUDA graph: %s", last, why)
            return None
        finally:
            device.updates = None
        there = [(i, x._value) for i, x in states.items() if i not in places]
        variables = tuple([(i, value.pointer, value.shape) for i, value in there if type(value) is DeviceArray])
        made = self._captured[key] = _Captured(graph, tuple(places.items()), variables, tuple(changed), tuple(outputs))
        return made

    def _places(self, inputs: Sequence[Any]) -> dict[int, DeviceArray]:
        """Memory for the inputs that are copied in, and for variables whose values are in host memory."""
        out = {}
        for i, x in enumerate(inputs):
            value: Any = x._value if type(x) is VariableState else x
            # A variable that is being changed has no value for a moment.
            is_hosts = isinstance(value, (np.ndarray, np.generic))
            if self._is_copied_in(i, value) if is_hosts else type(x) is DeviceArray:
                out[i] = self.device.empty(value.shape, value.dtype, "an input of a graph")
        return out

    def _is_copied_in(self, i: int, x: Any) -> bool:
        """Whether a host array is copied to GPU memory for the graph in each run."""
        return i in self._arrays or (i in self._fed and belongs_on_device(x))

    def _replay(self, captured: _Captured, inputs: Sequence[Any]) -> list[Any] | None:
        """Replay the graph; None: a variable has moved."""
        device = self.device
        states = [inputs[i] for i in captured.changed]
        locked: list[VariableState] = []
        try:
            for state in states:
                state.lock.acquire()
                locked.append(state)
            with device.entered():
                values = _values(captured, inputs, states)
                if values is None:
                    return None
                for k, (_, place) in enumerate(captured.places):
                    x = values[k]
                    if isinstance(x, (np.ndarray, np.generic)):
                        device.transfers.refill(place, np.ascontiguousarray(x))
                    else:
                        device.copy_into(place, received(device, x))
                captured.graph.launch()
                del values  # until now, this reference kept the graph's inputs alive
                self.replays += 1
                outputs = [self._output(i, y) for i, y in enumerate(captured.outputs)]
            for state in states:
                if state.on_change is not None:
                    state.on_change(None)
            return outputs
        finally:
            for state in locked:
                state.lock.release()

    def _output(self, i: int, y: Any) -> Any:
        """An output, copied out of the memory that the next run of the graph overwrites."""
        if type(y) is not DeviceArray:
            return y
        if i in self._leaving and 0 < y.nbytes <= GPU_SMALL_DOWNLOAD:  # which is over before another run begins
            return self.device.coming_to_host(y)
        return self.device.copy(y, self._run.calls[-1].node)


def _values(captured: _Captured, inputs: Sequence[Any], changed: Sequence[VariableState]) -> list[Any] | None:
    """The values to copy in, and those of the other variables; None: a variable has moved, or a shared one would be changed."""
    if not all_unshared(changed):
        return None
    values: list[Any] = []
    for i, place in captured.places:
        value = inputs[i]
        if type(value) is VariableState:
            value = value._value
            if value is None or value.shape != place.shape:
                return None
        values.append(value)
    for i, pointer, shape in captured.variables:
        value = inputs[i]._value
        if type(value) is not DeviceArray or value.pointer != pointer or value.shape != shape:
            return None
        values.append(value)
    return values


# --- the pass --------------------------------------------------------------------------------------------------------


FEWEST = 4  # the fewest launches that are worth a graph: it costs about two launches itself, and a copy for each input and output

_WITHOUT_WORK = PASSED_ON | {"Read", "ReadVariableOp", "NoOp"}
_TAKEN = _WITHOUT_WORK | HANDLES | {TO_DEVICE}


def _is_taken(call: Call) -> bool:
    return family_of(call) in HARMLESS or call.op in _TAKEN or family_of(call) == ASSIGNMENTS_IN_PLACE


def _may_wait(run: Sequence[Call], call: Call) -> bool:
    """Whether a call may move before a run, which so far only looks up variables and copies values that the call does not use."""
    used = {*call.inputs, *call.outputs, *call.frees}
    return all((c.op in HANDLES or c.op == TO_DEVICE) and used.isdisjoint(c.outputs) for c in run)


def _is_array(slot: int, calls: Sequence[Call], outputs: Sequence[int]) -> bool:
    """Whether a slot's value may be in GPU memory however small it is: all calls read it on the device."""
    if slot in outputs:
        return False
    for call in calls:
        for position in [i for i, s in enumerate(call.inputs) if s == slot]:
            is_loaded = family_of(call) in LAUNCHING and loads(call, position)
            is_passed_on = family_of(call) == VIEWS and position == 0 or call.op in _WITHOUT_WORK
            if is_passed_on and all(_is_array(s, calls, outputs) for s in call.outputs):
                continue
            if not is_loaded and not (family_of(call) == SHAPES and position == 0):
                return False
    return True


def with_graph_regions(program: Program) -> Program:
    """The program with a region instead of each run of launches, inside loops too."""
    constants = program.constants
    readers = Counter(slot for step in flattened(program.instructions) for slot in slots_read(step))
    readers.update(slot for _, slot in program.fetches)
    leaving = {s.inputs[0] for s in program.instructions if isinstance(s, Call) and s.work is TO_HOST}

    def joined(run: list[Call]) -> list[Call]:
        """What replaces a run: a region, preceded by the calls that stay outside; or the run itself where it is too short."""
        handles = [c for c in run if c.op in HANDLES]
        count = sum(family_of(c) in LAUNCHING for c in run)
        if count < FEWEST or any(c.frees for c in handles):
            return list(run)
        rest = [c for c in run if c.op not in HANDLES and c.op != TO_DEVICE]
        region = Region.of(rest, constants)

        def is_only_reader(slot: int) -> bool:
            """Whether only the region, and one copy, read a slot."""
            return readers[slot] == sum(c.inputs.count(slot) for c in rest) + 1

        fed, before = [], handles
        for call in run:
            if call.op == TO_DEVICE and call.inputs[0] in region.given and is_only_reader(call.inputs[0]):
                fed.append(region.given.index(call.inputs[0]))
            elif call.op == TO_DEVICE:
                before.append(call)
        away = [i for i, slot in enumerate(region.outputs) if slot in leaving and is_only_reader(slot)]
        arrays = [i for i, slot in enumerate(region.given) if _is_array(slot, rest, region.outputs)]
        work = CapturedRegion(region, frozenset(fed), frozenset(arrays), frozenset(away))
        return [*before, region.as_call(work, f"CUDA graph of {count} kernels")]

    def gathered(instructions: Iterable[Instruction]) -> list[Instruction]:
        out: list[Instruction] = []
        run: list[Call] = []
        for step in instructions:
            if isinstance(step, Call) and _is_taken(step):
                run.append(step)
            elif isinstance(step, Call) and _may_wait(run, step):
                out.append(step)
            else:
                out += [*joined(run), step.with_parts(gathered) if isinstance(step, Loop) else step]
                run.clear()
        return out + joined(run)

    return replace(program, instructions=tuple(gathered(program.instructions)))
