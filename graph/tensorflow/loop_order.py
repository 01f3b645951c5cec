"""Control edges that make TensorFlow run what changes state in a loop one iteration after the other.

TensorFlow runs up to `parallel_iterations` of a loop at once, in the order of data and control edges alone. Here an iteration sees the
changes of all before it. In a written graph, therefore, a `ControlTrigger` waits for what reads or changes state in an iteration, and the
next one waits for it, as in the loops that TensorFlow makes for gradients. A `ControlTrigger` also runs after nodes of a branch that was
not taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..core.graph import Graph, Node
from ..core.opdef import Trait

_FORWARDING = frozenset(("Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "Exit", "NextIteration"))
"""Ops that hand on references, and read nothing."""


def order_iterations(graph: Graph, protos: Any) -> None:
    """Add the edges to a `GraphDef`'s nodes, which are all of a graph's."""
    waits: dict[Any, list[str]] = {}  # loop -> what an iteration must have done
    for node in graph.nodes:
        home = graph.flow_of(node)
        if home is not None and home.loop is not None and _depends_on_state(node):
            waits.setdefault(home.loop, []).append(node.name)
    if not waits:
        return
    exits, back = _ends(graph, ("Exit", "RefExit")), _ends(graph, ("NextIteration", "RefNextIteration"))
    todo = list(waits)
    while todo:  # an iteration around a loop waits for the whole loop
        loop = todo.pop()
        for node in exits.get(loop, ()):
            home = graph.flow_of(node)
            outer = None if home is None else home.loop
            if outer is not None:
                if outer not in waits:
                    todo.append(outer)
                waits.setdefault(outer, []).append(node.name)
    by_name = {proto.name: proto for proto in protos}
    for loop, names in waits.items():
        following = back.get(loop, ())
        if following:
            name = f"{following[0].name}/order"
            while name in graph:
                name += "_"
            protos.add(name=name, op="ControlTrigger", input=_controls(names))
            for node in following:
                by_name[node.name].input.extend(_controls([name]))


def _controls(names: Iterable[str]) -> list[str]:
    return [f"^{name}" for name in dict.fromkeys(names)]


def _depends_on_state(node: Node) -> bool:
    if node.type in _FORWARDING or node.type.startswith("TensorArray"):  # whose flow orders them
        return False
    return Trait.STATEFUL in node.opdef.traits or any(t.dtype.is_ref for t in node.inputs)


def _ends(graph: Graph, ops: tuple[str, ...]) -> dict[Any, list[Node]]:
    """The nodes of those ops, by the loop from inside which their inputs come."""
    found: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.type in ops:
            home = graph.flow_of(node.inputs[0].op)
            if home is not None and home.loop is not None:
                found.setdefault(home.loop, []).append(node)
    return found
