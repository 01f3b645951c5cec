"""Control edges that make TensorFlow run what changes state in a loop one iteration after the other.

TensorFlow runs up to `parallel_iterations` of a loop at once, in the order of data and control edges alone. Here an iteration sees the
changes of all before it. In a written graph, therefore, a `ControlTrigger` waits for what reads or changes state in an iteration, a loop
variable goes on after it, and what reads or changes state in the next iteration waits for that variable. A `ControlTrigger` also runs
after nodes of a branch that was not taken.

The stacks of gradients are ordered by the variable that was made last, the gradient's counter: the nodes of the loop itself then stay
before those of its gradient. Other state is ordered by the first variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..control_flow.contexts import LoopContext
from ..core.graph import Graph, Node
from ..core.opdef import Trait

_FORWARDING = frozenset(("Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "Exit", "NextIteration"))
"""Ops that hand on references, and read nothing."""
_Users = dict[LoopContext, list[Node]]  # loop -> what reads or changes state in it


def order_iterations(graph: Graph, protos: Any) -> None:
    """Add the edges to a `GraphDef`'s nodes, which are all of a graph's."""
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
    """An iteration around a loop waits for the whole loop: for its Exits."""
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
    if node.type in _FORWARDING or node.type.startswith("TensorArray"):  # whose flow orders them
        return False
    return Trait.STATEFUL in node.opdef.traits or any(t.dtype.is_ref for t in node.inputs)


def _changes_state(node: Node) -> bool:
    return Trait.STATEFUL in node.opdef.traits and not node.type.startswith("Random") and node.type != "ReadVariableOp"


def _ends(graph: Graph, ops: tuple[str, ...]) -> _Users:
    """The nodes of those ops, by the loop from inside which their inputs come."""
    found: _Users = {}
    for node in graph.nodes:
        if node.type in ops:
            loop = _loop_of(graph, node.inputs[0].op)
            if loop is not None:
                found.setdefault(loop, []).append(node)
    return found
