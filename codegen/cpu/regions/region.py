"""Native regions: runs of calls that become one call of compiled code once there is a plan for their shapes.

A region first runs its calls one by one, while their kernels are compiled. When the same shapes occur for the third time, it makes a
plan for them in the background (`native.planner`), and from then on runs the plan. There are two kinds:

    KernelRegion   kernels and what is between them: views, shapes, copies
    UpdateRegion   updates of several variables, such as those of a parameter server for coalesced gradients. It locks all
                   variables at once, in the global lock order. The update of a large variable is a region of its own, so that readers
                   of small ones do not wait for it
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.shape import element_count
from ....graph.resources.variable import VariableState, changing
from ...ir.program import Call
from ...lower.region import Region, one_or_all
from ..jit import compile_now, compile_soon, in_background
from ..kernels.fused import RegionOnlyKernel
from ..kernels.optimizer import UpdateKernel
from ..native.plan import Plan
from ..native.planner import KNOWN, NotCompiledError, NotPlannableError, Planner, Value, stand_in
from ..tiering import COMPILE_AFTER_S, LOAD_AFTER_S, TieredKernel
from .lowering import record

logger = logging.getLogger(__name__)

ONE_BY_ONE = 2  # runs before a plan is made: the step is one that repeats
MOST_PLANS = 16  # of a region, for as many sets of shapes
MOST_MET = 256  # sets of shapes that are counted; a program of ever new ones starts over
LARGEST = 1 << 20  # bytes of a variable that is updated together with others, some 50 microseconds

Key: TypeAlias = tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]


class NativeRegion(ABC):
    """Calls of a program that run as one call.

    Args:
        region: the calls. launches: how many of them are launches. at_once: make plans where they are needed, not in the background.

    Attributes:
        calls: the calls that it runs. launches: how many of them are launches. replays: how many runs used a plan.
        goes_on: whether another run with work for several threads follows immediately.
        unfolds: whether a program may run the calls instead of the region, as when each is timed.
    """

    unfolds = True

    def __init__(self, region: Region, launches: int = 0, at_once: bool = False) -> None:
        self.region = region
        self.calls = region.calls
        self.launches = launches
        self.goes_on = False
        self.replays = 0
        self._at_once = at_once
        self._last: Plan | None = None  # used
        self._puts_in_order = False  # for `_last`: an input was not contiguous
        self._plans: dict[Key, list[Plan]] = {}
        self._met: dict[Key, int] = {}
        self._refused: set[Key] = set()
        kernels: list[Any] = [
            c.kernel.kernel if isinstance(c.kernel, RegionOnlyKernel) else c.kernel for c in region.calls
        ]
        self._cold: list[TieredKernel] = [k for k in kernels if isinstance(k, TieredKernel)]
        self._spent = 0.0
        self._has_looked = False  # for kernels that are kept on disk
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        plan = self._last
        if plan is not None:
            outputs = self.with_plan(plan, self.in_order(inputs) if self._puts_in_order else inputs)
            if outputs is not None:
                self.replays += 1
                return one_or_all(outputs)
        return one_or_all(self._in_another_way(inputs))

    @property
    def arenas(self) -> tuple[int, ...]:
        """Bytes of the arenas of the plans that there are, one for each set of shapes."""
        with self._lock:
            return tuple([p.arena_bytes for plans in self._plans.values() for p in plans])

    # --- what kinds of runs differ in ------------------------------------------------------------------------------

    @property
    def order(self) -> tuple[int, ...]:
        """In which order plans take what is given."""
        return tuple(range(len(self.region.given)))

    @abstractmethod
    def record_into(self, planner: Planner, arrays: Sequence[Any]) -> Sequence[Value]:
        """Put all calls into a plan for arrays like these; what leaves."""

    @abstractmethod
    def with_plan(self, plan: Plan, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run by a plan; None: it does not fit."""

    @abstractmethod
    def arrays(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""

    def in_order(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs as plans take them."""
        return inputs

    # --- plans -----------------------------------------------------------------------------------------------------

    def _in_another_way(self, inputs: tuple[Any, ...]) -> list[Any]:
        """By another plan; one by one where there is none."""
        key = self._key(self.arrays(inputs)) if self._is_warm() else None
        if key is not None and key not in self._refused:
            ordered = self.in_order(inputs)
            for plan in self._plans.get(key, ()):
                outputs = self.with_plan(plan, ordered)
                if outputs is not None:
                    self._last = plan
                    self._puts_in_order = any(
                        x is not y
                        for x, y in zip(inputs, ordered, strict=True)
                        if isinstance(x, (np.ndarray, np.generic))
                    )
                    self.replays += 1
                    return outputs
            if self._is_due(key):
                self._have_planned(key, self.arrays(ordered))
        began = time.perf_counter()
        outputs = self.region.one_by_one(inputs)
        if self._cold:
            self._spent += time.perf_counter() - began
        return outputs

    def _is_warm(self) -> bool:
        """Whether all kernels are compiled. What runs often has them compiled, also those that take little of its time."""
        if not self._cold:
            return True
        self._cold = [k for k in self._cold if k.function is None]
        if not self._has_looked and self._spent > LOAD_AFTER_S * len(self._cold):
            self._has_looked = True
            for kernel in self._cold:
                kernel.want_if_kept()
        if self._spent > COMPILE_AFTER_S * len(self._cold):
            for kernel in self._cold:
                kernel.want()
        return not self._cold

    @staticmethod
    def _key(arrays: Sequence[Any]) -> Key | None:
        """What plans are for: shapes and types; None where something is no array of numbers."""
        if not all(isinstance(x, (np.ndarray, np.generic)) and not x.dtype.hasobject for x in arrays):
            return None
        return tuple([(x.shape, x.dtype) for x in arrays])

    def _is_due(self, key: Key) -> bool:
        """Whether a plan is to be made now: at the third run, and where that was in vain again and again, but ever more seldom."""
        if len(self._met) >= MOST_MET:
            self._met.clear()
        met = self._met[key] = self._met.get(key, 0) + 1
        times = met / (ONE_BY_ONE + 1)
        return (
            times >= 1
            and times.is_integer()
            and int(times).bit_count() == 1
            and sum(map(len, self._plans.values())) < MOST_PLANS
        )

    def _have_planned(self, key: Key, arrays: Sequence[Any]) -> None:
        if self._at_once:
            self._plan(key, arrays)
            return
        alike = [
            x.copy() if x.nbytes <= KNOWN else stand_in(x.shape, x.dtype) for x in arrays
        ]  # it may look at small ones
        in_background(lambda: self._plan(key, alike))

    def _plan(self, key: Key, arrays: Sequence[Any]) -> None:
        try:
            planner = Planner()
            plan = planner.finish(len(arrays), self.record_into(planner, arrays), self.region.sent)
        except NotCompiledError as e:
            if self._at_once:
                compile_now(e.args[0])
                self._plan(key, arrays)
            else:
                compile_soon(e.args[0], lambda function: None)
        except NotPlannableError as e:
            logger.debug("a region up to %s runs call by call: %s", self.calls[-1].node, e)
            self._refused.add(key)
        else:
            with self._lock:
                self._plans.setdefault(key, []).append(plan)


def in_order(x: Any) -> Any:
    """An array as plans take it: contiguous, and an array proper."""
    return np.asarray(x, order="C") if type(x) is not np.ndarray or not x.flags.c_contiguous else x


class KernelRegion(NativeRegion):
    """Kernels, and what is between them, as one call. Of variables that kernels look up it takes the values."""

    def __init__(self, region: Region, launches: int = 0, at_once: bool = False) -> None:
        super().__init__(region, launches, at_once)
        looked_up = {c.inputs[i] for c in region.calls for i in getattr(c.kernel, "variables", ())}
        self._variables = tuple([i for i, slot in enumerate(region.given) if slot in looked_up])

    def record_into(self, planner: Planner, arrays: Sequence[Any]) -> Sequence[Value]:
        """Put all calls into a plan; what leaves."""
        region = self.region
        values = {i: Value(value) for i, value in region.constants.items()}
        values |= {slot: planner.given(i, x) for i, (slot, x) in enumerate(zip(region.given, arrays, strict=True))}
        for call in self.calls:
            made = record(planner, call, [values[i] for i in call.inputs])
            values.update(zip(call.outputs, made, strict=True))
        return [values[i] for i in region.outputs]

    def with_plan(self, plan: Plan, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run by a plan; None: it does not fit, or a kernel has failed, without a visible effect."""
        return plan.run(self.arrays(inputs), self.goes_on)

    def arrays(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""
        if not self._variables:
            return inputs
        arrays = list(inputs)
        for i in self._variables:
            if not isinstance(arrays[i], np.ndarray):
                arrays[i] = arrays[i].read() if arrays[i].is_initialized else None
        return tuple(arrays)

    def in_order(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs as plans take them."""
        return tuple(map(in_order, self.arrays(inputs)))


# --- updates of variables --------------------------------------------------------------------------------------------


def is_update(call: Call) -> bool:
    """Whether a call is an update of a variable that a plan takes."""
    return isinstance(call.kernel, UpdateKernel) and not call.kernel.checks


def is_large_update(call: Call) -> bool:
    """Whether an update is a run by itself; an unknown number of elements counts as one."""
    if not is_update(call):
        return False
    update = _update(call)
    array = update.node.inputs[update.places + update.gradient]
    return update.places * (element_count(array.dims) or 1) * array.dtype.size > LARGEST


class UpdateRegion(NativeRegion):
    """Updates as one call.

    Attributes:
        calls: the calls that it runs.
    """

    def __init__(self, region: Region, launches: int = 0, at_once: bool = False) -> None:
        super().__init__(region, launches, at_once)
        places = [i for c in region.calls for i in c.inputs[: _update(c).places]]
        self._states = tuple([region.given.index(i) for i in dict.fromkeys(places)])
        self._others = tuple([i for i in range(len(region.given)) if i not in self._states])
        slot_of = {o: c.inputs[0] for c in region.calls for o in c.outputs}
        self._results = tuple([region.given.index(slot_of[o]) for o in region.outputs])
        self._are_distinct = len(places) == len(set(places))

    @property
    def order(self) -> tuple[int, ...]:
        """The variables, then the other inputs."""
        return (*self._states, *self._others)

    def record_into(self, planner: Planner, arrays: Sequence[Any]) -> Sequence[Value]:
        """Record all updates in a plan, of the variables' values and the other inputs. It has no outputs."""
        values = {i: Value(value) for i, value in self.region.constants.items()}
        values |= {
            self.region.given[n]: planner.given(i, x) for i, (n, x) in enumerate(zip(self.order, arrays, strict=True))
        }
        for call in self.calls:
            call.kernel.record_into(planner, [values[i] for i in call.inputs])  # type: ignore[attr-defined]
        return ()

    def with_plan(self, plan: Plan, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Update by a plan; None: the plan does not fit, and no variable has changed."""
        states: list[VariableState] = [inputs[i] for i in self._states]
        if not self._are_distinct or len(set(states)) < len(states):
            return None
        others = [inputs[i] for i in self._others]
        with changing(states) as values:
            status = plan.launch((*values, *others, plan.arena()), self.goes_on)
            if status is False:
                raise MemoryError("an update found no memory for its scratch arrays")
        return None if status is None else [inputs[i] for i in self._results]

    def arrays(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """What a plan is made for."""
        states: list[Any] = [inputs[i] for i in self._states]
        values = [s.read() if s.is_initialized else None for s in states]
        return (*values, *[inputs[i] for i in self._others])

    def in_order(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The inputs as plans take them: what an optimizer computes from its step, as NumPy gives it, is no array."""
        ordered = list(inputs)
        for i in self._others:
            ordered[i] = in_order(inputs[i])
        return tuple(ordered)


def _update(call: Call) -> UpdateKernel:
    assert isinstance(call.kernel, UpdateKernel)
    return call.kernel
