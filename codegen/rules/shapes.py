"""Rules for shapes, and for what is spread over one: the gradient of a mean is mostly that. All of them are exact.

The gradient of `reduce_mean(f(x))` with a batch whose size only the running graph knows is

    broadcast_to(1.0, shape(f(x))) / cast(size(f(x)) // 1)

What is left of it is one division of numbers, and a broadcast, which costs nothing in the kernel that takes it. That kernel may
be the one which makes f(x), since nothing asks for its shape any more.
"""

from __future__ import annotations

from ...graph.node import Node, Tensor
from .pattern import Match, Rule

_LOSSES = {"SparseSoftmaxCrossEntropyWithLogits": (1, 0)}
"""Ops whose outputs have the shapes of these inputs."""


def shaped_like(node: Node, tensor: Tensor) -> Tensor | None:
    """The input of a node whose shape its output has, whatever it is; None where the inputs' shapes decide together."""
    alike = _LOSSES.get(node.opdef.name)
    if alike is not None:
        return node.inputs[alike[tensor.value_index]]
    if node.opdef.scalar is None and node.opdef.name != "Cast":
        return None
    large = [t for t in node.inputs if t.dims != ()]
    return large[0] if len(large) == 1 else None


def _of_input(m: Match) -> Tensor | None:
    """Shape(f(x)) = Shape(x) where f works element by element."""
    tensor: Tensor = m["y"]
    node = m.look(tensor)
    found = None if node is None else shaped_like(node, tensor)
    if found is None:
        return None
    return m.make(m.root.type, (found,), m.root.attrs)


def _before_broadcast(m: Match) -> Tensor | None:
    """BroadcastTo(x, s) / c = BroadcastTo(x / c, s) where x and c are numbers: one division instead of many."""
    if m["x"].dims != () or m["c"].dims != ():
        return None
    given = [m["x"] if t is m["wide"] else t for t in m.root.inputs]
    return m.make("BroadcastTo", (m.make(m.root.type, given, m.root.attrs), m["s"]), m["wide"].op.attrs)


_WIDE = "(wide := BroadcastTo(x, s))"

shape_rules = (
    Rule("integer divided by one", "FloorDiv(x, 1)", "x", integer=True),
    Rule("shape of what it is made from", "{Shape(y), Size(y)}", _of_input),
    Rule(
        "arithmetic before a broadcast",
        "{" + ", ".join(f"{_WIDE} {op} c" for op in "/*+-") + f", c / {_WIDE}, c - {_WIDE}" + "}",
        _before_broadcast,
        gives="BroadcastTo",
    ),
)
