"""Updates of several variables as one native call: what a parameter server does with the gradients that came together.

All variables are taken for their changes at once, in the order that everybody takes locks in, and the kernels of their updates are one
plan (`plan`) over their values and the other inputs. An update of a large variable is a run of its own: Python's part of it
is small, and who reads a small one would have to wait for it. As a plan its threads are those that have shared the work before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph.core.shape import element_count
from ....graph.resources.resource_manager import VariableState, changing
from ...ir.program import Call
from ...lower.region import Region
from ..gemm_epilogue import ProductUpdate
from ..kernels.optimizer import UpdateKernel
from .plan import Plan
from .planner import Planner, Value
from .region import NativeRun, in_order

_KINDS = (UpdateKernel, ProductUpdate)
LARGEST = 1 << 20  # bytes of a variable that is updated together with others, some 50 microseconds


def is_update(call: Call) -> bool:
    """Whether a call is an update of a variable that a plan takes."""
    kernel = call.kernel
    if not isinstance(kernel, _KINDS):
        return False
    update = kernel.update if isinstance(kernel, ProductUpdate) else kernel
    return isinstance(update, UpdateKernel) and not update.checks


def is_large_update(call: Call) -> bool:
    """Whether an update is a run by itself; an unknown number of elements counts as one."""
    if not is_update(call):
        return False
    update = _update(call)
    array = update.node.inputs[update.places + update.gradient]
    return update.places * (element_count(array.dims) or 1) * array.dtype.size > LARGEST


class NativeUpdates(NativeRun):
    """Updates as one call.

    Attributes:
        calls: what it runs.
    """

    def __init__(self, run: Region, launches: int = 0, at_once: bool = False) -> None:
        super().__init__(run, launches, at_once)
        places = [i for c in run.calls for i in c.inputs[: _update(c).places]]
        self._states = tuple([run.given.index(i) for i in dict.fromkeys(places)])
        self._others = tuple([i for i in range(len(run.given)) if i not in self._states])
        slot_of = {o: c.inputs[0] for c in run.calls for o in c.outputs}
        self._results = tuple([run.given.index(slot_of[o]) for o in run.outputs])
        self._are_distinct = len(places) == len(set(places))

    @property
    def order(self) -> tuple[int, ...]:
        """The variables, then what else comes in."""
        return (*self._states, *self._others)

    def put_into(self, planner: Planner, arrays: Sequence[Any]) -> Sequence[Value]:
        """Put all updates into a plan, of the variables' values and what else comes in. Nothing leaves."""
        values = {i: Value(value) for i, value in self.run.constants.items()}
        values |= {
            self.run.given[n]: planner.given(i, x) for i, (n, x) in enumerate(zip(self.order, arrays, strict=True))
        }
        for call in self.calls:
            call.kernel.put_into(planner, [values[i] for i in call.inputs])  # type: ignore[attr-defined]
        return ()

    def with_plan(self, plan: Plan, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Update by a plan; None: it does not fit, and nothing has been changed."""
        states: list[VariableState] = [inputs[i] for i in self._states]
        if not self._are_distinct or len(set(states)) < len(states):
            return None
        others = [inputs[i] for i in self._others]
        with changing(states) as values:
            status = plan.launch((*values, *others, plan.arena()), self.goes_on)
            if status > 0:
                raise MemoryError("an update found no memory for what it puts aside")
        return None if status else [inputs[i] for i in self._results]

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
    kernel: Any = call.kernel
    update: UpdateKernel = kernel.update if isinstance(kernel, ProductUpdate) else kernel
    return update
