"""What a program launches on a GPU, without one: the routines that its kernels would choose from, for the sizes of the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu_backends import gpus_for_tests

import dovetail as dt
from dovetail.codegen.backend import ContextOf
from dovetail.codegen.gpu.backend import CudaBackend
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.horizontal_fusion import MultiTensorUpdate, fuse_updates
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.kernels import GpuKernel
from dovetail.codegen.gpu.templates.multi_tensor import multi_tensor_update, sizes_of
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.program import Call, Instruction, Kernel, Loop
from dovetail.codegen.options import KernelOptions
from dovetail.codegen.pipeline import compile_partition, cpu_backend, gpu_rewrites
from dovetail.graph.core.graph import Node, Tensor
from dovetail.graph.resources.resource_manager import Context, Resources, SessionState


@dataclass(frozen=True)
class Chosen:
    """What one call of a program launches.

    Attributes:
        name, op: the call's.
        candidates: routines, the likely best one first; what a library does is left out.
        sizes: what a launch calls them.
    """

    name: str
    op: str
    candidates: tuple[Routine, ...]
    sizes: dict[str, int]


class _Noting(CudaBackend):
    """Remembers the tensors that each kernel is given."""

    def __init__(self) -> None:
        super().__init__(device(0))
        self.rewrites = gpu_rewrites(cpu_backend(KernelOptions(), cold=True).rewrites)
        self.given: dict[int, tuple[Any, Sequence[Tensor], Sequence[Tensor]]] = {}

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        kernel: Any = super().kernel(node, context)
        if isinstance(kernel, GpuKernel):
            order = getattr(kernel, "_order", None) or range(len(node.inputs))
            tensors = [node.inputs[i] for i in order]
            self.given[id(kernel)] = kernel, tensors[: kernel._loaded], tensors[kernel._loaded :]
        return kernel  # type: ignore[no-any-return]

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> Kernel:
        kernel = super().fused(group, context_of)
        self.given[id(kernel)] = kernel, group.inputs, group.shapes
        return kernel


def chosen(build: Callable[[], Any], unknown: int = 0) -> list[Chosen]:
    """What a GPU would launch for a step that runs what `build` returns, when `unknown` is what unknown sizes turn out to be."""
    with gpus_for_tests(1, memory=8 << 30), dt.Graph().as_default() as graph:
        with dt.device("/gpu:0"):
            fetches = build()
        with dt.Session(graph=graph) as session:
            unit = session.plan(fetches).kernels("gpu:0").unit
        backend, resources, state = _Noting(), Resources(), SessionState(None)

        def context_of(node: Node) -> Context:
            return Context(node.name, node.container, resources, state, tuple(t.dims for t in node.outputs))

        program = fuse_updates(compile_partition(unit, backend, context_of, until="liveness"), backend.gpu)
        return [made for call in _calls(program.instructions) if (made := _chosen(call, backend, unknown)) is not None]


def _calls(instructions: Sequence[Instruction]) -> Iterator[Call]:
    for step in instructions:
        if isinstance(step, Loop):
            yield from _calls((*step.head, *step.body))
        elif isinstance(step, Call):
            yield step


def _chosen(call: Call, backend: _Noting, unknown: int) -> Chosen | None:
    kernel: Any = call.kernel
    if isinstance(kernel, MultiTensorUpdate):
        lengths = tuple([u.count or 0 for u in kernel.updates])
        routine = multi_tensor_update(kernel.loops, len(lengths), divisible=[n % 16 == 0 for n in lengths], wide=False)
        return Chosen(call.node, call.op, (routine,), dict(sizes_of(lengths)))
    if not isinstance(kernel, GpuKernel):
        return None
    _, tensors, others = backend.given[id(kernel)]
    choice = kernel.choose([_dims(t, unknown) for t in tensors], [_value(t, unknown) for t in others])
    assert choice is not None, f"{call.node} is not as it was assumed"
    routines = tuple(c for c in choice.candidates if isinstance(c, Routine))
    return Chosen(call.node, call.op, routines, dict(choice.sizes))


def _dims(tensor: Tensor, unknown: int) -> tuple[int, ...]:
    assert tensor.dims is not None, f"{tensor.name} has no known rank"
    return tuple(unknown if d is None else d for d in tensor.dims)


def _value(tensor: Tensor, unknown: int) -> tuple[int, ...]:
    """What a tensor holds that is only looked at."""
    node = tensor.op
    if node.type == "Const":
        return tuple(np.ravel(node.attrs["value"]).tolist())
    if node.type == "Shape":
        return _dims(node.inputs[0], unknown)
    raise AssertionError(f"{tensor.name} is a {node.type}, whose value is not known")
