"""Control-flow contexts: the branches of `cond` and the loops in which a node is made.

A `FlowContext` is open while the function of a branch or of a loop's body runs. It checks every node that is made
inside, and captures outer tensors. A branch gets an outer tensor through a `Switch`, so that it is dead unless the
branch is taken. A loop gets it through a constant `Enter`, once for all iterations. A node without inputs, such as a constant,
gets a control edge from the context's *pivot*, a node that is live exactly when the context runs. So the edges determine
which nodes belong to which branch or loop.

Names and edges are those of TensorFlow 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ..core.graph import Graph, Node, Tensor
from ..core.scopes import control_inputs_for
from ..core.shape import Dims


class FlowContext:
    """A branch of a `cond`, or a loop.

    Attributes:
        graph: the graph.
        outer: the enclosing context, or None.
        name: name for error messages.
        stand_ins: outer tensor -> the tensor that replaces it inside.
    """

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph = graph
        self.outer: FlowContext | None = graph.scopes.flow
        self.home: FlowContext | None = self  # the context of the outputs of nodes that are made while this one is open
        self.name = name
        self.stand_ins: dict[Tensor, Tensor] = {}

    @property
    def pivot(self) -> Tensor:
        """The tensor that is live exactly when the context runs."""
        raise NotImplementedError

    @property
    def loop(self) -> LoopContext | None:
        """The innermost loop: this context or an enclosing one."""
        context: FlowContext | None = self
        while context is not None and not isinstance(context, LoopContext):
            context = context.outer
        return context

    def holds(self, node: Node) -> bool:
        """Whether a node's outputs are in this context or in an inner one."""
        context = self.graph.flow.of(node)
        while context is not None and context is not self:
            context = context.outer
        return context is self

    def open(self) -> AbstractContextManager[None]:
        """A block whose nodes are made inside this context."""
        return inside(self.graph, self)

    def bring(self, tensor: Tensor) -> Tensor:
        """Capture a tensor: return the tensor that replaces it inside. A tensor of this context is returned unchanged.

        Raises:
            ValueError: the tensor is inside another branch or loop, of which only the results can be used outside.
        """
        found = self.stand_ins.get(tensor)
        if found is not None:
            return found
        home = self.graph.flow.of(tensor.op)
        if home is self:
            return tensor
        if self.loop is not None:
            reference = _reference_read(tensor)
            if reference in self.stand_ins:
                return self.stand_ins[reference]
        value = tensor
        if self.outer is not None:
            value = self.outer.bring(tensor)
        elif home is not None:
            raise ValueError(
                f"{tensor.name} is created inside {home.name} (at {tensor.op.source}), and only its "
                "results can be used outside: return the tensor from there"
            )
        made = self.stand_ins[tensor] = self._let_in(value)
        if made.dtype.is_ref and self.loop is not None:
            self._read_inside(tensor, made)
        return made

    def _read_inside(self, reference: Tensor, inside: Tensor) -> None:
        """Capture a variable's reference in place of values that were read from it outside.

        A node with a reference as input reads the value when it runs. So a loop that changes the variable sees the changes.
        """
        for outer, stand_in in self.stand_ins.items():
            if _reference_read(outer) is reference and stand_in is not outer:
                node, like = stand_in.op, inside.op
                self.graph.flow.move_before(node, [t.op for t in like.inputs])
                node.opdef, node.inputs = like.opdef, like.inputs
                for t in node.outputs:
                    t.dtype = inside.dtype
                moved = {node}
                for n in self.graph.nodes[node.index :]:
                    if n is node or (n.type == "Switch" and n.inputs[0].op in moved):  # captures it for a branch
                        moved.add(n)
                        n.device, n.blocks, n.colocation = like.device, like.blocks, like.colocation

    def _let_in(self, value: Tensor) -> Tensor:
        """Make the node that captures a tensor of the enclosing context."""
        raise NotImplementedError

    def admit(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Node, ...]]:
        """The inputs and control inputs of a node that is being made inside."""
        raise NotImplementedError

    def _split(self, controls: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The control inputs inside the innermost loop, and those outside it."""
        loop = self.loop
        if loop is None:
            return controls, ()
        inside: list[Node] = []
        outside: list[Node] = []
        for c in controls:
            home = self.graph.flow.of(c)
            (inside if home is not None and home.loop is loop else outside).append(c)
        return tuple(inside), tuple(outside)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class BranchContext(FlowContext):
    """A branch of a `cond`.

    Attributes:
        pred: the condition.
        branch: 1 for the true branch, 0 for the false branch.
        sibling: the other branch. None until it exists.
    """

    def __init__(self, graph: Graph, name: str, pred: Tensor, pivot: Tensor, branch: int) -> None:
        super().__init__(graph, name)
        self.pred = pred
        self.branch = branch
        self.sibling: BranchContext | None = None
        self._pivot = pivot
        self.stand_ins[pivot] = pivot

    @property
    def pivot(self) -> Tensor:
        """The condition, as a tensor that is dead in the other branch."""
        return self._pivot

    def _let_in(self, value: Tensor) -> Tensor:
        op = "RefSwitch" if value.dtype.is_ref else "Switch"
        with as_is(self.graph, self), self.graph.colocate_with(value.op, ignore_existing=True):
            return self.graph.create(op, (value, self.pred), None, "Switch").outputs[self.branch]

    def admit(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Node, ...]]:
        """As `FlowContext.admit`."""
        brought = tuple([self.bring(t) for t in inputs])
        inside, _ = self._split(controls)
        if not inputs and not any(self.holds(c) for c in inside):
            inside = (*inside, self.pivot.op)
        return brought, inside


class LoopContext(FlowContext):
    """A loop.

    Attributes:
        frame: name of the loop, unique in the graph.
        parallel_iterations: the argument of `while_loop`.
        back_prop: whether gradients may be taken through the loop.
        enters: the outputs of the variables' Enters, in order.
        merges: the outputs of the variables' Merges, in order.
        exits: the outputs of the variables' Exits, in order.
        pivot_for_pred: a tensor that is live whenever the condition is computed.
        pivot_for_body: a tensor that is live whenever the body runs.
        condition: the output of the LoopCond.
    """

    def __init__(self, graph: Graph, frame: str, parallel_iterations: int, back_prop: bool) -> None:
        super().__init__(graph, f"the loop '{frame}'")
        self.frame = frame
        self.parallel_iterations = parallel_iterations
        self.back_prop = back_prop
        self.enters: list[Tensor] = []
        self.merges: list[Tensor] = []
        self.exits: list[Tensor] = []
        self.condition: Tensor | None = None
        self.pivot_for_pred: Tensor | None = None
        self.pivot_for_body: Tensor | None = None

    @property
    def pivot(self) -> Tensor:
        """The pivot of the condition. Once the body is being built, the pivot of the body."""
        found = self.pivot_for_body if self.pivot_for_body is not None else self.pivot_for_pred
        assert found is not None
        return found

    def _let_in(self, value: Tensor) -> Tensor:
        return self.enter(value, constant=True)

    def enter(self, value: Tensor, *, constant: bool, dims: tuple[Dims] | None = None) -> Tensor:
        """Make an Enter for a tensor of the enclosing context.

        Args:
            value: the tensor.
            constant: whether the value is the same in all iterations. Otherwise it is the initial value of a loop variable.
            dims: a tuple with the shape that the value has in all iterations. If it is None, the shape of `value`.
        """
        scopes = self.graph.scopes
        controls = control_inputs_for(scopes.control, {value.op})
        attrs = {
            "frame_name": self.frame,
            "is_constant": constant,
            "parallel_iterations": self.parallel_iterations,
            "shape": dims,
        }
        # The Enter of a loop variable must be on the device of its Merge. It takes the value of a reference.
        is_ref = constant and value.dtype.is_ref
        # A reference cannot leave its device, so colocation blocks do not apply.
        colocation = self.graph.colocate_with(value.op, ignore_existing=True) if is_ref else nullcontext()
        with as_is(self.graph, self), colocation:
            node = self.graph.create("RefEnter" if is_ref else "Enter", (value,), attrs)
        node.controls = tuple(c for c in controls if self._is_around(c))
        scopes.mark_seen(node)
        return node.outputs[0]

    def _is_around(self, node: Node) -> bool:
        """Whether a node is in an enclosing context, in the same iteration of the enclosing loop."""
        home = self.graph.flow.of(node)
        loop = self.outer.loop if self.outer is not None else None
        context = self.outer
        while context is not home:
            if context is None or context is loop:
                return False
            context = context.outer
        return True

    def admit(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Node, ...]]:
        """As `FlowContext.admit`."""
        brought = tuple([self.bring(t) for t in inputs])
        inside, outside = self._split(controls)
        # Without this edge, a node whose inputs do not change between iterations would run only once, before the loop.
        if not inside and all(is_constant_enter(t.op) for t in brought):
            inside = (self.pivot.op,)
        return brought, (*inside, *self._wait_inside(outside))

    def _wait_inside(self, controls: tuple[Node, ...]) -> tuple[Node, ...]:
        """Nodes of this loop that run after the outer nodes `controls`."""
        found = []
        for c in controls:
            if c.outputs:
                with self.graph.control_dependencies(None), self.open():
                    found.append(self.graph.create("Identity", (c.outputs[0],), None, "Identity"))
        return tuple(found)


class _AsIs(FlowContext):
    """A context that does not change nodes, for the control-flow nodes that lead into or out of another context."""

    def __init__(self, graph: Graph, home: FlowContext | None) -> None:
        super().__init__(graph, "control flow")
        self.home = home

    def admit(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Node, ...]]:
        """As `FlowContext.admit`."""
        return inputs, controls


@contextmanager
def inside(graph: Graph, flow: FlowContext | None) -> Iterator[None]:
    """A block whose nodes are made in a branch or loop, or in none."""
    scopes = graph.scopes
    saved, scopes.flow = scopes.flow, flow
    try:
        yield
    finally:
        scopes.flow = saved


@contextmanager
def as_is(graph: Graph, home: FlowContext | None) -> Iterator[None]:
    """A block whose nodes keep their inputs and get no control edges. Their outputs are inside `home`."""
    with graph.control_dependencies(None):
        graph.scopes.flow = _AsIs(graph, home)
        yield


def _reference_read(tensor: Tensor) -> Tensor | None:
    """The reference from which an Identity reads `tensor`. None for other tensors."""
    node = tensor.op
    return node.inputs[0] if node.type == "Identity" and node.inputs[0].dtype.is_ref else None


def is_constant_enter(node: Node) -> bool:
    """Whether a node captures a value for a loop that is the same in all iterations."""
    return node.type in ("Enter", "RefEnter") and node.attrs["is_constant"]
