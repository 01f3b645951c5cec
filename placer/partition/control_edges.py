"""Control-edge reduction: an edge into a NoOp that only joins control edges becomes edges from its inputs.

A `group` is a NoOp on one device that waits for others, which others wait for in turn. To run it there, the news travels to its
device and from there on. The same order holds when all its consumers wait for its inputs directly, and that takes one journey
less, mostly fewer messages, and often leaves its device out of it.

    a on ps:0  ─┐                                          a on ps:0  ─┐
                ├─► group on worker:0 ─► step on ps:0                  ├─► step on ps:0
    b on ps:1  ─┘                                          b on ps:1  ─┘

        three messages, two journeys                           one message
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node


def passed_over(nodes: Sequence[Node], device_of: Callable[[Node], str]) -> dict[Node, tuple[Node, ...]]:
    """The NoOps of a step that need not run, each with the nodes to wait for in its place.

    Those are it whose joining takes as many messages as that or more. Nothing is lost when one of them is what the step was asked
    to run: the step ends when everything that it needs has run. Steps with branches or loops keep theirs.

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
    passed: dict[Node, tuple[Node, ...]] = {}
    for node in nodes:
        if node not in joins:
            continue
        here, to = device_of(node), waiting[node]
        before = through(node.controls, passed)
        of = [device_of(b) for b in before if b in running]  # one that is not run is a placeholder that is fed
        if all(device == here for device in of):
            continue  # what it joins is one message to anybody then
        apart = sum(len(to) - (device in to) for device in of)
        if apart <= sum(device != here for device in of) + len(to - {here}):
            passed[node] = before
    return passed


def through(nodes: Iterable[Node], passed: Mapping[Node, tuple[Node, ...]]) -> tuple[Node, ...]:
    """Nodes, with what to wait for in the place of those that are passed over."""
    return tuple(dict.fromkeys(b for n in nodes for b in passed.get(n, (n,))))
