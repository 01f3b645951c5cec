"""Control-flow placement: `Switch`, `Merge`, `Enter` and the like run on the device of their data.

A Switch on the device of its data needs no message. So a Switch or Exit runs where its input is made, and an Enter
or NextIteration where its first consumer runs. This happens after placement, as in TensorFlow: the placement does not
change, and the plan explains the move. A RefEnter stays with its variable. So all control-flow nodes of one loop
variable run on the device of its Merge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.core.graph import Node

MOVES_TO_DATA = frozenset({"Switch", "RefSwitch", "Exit"})
_TO_CONSUMER = frozenset({"Enter", "NextIteration"})


def is_moved_to_data(node: Node) -> bool:
    """Whether a node runs on the device of its data, wherever it is placed."""
    return node.opdef.name in MOVES_TO_DATA or node.opdef.name in _TO_CONSUMER


def devices_after_moves(nodes: Sequence[Node], device_of: Callable[[Node], str]) -> dict[int, str]:
    """Node index -> the device that runs the node: that of `device_of`, except for control-flow nodes.

    `nodes` are in an order in which inputs come first.
    """
    device = {n.index: device_of(n) for n in nodes}
    consumer: dict[int, int] = {}
    for node in nodes:
        for t in node.inputs:
            first = consumer.get(t.op.index)
            if t.op.opdef.name in _TO_CONSUMER and (first is None or node.index < first):
                consumer[t.op.index] = node.index
    # Consumers first: an Enter may feed the Enter of an inner loop.
    for node in reversed(nodes):
        if node.opdef.name in _TO_CONSUMER and node.index in consumer:
            device[node.index] = device[consumer[node.index]]
    for node in nodes:
        if node.opdef.name in MOVES_TO_DATA and node.inputs[0].op.index in device:
            device[node.index] = device[node.inputs[0].op.index]
    return device
