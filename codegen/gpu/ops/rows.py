"""Templates of ops that work along an axis: long running sums, top-k, gathers, scatters and segment sums, also by coordinates.

Reductions over axes that are known only at run time: the gradient of a broadcast, most often over no axis. Their loops are written when
the axes are known. A reduction over known axes is fused with others instead (`codegen/fusion/fuse.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....graph.core.dtypes import NUMBERS, DType
from ....graph.core.graph import Node
from ...fusion.table_loops import MOST_COORDINATES, PIECE, kept_in, piece_totals, running, running_in_pieces
from ...ir.loop_nest import SUPPORTED, LoopNestBuilder, Scan
from ...target import GPU_BLOCKS, GPU_LONGEST_SORTED
from ..emit.expr import Names
from ..emit.launches import candidates, fused, launches, one_after_another, size_names
from ..ir import Choice, Count, Routine, Scratch, Shape, Template, triton_type
from ..templates.sort import long_sort, sort
from ..templates.tables import check_scatter, gather, gather_nd, launch_sizes, scatter

_MOST_LOOKED_AT = 1 << 34  # indices times segments, each of which scans all: with more, the host is faster
_MOST_UPDATES = 1 << 31  # owners of rows are counted in 32 bits


def _around(shape: Shape, axis: int) -> dict[str, int] | None:
    """The array as [before, length, after]; None when it has no elements, or no such axis."""
    if not -len(shape) <= axis < len(shape) or 0 in shape:
        return None
    axis %= len(shape)
    sizes = {"before": math.prod(shape[:axis]), "length": shape[axis], "after": math.prod(shape[axis + 1 :])}
    return sizes | {"piece_size": PIECE, "pieces": -(-shape[axis] // PIECE), "elements": math.prod(shape)}


def scan(how: Scan, dtype: DType, sizes: Mapping[str, int]) -> tuple[Routine, ...]:
    """Ways to make running sums or products: `out0` of `in0`; a launch gives `before`, `length`, `after`, `pieces` and `piece_size`.

    One is for few and long rows: it cuts them into pieces, in three kernels. `sizes`: those of the launch.
    """
    axes = ("before", "length") if sizes["after"] == 1 else ("before", "length", "after")
    across = len(axes) > 2
    whole = candidates(running(how, dtype, across), Names(("in0",), ("out0",), axes), [sizes[a] for a in axes])
    if sizes["length"] <= PIECE:
        return whole
    kept = kept_in(dtype)
    pieces = ("before", "pieces", "piece_size", *axes[2:])
    tables = {"in0": "elements", "out0": "elements"}
    before_each = running(replace(how, exclusive=True), kept, across)
    steps = (
        (piece_totals(how, dtype, across), ("in0",), "scratch0", pieces),
        (before_each, ("scratch0",), "scratch1", ("before", "pieces", *axes[2:])),
        (running_in_pieces(how, dtype, across), ("in0", "scratch1"), "out0", pieces),
    )
    parts = [
        launches(loops, Names(inputs, (out,), names, tables=tables), [sizes[n] for n in names])[:1]
        for loops, inputs, out, names in steps
    ]
    totals = tuple(Count((n,)) for n in ("before", "pieces", "after"))
    scratch = [Scratch(name, triton_type(kept.name), totals) for name in ("scratch0", "scratch1")]
    cut = one_after_another(parts, scratch)
    return cut + whole if sizes["before"] * sizes["after"] < GPU_BLOCKS // 2 else whole + cut


def _scan(kind: str) -> Callable[[Node], Template]:
    def maker(node: Node) -> Template:
        dtype, how = _supported(node), Scan(kind, bool(node.attrs["reverse"]), bool(node.attrs["exclusive"]))

        def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            sizes = _around(shapes[0], others[0][0])
            return None if sizes is None else Choice(scan(how, dtype, sizes), sizes, [(shapes[0], dtype.np)])

        return Template(1, choose)

    return maker


def _supported(node: Node) -> DType:
    dtype = node.inputs[0].dtype.base
    if dtype not in NUMBERS:
        raise ValueError(f"no kernel does {node.type} for {dtype.name}")
    return dtype


def _top_k(node: Node) -> Template:
    dtype = node.inputs[0].dtype.base
    long = long_sort(dtype)  # ValueError for a type that is not sorted

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        shape, k = shapes[0], others[0][0]
        if not shape or 0 in shape or not 0 < k <= shape[-1] < 1 << 31:
            return None
        sizes = {"before": math.prod(shape[:-1]), "length": shape[-1], "k": k}
        made = (*shape[:-1], k)
        in_a_block = shape[-1] <= GPU_LONGEST_SORTED and dtype.size <= 4
        routine = sort(dtype, shape[-1]) if in_a_block else long
        return Choice([routine], sizes, [(made, dtype.np), (made, np.dtype(np.int32))])

    return Template(1, choose)


def _gather(node: Node) -> Template:
    params, indices = (t.dtype.base for t in node.inputs[:2])
    triton_type(params.name)  # KeyError for a type that kernels cannot have

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        shape, picked = shapes
        batch = int(node.attrs["batch_dims"])
        (axis,), rank = others[0], len(shape)
        if not -rank <= axis < rank:
            return None
        return gathered(params, indices, shape, picked, axis % rank, batch + len(picked) if batch < 0 else batch)

    return Template(2, choose)


def gathered(params: DType, indices: DType, shape: Shape, picked: Shape, axis: int, batch: int) -> Choice | None:
    """Gathers slices along an axis of an array of this shape, by indices that share its first `batch` axes."""
    if 0 in shape or 0 in picked or not batch <= axis < len(shape) or shape[:batch] != picked[:batch]:
        return None
    sizes = {
        "batch": math.prod(shape[:batch]),
        "before": math.prod(shape[batch:axis]),
        "length": shape[axis],
        "count": math.prod(picked[batch:]),
        "after": math.prod(shape[axis + 1 :]),
        "rows": math.prod(shape[: axis + 1]),
    }
    made = (*shape[:axis], *picked[batch:], *shape[axis + 1 :])
    return Choice(gather(params, indices, sizes), sizes, [(made, params.np)])


def _segments(node: Node) -> Template:
    """Segment reductions: scatters of rows into zeros, or into empty segments."""
    dtype, index = _supported(node), node.inputs[1].dtype.base
    kind = {"Sum": "add", "Prod": "mul", "Max": "max", "Min": "min"}[node.type.removeprefix("UnsortedSegment")]
    check_scatter(kind, dtype)

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        data, ids = shapes
        segments, count, inner = others[0][0], math.prod(ids), data[len(ids) :]
        if 0 in data or segments <= 0 or data[: len(ids)] != ids or count >= _MOST_UPDATES:
            return None
        if kind != "add" and segments * count > _MOST_LOOKED_AT:
            return None
        sizes = launch_sizes(segments, math.prod(inner), count, [segments])
        begin = "cleared" if kind == "add" else "empty"
        ways = scatter(kind, dtype, index, sizes, begin=begin, names=("in1", "in0"))
        return Choice(ways, sizes, [((segments, *inner), dtype.np)])

    return Template(2, choose)


def slices_of(dims: Shape, coordinates: Shape) -> dict[str, int] | None:
    """The sizes of a launch that goes to coordinates of this shape in an array; None where no kernel does."""
    if not coordinates or not 1 <= (depth := coordinates[-1]) <= min(len(dims), MOST_COORDINATES):
        return None
    count = math.prod(coordinates[:-1])
    if 0 in dims or not 0 < count < _MOST_UPDATES:
        return None
    return launch_sizes(math.prod(dims[:depth]), math.prod(dims[depth:]), count, dims[:depth])


def fits(dims: Shape, coordinates: Shape, updates: Shape) -> bool:
    """Whether updates have one slice for each coordinate."""
    return updates == (*coordinates[:-1], *dims[coordinates[-1] :])


def _scatter(node: Node) -> Template:
    """`ScatterNd`, into zeros, and `TensorScatterAdd` and kin, into a copy."""
    into_zeros = node.type == "ScatterNd"
    kind = "add" if into_zeros else node.type.removeprefix("TensorScatter").lower()
    begin, names = ("cleared", ("in0", "in1")) if into_zeros else ("copied", ("in1", "in2"))
    dtype, index = node.outputs[0].dtype.base, node.inputs[0 if into_zeros else 1].dtype.base
    check_scatter(kind, dtype)

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        dims, at, updates = (tuple(others[0]), *shapes) if into_zeros else shapes
        sizes = slices_of(dims, at)
        if sizes is None or not fits(dims, at, updates):
            return None
        ways = scatter(kind, dtype, index, sizes, at[-1], begin=begin, names=names)
        return Choice(ways, sizes, [(dims, dtype.np)])

    return Template(2 if into_zeros else 3, choose)


def _gather_nd(node: Node) -> Template:
    dtype, index = (t.dtype.base for t in node.inputs[:2])
    triton_type(dtype.name)  # KeyError for a type that kernels cannot have

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        dims, at = shapes
        sizes = slices_of(dims, at)
        if sizes is None:
            return None
        return Choice(gather_nd(dtype, index, at[-1], sizes), sizes, [((*at[:-1], *dims[at[-1] :]), dtype.np)])

    return Template(2, choose)


_REDUCTIONS = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "Mean": "sum"}


def _reduction(node: Node) -> Template:
    dtype, kind, keep = node.inputs[0].dtype.base, _REDUCTIONS[node.type], bool(node.attrs.get("keep_dims", False))
    if dtype not in SUPPORTED or (node.type == "Mean" and not dtype.is_floating):
        raise ValueError("not this type")

    def choose(shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        (shape,), (axes,) = shapes, others
        rank = len(shape)
        if 0 in shape or any(not -rank <= a < rank for a in axes):
            return None
        over = {a % rank for a in axes}
        if len(over) != len(axes):
            return None
        made = tuple(1 if i in over else n for i, n in enumerate(shape) if keep or i not in over)
        builder = LoopNestBuilder([i in over for i in range(rank)])
        total = builder.load(0, dtype, range(rank))
        if over:
            total = builder.reduce(kind, total)
        if over and node.type == "Mean":
            total = builder.apply("div", total, builder.count(dtype))
        builder.store(total, [i for i in range(rank) if i not in over])
        loops, parts = builder.finish()
        joined = [math.prod(shape[a] for a in part) for part in parts]
        names = dict(zip(size_names(loops), joined, strict=True))
        return Choice(fused(loops, joined), names, [(made, dtype.np)])

    return Template(1, choose)


ROW_MAKERS: dict[str, Callable[[Node], Template]] = {
    "Cumsum": _scan("sum"),
    "Cumprod": _scan("prod"),
    "TopKV2": _top_k,
    "GatherV2": _gather,
    "GatherNd": _gather_nd,
    "ScatterNd": _scatter,
    **dict.fromkeys((f"TensorScatter{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max")), _scatter),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys((f"UnsortedSegment{kind}" for kind in ("Sum", "Max", "Min", "Prod")), _segments),
}
