"""Native plans: the launches of a kernel or a region for arrays of certain shapes, as a table that runs without Python in between.

All addresses are known up to where the arrays of a run begin: the inputs, the outputs (arrays of their own, since others will hold
them), and the *arena*, one piece of memory for everything else. `planner` records the launches, `launches` runs the table, and a
`PlanCache` has the plans of one kernel or region, by shapes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.core.errors import FailedPreconditionError
from ....graph.resources.buffer_pool import LARGE, buffers
from ....graph.resources.shared_storage import is_shared, to_send
from ....graph.resources.variable import VariableState, changing
from ...memory.plan import Piece, places
from ..jit import compile_now, compile_soon
from . import launches
from .launches import run
from .planner import KNOWN, Memory, NotCompiledError, NotPlannableError, Planner, stand_in

logger = logging.getLogger(__name__)

MOST_PLANS = 128  # of a kernel or region, for as many sets of shapes, made or to be made; with more it starts over
IN_ORDER = 0x101  # NumPy's flags of an array that is contiguous, in C's order, and aligned

Key: TypeAlias = tuple[Any, ...]
Sizes: TypeAlias = "tuple[Sequence[int | None] | None, np.dtype[Any]]"
Record: TypeAlias = Callable[[Planner, Sequence[Any]], Sequence[Any]]


class NativePlan:
    """A run of launches for arrays of certain shapes. Several threads may run it at once.

    Args:
        planner: has recorded them. outputs: as the planner knows them.
        sent: the outputs that go to other tasks. largest: the most bytes of the arena and of what leaves, if there is a limit.

    Attributes:
        arena_bytes: the memory in bytes that a run needs besides its outputs.
        schedules: of its products and convolutions.

    Raises:
        NotPlannableError: it needs more than that.
    """

    def __init__(
        self, planner: Planner, outputs: Sequence[Any], sent: Collection[int] = (), largest: int | None = None
    ) -> None:
        homes = [planner.memory_of(x) for x in outputs]
        given = [m for m in planner.memories if m.kind == "given"]
        made = [m for m in planner.memories if m.kind == "made" and m.first >= 0]
        leaving, staying = [m for m in made if m in homes], [m for m in made if m not in homes]
        offsets, self.arena_bytes = places([Piece(m.array.nbytes, m.first, m.last) for m in staying])
        if largest is not None and self.arena_bytes + sum(m.array.nbytes for m in leaving) > largest:
            raise NotPlannableError("its tensors are large")
        arena = [stand_in([self.arena_bytes], np.dtype(np.uint8))] if staying else []
        self._held = [m.array for m in planner.memories if m.kind == "fixed"]  # the table has their addresses
        where = {id(m): (i, 0) for i, m in enumerate([*given, *leaving])}
        where |= {id(m): (len(where), offset) for m, offset in zip(staying, offsets, strict=True)}
        self._table = np.zeros(len(planner.words), np.int64)
        patches = []
        for i, word in enumerate(planner.words):
            if type(word) is tuple:
                memory, behind = word
                number, offset = where[id(memory)]
                patches += [i, number, offset + behind]
            else:
                self._table[i] = word
        self._patches = np.array(patches, np.int64)
        self._make = [_maker(x) for x in (*[m.array for m in leaving], *arena)]
        self._sent = [i for i, m in enumerate(leaving) if any(m is homes[k] for k in sent)]
        for i in self._sent:
            self._make[i] = partial(_to_send, self._make[i], leaving[i].array)
        self._outputs = [_taker(x, home, where) for x, home in zip(outputs, homes, strict=True)]
        self._threads, self.schedules = planner.threads, planner.schedules
        self._puts_in_order = False  # an input was a number of NumPy's own kind, which is no array
        self._tables: list[Array] = []  # copies that no thread runs now

    def run(self, inputs: Sequence[Any], shown: Sequence[Any]) -> list[Any] | None:
        """Run it for inputs of its shapes, contiguous and aligned; returns its outputs. None: a kernel failed.

        `shown`: what an input is as an output: itself, or the variable whose value it is.
        """
        if self._puts_in_order:
            inputs = _in_order(inputs)
        made = [make() for make in self._make]
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._table.copy()
        arrays = (*inputs, *made)
        done = run(table, self._threads, arrays, self._patches)
        self._tables.append(table)
        if not done and any(type(x) is not np.ndarray for x in inputs):
            self._puts_in_order = True
            return self.run(inputs, shown)
        if not done:
            return None
        for i in self._sent:
            if is_shared(made[i]):
                made[i].flags.writeable = False
        if shown is not inputs:
            arrays = (*shown, *made)
        return [take(arrays) for take in self._outputs]


def _maker(like: Array) -> Callable[[], Array]:
    """What gives memory for an array like this one."""
    return partial(buffers.empty if like.nbytes >= LARGE else np.empty, like.shape, like.dtype)


def _to_send(make: Callable[[], Array], like: Array) -> Array:
    """Memory that other tasks can read, if there is any."""
    shared = to_send(like.shape, like.dtype)
    return make() if shared is None else shared


def _taker(x: Any, memory: Memory | None, where: dict[int, tuple[int, int]]) -> Callable[[Sequence[Array]], Any]:
    """How an output in this memory is taken from the arrays of a run: as one of them, or a view; `where`: the numbers of the memories."""
    if memory is None or memory.kind == "fixed":
        return lambda _: x.copy() if isinstance(x, np.ndarray) else x
    source = where[id(memory)][0]
    if x.shape == memory.array.shape and x.flags.c_contiguous:
        return itemgetter(source)
    offset, shape, strides = launches.begin_of(x) - memory.begin, x.shape, x.strides

    def view(arrays: Sequence[Array]) -> Array:
        out: Array = np.ndarray(shape, x.dtype, arrays[source], offset, strides)
        if 0 in strides:
            out.flags.writeable = False
        return out

    return view


class PlanCache:
    """The plans of one kernel or region, by the shapes of their inputs, and by the values that kernels look at.

    Args:
        record: records the calls into a planner, for these inputs, in which variables are their values; gives the outputs.
        what: the name in logs.
        read, changed: the inputs that are variables: whose values it reads, and which it changes.
        after: runs with the same shapes before they get a plan. A plan takes longer than a run: some 0.1 ms for each kernel.
        largest: as for a `NativePlan`.

    Attributes:
        sent: the outputs that go to other tasks.
    """

    def __init__(
        self,
        record: Record,
        what: str,
        read: Sequence[int] = (),
        changed: Sequence[int] = (),
        after: int = 0,
        largest: int | None = None,
    ) -> None:
        self._record = record
        self._what = what
        self._read = read
        self._changed = changed
        self._after = after
        self._largest = largest
        self.sent: Collection[int] = ()
        self._looked_at: tuple[int, ...] = ()  # inputs whose values are part of the key
        self._plans: dict[Key, NativePlan | float] = {}  # or how many runs come before one is made; infinity: all

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes of the arenas of the plans that there are."""
        return tuple([p.arena_bytes for p in list(self._plans.values()) if isinstance(p, NativePlan)])

    def run(self, inputs: Sequence[Any], at_once: bool) -> list[Any] | None:
        """Run by a plan, which is made if there is none.

        Args:
            inputs: the arrays and the variables. at_once: compile what a new plan needs and wait for it; else it is compiled in the
                background.

        Returns:
            The outputs, variables for their values; None if there is no plan for these inputs now, or if a kernel failed: then nothing
            has changed.
        """
        if not self._read and not self._changed:
            return self._run(inputs, at_once)
        arrays = list(inputs)
        try:
            for i in self._read:
                arrays[i] = arrays[i].read()
            if not self._changed:
                return self._run(arrays, at_once)
            states: list[VariableState] = [inputs[i] for i in self._changed]
            if len(set(states)) < len(states):
                return None
            with changing(states) as values:
                for i, value in zip(self._changed, values, strict=True):
                    arrays[i] = value
                return self._run(arrays, at_once, inputs)
        except FailedPreconditionError:  # a variable has no value
            return None

    def predicted(self, inputs: Sequence[Sizes | Array]) -> NativePlan | None:
        """The plan for inputs of these sizes, some of which are constants; it cannot run. None: there is none, or a size is not known."""
        planner = Planner(is_dry=True)
        try:
            given = [planner.given(i, stand_in(*x)) if isinstance(x, tuple) else x for i, x in enumerate(inputs)]
            return NativePlan(planner, self._record(planner, given), (), self._largest)
        except NotPlannableError:
            return None

    def _run(self, arrays: Sequence[Any], at_once: bool, shown: Sequence[Any] = ()) -> list[Any] | None:
        """As `run`, for arrays alone. `shown`: as for a `NativePlan`."""
        try:
            plan = self._plans.get(self._key(arrays), self._after)
            if not isinstance(plan, NativePlan):
                arrays = _in_order(arrays)
                plan = self._plans.get(self._key(arrays), self._after)
        except AttributeError:  # no array
            return None
        if not isinstance(plan, NativePlan):
            plan = plan - 1 if plan > 0 else self._plan(arrays, at_once)
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[self._key(arrays)] = plan  # more values may be looked at now
            if not isinstance(plan, NativePlan):
                return None
        return plan.run(arrays, shown or arrays)

    def _key(self, arrays: Sequence[Any]) -> Key:
        """The key of a plan. That of arrays which are not in order belongs to no plan."""
        key = [(x.shape, x.dtype, x.flags.num & IN_ORDER) for x in arrays]
        return (*key, *[arrays[i].tobytes() for i in self._looked_at]) if self._looked_at else tuple(key)

    def _plan(self, arrays: Sequence[Array], at_once: bool) -> NativePlan | float:
        """A plan for arrays like these, or what there is instead: see `_plans`."""
        planner = Planner()
        try:
            planner.compiled(launches.loops_text())
            inputs = [planner.given(i, _placeholder(x)) for i, x in enumerate(arrays)]
            made = NativePlan(planner, self._record(planner, inputs), self.sent, self._largest)
        except NotCompiledError as e:
            if at_once:
                compile_now(e.args[0])
                return self._plan(arrays, at_once)
            compile_soon(e.args[0], lambda function: None)
            return 0
        except NotPlannableError as e:
            logger.debug("%s runs without a plan: %s", self._what, e)
            return math.inf
        self._looked_at = tuple(sorted({*self._looked_at, *planner.looked_at}))
        return made


def _in_order(arrays: Sequence[Any]) -> list[Array]:
    """Arrays as plans take them: arrays proper, contiguous and aligned."""
    return [
        x if type(x) is np.ndarray and x.flags.num & IN_ORDER == IN_ORDER else np.array(x, order="C") for x in arrays
    ]


def _placeholder(x: Array) -> Array:
    """An array like another one, in memory of its own; of a large one, without its content."""
    out = stand_in(x.shape, x.dtype)
    if x.nbytes <= KNOWN:
        out[...] = x
    return out
