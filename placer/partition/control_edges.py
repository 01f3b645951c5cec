"""Control-edge reduction: an edge into a NoOp that only joins control edges becomes edges from its inputs.

A `group` is a NoOp that waits for its control inputs, and its consumers wait for it. It costs a message from each input's device to its
own, and one to each consumer's device. The same order holds if the consumers wait for the inputs directly. That is one hop less, mostly
fewer messages, and the NoOp's device often takes no part.

    a on ps:0  ─┐                                          a on ps:0  ─┐
                ├─► group on worker:0 ─► step on ps:0                  ├─► step on ps:0
    b on ps:1  ─┘                                          b on ps:1  ─┘

        three messages, two hops                               one message
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node


def bypassed_noops(nodes: Sequence[Node], device_of: Callable[[Node], str]) -> dict[Node, tuple[Node, ...]]:
    """The NoOps of a step that need not run, each with the nodes to wait for in its place.

    A NoOp is bypassed if direct control edges take no more messages. This holds for targets of the step, too: a step ends when all
    that its targets depend on has run. Steps with branches or loops keep their NoOps.

    Args:
        nodes: the nodes that run, inputs first. device_of: complete device name of each.
    """
    joins = {n for n in nodes if n.opdef.name == "NoOp" and n.controls}
    if not joins or has_control_flow(nodes):
        return {}
    waiting: dict[Node, set[str]] = {n: set() for n in joins}  # devices on which something waits for it
    for node in nodes:
        for c in node.controls:
            if c in joins:
                waiting[c].add(device_of(node))
    running = set(nodes)
    bypassed: dict[Node, tuple[Node, ...]] = {}
    for node in nodes:
        if node not in joins:
            continue
        here, to = device_of(node), waiting[node]
        before = without_bypassed(node.controls, bypassed)
        of = [device_of(b) for b in before if b in running]  # one that is not run is a placeholder that is fed
        if all(device == here for device in of):
            continue  # then it makes several messages one
        apart = sum(len(to) - (device in to) for device in of)
        if apart <= sum(device != here for device in of) + len(to - {here}):
            bypassed[node] = before
    return bypassed


def without_bypassed(nodes: Iterable[Node], bypassed: Mapping[Node, tuple[Node, ...]]) -> tuple[Node, ...]:
    """These nodes, with the nodes to wait for in the place of each bypassed one."""
    return tuple(dict.fromkeys(b for n in nodes for b in bypassed.get(n, (n,))))
