"""Dead store elimination: a variable is assigned twice, with no read between.

    a = Assign(v, x)          is dropped, if `a` has no consumers
    b = Assign(v, y)

Only pure functions of other tensors may lie between the two: a send, a receive, another stateful node or control flow might expose
the first value or wait for it. Both values must be known to fit the variable, so that no error is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....graph.core.graph import Node, Tensor
from ....graph.core.shape import is_static
from ...ir.partition import PartitionStep, inputs_of_step

ASSIGNS = frozenset(("Assign", "AssignVariableOp"))


def dead_stores(
    steps: Sequence[PartitionStep], fetches: Iterable[Tensor], is_function: Callable[[Node], bool]
) -> dict[Node, Node]:
    """The dead assignments, each with the one that overwrites it.

    `is_function`: whether a node is a pure function.
    """
    if sum(1 for s in steps if type(s) is Node and s.opdef.name in ASSIGNS) < 2:
        return {}
    taken = {t for s in steps for t in inputs_of_step(s)}
    taken.update(fetches)
    later: dict[Tensor, Node] = {}  # variable -> the later assignment, as long as no step between can see its value
    dead: dict[Node, Node] = {}
    for step in reversed(steps):
        if type(step) is Node and step.opdef.name in ASSIGNS and _fits(step):
            place = step.inputs[0]
            if place in later and not any(t in taken for t in step.outputs):
                dead[step] = later[place]
            later[place] = step
        elif type(step) is not Node or not is_function(step):
            later.clear()
    return dead


def _fits(node: Node) -> bool:
    """Whether an assignment cannot fail: its value has the variable's shape, and both are known."""
    place, value = node.inputs
    if value.dtype.is_ref or not node.attrs.get("validate_shape"):
        return False
    dims = place.dims if place.dtype.is_ref else place.op.attrs.get("shape")
    return is_static(dims) and value.dims == dims
