"""The state of a partition's compilation, which passes read and change, and what a pass is. `pipeline` has the lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .backend import Backend, ContextOf
from .fusion.fuse import Fusion
from .ir.fused_kernel import FusedKernel
from .ir.partition import PartitionGraph, PartitionStep
from .ir.program import Program
from .lower.lower import ReaderOf
from .passes.rewrite import Fired


@dataclass(slots=True)
class Compilation:
    """The state of one partition's compilation.

    Attributes:
        graph: the partition after the graph passes so far.
        backend: chooses and makes the kernels.
        context_of: the `Context` of a stateful node.
        reader_of: makes readers of published variables of other tasks; None: there are none.
        fired: the rewrites so far, in order.
        fusion: the steps with fused kernels, and why other nodes are not fused; None before fusion.
        program: the program; None before lowering.
    """

    graph: PartitionGraph
    backend: Backend
    context_of: ContextOf
    reader_of: ReaderOf | None = None
    fired: list[Fired] = field(default_factory=list)
    fusion: Fusion | None = None
    program: Program | None = None

    @property
    def steps(self) -> Sequence[PartitionStep | FusedKernel]:
        """The steps, with fused kernels among them after fusion."""
        return self.graph.steps if self.fusion is None else self.fusion.steps

    @property
    def fused(self) -> Fusion:
        """The result of fusion, after it."""
        assert self.fusion is not None
        return self.fusion

    @property
    def lowered(self) -> Program:
        """The program, after lowering."""
        assert self.program is not None
        return self.program

    def __str__(self) -> str:
        if self.program is not None:
            return self.program.text(lambda work: self.backend.schedules(work, lambda tensor: tensor.dims))
        return str(self.fusion or self.graph)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass.

    Attributes:
        name: the name in logs.
        run: reads and changes a compilation.
        applies: whether a partition has anything for it. Else it would look at all steps for what is not there.
        needs_device: whether it queries the device. `explain.py` skips such a pass.
    """

    name: str
    run: Callable[[Compilation], None]
    applies: Callable[[PartitionGraph], bool] = lambda graph: True
    needs_device: bool = False


def on_graph(change: Callable[[PartitionGraph], PartitionGraph]) -> Callable[[Compilation], None]:
    """What a pass runs that makes a graph from a graph."""

    def run(c: Compilation) -> None:
        c.graph = change(c.graph)

    return run


def on_program(change: Callable[[Program], Program]) -> Callable[[Compilation], None]:
    """What a pass runs that makes a program from a program."""

    def run(c: Compilation) -> None:
        c.program = change(c.lowered)

    return run
