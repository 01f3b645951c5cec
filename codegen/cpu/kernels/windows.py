"""Pooling and depthwise convolutions on CPUs: which loop nests of `fusion.window_loops` compute an op, and what a launch gives them.

An op with more than one nest runs them one after the other: a gradient of a maximum first finds the tap that each window chose.
The reference computes arrays without elements, types and filters that no nest was written for, and raises the errors for shapes that do
not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import float32, float64
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import height_and_width, in_layout, layout, window_of
from ...fusion import window_loops as loops_of
from ...ir.loop_cost import nanoseconds
from ...ir.loop_nest import LoopNest
from ..emit.nest import joined, source_of
from ..native.recorder import EAGER, Executor
from ..thread_pool import ranges_of

Array: TypeAlias = np.ndarray[Any, Any]
_Step: TypeAlias = "tuple[Callable[..., LoopNest], tuple[int, ...], str]"
"""A nest, the node's inputs that it reads (-1: what the step before wrote), and what it goes over."""

_TYPES = (float32, float64)
_CHOSEN = -1

OPS: dict[str, tuple[tuple[str, ...], tuple[_Step, ...]]] = {
    "MaxPool": (("image",), ((loops_of.max_pool, (0,), "result"),)),
    "MaxPoolGrad": (
        ("image", "result", "result"),
        ((loops_of.max_pool_choice, (0,), "result"), (loops_of.max_pool_gradient, (_CHOSEN, 2), "image")),
    ),
    "MaxPoolGradGrad": (("image", "result", "image"), ((loops_of.max_pool_gradient_gradient, (0, 2), "result"),)),
    "AvgPool": (("image",), ((loops_of.avg_pool, (0,), "result"),)),
    "AvgPoolGrad": (("image", "result"), ((loops_of.avg_pool_gradient, (1,), "image"),)),
    "DepthwiseConv2dNative": (("image", "filter"), ((loops_of.depthwise, (0, 1), "result"),)),
    "DepthwiseConv2dNativeBackpropInput": (
        ("image", "filter", "result"), ((loops_of.depthwise_input_gradient, (1, 2), "image"),)
    ),
    "DepthwiseConv2dNativeBackpropFilter": (
        ("image", "filter", "result"), ((loops_of.depthwise_filter_gradient, (0, 2), "filter"),)
    ),
}  # fmt: skip
"""For each op: what its inputs are, and its steps."""

KNOWN_INPUTS = {"AvgPoolGrad": 0, "DepthwiseConv2dNativeBackpropInput": 0, "DepthwiseConv2dNativeBackpropFilter": 1}
"""The input whose value is the shape of what the table says."""
DEPTHWISE = frozenset(op for op in OPS if op.startswith("Depthwise"))
POOLING = frozenset(OPS) - DEPTHWISE


def window_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]] | None:
    """For a node that has a kernel here: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work.
    """
    found, dtype = OPS.get(node.type), node.outputs[0].dtype.base
    if found is None or dtype not in _TYPES:
        return None
    (roles, steps), known = found, KNOWN_INPUTS.get(node.type, -1)
    data_format, is_depthwise = layout(node.attrs), node.type in DEPTHWISE
    multiplier: tuple[int, ...] = ()
    if is_depthwise:
        dims = (node.outputs[0] if known == 1 else node.inputs[1]).dims
        if dims is None or None in dims or 0 in dims:
            return None
        high, wide, _, times = (int(d or 0) for d in dims)
        window, multiplier = window_of(node.attrs, (high, wide)), (times,)
    else:
        window = window_of(node.attrs, height_and_width(node.attrs, "ksize"))
    nests = [nest(dtype, window, *multiplier, data_format) for nest, _, _ in steps]
    sources = [source_of(nest) for nest in nests]

    def call(compiled: Any, *inputs: Array, executor: Executor = EAGER) -> Array | None:
        shapes: dict[str, tuple[int, ...]] = {}
        for i, (role, x) in enumerate(zip(roles, inputs, strict=True)):
            shape = tuple(x.tolist()) if i == known else x.shape
            if shapes.setdefault(role, shape) != shape or len(shape) != 4 or 0 in shape:
                return None
        filters = math.prod(shapes["filter"][2:]) if is_depthwise else None
        try:
            sizes = loops_of.image_sizes(window, shapes["image"], filters, data_format, is_depthwise)
        except ValueError:
            return None
        n, rows, columns, c = (sizes[name] for name in ("images", "rows", "columns", "filters"))
        result = in_layout((n, rows, columns, c), data_format)
        if is_depthwise and shapes["filter"] != (*window.taps, sizes["channels"], *multiplier):
            return None
        if shapes.setdefault("result", result) != result or 0 in result:
            return None
        made: Array | None = None
        functions = compiled if isinstance(compiled, tuple) else (compiled,)
        for (_, which, space), nest, source, function in zip(steps, nests, sources, functions, strict=True):
            arrays = [made if i == _CHOSEN else executor.ordered(inputs[i]) for i in which]
            made = executor.empty(shapes[space], nest.values[nest.stores[0].value].dtype.np)
            lengths = [sizes[name] for name in loops_of.axis_names(space, window, data_format, is_depthwise)]
            numbers = (*lengths, *(sizes[name] for name in source.sizes))
            ranges = ranges_of(lengths[source.split or 0], nanoseconds(nest, lengths), threads)
            executor.share(function, (*(a.reshape(-1) for a in (*arrays, made)), *numbers), ranges, threads)
        return made

    return joined(tuple(sources)), call
