"""What a program launches on a GPU, without one: the routines that its kernels would choose from, for the sizes of the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpu_backends import gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu.backend import CudaBackend
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.roofline import choice_of
from dovetail.codegen.ir.program import Call, calls_of
from dovetail.codegen.options import KernelOptions, without
from dovetail.codegen.pipeline import compile_partition
from dovetail.graph.core.graph import Node, Tensor
from dovetail.graph.resources.resource_manager import Context, Resources, SessionState


@dataclass(frozen=True)
class Chosen:
    """What one call of a program launches.

    Attributes:
        name, op: the call's.
        candidates: routines, the likely best one first.
        sizes: what a launch calls them.
    """

    name: str
    op: str
    candidates: tuple[Routine, ...]
    sizes: dict[str, int]


def chosen(build: Callable[[], Any], unknown: int = 0) -> list[Chosen]:
    """What a GPU would launch for a step that runs what `build` returns, when `unknown` is what unknown sizes turn out to be."""
    with gpus_for_tests(1, memory=8 << 30), dt.Graph().as_default() as graph:
        with dt.device("/gpu:0"):
            fetches = build()
        with dt.Session(graph=graph) as session:
            partition = session.plan(fetches).kernels("gpu:0").partition
        backend, resources, state = CudaBackend(device(0), KernelOptions()), Resources(), SessionState(None)

        def context_of(node: Node) -> Context:
            return Context(node.name, node.container, resources, state, tuple(t.dims for t in node.outputs))

        with without("transfers", "CUDA graphs", "binding"):  # which drops the works
            program = compile_partition(partition, backend, context_of)
        return [made for call in calls_of(program.instructions) if (made := _chosen(call, unknown)) is not None]


def _chosen(call: Call, unknown: int) -> Chosen | None:
    choice = choice_of(call.work, lambda t: _dims(t, unknown), lambda t: _value(t, unknown))
    return None if choice is None else Chosen(call.node, call.op, tuple(choice.candidates), dict(choice.sizes))


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
