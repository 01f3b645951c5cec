"""Gradients through branches and loops.

**Branches.** The gradients of a branch's nodes are made inside the forward branch's context, so they are dead if the
branch was not taken. The gradient of a Merge goes through a Switch into both branches. The gradient of a Switch is a
Merge, whose other input is zero.

**Loops.** The gradient of a loop is a loop with the same number of iterations, in reverse order. A counter in the
forward loop determines this number. The backward loop's variables are the gradients of the forward loop's variables. An
iteration turns the gradients after a forward iteration into those before it. The gradient of a loop constant is the
sum over all iterations. The forward loop pushes each value that a gradient needs on a stack, and the backward loop
pops it. A branch inside a loop is replayed inside the backward loop, which pops the branch's condition, too.

So each context has a *mirror*, the context in which the gradients of its nodes are made. The mirror of a loop is the backward loop,
that of a branch in a loop is the replayed branch, and that of another branch is the branch itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from ..control_flow.cond_while import LoopBuilder, make_branches
from ..control_flow.contexts import BranchContext, FlowContext, LoopContext, as_is, inside, is_constant_enter
from ..core.build import apply, constant, convert, make
from ..core.constant_value import static_value
from ..core.dtypes import resource
from ..core.errors import InternalError
from ..core.frames import topological
from ..core.graph import Graph, Node, Tensor
from ..core.shape import TensorShape, is_static, merge
from ..ops.array.creation import zeros, zeros_like
from ..ops.control.switch_merge import stack_pop, stack_push, stack_v2
from ..ops.math.compare import greater
from ..ops.state.variables import read_variable, type_and_dims
from ..tensors.indexed_slices import IndexedSlices


class ReversePass(Protocol):
    """The interface of the reverse pass (`reverse.py`) that a loop's gradient uses."""

    colocate: bool

    def visit(self, nodes: Sequence[Node], level: LoopContext | None, on_path: frozenset[Node]) -> None:
        """Visit the nodes of a loop and the loops directly inside it, last first."""

    def total(self, tensor: Tensor) -> Any:
        """The sum of the gradients that a tensor has received so far, or None."""

    def receive(self, node: Node, tensor: Tensor, grad: Any, on_path: frozenset[Node]) -> None:
        """Record the gradient that a node contributes to an input."""

    def beside(self, node: Node) -> AbstractContextManager[None]:
        """A block whose nodes share the device of a node."""


class _Replay(FlowContext):
    """A context of the backward pass that needs the values of a forward context."""

    forward: FlowContext
    needs_stacks: bool

    def bring(self, tensor: Tensor) -> Tensor:
        """As `FlowContext.bring`. Values of the forward context are popped from stacks."""
        found = self.stand_ins.get(tensor)
        if found is None:
            if self.graph.flow.of(tensor.op) is not self.forward:
                return super().bring(tensor)
            found = self.stand_ins[tensor] = self._again(tensor)
        return found

    def _again(self, tensor: Tensor) -> Tensor:
        node, forward = tensor.op, self.forward
        captured = is_constant_enter(node) or (
            isinstance(forward, BranchContext)
            and node.type in ("Switch", "RefSwitch")
            and node.inputs[1] is forward.pred
        )
        if captured:  # can be captured again
            return self.bring(node.inputs[0])
        value = static_value(tensor)
        if value is not None:
            with self.open():
                return constant(value)
        return self._from_stack(tensor) if self.needs_stacks else self._from_sibling(tensor)

    def _from_stack(self, tensor: Tensor) -> Tensor:
        graph, forward = self.graph, self.forward
        backward = self.loop
        assert isinstance(backward, BackwardLoop)
        # A value of the condition is computed once more than the body runs. It is pushed only when the body runs.
        waits = [forward.pivot.op] if isinstance(forward, LoopContext) else []
        with graph.colocate_with(tensor.op, ignore_existing=True), graph.control_dependencies(None):
            handle = stack_v2(tensor.dtype)
            with forward.open(), graph.control_dependencies(waits):
                push = stack_push(handle, tensor)
            backward.pushes.append(push.op)
            with self.open():
                return stack_pop(handle, tensor.dtype, tensor.dims)

    def _from_sibling(self, tensor: Tensor) -> Tensor:
        """Capture a tensor of the forward branch, which is live whenever this replayed branch is."""
        around: list[FlowContext] = []
        context: FlowContext | None = self
        while context is not None:
            around.append(context)
            context = context.outer
        for context in reversed(around):
            tensor = context._let_in(tensor)
        return tensor


class BackwardLoop(_Replay, LoopContext):
    """The loop that computes a loop's gradient. `pushes` are the nodes of the forward loop that push values for it."""

    def __init__(self, graph: Graph, frame: str, forward: LoopContext) -> None:
        super().__init__(graph, frame, forward.parallel_iterations, back_prop=False)
        self.forward = forward
        self.needs_stacks = True
        self.back_prop = True
        self.pushes: list[Node] = []


class ReplayedBranch(_Replay, BranchContext):
    """A branch in which the gradients of another branch are made."""

    def __init__(self, forward: BranchContext, needs_stacks: bool, *branch: Any) -> None:
        super().__init__(*branch)
        self.forward = forward
        self.needs_stacks = needs_stacks


class FlowGradients:
    """The control-flow part of a reverse pass."""

    def __init__(self, graph: Graph, reverse: ReversePass) -> None:
        self.graph = graph
        self.reverse = reverse
        self.base: FlowContext | None = graph.scopes.flow
        self._chain: list[FlowContext | None] = [None]  # the contexts that `gradients` is called in
        context = self.base
        while context is not None:
            self._chain.append(context)
            context = context.outer
        self._mirrors: dict[FlowContext, FlowContext] = {}
        self._turns: dict[
            Node, int
        ] = {}  # the positions of the nodes of a level in its order, of which the last is visited first
        self._halves: dict[Node, Any] = {}  # a Switch -> the gradient of its sibling, which was visited first

    # --- contexts ---------------------------------------------------------------------------------------------

    def mirror(self, context: FlowContext | None) -> FlowContext | None:
        """The context in which the gradients of a context's nodes are made."""
        if context in self._chain:
            return self.base
        assert context is not None
        found = self._mirrors.get(context)
        if found is not None:
            return found
        if isinstance(context, LoopContext):
            raise InternalError.of(f"{context.name} has no backward loop yet")
        assert isinstance(context, BranchContext)
        around = self.mirror(context.outer)
        if around is context.outer:
            return context
        self._replay(context, around)
        return self._mirrors[context]

    def _replay(self, branch: BranchContext, around: FlowContext | None) -> None:
        """Repeat the choice between `branch` and its sibling in another context."""
        sibling = branch.sibling
        assert sibling is not None
        loop = branch.loop
        needs_stacks = loop is not None and loop not in self._chain
        name = branch.name
        with self.graph.control_dependencies(None), inside(self.graph, around):
            pred = around.bring(branch.pred) if around is not None else branch.pred
            first, second = (branch, sibling) if branch.branch == 1 else (sibling, branch)
            replayed = make_branches(
                self.graph, pred, name,
                lambda *made: ReplayedBranch(first if made[-1] == 1 else second, needs_stacks, *made),
            )  # fmt: skip
        self._mirrors[first], self._mirrors[second] = replayed

    @contextmanager
    def beside(self, node: Node) -> Iterator[None]:
        """A block whose nodes are made in the mirror of a node's context."""
        with inside(self.graph, self.mirror(self.graph.flow.of(node))):
            yield

    def loop_of(self, node: Node) -> LoopContext | None:
        """The loop of a node. Enters and Exits belong to their loop."""
        context = self.graph.flow.of(node.inputs[0].op if node.type == "Exit" else node)
        return context.loop if context is not None else None

    def stops(self, node: Node) -> bool:
        """Whether a node blocks gradients, because it leaves a loop without back_prop or leads to an earlier iteration."""
        if node.type == "Exit":
            loop = self.loop_of(node)
            return loop is not None and not loop.back_prop
        return self.is_variable_here(node)

    def is_variable_here(self, node: Node) -> bool:
        """Whether a node is the Merge of a variable of a loop in which `gradients` is called. The loop may not be closed yet."""
        loop = self.loop_of(node) if node.type == "Merge" else None
        return loop is not None and loop in self._chain and node.outputs[0] in loop.merges

    def last_first(
        self, nodes: Sequence[Node], level: LoopContext | None
    ) -> Iterator[Node | tuple[LoopContext, list[Node]]]:
        """The nodes of a level, and the loops directly inside it with all their nodes, in the order of visits: users first.

        The order is that of creation if there are no loops. But some nodes of a loop may be created after the users of its results: in
        an imported graph, its last nodes may wait for the gradient of another call. So loops are sorted topologically.
        """
        item_of: dict[Node, Node | LoopContext] = {}
        loops: dict[LoopContext, list[Node]] = {}
        for node in sorted(nodes, key=lambda n: n.index):  # for an order that is the same in all clients
            loop = self.loop_of(node)
            while loop is not None and loop is not level and loop not in self._chain:
                around = loop.outer.loop if loop.outer is not None else None
                if around is level or around is None or around in self._chain:
                    break
                loop = around
            if loop is None or loop is level or loop in self._chain:
                item_of[node] = node
            else:
                loops.setdefault(loop, []).append(node)
                item_of[node] = loop
        order = list(item_of.values())
        if loops:
            numbers = {item: item.index if isinstance(item, Node) else loops[item][-1].index for item in order}
            needs: dict[Node | LoopContext, list[Node | LoopContext]] = {item: [] for item in numbers}
            for node, item in item_of.items():
                needs[item] += [item_of[t.op] for t in node.inputs if item_of.get(t.op, item) is not item]
            order, stuck = topological(numbers, needs)
            if stuck is not None:
                raise InternalError.of(f"{stuck!r} depends on itself")
        self._turns.update((item, i) for i, item in enumerate(order) if isinstance(item, Node))
        return iter([item if isinstance(item, Node) else (item, loops[item]) for item in reversed(order)])

    # --- branches ---------------------------------------------------------------------------------------------

    def through_merge(self, node: Node, grad: Any) -> Sequence[Any]:
        """The gradients of a cond's Merge: the gradient of the output, captured by the branch of each input."""
        found = []
        for t in node.inputs:
            there = self.mirror(self.graph.flow.of(t.op))
            found.append(there.bring(grad) if there is not None else grad)
        return found

    def through_switch(self, node: Node, grads: Sequence[Any], on_path: frozenset[Node]) -> Sequence[Any]:
        """The gradients of a Switch that captures an outer tensor for a branch: a Merge, with zero for the other branch."""
        branch = self.graph.flow.of(node)
        assert isinstance(branch, BranchContext)
        here = self.mirror(branch)
        assert isinstance(here, BranchContext)
        other = here.sibling
        assert other is not None
        sibling = branch.sibling
        assert sibling is not None
        value = node.inputs[0]
        grad = _dense(grads[branch.branch])
        theirs = sibling.stand_ins.get(value)
        if theirs is not None and theirs.op in on_path and self._turns[theirs.op] < self._turns[node]:
            self._halves[theirs.op] = grad  # one Merge for both is made when the sibling is visited
            return [None, None]
        half = self._halves.pop(node, None)
        if grad is None and half is None:
            return [None, None]
        sides: list[Any] = [None, None]
        for context, side in ((here, grad), (other, half)):
            with context.open():
                sides[context.branch] = context.bring(zeros_for(value) if side is None else side)
        outer = here.outer
        if outer is not None:
            outer.stand_ins.update((t, t) for t in sides)
        with inside(self.graph, outer):
            return [make("Merge", sides, None, "cond_grad").outputs[0], None]

    def is_way_in(self, node: Node) -> bool:
        """Whether a Switch captures an outer tensor for its branch."""
        branch = self.graph.flow.of(node)
        return isinstance(branch, BranchContext) and node.inputs[1] is branch.pred

    def has_half(self, node: Node) -> bool:
        """Whether the sibling of a Switch has been visited and has stored its gradient."""
        return node in self._halves

    # --- loops ------------------------------------------------------------------------------------------------

    def through_loop(self, loop: LoopContext, nodes: list[Node], on_path: frozenset[Node]) -> None:
        """Build a loop's backward loop, from the gradients of its Exits to those of its Enters' inputs."""
        reverse, graph = self.reverse, self.graph
        variables = [i for i, m in enumerate(loop.merges) if m.op in on_path]
        received = [reverse.total(loop.exits[i]) for i in variables]
        if all(g is None for g in received):
            return
        inner = self.base.loop if self.base is not None else None
        around: FlowContext | None = loop
        while inner is not None and around is not inner:
            if around is None:
                raise LookupError(
                    f"Gradients through {loop.name} cannot be taken inside {inner.name}, whose iterations would repeat them: "
                    "take them outside"
                )
            around = around.outer
        captured = [n for n in nodes if is_constant_enter(n) and self.loop_of(n) is loop]
        scope = loop.frame.rpartition("/")[0].rpartition("/")[2] or "while"
        assert loop.condition is not None
        # If gradients are colocated, each variable of the backward loop is colocated with its node of the forward loop.
        beside = [loop.condition.op, *(loop.merges[i].op for i in variables), *captured]
        with graph.flow.building_loop(), inside(graph, self.mirror(loop.outer)), graph.name_scope(f"{scope}_grad"):
            first = [
                self._or_zeros(g, loop.exits[i], loop.merges[i].op) for i, g in zip(variables, received, strict=True)
            ]
            sums = []
            for e in captured:
                with reverse.beside(e):
                    sums.append(zeros_for(e.inputs[0], "b_acc"))
            with reverse.beside(beside[0]):
                counter = _Counter(graph, loop)
            backward = BackwardLoop(graph, graph.unique_name("while_context"), loop)
            self._mirrors[loop] = backward
            dims = [(), *(loop.merges[i].dims for i in variables), *(s.dims for s in sums)]
            for t, d in zip((*first, *sums), dims[1:], strict=True):
                t.dims = merge(t.dims, d)

            def body(count: Tensor, *now: Tensor) -> list[Any]:
                for i, g in zip(variables, now[: len(variables)], strict=True):
                    following = loop.merges[i].op.inputs[1].op
                    reverse.receive(following, following.inputs[0], g, on_path)
                ends = ("Enter", "RefEnter", "Exit", "NextIteration")
                inner = [n for n in nodes if n.type not in ends and not (n.back_edge and self.loop_of(n) is loop)]
                inner += [n for n in nodes if n.type in ends and self.loop_of(n) is not loop]
                reverse.visit(inner, loop, on_path)
                before = [reverse.total(loop.merges[i]) for i in variables]
                found = [
                    self._or_zeros(g, loop.merges[i], loop.merges[i].op) for i, g in zip(variables, before, strict=True)
                ]
                totals = []
                for e, s in zip(captured, now[len(variables) :], strict=True):
                    g = reverse.total(e.outputs[0])
                    with reverse.beside(e):
                        totals.append(s if g is None else s + _dense(g))
                for t, d in zip((*found, *totals), dims[1:], strict=True):
                    t.dims = merge(t.dims, d)
                with reverse.beside(beside[0]):
                    return [count - 1, *found, *totals]

            def again(count: Tensor, *_: Tensor) -> Tensor:
                with reverse.beside(beside[0]):
                    return greater(count, 0)

            shapes = [TensorShape(d) for d in dims]
            start = [counter.exit, *first, *sums]
            builder = LoopBuilder(backward, start, shapes, beside if reverse.colocate else None)
            result = builder.build(again, body)
            with reverse.beside(beside[0]):
                counter.finish(backward.pushes)
        for i, g in zip(variables, result[1 : 1 + len(variables)], strict=True):
            enter = loop.enters[i].op
            reverse.receive(enter, enter.inputs[0], g, on_path)
        for enter, g in zip(captured, result[1 + len(variables) :], strict=True):
            reverse.receive(enter, enter.inputs[0], g, on_path)

    def _or_zeros(self, grad: Any, tensor: Tensor, node: Node) -> Any:
        """A gradient, or zeros for a tensor, colocated with a node."""
        with self.reverse.beside(node):
            return zeros_for(tensor) if grad is None else _dense(grad)


class _Counter:
    """An iteration counter added to an existing loop. `exit` is the number of iterations."""

    def __init__(self, graph: Graph, loop: LoopContext) -> None:
        self.graph, self.loop = graph, loop
        assert loop.condition is not None
        with graph.control_dependencies(None):
            with inside(graph, loop.outer):
                start = constant(0, name="f_count")
            enter = loop.enter(start, constant=False)
            with loop.open():
                self.merge = make("Merge", (enter, enter))
            with as_is(graph, loop):
                switch = make("Switch", (self.merge.outputs[0], loop.condition))
            with loop.open():
                self.next = switch.outputs[1] + 1
            with as_is(graph, loop.outer):
                self.exit = apply("Exit", (switch.outputs[0],), None, "f_count")

    def finish(self, pushes: Sequence[Node]) -> None:
        """Close the loop. An iteration is counted when its pushes, including dead ones, are done."""
        by_device: dict[str, list[Node]] = {}
        for push in pushes:
            by_device.setdefault(push.device, []).append(push)
        graph = self.graph
        with graph.control_dependencies(None), self.loop.open():
            done = []
            for there in by_device.values():  # one message per device
                with graph.colocate_with(there[0], ignore_existing=True), graph.control_dependencies(there):
                    done.append(make("ControlTrigger", (), None, "f_sync"))
            with graph.control_dependencies(done):
                following = make("NextIteration", (self.next,))
            graph.flow.close_loop(self.merge, following)


def zeros_for(tensor: Tensor, name: str = "zeros") -> Tensor:
    """Zeros in the shape of a tensor, or of the variable's value if the tensor is a handle."""
    if tensor.dtype is resource:
        dtype, dims = type_and_dims(tensor)
        if is_static(dims):
            return zeros(dims, dtype, name)
        return zeros_like(read_variable(tensor), name=name)
    if is_static(tensor.dims):
        return zeros(tensor.dims, tensor.dtype.base, name)
    return zeros_like(tensor, name=name)


def _dense(grad: Any) -> Any:
    return convert(grad) if isinstance(grad, IndexedSlices) else grad
