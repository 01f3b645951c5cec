"""Plans by shapes: runs a kernel or a region, for arrays of any shapes, by the plan for theirs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..jit import compile_now, compile_soon
from . import table as launches
from .plan import NativePlan
from .planner import KNOWN, NotCompiledError, NotPlannableError, Planner, is_dense, stand_in

logger = logging.getLogger(__name__)

MOST_PLANS = 64  # of a kernel or region, for as many sets of shapes; with more it starts over
MOST_MET = 256  # sets of shapes that are counted; a program of ever new ones starts over

Key: TypeAlias = tuple[tuple[tuple[int, ...], tuple[int, ...] | None, np.dtype[Any]], ...]
Record: TypeAlias = Callable[[Planner, Sequence[Any]], Sequence[Any]]


class PlanCache:
    """The plans of one kernel or region.

    Args:
        record: records the calls into a planner, for these inputs, and gives the outputs.
        what: the name in logs.
        after: runs with the same shapes before they get a plan. A plan takes longer than a run: some 0.1 ms for each kernel.
        largest: the most bytes of a plan's memory, if there is a limit.

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
        self._plans: dict[Key, list[NativePlan]] = {}
        self._met: dict[Key, int] = {}
        self._refused: set[Key] = set()
        self._lock = threading.Lock()

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes of the arenas of the plans that there are."""
        with self._lock:
            return tuple([p.arena_bytes for plans in self._plans.values() for p in plans])

    def run(self, inputs: tuple[Any, ...], at_once: bool) -> list[Any] | None:
        """Run by a plan, which is made if there is none.

        Args:
            inputs: the arrays. at_once: compile what a new plan needs and wait for it; else it is compiled in the background.

        Returns:
            The outputs; None if there is no plan for these inputs now, or if a kernel failed: then nothing has changed.
        """
        plan = self._last
        if plan is not None:
            outputs = plan.run(tuple(map(in_order, inputs)) if self._puts_in_order else inputs)
            if outputs is not None:
                return outputs
        if not all(isinstance(x, (np.ndarray, np.generic)) and not x.dtype.hasobject for x in inputs):
            return None
        ordered = tuple(map(in_order, inputs))
        key = tuple([(x.shape, None if x.flags.c_contiguous else x.strides, x.dtype) for x in ordered])
        if key in self._refused:
            return None
        for plan in self._plan_for(key, ordered, at_once):
            outputs = plan.run(ordered)
            if outputs is not None:
                self._last = plan
                self._puts_in_order = any(x is not y for x, y in zip(inputs, ordered, strict=True))
                return outputs
        return None

    def _plan_for(self, key: Key, arrays: tuple[Any, ...], at_once: bool) -> list[NativePlan]:
        """The plan for arrays and their values, if there is one or if it is time to make one."""
        found = [plan for plan in self._plans.get(key, ()) if plan.knows(arrays)]
        if found or not self._is_due(key):
            return found
        try:
            plan = self._made(arrays, at_once)
        except NotPlannableError as e:
            logger.debug("%s runs without a plan: %s", self._what, e)
            if len(self._refused) >= MOST_MET:
                self._refused.clear()
            self._refused.add(key)
            return []
        if plan is None:
            return []
        with self._lock:
            if sum(map(len, self._plans.values())) >= MOST_PLANS:
                self._plans.clear()
            self._plans.setdefault(key, []).append(plan)
        return [plan]

    def _is_due(self, key: Key) -> bool:
        """Whether a plan is to be made now; where that was in vain again and again, ever more seldom."""
        if not self._after:
            return True
        if len(self._met) >= MOST_MET:
            self._met.clear()
        met = self._met[key] = self._met.get(key, 0) + 1
        times = met / (self._after + 1)
        return times >= 1 and times.is_integer() and int(times).bit_count() == 1

    def _made(self, arrays: tuple[Any, ...], at_once: bool) -> NativePlan | None:
        """A plan for arrays like these; None: something has to be compiled first."""
        if not at_once and not launches.is_ready():
            return None
        planner = Planner()
        try:
            inputs = [planner.given(i, _placeholder(x)) for i, x in enumerate(arrays)]
            return planner.finish(len(arrays), self._record(planner, inputs), self.sent, self._largest)
        except NotCompiledError as e:
            if at_once:
                compile_now(e.args[0])
                return self._made(arrays, at_once)
            compile_soon(e.args[0], lambda function: None)
            return None


def in_order(x: Any) -> Any:
    """An array as plans take it: an array proper that fills its memory."""
    return x if type(x) is np.ndarray and is_dense(x) else np.asarray(x, order="C")


def _placeholder(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array like another one, in memory of its own; of a large one, without its content."""
    out = stand_in(x.shape, x.dtype, None if x.flags.c_contiguous else x.strides)
    if x.nbytes <= KNOWN:
        out[...] = x
    return out
