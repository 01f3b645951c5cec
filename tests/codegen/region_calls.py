"""Calls of kernels that make native regions, and what must come out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels.families import LOOPS
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel
from dovetail.codegen.cpu.regions.region import ONE_BY_ONE, NativeRegion
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.ir.program import Builtin, Call, Region, Work
from dovetail.graph.core.source_location import caller

Array = np.ndarray[Any, Any]

BEFORE = ONE_BY_ONE  # runs before one goes by a plan


def call(kernel: Any, op: str, inputs: Sequence[int], outputs: Sequence[int]) -> Call:
    """A call of a kernel; of a fused one, with its work."""
    work = Work(kernel.group, LOOPS) if isinstance(kernel, CpuFusedKernel) else Builtin(kernel)
    return Call(work, tuple(inputs), tuple(outputs), (), f"{op.lower()}_{outputs[0]}", op, caller(), kernel=kernel)


def kernel_of(backend: NumbaBackend, node: Any, context: Any = None) -> Any:
    """The kernel that a backend makes for a node."""
    return backend.bind(backend.choose(node), lambda node: context)


def nodes_of(*fetches: Any) -> list[Any]:
    return [n for n in execution_order([t.op for t in fetches], {}) if n.type != "Placeholder"]


def fused(feeds: Sequence[Any], *fetches: Any) -> CpuFusedKernel:
    """The kernel of a small graph."""
    partition = PartitionGraph(
        "/cpu:0", tuple(nodes_of(*fetches)), tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches)
    )
    (group,) = fuse(partition, small=True, lone=True).kernels
    assert group.inputs == tuple(feeds)
    return CpuFusedKernel(group, compile_first=True)


@cache
def kernels() -> dict[str, tuple[Any, int, int]]:
    """Of square matrices, by name: a kernel, how many it takes and makes."""
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, None]), dt.placeholder(dt.float32, [None, None])
        backend = NumbaBackend(compile_first=True)
        product, turned = dt.matmul(x, y), dt.matmul(x, y, transpose_a=True)
        return {
            "Joint": (fused([x, y], dt.maximum(x + y, 0.25)), 2, 1),
            "Softmax": (fused([x], dt.nn.softmax(x)), 1, 1),
            "Both": (fused([x, y], x * y, x - y), 2, 2),
            "Product": (kernel_of(backend, product.op), 2, 1),
            "Turned": (kernel_of(backend, turned.op), 2, 1),
        }


def identity(x: Array) -> Array:
    return x


def same(mine: Any, theirs: Any) -> None:
    mine, theirs = (x if isinstance(x, (list, tuple)) else (x,) for x in (mine, theirs))
    for a, b in zip(mine, theirs, strict=True):
        assert np.shape(a) == np.shape(b)
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.array_equal(a, b, equal_nan=True)


def region_of_calls(calls: Sequence[Call], constants: dict[int, Any] | None = None) -> NativeRegion:
    return NativeRegion(Region.of(calls, constants or {}), at_once=True)
