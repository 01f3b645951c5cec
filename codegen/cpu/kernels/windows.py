"""Pooling and depthwise convolutions on CPUs: what a launch gives the loop nests of `fusion.window_loops`.

The reference computes arrays without elements, other types, and filters whose shape is not known when the kernel is written. It also
raises the errors for shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import height_and_width, layout, window_of
from ...fusion.window_loops import CHOSEN, WINDOW_OPS, axis_names
from ..emit.module import joined, source_of
from ..native.planner import Planner
from ..schedule import schedule_of
from ..work_ranges import nanoseconds, ranges_of

_CHANNELS = 256  # of a filter's gradient, from which on threads share the channels: before, the rows of taps
DEPTHWISE = frozenset(name for name, op in WINDOW_OPS.items() if op.is_depthwise)
POOLING = frozenset(WINDOW_OPS) - DEPTHWISE


def filter_dims(node: Node) -> tuple[int | None, ...]:
    """The shape of a depthwise convolution's filter, as far as it is known."""
    return (node.outputs[0] if WINDOW_OPS[node.type].told == 1 else node.inputs[1]).dims or (None,)


def window_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]]:
    """The source text for a node, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work.
    """
    op, dtype = WINDOW_OPS[node.type], node.outputs[0].dtype.base
    data_format = layout(node.attrs)
    multiplier: tuple[int, ...] = ()
    if op.is_depthwise:
        high, wide, inner, times = (int(d or 0) for d in filter_dims(node))
        static, multiplier = window_of(node.attrs, (high, wide)), (times,)
    else:
        static = window_of(node.attrs, height_and_width(node.attrs, "ksize"))
    image = (node.outputs[0] if op.told == 0 else node.inputs[0]).dims
    split = int(image is not None and image[0] == 1)  # one image is shared by rows, several as a whole
    if op.told == 1:
        split = 2 if inner * times >= _CHANNELS else 0
    nests = [make(dtype, static, *multiplier, data_format) for make, _, _ in op.steps]
    sources = [source_of(nest, schedule_of(nest, split=split)) for nest in nests]

    def call(compiled: Any, planner: Planner, *inputs: Array) -> Array | None:
        given = [tuple(planner.known(x).tolist()) if i == op.told else x.shape for i, x in enumerate(inputs)]
        found = op.sizes(node.attrs, given)
        if found is None or found[0] != static or (multiplier and found[2]["filter"][3:] != multiplier):
            return None
        window, sizes, shapes = found
        made = inputs[0]
        # None where memory is laid out only.
        functions = compiled if isinstance(compiled, tuple) else (compiled,) * len(sources)
        for (_, which, space), nest, source, function in zip(op.steps, nests, sources, functions, strict=True):
            arrays = [made if i == CHOSEN else planner.ordered(inputs[i]) for i in which]
            made = planner.empty(shapes[space], nest.values[nest.stores[0].value].dtype.np)
            lengths = [sizes[name] for name in axis_names(space, window, data_format, op.is_depthwise)]
            numbers = (*lengths, *(sizes[name] for name in nest.sizes))
            ranges = ranges_of(lengths[source.schedule.shared or 0], nanoseconds(nest, lengths), threads)
            planner.share(function, (*(a.reshape(-1) for a in (*arrays, made)), *numbers), ranges, threads)
        return made

    return joined(tuple(sources)), call
