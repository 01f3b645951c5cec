"""The interface of backends; and binding, the last pass, which makes the kernel of every call from its work.

A backend computes nodes and fused kernels on one type of device. It has families of kernels: it first says which family a step belongs
to, so that passes can decide by that, and makes the kernel when all passes have run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from ..graph.core.graph import Node, Tensor
from ..graph.resources.resource_manager import Context
from .ir.fused_kernel import FusedKernel
from .ir.program import BoundWork, Builtin, Call, CapturedRegion, Kernel, Program, Region, Work, calls_of
from .options import KernelOptions

ContextOf: TypeAlias = Callable[[Node], Context]
DimsOf: TypeAlias = Callable[[Tensor], Sequence[int | None] | None]


class Backend(Protocol):
    """Computes nodes and fused kernels on one type of device.

    `options`: which rewrites may be applied to the nodes beforehand.
    """

    name: str
    options: KernelOptions

    def choose(self, step: Node | FusedKernel) -> Work:
        """By which family of kernels a step is computed. Nothing is compiled, and no kernel is made."""
        ...

    def bind(self, work: BoundWork, context_of: ContextOf, sent: Sequence[int] = ()) -> Kernel:
        """The kernel for a work: a function of input arrays that gives its output, one array, or a tuple when not exactly one.

        Its inputs are those of the node; of a fused kernel `inputs` and then `shapes`; of a region `given`. Inputs that
        `node.opdef.ref_inputs` names, and inputs of type `resource`, are `VariableState` objects; all others are arrays, which the
        kernel must not change. It must be safe to call from several threads at once.

        Args:
            work: what to compute. The calls of a region are bound already.
            context_of: the `Context` of a stateful node.
            sent: which outputs go to other tasks, and are to be written into send buffers.

        Raises:
            UnimplementedError: a node has no kernel on this backend.
        """
        ...

    def schedules(self, work: Work, dims_of: DimsOf) -> Sequence[object]:
        """The schedules of a work for tensors of these sizes, for printing; none if they are not known before it runs."""
        ...


def bind(program: Program, backend: Backend, context_of: ContextOf, *, keeps_nodes: bool = False) -> Program:
    """Make the kernels of a program's calls, also of those inside regions.

    Args:
        program: after all other passes.
        backend: makes the kernels.
        context_of: the `Context` of a stateful node.
        keeps_nodes: keep works and tensors, which hold nodes. Of these, a program that runs needs only its regions.

    Raises:
        UnimplementedError: a node has no kernel on this backend.
    """
    _bind(calls_of(program.instructions), backend, context_of, program.sent, keeps_nodes)
    return program if keeps_nodes else replace(program, tensors=None)


def _bind(
    calls: Iterable[Call], backend: Backend, context_of: ContextOf, sent: Collection[int], keeps_nodes: bool
) -> None:
    for call in calls:
        work = call.work
        if isinstance(work, Builtin):
            call.kernel = work.kernel
        elif isinstance(work, (Region, CapturedRegion)):
            _bind(work.calls, backend, context_of, (), True)
            call.kernel = backend.bind(work, context_of, _sent(call, sent))
            for inner in work.calls if not keeps_nodes else ():
                inner.work = None
        elif work is not None:
            call.kernel = backend.bind(work, context_of, _sent(call, sent) if sent else ())
            if not keeps_nodes:
                call.work = None


def _sent(call: Call, sent: Collection[int]) -> list[int]:
    """Which outputs of a call go to other tasks."""
    return [i for i, slot in enumerate(call.outputs) if slot in sent]
