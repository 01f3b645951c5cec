"""Arithmetic before windows: a kernel of a window computes the pixels that it reads, instead of reading them from memory.

A group whose only result is read through one window, such as a bias and a ReLU before a pooling, becomes part of the window's group. Its
nodes are computed at each tap. So a pixel is computed as often as windows see it: taps / strides times. That pays where

    (times - 1) * operations  <=  operations in the time of writing and reading the pixel

(one operation more than the nodes have: what lies outside of the image is masked), and nothing costly (`loop_nest.COSTLY`) is computed.
What the nodes read lies like the image, or is a number for each channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...graph.core.graph import Node, Tensor
from ...graph.ops.nn.conv_geometry import layout
from ..ir.index_maps import AxisMap
from ..ir.loop_nest import COSTLY
from ..ir.windows import WINDOW_OPS
from .epilogue import ANCHORS
from .grouping import DEEPEST, MOST_NODES, Walk
from .merge import FusionGroup
from .op_rules import constant_of
from .to_loops import image_axes, leaves_of, write_alone


def absorb_producers(walk: Walk, operations_per_byte: float, has_epilogues: bool) -> None:
    """Let the groups of windows compute the pixels that they read, where that pays.

    Args:
        walk: the groups.
        operations_per_byte: operations that take as long as reading or writing one byte.
        has_epilogues: whether products and convolutions take arithmetic on their results: that stays there.
    """
    for group in [g for g in walk.groups if g.slides]:
        for node in [n for n in group.nodes if walk.patterns[n].window is not None]:
            for t in dict.fromkeys(node.inputs):
                maker = walk.maker_of(t, group)
                if maker is None or not _is_used_here_only(walk, maker, t, node):
                    continue
                leaves = _leaves(walk, node, t, maker, has_epilogues)
                has_room = len(maker.nodes) + len(group.nodes) <= MOST_NODES
                if has_room and leaves is not None and _pays(walk, node, t, maker, leaves, operations_per_byte):
                    _absorb(walk, group, node, t, maker, leaves)


def _absorb(
    walk: Walk, group: FusionGroup, node: Node, tensor: Tensor, maker: FusionGroup, leaves: Mapping[Tensor, AxisMap]
) -> None:
    """Move the nodes of `maker`, which make the tensor, into the group of the window `node`."""
    pattern = walk.patterns[node]
    assert pattern.window is not None
    channel = dict(zip(pattern.outputs[0], group.dims[node.outputs[0]], strict=True)).get(pattern.window[3])
    group.nodes = [*maker.nodes, *group.nodes]
    for x, axes in leaves.items():
        if axes != image_axes(tensor):
            group.dims.setdefault(x, tuple(None if a is None else channel for a in axes))
    del walk.groups[maker]
    walk.group_of.update(dict.fromkeys(maker.made, group))


def _is_used_here_only(walk: Walk, maker: FusionGroup, tensor: Tensor, node: Node) -> bool:
    """Whether a group computes element by element, and its only result is an input of the node."""
    if maker.slides or maker.reduced or maker.scatters or maker.reads_state or walk.depth[node][0] > DEEPEST // 2:
        return False
    inside: set[object] = {node, *maker.nodes}
    if any(c not in inside for made in maker.made for c in walk.consumers.get(made, ())):
        return False
    return node.inputs.count(tensor) == 1 and maker.depth[tensor][0] <= DEEPEST // 2


def _leaves(
    walk: Walk, node: Node, tensor: Tensor, maker: FusionGroup, has_epilogues: bool
) -> dict[Tensor, AxisMap] | None:
    """What an image is computed from; None if that cannot be done at each tap."""
    channel = 1 if layout(node.attrs) == "NCHW" else 3
    for n in maker.nodes:
        p = walk.patterns[n]
        if len(n.outputs) != 1 or None in p.inputs or p.assumed or p.before or p.positions:
            return None
        if p.row is not None or p.drawn is not None or p.moved or not COSTLY.isdisjoint(write_alone(n, p).operations):
            return None
    makers = {n.outputs[0]: n for n in maker.nodes}
    found: dict[Tensor, AxisMap] = {}
    for x, axes in leaves_of(tensor, makers, walk.patterns.__getitem__):
        if constant_of(x) is not None:
            continue
        is_image = axes == image_axes(tensor)
        if x.dtype.is_ref or found.setdefault(x, axes) != axes or not is_image and set(axes) - {None, channel}:
            return None
        if has_epilogues and x.op.type in ANCHORS:
            return None
    return found if image_axes(tensor) in found.values() else None


def _pays(
    walk: Walk, node: Node, tensor: Tensor, maker: FusionGroup, leaves: Mapping[Tensor, AxisMap], per_byte: float
) -> bool:
    """Whether computing a pixel at each tap takes less time than writing and reading it."""
    op = WINDOW_OPS[node.type]
    window, multiplier = op.window(node)
    if multiplier > 1 or op.inputs[node.inputs.index(tensor)] not in ("image", "result"):
        return False
    times = math.prod(window.taps) / (1 if op.gives != "result" else math.prod(window.strides))
    operations = 1 + sum(not walk.patterns[n].is_view for n in maker.nodes)
    more = [*leaves.values()].count(image_axes(tensor)) - 1  # images are read instead of one
    return (max(times, 1) - 1) * operations + times * more <= 2 * tensor.dtype.size * per_byte
