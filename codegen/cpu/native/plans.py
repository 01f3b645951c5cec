"""Native plans: the launches of a kernel or a region for arrays of certain shapes, as a table that runs without Python in between.

All addresses are known up to where the arrays of a run begin: the inputs, the outputs (arrays of their own, since others will hold
them), and the *arena*, one piece of memory for everything else. `planner` records the launches, `worker_pool` runs the table, and a
`PlanCache` has the plans of one kernel or region, by shapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.resources.buffer_pool import LARGE, buffers
from ....graph.resources.shared_storage import is_shared, to_send
from ...memory.plan import Piece, places
from ..jit import compile_now, compile_soon
from . import table as launches
from .planner import KNOWN, Address, Memory, NotCompiledError, NotPlannableError, Planner, stand_in
from .worker_pool import run

logger = logging.getLogger(__name__)

MOST_PLANS = 128  # of a kernel or region, for as many sets of shapes, made or to be made; with more it starts over
_REFUSED = -1
IN_ORDER = 0x101  # NumPy's flags of an array that is contiguous, in C's order, and aligned

Key: TypeAlias = tuple[Any, ...]
Record: TypeAlias = Callable[[Planner, Sequence[Any]], Sequence[Any]]


class NativePlan:
    """A run of launches for arrays of certain shapes. Several threads may run it at once.

    Args:
        planner: has recorded them. outputs: as the planner knows them.
        sent: the outputs that go to other tasks. largest: the most bytes of the arena and of what leaves, if there is a limit.

    Attributes:
        arena_bytes: the memory in bytes that a run needs besides its outputs.

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
            if type(word) is Address:
                number, offset = where[id(word.memory)]
                patches += [i, number, offset + word.offset]
            else:
                self._table[i] = word
        self._patches = np.array(patches, np.int64)
        self._shapes = [(m.array.shape, m.array.dtype, IN_ORDER) for m in given]
        self._make = [_maker(x) for x in (*[m.array for m in leaving], *arena)]
        self._sent = [i for i, m in enumerate(leaving) if any(m is homes[k] for k in sent)]
        for i in self._sent:
            self._make[i] = partial(_to_send, self._make[i], leaving[i].array)
        self._outputs = [_taker(x, home, where) for x, home in zip(outputs, homes, strict=True)]
        self._looked_at = [(i, value.tobytes()) for i, value in planner.looked_at.items()]
        self._threads = planner.threads
        self._tables: list[Array] = []  # copies that no thread runs now

    def run(self, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run it and return its outputs. None: the arrays do not fit the plan, or a kernel failed; nothing has changed."""
        try:
            if [(x.shape, x.dtype, x.flags.num & IN_ORDER) for x in inputs] != self._shapes:
                return None
            if self._looked_at and any(inputs[i].tobytes() != value for i, value in self._looked_at):
                return None
        except AttributeError:  # no array
            return None
        made = [make() for make in self._make]
        arrays = (*inputs, *made)
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._table.copy()
        done = launches.loops()["bind"](id(arrays), self._patches, table) and run(table, self._threads)
        self._tables.append(table)
        if not done:
            return None
        for i in self._sent:
            if is_shared(made[i]):
                made[i].flags.writeable = False
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
        record: records the calls into a planner, for these inputs, and gives the outputs.
        what: the name in logs.
        after: runs with the same shapes before they get a plan. A plan takes longer than a run: some 0.1 ms for each kernel.
        largest: as for a `NativePlan`.

    Attributes:
        sent: the outputs that go to other tasks.
    """

    def __init__(self, record: Record, what: str, after: int = 0, largest: int | None = None) -> None:
        self._record = record
        self._what = what
        self._after = after
        self._largest = largest
        self.sent: Collection[int] = ()
        self._last: NativePlan | None = None  # used
        self._puts_in_order = False  # for `_last`: an input was not as plans take it
        self._looked_at: tuple[int, ...] = ()  # inputs whose values are part of the key
        self._plans: dict[Key, NativePlan | int] = {}  # or how often there was none, or `_REFUSED`

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes of the arenas of the plans that there are."""
        return tuple([p.arena_bytes for p in list(self._plans.values()) if isinstance(p, NativePlan)])

    def run(self, inputs: tuple[Any, ...], at_once: bool) -> list[Any] | None:
        """Run by a plan, which is made if there is none.

        Args:
            inputs: the arrays. at_once: compile what a new plan needs and wait for it; else it is compiled in the background.

        Returns:
            The outputs; None if there is no plan for these inputs now, or if a kernel failed: then nothing has changed.
        """
        plan = self._last
        if plan is not None:
            outputs = plan.run(tuple(map(_in_order, inputs)) if self._puts_in_order else inputs)
            if outputs is not None:
                return outputs
        if not all(isinstance(x, (np.ndarray, np.generic)) and not x.dtype.hasobject for x in inputs):
            return None
        ordered = tuple(map(_in_order, inputs))
        plan = self._plan_for(ordered, at_once)
        outputs = None if plan is None else plan.run(ordered)
        if outputs is not None:
            self._last = plan
            self._puts_in_order = any(x is not y for x, y in zip(inputs, ordered, strict=True))
        return outputs

    def _plan_for(self, arrays: tuple[Any, ...], at_once: bool) -> NativePlan | None:
        """The plan for arrays and their values, if there is one or if it is time to make one."""
        found = self._plans.get(self._key(arrays), 0)
        if isinstance(found, NativePlan) or found == _REFUSED:
            return found if isinstance(found, NativePlan) else None
        if len(self._plans) >= MOST_PLANS:
            self._plans.clear()
        made: NativePlan | int = found + 1
        if found >= self._after:
            try:
                made = self._plan(arrays, at_once) or made
            except NotPlannableError as e:
                logger.debug("%s runs without a plan: %s", self._what, e)
                made = _REFUSED
        self._plans[self._key(arrays)] = made
        return made if isinstance(made, NativePlan) else None

    def _key(self, arrays: tuple[Any, ...]) -> Key:
        return (*[(x.shape, x.dtype) for x in arrays], *[arrays[i].tobytes() for i in self._looked_at])

    def _plan(self, arrays: tuple[Any, ...], at_once: bool) -> NativePlan | None:
        """A plan for arrays like these; None: something has to be compiled first."""
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
            return None
        self._looked_at = tuple(sorted({*self._looked_at, *planner.looked_at}))
        return made


def _in_order(x: Any) -> Any:
    """An array as plans take it: an array proper, contiguous and aligned."""
    is_in_order = type(x) is np.ndarray and x.flags.num & IN_ORDER == IN_ORDER
    return x if is_in_order else np.array(x, order="C")


def _placeholder(x: Array) -> Array:
    """An array like another one, in memory of its own; of a large one, without its content."""
    out = stand_in(x.shape, x.dtype)
    if x.nbytes <= KNOWN:
        out[...] = x
    return out
