"""What kernels take on a machine that was measured: the calls that a device's program makes, and the seconds and cores of each.

A launch is a kernel of one node or of several that were fused: its memory traffic is that of the whole, not of its nodes. Products are
interpolated on a grid of rows, depth and columns, convolutions by their smallest side, reductions by the side that stays innermost:
small ones are far from the peak. What is not known by a kind of its own moves its bytes (`stream`) and computes its functions
(`function`).

How fast bytes move depends on the cache that holds them: a step that runs again and again finds what it touches in the smallest cache
that holds all of it. So each launch moves its bytes at the rate that was measured for the step's working set (`working_set`): large
kernels, on all cores, at that of one kernel over so many bytes (`stream`), small ones at that of many small kernels (`walk`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

import numpy as np

from ...graph.core.constant_value import static_value
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ..cluster.calibration import Calibration
from .shapes import Sizes
from .static import state_bytes

GPU_LAUNCH = 5e-6
"""Seconds that the host needs to launch a kernel on a GPU where no profile tells them."""
PARALLEL = 1 << 20
"""Bytes of element-wise kernels from which they keep as many cores busy as large ones."""
SIDES = (1, 8, 64, 512)
"""The rows, depths and columns of products that are measured, each with each."""
TRANSPOSED = (8, 16, 64, 512)
"""The smallest sides of products whose first operand is transposed that are measured: gradients of weights."""
REDUCED = (8, 512)
"""The innermost sides of reductions that are measured: of the axis that is reduced, or of what stays behind it."""
REDUCTIONS = frozenset({"Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm"})
PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "SparseMatMul"})
CONVOLUTIONS = {
    "Conv2D": "convolution",
    "Conv2DBackpropInput": "input gradient",
    "Conv2DBackpropFilter": "filter gradient",
}
SHORT = 16
"""Rows of fewer elements are shorter than a vector: their elements are computed one after the other."""
SCATTERS = ("SparseApply", "ResourceSparseApply", "Scatter", "ResourceScatter")
"""How the names of ops begin that change rows of a table."""
BATCHED = (8, 64)
"""The smallest sides of products of many small matrices that are measured."""
CONVOLVED = (6, 16, 64)
"""The smallest sides of convolutions, as products, that are measured."""
BY_BYTES = {"MaxPool": "pool", "AvgPool": "pool", "MaxPoolGrad": "pool gradient", "AvgPoolGrad": "pool gradient"}
FUNCTIONS = frozenset({
    "Exp", "Expm1", "Log", "Log1p", "Tanh", "Sigmoid", "Softplus", "Elu", "Selu", "Erf", "Erfc", "Pow", "Sin", "Cos", "Tan",
    "Softmax", "LogSoftmax",
})  # fmt: skip
FREE = frozenset({"Const", "Placeholder", "Identity", "ReadVariableOp", "NoOp", "Reshape", "ExpandDims", "Squeeze", "StopGradient",
                  "Shape", "Size", "Rank"})  # fmt: skip
"""Ops that run nothing, or hand on what they are given."""


def product_kind(rows: int, depth: int, columns: int) -> str:
    """The kind of a product's measurement."""
    return f"product {rows} x {depth} x {columns}"


KINDS = (
    "stream", "walk", "function", "function in short rows", "uniform", "normal", "pool", "pool gradient", "cross entropy", "gather",
    "scatter", "update", "adam", "cores",
    *(product_kind(*sides) for sides in product(SIDES, repeat=3)), *(f"batch {s}" for s in BATCHED),
    *(f"transposed {s}" for s in TRANSPOSED),
    *(f"{kind} {s}" for kind in CONVOLUTIONS.values() for s in CONVOLVED),
    *(f"reduce {which} {s}" for which in ("last", "first") for s in REDUCED),
)  # fmt: skip
"""All kinds of kernels that a machine's profile has."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a device's program.

    Attributes:
        nodes: what it computes, after rewriting. bytes: that it reads and writes.
        native: whether a native region calls it; else Python does.
        sizes: of the values of these nodes.
        seconds: the least time on a GPU, by its maker's figures; None: it runs on a processor.
    """

    nodes: tuple[Node, ...]
    bytes: float
    native: bool
    sizes: Sizes
    seconds: float | None = None


def is_free(node: Node) -> bool:
    """Whether a node takes no time worth counting."""
    return node.type in FREE or Trait.STATE_HANDLE in node.opdef.traits


def gpu_seconds(launch: Launch, machine: Calibration | None) -> float:
    """Seconds that a GPU's launch takes: its least time, and what the host needs to start it."""
    assert launch.seconds is not None
    return launch.seconds + (GPU_LAUNCH if machine is None else machine.overheads["call"])


def seconds_of(launch: Launch, machine: Calibration, working: float = 0.0) -> tuple[float, float]:
    """Seconds that a launch takes, and the cores that it keeps busy, of a GPU's 0; `working`: the working set of its step, in bytes."""
    if launch.seconds is not None:
        return gpu_seconds(launch, machine), 0.0
    seconds, cores, streams = 0.0, 1.0, False
    size = launch.bytes
    passes = 1 + sum(node.type in REDUCTIONS for node in launch.nodes[:-1])
    for node in launch.nodes:
        passes -= node.type in REDUCTIONS
        if is_free(node):
            continue
        view: Any = launch.sizes.node(node)
        found = _own_time(view, machine)
        if node.type.startswith(SCATTERS):  # a row that is written is read in any case
            size = min(size, 8.0 * _count(_rows(view).dims))
        if found is None:
            streams = True
            if node.type in FUNCTIONS:  # what comes behind each further reduction computes them again
                kind = "function in short rows" if _has_short_rows(launch) else "function"
                found = machine.at(kind, passes * _count(view.inputs[0].dims))
        if found is not None:
            seconds, cores = seconds + found[0], max(cores, found[1])
    moving, busy = _moving(size, working, machine, streams or cores > 1.0)
    if streams:
        seconds, cores = seconds + moving, max(cores, busy)
    elif seconds and not any(n.type in CONVOLUTIONS or n.type in BY_BYTES for n in launch.nodes):
        seconds = max(seconds, moving)
    return seconds + machine.overheads["launch" if launch.native else "call"], cores


def _rows(view: Any) -> Any:
    """What a node adds to rows of a table."""
    return view.inputs[-2 if "Apply" in view.opdef.name else -1]


def _has_short_rows(launch: Launch) -> bool:
    """Whether a kernel goes over short rows, one by one: its tensors differ in more than axes of one element."""
    tensors = {
        launch.sizes.of(t) for node in launch.nodes for t in (*node.inputs, *node.outputs) if t.dtype.is_floating
    }
    shapes = {tuple(d for d in t.dims or () if d != 1) for t in tensors} - {()}
    return len(shapes) > 1 and (max(shapes, key=len)[-1] or 1) < SHORT


def _moving(size: float, working: float, machine: Calibration, parallel: bool) -> tuple[float, float]:
    """Seconds and cores of moving a launch's bytes, from the cache that holds the working set; `parallel`: large ones on all cores."""
    if size <= 0.0:
        return 0.0, 1.0
    own, busy = machine.at("stream", size)
    working, is_large = max(working, size), parallel and size >= PARALLEL
    whole, _ = machine.at("stream" if is_large else "walk", working)
    return max(own, whole * size / working), busy if is_large else 1.0


def working_set(launches: Sequence[Launch]) -> float:
    """Bytes that a step of these launches touches over and over: state, what is fed, and the values that are there at once at most."""
    launches = [launch for launch in launches if launch.seconds is None]  # a GPU's are in memory of its own
    made: dict[Tensor, int] = {}  # -> the launch that made it
    last: dict[Tensor, int] = {}
    kept: dict[Tensor, float] = {}
    for i, launch in enumerate(launches):
        inside = set(launch.nodes)
        for node in launch.nodes:
            for t in node.inputs:
                t = _aliased(t)
                if t.op in inside:
                    continue
                last[t] = i
                if t not in made:
                    kept.setdefault(t, min(_bytes(t, launch.sizes), launch.bytes))  # of a table, the rows that it takes
            for t in node.outputs:
                made[t] = i
    change = [0.0] * (len(launches) + 1)
    for t, end in last.items():
        if t in made and t not in kept:
            size = _bytes(t, launches[end].sizes)
            change[made[t]] += size
            change[end + 1] -= size
    return sum(kept.values()) + max(accumulate(change), default=0.0)


def _aliased(t: Tensor) -> Tensor:
    """The tensor whose memory a tensor has."""
    while t.op.type in FREE and t.op.inputs:
        t = t.op.inputs[0]
    return t


def _bytes(t: Tensor, sizes: Sizes) -> float:
    """Bytes of a tensor, or of the state that it refers to."""
    return float(state_bytes(t.op)[0] if Trait.STATE_HANDLE in t.op.opdef.traits else sizes.bytes(t))


def node_seconds(node: Node, sizes: Sizes, machine: Calibration) -> tuple[float, float]:
    """The same of a node by itself, where it is not known what it will be fused with."""
    return (0.0, 1.0) if is_free(node) else seconds_of(Launch((node,), sizes.cost(node).bytes, True, sizes), machine)


def _own_time(view: Any, machine: Calibration) -> tuple[float, float] | None:
    """Seconds and cores of a node of a kind that is measured by itself; None: it is not."""
    op = view.opdef.name
    if op in PRODUCTS:
        return _product(view, machine)
    if op.startswith("Attention"):
        tokens, width = (float(d or 1) for d in (view.inputs[0].dims or (1, 1))[-2:])
        return _between("batch", BATCHED, min(tokens, width), view.opdef.cost_of(view).flops, machine)
    if op in CONVOLUTIONS:
        return _convolution(view, CONVOLUTIONS[op], machine)
    if op in BY_BYTES:
        return machine.at(BY_BYTES[op], 4.0 * _count(view.inputs[0].dims))
    if op.startswith(SCATTERS):
        return machine.at("scatter", 4.0 * _count(_rows(view).dims))
    if op.startswith(("Apply", "ResourceApply")):
        adam = "Adam" in op
        return machine.at("adam" if adam else "update", 4.0 * max(_count(t.dims) for t in view.inputs))
    if "CrossEntropyWithLogits" in op:
        return machine.at("cross entropy", _count(view.inputs[0].dims))
    if op in REDUCTIONS:
        return _reduction(view, machine)
    if op in ("GatherV2", "Gather", "ResourceGather"):
        return machine.at("gather", 4.0 * _count(view.outputs[0].dims))
    if "Random" in op or op == "TruncatedNormal":
        return machine.at("normal" if "ormal" in op else "uniform", _count(view.outputs[0].dims))
    return None


def _product(view: Any, machine: Calibration) -> tuple[float, float]:
    """A product, between the corners of the measured grid around its rows, depth and columns."""
    if view.attrs.get("transpose_a") and len(view.outputs[0].dims or ()) == 2:
        smallest = min(float(d or 1) for t in (view.inputs[0], view.outputs[0]) for d in t.dims or (1, 1))
        if smallest >= TRANSPOSED[0]:
            return _between("transposed", TRANSPOSED, smallest, view.opdef.cost_of(view).flops, machine)
    a, b = view.inputs[0].dims or (1, 1), view.outputs[0].dims or (1, 1)
    if len(a) < 2 or len(b) < 2:
        return machine.at("stream", 4.0 * (_count(a) + _count(b)))
    rows, columns = max(float(b[-2] or 1), 1.0), max(float(b[-1] or 1), 1.0)
    batch = _count(b) / (rows * columns)
    depth = max(_count(a) / max(_count(a[:-2]) * rows, 1.0), 1.0)
    if batch > 1:
        return _between("batch", BATCHED, min(rows, columns, depth), 2.0 * batch * rows * columns * depth, machine)
    ends = [_around(side) for side in (rows, depth, columns)]
    busy = 0.0  # logarithm of processor time, which grows evenly where a kernel begins to take several cores
    for corner in product(*(((low, 1 - part), (high, part)) for low, high, part in ends)):
        weight = math.prod(w for _, w in corner)
        if weight > 0.0:
            sides = [s for s, _ in corner]
            busy += weight * math.log(math.prod(machine.at(product_kind(*sides), 2.0 * math.prod(sides))))
    beyond = math.prod(max(side / SIDES[-1], 1.0) for side in (rows, depth, columns))
    cores = machine.at("cores", 2.0 * rows * depth * columns)[1]
    return math.exp(busy) * beyond / cores, cores


def _around(side: float) -> tuple[int, int, float]:
    """The measured sides next to one, and where it lies between them, on a logarithmic axis."""
    high = next((s for s in SIDES if s >= side), SIDES[-1])
    low = max((s for s in SIDES if s <= side), default=SIDES[0])
    return low, high, math.log(side / low) / math.log(high / low) if low < high else 0.0


def _reduction(view: Any, machine: Calibration) -> tuple[float, float]:
    """A reduction, by how many elements lie next to each other in memory that go to the same sum, or to different ones."""
    dims = [1 if d is None else d for d in view.inputs[0].dims or ()]
    axes = static_value(view.inputs[1]) if len(view.inputs) > 1 else None
    reduced = {int(a) % max(len(dims), 1) for a in np.ravel(axes)} if axes is not None else set(range(len(dims)))
    behind = next((i for i in range(len(dims) - 1, -1, -1) if i in reduced), len(dims) - 1)
    inner = math.prod(dims[behind + 1 :])
    if inner == 1:
        first = next((i for i in range(behind, -1, -1) if i not in reduced), -1)
        return _between("reduce last", REDUCED, float(math.prod(dims[first + 1 :])), _count(dims), machine)
    return _between("reduce first", REDUCED, float(inner), _count(dims), machine)


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
    nodes: Sequence[Node], launches: Sequence[Launch], machine: Calibration | None, working: float
) -> Mapping[Node, tuple[float, float]]:
    """Node -> (seconds, cores) of what one device runs: a launch counts for the last of its nodes that the plan has.

    `machine`: the profile, without which only a GPU's launches have times. `working`: the working set of all devices that share the
    machine's caches, in bytes. What rewriting made of other nodes counts for the next launch that the plan knows.
    """
    known = {n.name: n for n in nodes}
    out: dict[Node, tuple[float, float]] = {}
    owed, last = 0.0, None
    if machine is not None:
        owed = machine.overheads["variable"] * sum(Trait.STATE_HANDLE in n.opdef.traits for n in nodes)
    was_native = False
    for launch in launches:
        if machine is None:
            seconds, cores = gpu_seconds(launch, None), 0.0
        else:
            seconds, cores = seconds_of(launch, machine, working)
            owed += machine.overheads["region"] * (launch.native and not was_native)
        was_native = launch.native
        node = next((known[n.name] for n in reversed(launch.nodes) if n.name in known), None)
        owed += seconds
        if node is not None:
            before, busy = out.get(node, (0.0, cores))
            out[node] = before + owed, max(busy, cores)
            owed, last = 0.0, node
    if owed and last is not None:
        out[last] = out[last][0] + owed, out[last][1]
    return out
