"""The Numba backend: fused kernels for CPUs, compiled in the background while NumPy does their work.

A fused kernel's life: its nodes run one by one on NumPy until that has cost about as much as compiling would, then it is
compiled by the background thread and swapped in. So a first step never waits, and what runs seldom or is small is never
compiled. With `compile_first` it is compiled before its first run.

A launch looks up what it knows of the inputs' shapes: sizes, output shapes, and how to split the work between threads. Shapes
that do not fit what fusion assumed (a size of 1 where broadcasting was not foreseen) run on NumPy, node by node, too, and so do
errors come from there: a kernel itself cannot fail.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.errors import InternalError
from ...graph.node import Node
from ...graph.state import Context
from ..buffers import LARGE, buffers
from ..fuse import FusedNodes, fuse, kernel_of
from ..kernel_cache import Function, compile_now, compile_soon, source_of
from ..loops import COSTLY, Loops
from ..program import Kernel
from .numpy import NumpyBackend, one_by_one

if TYPE_CHECKING:
    from ..unit import Unit, UnitStep

COMPILE_AFTER_S = 0.1  # time on NumPy after which a kernel is worth compiling; a small one compiles in about as much
PARALLEL_NS = 300_000.0  # a kernel that takes longer is split: handing work to a thread costs about 50,000 ns
FEW_STEPS = 1000  # in a program of so many nodes small ones are fused, too: looking at them all takes 40 ms then
SHAPES_KEPT = 256  # per kernel; a program of ever new shapes starts over

# Rough cost of one element on one core, float32, measured on a 2.6 GHz Zen 4; only used to decide about threads.
_NS_PER_BYTE, _NS_PER_OPERATION, _NS_PER_COSTLY = 0.05, 0.03, 0.25


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), thread_name_prefix="dovetail-kernel")


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class NumbaBackend(NumpyBackend):
    """NumPy for single nodes, compiled loops for fused ones.

    Args:
        fuse_small: fuse what is small in programs of any size.
        compile_first: compile a kernel before it runs for the first time.
        threads: how many threads one kernel may use; 0: one per core that this process may use.
        check: compare every kernel with the references, at every run.
    """

    name = "numba"

    def __init__(
        self, *, fuse_small: bool = False, compile_first: bool = False, threads: int = 0, check: bool = False
    ) -> None:
        self.fuse_small = fuse_small
        self.compile_first = compile_first
        self.threads = threads or _cores()
        self.check = check

    def fuse(self, unit: Unit) -> Sequence[UnitStep | FusedNodes]:
        """Steps with fused nodes among them."""
        return fuse(unit, small=self.fuse_small or len(unit.steps) <= FEW_STEPS).steps

    def fused(self, group: FusedNodes) -> FusedKernel:
        """A kernel that starts on NumPy and becomes compiled."""
        return FusedKernel(group, threads=self.threads, compile_first=self.compile_first, check=self.check)

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """The op's reference."""
        return NumpyBackend.kernel(self, node, context)


@dataclass(frozen=True, slots=True)
class _Launch:
    """What a kernel's launcher knows of the shapes of its inputs."""

    sizes: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any], bool], ...]  # shape, type, whether it is large


class FusedKernel:
    """A fused kernel: a function of arrays that gets faster.

    Attributes:
        group: what it runs.
        function: the compiled function, or None while NumPy does the work.
    """

    def __init__(
        self, group: FusedNodes, *, threads: int = 1, compile_first: bool = False, check: bool = False
    ) -> None:
        self.group = group
        self.source = source_of(group.loops)
        self.function: Function | None = None
        self._threads = threads
        self._loaded = len(group.inputs)
        self._check = check
        self._reference = one_by_one(NumpyBackend(), group.nodes, (*group.inputs, *group.shapes), group.outputs)
        self._launches: dict[tuple[tuple[int, ...], ...], _Launch | None] = {}
        self._spent = 0.0
        self._asked = False
        if compile_first:
            self.compile()

    def compile(self) -> None:
        """Compile it now."""
        self.function = compile_now(self.source.text)

    def __call__(self, *inputs: Any) -> Any:
        function = self.function
        if function is None:
            return self._on_numpy(inputs)
        arguments = inputs[: self._loaded] if self._loaded < len(inputs) else inputs
        key = tuple([x.shape for x in arguments])
        try:
            launch = self._launches[key]
        except KeyError:
            if len(self._launches) >= SHAPES_KEPT:
                self._launches.clear()
            launch = self._launches[key] = launch_of(self.group, key, self._threads, self.source.split)
        if launch is None:
            return self._reference(*inputs)
        outputs = [
            buffers.empty(shape, dtype) if large else np.empty(shape, dtype) for shape, dtype, large in launch.outputs
        ]
        arrays = [x.ravel() for x in arguments]
        arrays += [y.ravel() for y in outputs]
        if len(launch.ranges) == 1:
            function(*arrays, *launch.sizes, *launch.ranges[0])
        else:
            here, *others = launch.ranges
            futures = [_pool().submit(function, *arrays, *launch.sizes, *there) for there in others]
            function(*arrays, *launch.sizes, *here)
            for future in futures:
                future.result()
        if self._check:
            self._compare(inputs, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _on_numpy(self, inputs: Sequence[Any]) -> Any:
        began = time.perf_counter()
        result = self._reference(*inputs)
        self._spent += time.perf_counter() - began
        if self._spent > COMPILE_AFTER_S and not self._asked:
            self._asked = True
            compile_soon(self.source.text, self._swap_in)
        return result

    def _swap_in(self, function: Function) -> None:
        self.function = function

    # --- checking --------------------------------------------------------------------------------------------------

    def _compare(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """InternalError that names the first node whose value differs from its reference's."""
        wanted = self._reference(*inputs)
        wanted = wanted if len(outputs) != 1 else (wanted,)
        if all(agree(mine, theirs) for mine, theirs in zip(outputs, wanted, strict=True)):
            return
        node, difference = self._first_difference(inputs)
        raise InternalError(
            node, node,
            f"The fused kernel of {', '.join(n.name for n in self.group.nodes)} differs from the reference, first in "
            f"'{node.name}' ({node.type}), made at {node.source}: {difference}. This is an error in Dovetail; "
            f"DOVETAIL_BACKEND=numpy avoids it. The kernel:\n{self.group.loops}",
        )  # fmt: skip

    def _first_difference(self, inputs: Sequence[Any]) -> tuple[Node, str]:
        """Grow the kernel node by node until its value is wrong."""
        difference = ""
        for i, node in enumerate(self.group.nodes):
            for output in node.outputs:
                grown = kernel_of(self.group, self.group.nodes[: i + 1], output)
                kernel = FusedKernel(grown, compile_first=True)
                at = dict(zip((*self.group.inputs, *self.group.shapes), inputs, strict=True))
                values = [at[t] for t in (*grown.inputs, *grown.shapes)]
                mine, theirs = kernel(*values), kernel._reference(*values)
                if not agree(mine, theirs):
                    return node, _difference(np.asarray(mine), np.asarray(theirs))
        return self.group.nodes[-1], difference or "only in the whole kernel"


def agree(mine: Any, theirs: Any) -> bool:
    """Whether a kernel's result is the reference's, up to what other rounding inside can make of it."""
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        # A comparison of two numbers that rounding brought apart or together may turn out either way, but seldom.
        return bool(np.count_nonzero(a != b) <= 1e-3 * a.size)
    epsilon = float(np.finfo(a.dtype).eps)
    finite = b[np.isfinite(b)]
    largest = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=2000 * epsilon, atol=200 * epsilon * largest, equal_nan=True))


def _difference(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> str:
    if mine.shape != theirs.shape:
        return f"shape {mine.shape} instead of {theirs.shape}"
    wrong = np.argwhere(~((mine == theirs) | ((mine != mine) & (theirs != theirs))))
    at = tuple(int(i) for i in wrong[0]) if len(wrong) else ()
    return f"{len(wrong)} of {mine.size} elements; at {at} it is {mine[at]!r} instead of {theirs[at]!r}"


# --- shapes ----------------------------------------------------------------------------------------------------------


def launch_of(group: FusedNodes, shapes: Sequence[tuple[int, ...]], threads: int, split: int | None) -> _Launch | None:
    """What to launch for inputs of these shapes; None when they are not as fusion assumed."""
    sizes = list(group.sizes)
    seen = [False] * len(sizes)
    for shape, axes in zip(shapes, group.input_axes, strict=True):
        if len(shape) != len(axes):
            return None
        for d, axis in zip(shape, axes, strict=True):
            if axis is None:
                if d != 1:
                    return None
            elif sizes[axis] is None or not seen[axis] and sizes[axis] == d:
                sizes[axis] = d
                seen[axis] = True
            elif sizes[axis] != d:
                return None
    if None in sizes:
        return None
    known: list[int] = sizes  # type: ignore[assignment]
    outputs = []
    for t, axes in zip(group.outputs, group.output_axes, strict=True):
        made = tuple(1 if a is None else known[a] for a in axes)
        outputs.append((made, t.dtype.base.np, math.prod(made) * t.dtype.size >= LARGE))
    joined = tuple(math.prod(known[a] for a in part) for part in group.parts)
    return _Launch(joined, _ranges(group.loops, joined, threads, split), tuple(outputs))


def _ranges(loops: Loops, sizes: Sequence[int], threads: int, split: int | None) -> tuple[tuple[int, int], ...]:
    """How the split axis is divided between threads."""
    if split is None:
        return ((0, 0),)
    length = sizes[split]
    parts = min(threads, length, int(2 * nanoseconds(loops, sizes) / PARALLEL_NS))
    if parts <= 1:
        return ((0, length),)
    edges = [length * i // parts for i in range(parts + 1)]
    return tuple(zip(edges[:-1], edges[1:], strict=True))


def nanoseconds(loops: Loops, sizes: Sequence[int]) -> float:
    """A guess at the time of a kernel on one core."""
    total = 0.0
    for v in loops.values:
        count = math.prod(sizes[a] for a in v.axes)
        if v.op == "load":
            total += count * v.dtype.size * _NS_PER_BYTE
        elif v.op != "constant":
            total += count * (_NS_PER_COSTLY if v.op in COSTLY else _NS_PER_OPERATION) * v.dtype.size / 4
    stored = sum(math.prod(sizes[a] for a in s.axes) * loops.values[s.value].dtype.size for s in loops.stores)
    return total + stored * _NS_PER_BYTE
