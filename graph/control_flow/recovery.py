"""Recovers the branches and loops of an imported graph from its edges.

Gradients need the `FlowContext` of each branch and loop, which `cond` and `while_loop` make (`contexts.py`). A file has only nodes. In
TensorFlow 1's form, the edges determine the branch or loop of a node: it takes an Enter, an Exit or a Switch on a condition, or
waits for a context's pivot. Graphs of other forms run, but gradients through them are errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.build import make
from ..core.errors import InvalidArgumentError
from ..core.frames import Frames, has_control_flow
from ..core.graph import Graph, Node, Tensor
from .contexts import BranchContext, FlowContext, LoopContext, as_is, is_constant_enter


def recover_flow(graph: Graph, nodes: Sequence[Node]) -> None:
    """Set the branches and loops of these nodes, which were added to the graph together."""
    if not has_control_flow(nodes) or graph.scopes.flow is not None:
        return
    try:
        frames = Frames(nodes)
    except InvalidArgumentError:  # the run reports it
        return
    _Recovery(graph, nodes, frames).run()


class _Recovery:
    """The recovery for some nodes. `of` maps a node to the context of its outputs, if there is one."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], frames: Frames) -> None:
        self.graph = graph
        self.frames = frames
        self.of: dict[Node, FlowContext] = {}
        self.loops: dict[str, LoopContext] = {}
        self.branches: dict[tuple[Tensor, int], BranchContext] = {}
        self.pivots: dict[Node, BranchContext] = {}
        self.users: dict[Tensor, list[Node]] = {}
        for node in nodes:
            for t in node.inputs:
                self.users.setdefault(t, []).append(node)
        for node in nodes:
            self._find_branch(node)

    def run(self) -> None:
        """Visit the nodes, each after its inputs."""
        for node in self.frames.runs_in:
            context = self._place(node, _innermost(self.of.get(n) for n in self.frames.before(node)))
            if context is not None:
                self.of[node] = context
        self.graph.flow.put_in(self.of)
        for loop in self.loops.values():
            self._complete(loop)

    def _find_branch(self, node: Node) -> None:
        """Make the context of a branch if `node` is its pivot, an Identity of a Switch of the condition by itself."""
        switch = node.inputs[0].op if node.type == "Identity" else None
        if switch is None or switch.type != "Switch" or switch.inputs[0] is not switch.inputs[1]:
            return
        scope, _, name = node.name.rpartition("/")
        side = node.inputs[0].value_index
        number = name.removeprefix(("switch_f", "switch_t")[side])
        chosen_name = f"{scope}/pred_id{number}".lstrip("/")
        chosen = self.graph.get_operation_by_name(chosen_name) if chosen_name in self.graph else None
        if chosen is None or chosen.type != "Identity" or chosen.inputs[0] is not switch.inputs[0]:
            return
        pred = chosen.outputs[0]
        context = BranchContext(self.graph, f"a branch of '{scope}'", pred, node.outputs[0], side)
        self.branches[pred, side] = self.pivots[node] = context
        sibling = self.branches.get((pred, 1 - side))
        if sibling is not None:
            context.sibling, sibling.sibling = sibling, context

    def _place(self, node: Node, around: FlowContext | None) -> FlowContext | None:
        """The context of a node's outputs. `around` is that of its inputs."""
        if node.type in ("Enter", "RefEnter"):
            return self._enter(node, around)
        if node.type == "Exit":
            loop = around.loop if around is not None else None
            return loop.outer if loop is not None else None
        if node in self.pivots:
            return self._inside(self.pivots[node], around)
        if node.type in ("Switch", "RefSwitch") and node.inputs[0] is not node.inputs[1]:
            used = [i for i, t in enumerate(node.outputs) if t in self.users]
            context = self.branches.get((node.inputs[1], used[0] if used else 0))
            if context is not None:
                self._inside(context, around)
                self._let_in(context, node.inputs[0], node.outputs[context.branch])
                return context
        if node.type == "Merge" and node.back_edge is None and isinstance(around, BranchContext):
            return around.outer
        return around

    def _inside(self, branch: BranchContext, around: FlowContext | None) -> BranchContext:
        for side in (branch, branch.sibling):
            if side is not None and side is not around:
                side.outer = _innermost((side.outer, around))
        return branch

    def _enter(self, node: Node, around: FlowContext | None) -> LoopContext:
        name = node.attrs["frame_name"]
        loop = self.loops.get(name)
        if loop is None:
            loop = self.loops[name] = LoopContext(self.graph, name, node.attrs["parallel_iterations"], back_prop=True)
        loop.outer = _innermost((loop.outer, around))
        if is_constant_enter(node):
            self._let_in(loop, node.inputs[0], node.outputs[0])
        return loop

    def _let_in(self, context: FlowContext, value: Tensor, inside: Tensor) -> None:
        """Record a captured tensor, under the tensor of the enclosing context and under the outermost one."""
        context.stand_ins.setdefault(value, inside)
        outer = self.of.get(value.op)
        for first, stand_in in list(outer.stand_ins.items()) if outer is not None else []:
            if stand_in is value:
                context.stand_ins.setdefault(first, inside)

    def _complete(self, loop: LoopContext) -> None:
        """Set the variables of a loop, in the order of their Merges."""
        merges = [n for n, home in self.of.items() if home is loop and n.back_edge is not None]
        merges.sort(key=lambda n: n.index)
        loop.condition = next(n.outputs[0] for n, home in self.of.items() if home is loop and n.type == "LoopCond")
        for merge in merges:
            loop.enters.append(merge.inputs[0])
            loop.merges.append(merge.outputs[0])
            switch = next((n for n in self.users.get(merge.outputs[0], ()) if n.inputs[-1] is loop.condition), None)
            if switch is None:
                with loop.open():
                    switch = make("Switch", (merge.outputs[0], loop.condition))
            exits = [n for n in self.users.get(switch.outputs[0], ()) if n.type == "Exit"]
            if not exits:
                with as_is(self.graph, loop.outer):
                    exits = [make("Exit", (switch.outputs[0],))]
            loop.exits.append(exits[0].outputs[0])
            if loop.pivot_for_body is None:
                loop.pivot_for_pred = merge.outputs[0]
                inside = (n for n in self.users.get(switch.outputs[1], ()) if n.type == "Identity")
                loop.pivot_for_body = next((n.outputs[0] for n in inside), None)


def _innermost(contexts: Iterable[FlowContext | None]) -> FlowContext | None:
    """The innermost of nested contexts."""
    found: FlowContext | None = None
    for context in contexts:
        around = context
        while around is not None and around is not found:
            around = around.outer
        if around is found:  # found is None, or around this one
            found = context
    return found
