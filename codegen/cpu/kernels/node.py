"""`PlannedKernel`: a compiled kernel that runs by plans. `NodeKernel`: that of a single node, written by hand.

A hand-written kernel is a source text with a compiled function, and a Python function `call(function, planner, *inputs)` around it. The
call allocates memory, makes arrays contiguous, adds padding and shares the work among threads. It does so by methods of a `Planner`, once
for arrays of the same shapes: what it asks for becomes a plan, which then runs, alone or in a region.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....graph.core.graph import Node
from ...backend import DimsOf
from ...check import compare
from ...ir.program import Kernel, one_or_all
from ...ir.schedule import CpuProductSchedule
from ..jit import TieredKernel
from ..native.planner import Planner
from ..native.plans import PlanCache


class RecordableKernel:
    """A kernel that native plans can have.

    Attributes:
        read, changed: the inputs that are variables: whose values it looks up, and which it changes.
    """

    read: Sequence[int] = ()
    changed: Sequence[int] = ()

    @abstractmethod
    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record its launches into a native plan, in which variables are their values; gives its outputs.

        Raises:
            NotPlannableError: the kernel does not support these inputs.
        """


class PlannedKernel(TieredKernel, RecordableKernel):
    """A kernel that runs by plans. Until it is compiled, and for arrays without a plan, its reference does the work.

    Args:
        text: the source text. reference: the reference, attributes bound. check: compare with the reference at every run.
        read, changed: its attributes.

    Attributes:
        plans: its plans.
    """

    def __init__(
        self, text: str, reference: Kernel, check: bool, read: Sequence[int] = (), changed: Sequence[int] = ()
    ) -> None:
        super().__init__(text, reference)
        self.read, self.changed = read, changed
        self.plans = PlanCache(self.record_into, "a kernel", read, changed)
        self._check = check

    def __call__(self, *inputs: Any) -> Any:
        if self.function is None:
            return self._on_numpy(inputs)
        if self._check:
            self._compare(inputs)
        outputs = self.plans.run(inputs, self.is_awaited)
        return self._reference(*inputs) if outputs is None else one_or_all(outputs)

    @abstractmethod
    def _compare(self, inputs: Sequence[Any]) -> None:
        """Raise InternalError unless a run for these inputs agrees with the reference. Variables do not change."""


class NodeKernel(PlannedKernel):
    """The kernel of one node.

    Args:
        node: the node that it runs. reference: the op's reference, attributes bound; it does the work until the kernel is compiled, and
            where `call` returns None.
        text: the source text. call: `call(function, planner, *inputs)` returns the outputs, or None for unsupported sizes.
        check: compare with the reference at every run.
    """

    def __init__(self, node: Node, reference: Kernel, text: str, call: Callable[..., Any], *, check: bool) -> None:
        super().__init__(text, reference, check)
        self.node = node
        self._call = call

    def _compare(self, inputs: Sequence[Any]) -> None:
        outputs = self.plans.run(inputs, self.is_awaited)
        if outputs is not None:
            wanted = self._reference(*inputs)
            compare("The compiled kernel of", self.node, outputs, wanted if len(outputs) > 1 else [wanted])

    def record_into(self, planner: Planner, inputs: Sequence[Any]) -> Sequence[Any]:
        """Record its launches into a native plan."""
        return planner.trace(partial(self._call, planner.compiled(self.text)), inputs)

    def schedules(self, dims_of: DimsOf) -> Sequence[CpuProductSchedule]:
        """The schedules of its contractions for inputs of these sizes; none if one is not known, or the reference does the work."""
        constants = {t: np.asarray(t.op.attrs["value"]) for t in self.node.inputs if t.op.type == "Const"}
        plan = self.plans.predicted([constants.get(t, (dims_of(t), t.dtype.base.np)) for t in self.node.inputs])
        return () if plan is None else plan.schedules
