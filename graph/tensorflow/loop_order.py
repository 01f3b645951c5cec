"""Control edges that make TensorFlow run the stateful nodes of a loop one iteration after the other.

TensorFlow runs up to `parallel_iterations` iterations at once, ordered only by data and control edges. In Dovetail, an iteration sees
the changes of all earlier iterations. So in a written graph, a `ControlTrigger` waits for the nodes that read or change state in an
iteration, the NextIteration of a loop variable waits for the `ControlTrigger`, and the stateful nodes of the next iteration wait for
the variable's Merge. A `ControlTrigger` also runs after nodes of a branch that was not taken.

The stacks of gradients are ordered by the last variable, the gradient's counter, so that the nodes of the loop stay before those of its
gradient. Other state is ordered by the first variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..control_flow.contexts import LoopContext
from ..core.graph import Graph, Node
from ..core.opdef import Trait

_FORWARDING = frozenset(("Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "Exit", "NextIteration"))
"""Ops that forward references without a read."""
_Users = dict[LoopContext, list[Node]]  # loop -> its nodes that read or change state


def order_iterations(graph: Graph, protos: Any) -> None:
    """Add the edges to the nodes of a `GraphDef` of a whole graph."""
    stacks: _Users = {}
    others: _Users = {}
    changing = set()
    for node in graph.nodes:
        loop = _loop_of(graph, node)
        if loop is not None and node.type in ("StackPushV2", "StackPopV2"):
            stacks.setdefault(loop, []).append(node)
        elif loop is not None and _depends_on_state(node):
            others.setdefault(loop, []).append(node)
            if _changes_state(node):
                changing.add(loop)
    others = {loop: nodes for loop, nodes in others.items() if loop in changing}
    if not stacks and not others:
        return
    exits, back = _ends(graph, ("Exit", "RefExit")), _ends(graph, ("NextIteration", "RefNextIteration"))
    merges: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.type in ("Merge", "RefMerge"):
            merges.update(dict.fromkeys([t.op for t in node.inputs[1:]], node))
    by_name = {proto.name: proto for proto in protos}
    for users, which in ((stacks, -1), (others, 0)):
        _add_outer(graph, users, exits)
        for loop, nodes in users.items():
            if loop not in back:
                continue
            variable = back[loop][which]
            order = f"{variable.name}/order{'' if which else '_of_state'}"
            while order in graph:
                order += "_"
            protos.add(name=order, op="ControlTrigger", input=_controls(nodes))
            by_name[variable.name].input.append(f"^{order}")
            later: dict[Node, None] = {}
            for node in nodes:
                inner = _loop_of(graph, node.inputs[0].op) if node.type in ("Exit", "RefExit") else None
                later[node if inner is None or inner not in back else merges[back[inner][which]].inputs[0].op] = None
            for node in later:
                by_name[node.name].input.append(f"^{merges[variable].name}")


def _add_outer(graph: Graph, users: _Users, exits: Mapping[LoopContext, Sequence[Node]]) -> None:
    """Add the Exits of loops to their outer loops, so that an outer iteration waits for the whole inner loop."""
    todo = list(users)
    while todo:
        for node in exits.get(todo.pop(), ()):
            outer = _loop_of(graph, node)
            if outer is not None:
                if outer not in users:
                    todo.append(outer)
                users.setdefault(outer, []).append(node)


def _loop_of(graph: Graph, node: Node) -> LoopContext | None:
    """The loop in which a node runs."""
    home = graph.flow.of(node)
    return None if home is None else home.loop


def _controls(nodes: Iterable[Node]) -> list[str]:
    return [f"^{node.name}" for node in dict.fromkeys(nodes)]


def _depends_on_state(node: Node) -> bool:
    if node.type in _FORWARDING or node.type.startswith("TensorArray"):  # flow tensors order the ops of TensorArrays
        return False
    return Trait.STATEFUL in node.opdef.traits or any(t.dtype.is_ref for t in node.inputs)


def _changes_state(node: Node) -> bool:
    return Trait.STATEFUL in node.opdef.traits and not node.type.startswith("Random") and node.type != "ReadVariableOp"


def _ends(graph: Graph, ops: tuple[str, ...]) -> _Users:
    """The nodes of some ops, by the loop of their inputs."""
    found: _Users = {}
    for node in graph.nodes:
        if node.type in ops:
            loop = _loop_of(graph, node.inputs[0].op)
            if loop is not None:
                found.setdefault(loop, []).append(node)
    return found
