"""What kernels take on a machine that was measured: the calls that a device's program makes, and the seconds and cores of each.

A launch is a kernel of one node or of several that were fused: its memory traffic is that of the whole, not of its nodes. Products and
convolutions are looked up by their smallest side, since small ones are far from the peak; what is not known by a kind of its own moves
its bytes (`stream`) and computes its functions (`function`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ..cluster.calibration import Calibration
from .shapes import Sizes

PARALLEL = 1 << 20
"""Bytes of element-wise kernels from which they keep as many cores busy as large ones."""
SIDES = (1, 8, 64, 512)
"""The smallest sides of products that are measured."""
PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "SparseMatMul"})
CONVOLUTIONS = {"Conv2D": "convolution", "Conv2DBackpropInput": "input gradient", "Conv2DBackpropFilter": "filter gradient"}
BATCHED = (8, 64)
"""The smallest sides of products of many small matrices that are measured."""
CONVOLVED = (6, 16, 64)
"""The smallest sides of convolutions, as products, that are measured."""
BY_BYTES = {"MaxPool": "pool", "AvgPool": "pool", "MaxPoolGrad": "pool gradient", "AvgPoolGrad": "pool gradient"}
FUNCTIONS = frozenset({
    "Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Softplus", "Elu", "Selu", "Gelu", "Erf", "Erfc", "Pow", "Sin", "Cos", "Tan",
    "Softmax", "LogSoftmax", "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits",
})  # fmt: skip
FREE = frozenset({"Const", "Placeholder", "Identity", "ReadVariableOp", "NoOp", "Reshape", "ExpandDims", "Squeeze", "StopGradient",
                  "Shape", "Size", "Rank"})  # fmt: skip
"""Ops that run nothing, or hand on what they are given."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a device's program.

    Attributes:
        nodes: what it computes, after rewriting. bytes: that it reads and writes.
        native: whether a native region calls it; else Python does.
        sizes: of the values of these nodes.
    """

    nodes: tuple[Node, ...]
    bytes: float
    native: bool
    sizes: Sizes


def is_free(node: Node) -> bool:
    """Whether a node takes no time worth counting."""
    return node.type in FREE or Trait.STATE_HANDLE in node.opdef.traits


def seconds_of(launch: Launch, machine: Calibration, touched: float = 0.0) -> tuple[float, float]:
    """Seconds that a launch takes, and the cores that it keeps busy.

    `touched`: bytes that all launches of the step touch on the device. What does not fit a cache together comes from memory each time.
    """
    seconds, cores, streams = 0.0, 1.0, False
    for node in launch.nodes:
        if is_free(node):
            continue
        view: Any = launch.sizes.node(node)
        found = _own_time(view, launch.sizes, machine)
        if found is None:
            streams = True
            if node.type in FUNCTIONS:
                took, busy = machine.at("function", _count(view.inputs[0].dims))
                seconds, cores = seconds + took, max(cores, busy)
        else:
            seconds, cores = seconds + found[0], max(cores, found[1])
    took, busy = machine.at("stream", max(touched, launch.bytes))
    moving = took * launch.bytes / max(touched, launch.bytes, 1.0)
    if streams:
        seconds, cores = seconds + moving, max(cores, busy if launch.bytes >= PARALLEL else 1.0)
    elif seconds and not any(n.type in CONVOLUTIONS or n.type in BY_BYTES for n in launch.nodes):
        seconds = max(seconds, moving)
    return seconds + machine.overheads["launch" if launch.native else "call"], cores


def node_seconds(node: Node, sizes: Sizes, machine: Calibration) -> tuple[float, float]:
    """The same of a node by itself, where it is not known what it will be fused with."""
    return (0.0, 1.0) if is_free(node) else seconds_of(Launch((node,), sizes.cost(node).bytes, True, sizes), machine)


def _own_time(view: Any, sizes: Sizes, machine: Calibration) -> tuple[float, float] | None:
    """Seconds and cores of a node of a kind that is measured by itself; None: it is not."""
    op = view.opdef.name
    if op in PRODUCTS:
        return _product(view, machine)
    if op in CONVOLUTIONS:
        return _convolution(view, CONVOLUTIONS[op], machine)
    if op in BY_BYTES:
        return machine.at(BY_BYTES[op], 4.0 * _count(view.inputs[0].dims))
    if op.startswith(("SparseApply", "ResourceSparseApply", "Scatter", "ResourceScatter")):
        return machine.at("scatter", 4.0 * _count(view.inputs[-2 if "Apply" in op else -1].dims))
    if op.startswith(("Apply", "ResourceApply")):
        adam = "Adam" in op
        return machine.at("adam" if adam else "update", 4.0 * max(_count(t.dims) for t in view.inputs))
    if op in ("GatherV2", "Gather", "ResourceGather"):
        return machine.at("gather", 4.0 * _count(view.outputs[0].dims))
    if "Random" in op or op == "TruncatedNormal":
        return machine.at("normal" if "ormal" in op else "uniform", _count(view.outputs[0].dims))
    return None


def _product(view: Any, machine: Calibration) -> tuple[float, float]:
    """Rows, depth or columns of a product: whichever is smallest says which table tells its time."""
    a, b = view.inputs[0].dims or (1, 1), view.outputs[0].dims or (1, 1)
    if len(a) < 2 or len(b) < 2:
        return machine.at("stream", 4.0 * (_count(a) + _count(b)))
    rows, columns = float(b[-2] or 1), float(b[-1] or 1)
    batch = _count(b) / max(rows * columns, 1.0)
    depth = _count(a) / max(_count(a[:-2]) * rows, 1.0)
    flops = 2.0 * batch * rows * columns * depth
    if batch > 1:
        return _between("batch", BATCHED, min(rows, columns, depth), flops, machine)
    side, kind = min((rows, "rows"), (depth, "depth"), (columns, "columns"))
    return _between(kind, SIDES, side, flops, machine)


def _convolution(view: Any, kind: str, machine: Calibration) -> tuple[float, float]:
    w = (view.outputs[0] if kind == "filter gradient" else view.inputs[1]).dims or (1, 1, 1, 1)
    columns = float(w[-1] or 1)
    return _between(kind, CONVOLVED, min(_count(w) / columns, columns), view.opdef.cost_of(view).flops, machine)


def _between(kind: str, sides: Sequence[int], side: float, work: float, machine: Calibration) -> tuple[float, float]:
    """The time of work with a smallest side between two that were measured: interpolated on logarithmic axes."""
    low = max((s for s in sides if s <= side), default=sides[0])
    high = min((s for s in sides if s >= side), default=sides[-1])
    first, busy = machine.at(f"{kind} {low}", work)
    if low == high or side <= low:
        return first, busy
    second, more = machine.at(f"{kind} {high}", work)
    share = math.log(side / low) / math.log(high / low)
    return first ** (1 - share) * second**share, max(busy, more)


def _count(dims: Sequence[int | None] | None) -> float:
    return float(math.prod(1 if d is None else d for d in dims or ()))


def device_times(
    nodes: Sequence[Node], launches: Sequence[Launch], machine: Calibration
) -> Mapping[Node, tuple[float, float]]:
    """Node -> (seconds, cores) of what one device runs: a launch counts for the last of its nodes that the plan has.

    What rewriting made of other nodes counts for the next launch that the plan knows.
    """
    known = {n.name: n for n in nodes}
    out: dict[Node, tuple[float, float]] = {}
    owed, last = 0.0, None
    touched = sum(launch.bytes for launch in launches)
    for launch in launches:
        seconds, cores = seconds_of(launch, machine, touched)
        node = next((known[n.name] for n in reversed(launch.nodes) if n.name in known), None)
        owed += seconds
        if node is not None:
            before, busy = out.get(node, (0.0, 1.0))
            out[node] = before + owed, max(busy, cores)
            owed, last = 0.0, node
    if owed and last is not None:
        out[last] = out[last][0] + owed, out[last][1]
    return out
