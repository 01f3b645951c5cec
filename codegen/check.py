"""Compares results of compiled kernels with the references. Raises InternalError that names the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..graph.core.dtypes import bfloat16, float16
from ..graph.core.errors import InternalError
from ..graph.core.graph import Node
from ..graph.resources.variable import VariableState
from .fusion.to_loops import kernel_of
from .ir.fused_kernel import FusedKernel
from .ir.loop_nest import NotFusibleError
from .ir.program import Kernel

_ADVICE = "This is an error in Dovetail; on CPUs, DOVETAIL_BACKEND=numpy avoids it."


def scale_of(inputs: Iterable[Any]) -> float:
    """The largest finite magnitude of the floating-point numbers in arrays; 0 if there is none."""
    largest = 0.0
    for x in inputs:
        x = np.asarray(x)
        if np.issubdtype(x.dtype, np.floating) or x.dtype == bfloat16.np:
            finite = np.abs(x[np.isfinite(x)].astype(np.float64))
            largest = max(largest, float(finite.max(initial=0.0)))
    return largest


def agree(mine: Any, theirs: Any, scale: float = 0.0) -> bool:
    """Whether a kernel's result equals the reference's, up to different rounding inside the kernel.

    `scale`: magnitude of the numbers that it was computed from. If they cancel (the gradient of a softmax's sum), the result is only
    their rounding errors.
    """
    a, b = np.asarray(mine), np.asarray(theirs)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype in (float16.np, bfloat16.np):
        # The reference rounds after each op, the kernel only at its end: a few roundings may add up.
        epsilon, relative, of_largest, of_scale = 2.0 ** (-10 if a.dtype == float16.np else -7), 16, 8, 1
        a, b = a.astype(np.float64), b.astype(np.float64)
    elif a.dtype.kind == "f":
        epsilon, relative, of_largest, of_scale = float(np.finfo(a.dtype).eps), 2000, 200, 8
    else:
        # Rounding may change the result of a comparison of two close numbers, but seldom.
        return bool(np.count_nonzero(a != b) <= 1e-3 * a.size)
    atol = epsilon * max(of_largest * scale_of([b]), of_scale * scale)
    return bool(np.allclose(a, b, rtol=relative * epsilon, atol=atol, equal_nan=True))


def difference(mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> str:
    if mine.shape != theirs.shape:
        return f"shape {mine.shape} instead of {theirs.shape}"
    wrong = np.argwhere(~((mine == theirs) | ((mine != mine) & (theirs != theirs))))
    at = tuple(int(i) for i in wrong[0]) if len(wrong) else ()
    return f"{len(wrong)} of {mine.size} elements; at {at} it is {mine[at]!r} instead of {theirs[at]!r}"


def compare(what: str, node: Node, mine: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Raise InternalError unless each result of a node agrees. `what` begins the message."""
    for a, b in zip(mine, theirs, strict=True):
        if not agree(a, b):
            how = difference(np.asarray(a), np.asarray(b))
            raise InternalError(
                node, node,
                f"{what} '{node.name}' ({node.type}), created at {node.source}, differs from the reference: {how}. {_ADVICE}",
            )  # fmt: skip


def compare_update(
    what: str,
    node: Node,
    reference: Kernel,
    states: Sequence[VariableState],
    before: Sequence[Any],
    mine: Sequence[Any],
    given: Sequence[Any],
) -> None:
    """Raise InternalError unless the reference makes the values `mine` from the variables' values `before` and the other inputs."""
    twins = [VariableState(s.name, s.dtype) for s in states]
    for twin, value in zip(twins, before, strict=True):
        twin.assign(value)
    reference(*twins, *given)
    for twin, value in zip(twins, mine, strict=True):
        compare(f"{what} of '{twin.name}' by", node, [np.asarray(value)], [np.asarray(twin.read())])


def compare_fused(
    what: str,
    group: FusedKernel,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    expected: Any,
    run: Callable[[FusedKernel, Sequence[Any]], tuple[Any, Any]],
) -> None:
    """Raise InternalError unless a fused kernel's outputs agree. It names the first node whose value differs.

    Args:
        what: begins the message.
        group: the nodes. inputs, outputs: of their kernel.
        expected: the results of the references: an array, or several.
        run: gives the results of the kernel and of the references for a part of the group.
    """
    pairs = zip(outputs, expected if len(outputs) != 1 else (expected,), strict=True)
    scale = scale_of(inputs)
    if all(agree(mine, theirs, scale) for mine, theirs in pairs):
        return
    node, how = _first_difference(group, inputs, run)
    raise InternalError(
        node, node,
        f"{what} of {', '.join(n.name for n in group.nodes)} differs from the reference, first in "
        f"'{node.name}' ({node.type}), created at {node.source}: {how}. {_ADVICE} The kernel:\n{group.loops}",
    )  # fmt: skip


def _first_difference(
    group: FusedKernel, inputs: Sequence[Any], run: Callable[[FusedKernel, Sequence[Any]], tuple[Any, Any]]
) -> tuple[Node, str]:
    """Grow the kernel node by node until its value is wrong."""
    at = dict(zip((*group.inputs, *group.shapes), inputs, strict=True))
    for i, node in enumerate(group.nodes):
        for output in node.outputs if node.type != "Shape" else ():
            try:
                grown = kernel_of(group, group.nodes[: i + 1], output)
            except NotFusibleError:
                continue  # an intermediate value may have its axes in another order than results have
            values = [at[t] for t in (*grown.inputs, *grown.shapes)]
            mine, theirs = run(grown, values)
            if not agree(mine, theirs, scale_of(values)):
                return node, difference(np.asarray(mine), np.asarray(theirs))
    return group.nodes[-1], "only in the whole kernel"
