"""Branches and loops inside the graph: `cond`, `case`, `while_loop`.

The function of a branch or a loop's body runs once, when the graph is built. Its nodes become part of the same graph, between the
control-flow ops of `graph/ops/control/switch_merge.py`. Outer tensors are captured by `graph/control_flow/contexts.py`. Nodes of
branches and bodies are placed and partitioned like all others, so a loop may span devices.

A `cond` with one outer tensor x, and a loop that counts to 3:

    cond/Switch = Switch(p, p)                      while/Enter = Enter(0)
    cond/switch_t, cond/switch_f = its outputs      while/Merge = Merge(while/Enter, while/NextIteration)
    cond/pred_id = Identity(p)                      while/Less = Less(while/Merge, 3)
    cond/Add/Switch = Switch(x, cond/pred_id)       while/LoopCond = LoopCond(while/Less)
    cond/Add = Add(cond/Add/Switch:1, ...)          while/Switch = Switch(while/Merge, while/LoopCond)
    cond/Mul/Switch = Switch(x, cond/pred_id)       while/Identity = Identity(while/Switch:1)
    cond/Mul = Mul(cond/Mul/Switch:0, ...)          while/add = AddV2(while/Identity, 1)
    cond/Merge = Merge(cond/Mul, cond/Add)          while/NextIteration = NextIteration(while/add)
                                                    while/Exit = Exit(while/Switch:0)

The form, and all names, are those of TensorFlow 1 ("Dynamic control flow in large-scale machine learning",
Yu et al., EuroSys 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from ..core.build import apply, constant, convert, make
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.dtypes import int32
from ..core.graph import Graph, Node, Tensor
from ..core.hooks import hooks
from ..core.nest import children, describe, flatten, map_structure, pack, same_structure
from ..core.shape import Dims, TensorShape, compatible, text
from ..core.source_location import at_caller
from ..ops.array.concat_stack import stack
from ..ops.array.identity_and_placeholders import Assert, identity
from ..ops.control import switch_merge as _control  # noqa: F401  (defines the ops)
from ..ops.math.cast import cast
from ..ops.math.compare import less, logical_and
from ..ops.math.reduce import reduce_any, reduce_sum
from .contexts import BranchContext, LoopContext, as_is, is_constant_enter

Branch = TypeVar("Branch", bound=BranchContext)

PARALLEL_ITERATIONS = 10  # TensorFlow's default


def cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    strict: bool = False,
    name: str | None = None,
    fn1: Callable[[], Any] | None = None,
    fn2: Callable[[], Any] | None = None,
) -> Any:
    """Run one of two branches. The choice is made when the graph runs.

    Only the nodes that the functions make depend on the choice. Outer tensors that they use are always computed.

    Args:
        pred: a bool tensor of rank 0.
        true_fn: function without arguments that returns a nested structure of tensors, or an operation.
        false_fn: function that returns the same structure of tensors of the same types, or an operation.
        strict: whether to return a list or tuple of one element. Otherwise its element is returned.
        name: scope of the nodes.
        fn1: old name of `true_fn`.
        fn2: old name of `false_fn`.

    Returns:
        The result of the chosen branch.

    Raises:
        TypeError: a function is not callable, `pred` is a Python bool, or the structures of the results differ in type.
        ValueError: a branch returns nothing, or the structures or types of the results differ.

    >>> y = cond(x < 0.0, lambda: -x, lambda: x)
    """
    true_fn = fn1 if true_fn is None else true_fn
    false_fn = fn2 if false_fn is None else false_fn
    if not callable(true_fn) or not callable(false_fn):
        raise TypeError(f"true_fn and false_fn must be functions, such as `lambda: x + 1`{at_caller()}")
    if isinstance(pred, bool):
        raise TypeError(
            "pred must not be a Python bool. Use a Python `if` for a condition that is known when the graph is built"
            + at_caller()
        )
    with graph_of_values([pred]).op_scope(name or "cond") as scope:
        graph = get_default_graph()
        pred = convert(pred, name="pred")
        branches = make_branches(graph, pred, f"a branch of '{scope[:-1]}'", BranchContext)
        results = [
            _branch_results(context, function, which, strict)
            for context, function, which in zip(branches, (true_fn, false_fn), ("true_fn", "false_fn"), strict=True)
        ]
        if branches[0].outer is None:
            for context in branches:
                graph.add_to_collection(GraphKeys.COND_CONTEXT, context)
        return _merged(results)


def make_branches(graph: Graph, pred: Tensor, name: str, kind: Callable[..., Branch]) -> tuple[Branch, Branch]:
    """The contexts of both branches of a condition, the true branch first. `kind` is called as `BranchContext` is."""
    switch = make("Switch", (pred, pred))
    pivot_t = identity(switch.outputs[1], name="switch_t")
    pivot_f = identity(switch.outputs[0], name="switch_f")
    chosen = identity(pred, name="pred_id")
    for node in (switch, chosen.op, pivot_t.op, pivot_f.op):
        graph.prevent_fetching(node)
    yes, no = kind(graph, name, chosen, pivot_t, 1), kind(graph, name, chosen, pivot_f, 0)
    yes.sibling, no.sibling = no, yes
    return yes, no


def _branch_results(
    context: BranchContext, function: Callable[[], Any], which: str, strict: bool
) -> tuple[Any, list[Tensor]]:
    """The result of a branch's function, and its leaves as tensors that are dead if the branch is not taken."""
    with context.open():
        result = function()
        if not strict and isinstance(result, (list, tuple)) and len(result) == 1:
            (result,) = result
        if result is None:
            raise ValueError(f"{which} must have a return value: a tensor, or dt.no_op(){at_caller()}")
        leaves = []
        for leaf in flatten(result):
            if isinstance(leaf, Node):
                with context.graph.colocate_with(context.pivot), context.graph.control_dependencies([leaf]):
                    leaves.append(identity(context.pivot, name="control_dependency"))
            else:
                leaves.append(context.bring(convert(leaf)))
    if not leaves:
        raise ValueError(f"{which} must return at least one result")
    if context.outer is not None:  # results leave the branch
        context.outer.stand_ins.update((t, t) for t in leaves)
    return result, leaves


def _merged(results: Sequence[tuple[Any, list[Tensor]]]) -> Any:
    (structure, when_true), (other, when_false) = results
    same_structure(structure, other, ("the result of true_fn", "the result of false_fn"))
    for i, (t, f) in enumerate(zip(when_true, when_false, strict=True)):
        if t.dtype.base is not f.dtype.base:
            raise ValueError(
                "Outputs of true_fn and false_fn must have the same type: "
                f"number {i} is {t.dtype.base.name} ({t.name}) and {f.dtype.base.name} ({f.name}); use dt.cast{at_caller()}"
            )
    merges = [make("Merge", pair).outputs[0] for pair in zip(when_false, when_true, strict=True)]
    return pack(structure, merges)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Run the function of the first condition that is true.

    Args:
        pred_fn_pairs: list of pairs of a bool tensor and a function, or a dict of them.
        default: function to run if no condition is true. If it is None, the last function runs after an assertion that a condition
            is true.
        exclusive: whether to assert that at most one condition is true.
        strict: as in `cond`.
        name: scope of the nodes.

    Raises:
        TypeError: an item is not a pair of a bool tensor and a function.
        ValueError: there are no pairs and no default.

    >>> y = case([(x < 0.0, lambda: -1.0), (x > 0.0, lambda: 1.0)], default=lambda: 0.0)
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, Mapping) else list(pred_fn_pairs)
    if not pairs and default is None:
        raise ValueError("case needs at least one pair of a condition and a function, or a default function")
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"case takes pairs of a bool tensor and a function, not {pair!r}")
    if default is not None and not callable(default):
        raise TypeError("default must be a function")
    preds = [p for p, _ in pairs]
    with graph_of_values(preds).op_scope(name):
        chain = default
        if default is None:
            pred, function = pairs.pop()
            chain = _asserting(preds, function)
        assert chain is not None
        build = chain
        for pred, function in reversed(pairs):
            build = _choice(pred, function, build, strict)
        if not exclusive or len(preds) < 2:
            return build()
        with get_default_graph().control_dependencies([_at_most_one(preds)]):
            return build()


def _choice(pred: Any, function: Callable[[], Any], otherwise: Callable[[], Any], strict: bool) -> Callable[[], Any]:
    return lambda: cond(pred, function, otherwise, strict=strict)


def _asserting(preds: Sequence[Any], function: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        seen = stack([convert(p) for p in preds], name="preds_c")
        message = "None of the conditions of case is true, and it has no default. Conditions:"
        check = Assert(reduce_any(seen), [message, seen], summarize=len(preds))
        with get_default_graph().control_dependencies([check]):
            result = function()
            return result if isinstance(result, Node) else map_structure(identity, result)

    return build


def _at_most_one(preds: Sequence[Any]) -> Node:
    seen = stack([convert(p) for p in preds], name="preds_c")
    count = reduce_sum(cast(seen, int32, name="cast"), name="num_true_conds")
    message = "More than one condition of an exclusive case is true. Conditions:"
    return Assert(less(count, constant(2, name="two_true_conds")), [message, seen], summarize=len(preds))


# --- loops --------------------------------------------------------------------------------------------------


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = PARALLEL_ITERATIONS,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Any:
    """Repeat `body` while `cond` is true.

    Args:
        cond: function of the loop variables that returns a bool tensor of rank 0.
        body: function of the loop variables that returns their next values. They have the same structure, types and shapes.
        loop_vars: list or tuple of initial values, which may be nested.
        shape_invariants: shapes that hold in all iterations, in the structure of `loop_vars`. By default the shapes of the initial
            values. For a sparse tensor, a `TensorShape` of its `dense_shape`. By default, the number of its elements may change. For
            `IndexedSlices`, a `TensorShape` of the values.
        parallel_iterations: accepted for compatibility with TensorFlow. A device runs one iteration after another.
            Different devices may be in different iterations, as far as data dependences allow.
        back_prop: whether gradients may be taken through the loop.
        swap_memory: accepted for compatibility with TensorFlow.
        name: scope of the nodes.
        maximum_iterations: maximum number of iterations, an int or an integer scalar tensor.
        return_same_structure: whether to return a list if there is one loop variable. Otherwise the variable is returned.

    Returns:
        The loop variables after the last iteration.

    Raises:
        TypeError: `cond` or `body` is not callable, or a variable's type changes.
        ValueError: there are no loop variables, or a shape changes although no invariant allows it.

    >>> i, total = while_loop(lambda i, s: i < 10, lambda i, s: (i + 1, s + i), [0, 0])
    """
    if not callable(cond):
        raise TypeError("cond must be a function")
    if not callable(body):
        raise TypeError("body must be a function")
    if type(parallel_iterations) is not int or parallel_iterations < 1:
        raise TypeError(f"parallel_iterations must be a positive integer, not {parallel_iterations!r}")
    many = isinstance(loop_vars, (list, tuple))
    variables = map_structure(_read, loop_vars if many else [loop_vars])
    if not flatten(variables):
        raise ValueError("loop_vars must hold at least one variable")
    with graph_of_values(flatten(variables)).op_scope(name or "while"):
        graph = get_default_graph()
        single = len(flatten(variables)) == 1 and not return_same_structure
        if maximum_iterations is not None:
            limit = convert(maximum_iterations, name="maximum_iterations")
            if limit.dims not in (None, ()):
                raise ValueError(f"maximum_iterations must be a scalar, not of shape {text(limit.dims)}")
            counter = constant(0, dtype=limit.dtype.base, name="iteration_counter")
            cond, body = _counted(cond, body, limit)
            variables = [counter, variables]
            if shape_invariants is not None:
                shape_invariants = [TensorShape([]), shape_invariants]
        frame = graph.unique_name("while_context")
        context = LoopContext(graph, frame, parallel_iterations, back_prop)
        result = LoopBuilder(context, variables, shape_invariants).build(cond, body)
        if context.outer is None:
            graph.add_to_collection(GraphKeys.WHILE_CONTEXT, context)
        if maximum_iterations is not None:
            result = result[1]
        return result[0] if single else result


def _read(variable: Any) -> Any:
    """The value of a variable, read outside the loop. Other objects are returned unchanged."""
    return convert(variable) if hasattr(variable, "_as_tensor") else variable


def _counted(
    cond: Callable[..., Any], body: Callable[..., Any], limit: Tensor
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The condition and the body of a loop with an iteration counter as an additional first variable."""

    def counted_cond(i: Tensor, variables: Any) -> Tensor:
        return logical_and(i < limit, cond(*variables))

    def counted_body(i: Tensor, variables: Any) -> Any:
        following = i + 1
        result = body(*variables)
        if not isinstance(result, (list, tuple)) or (len(variables) == 1 and len(result) != 1):
            result = [result]
        return [following, type(variables)(result) if type(variables) in (list, tuple) else result]

    return counted_cond, counted_body


class LoopBuilder:
    """A loop under construction. `beside` has for each variable a node with which its control-flow nodes are colocated."""

    def __init__(
        self, context: LoopContext, variables: Any, shape_invariants: Any, beside: Sequence[Node] | None = None
    ) -> None:
        self.context = context
        self.beside = beside
        self.graph = context.graph
        self.structure = variables
        self.values = [convert(v) for v in flatten(variables)]
        self.invariants: list[tuple[Dims] | None] = [None] * len(self.values)
        shapes = _flat_shapes(variables, _OWN if shape_invariants is None else shape_invariants)
        for i, (t, shape) in enumerate(zip(self.values, shapes, strict=True)):
            dims = t.dims if shape is _OWN else TensorShape(shape).dims_tuple
            if not _is_special_case(t.dims, dims):
                raise ValueError(
                    f"The shape invariant {text(dims)} of loop variable {i} is not compatible with its initial "
                    f"value {t.name}, of shape {text(t.dims)}"
                )
            self.invariants[i] = None if dims == t.dims else (dims,)

    def build(self, cond: Callable[..., Any], body: Callable[..., Any]) -> Any:
        context, graph = self.context, self.graph
        with graph.flow.building_loop():
            self._enter()
            with context.open():
                test = cond(*pack(self.structure, context.merges))
                pred = context.bring(convert(test))
                with self._at(0):
                    context.condition = apply("LoopCond", (pred,), None, "LoopCond")
                inside = self._switch()
                context.pivot_for_body = inside[0]
                result = body(*pack(self.structure, inside))
                leaves = self._leaves(result)
                following = []
                for i, v in enumerate(leaves):
                    with self._at(i):
                        following.append(make("NextIteration", (context.bring(v),)))
            for merge, following_value, value in zip(context.merges, following, leaves, strict=True):
                self._check_next(merge, following_value.outputs[0], value)
                graph.flow.close_loop(merge.op, following_value)
            return pack(self.structure, self._exit())

    def _at(self, i: int) -> AbstractContextManager[None]:
        """A block in which the control-flow nodes of a variable are made."""
        return nullcontext() if self.beside is None else self.graph.colocate_with(self.beside[i], ignore_existing=True)

    def _enter(self) -> None:
        """Make the Enter and the Merge of each variable."""
        context = self.context
        values = [context.outer.bring(v) for v in self.values] if context.outer is not None else self.values
        for i, (value, dims) in enumerate(zip(values, self.invariants, strict=True)):
            with self._at(i):
                enter = context.enter(value, constant=False, dims=dims)
            # Without this edge, a loop whose initial value is a constant of the outer loop could run ahead of the outer loop.
            around = context.outer.loop if context.outer is not None else None
            if around is not None and is_constant_enter(value.op):
                enter.op.controls = (*enter.op.controls, around.pivot.op)
            context.enters.append(enter)
        for i, enter in enumerate(context.enters):
            with context.open(), self._at(i):
                merge = make("Merge", (enter, enter))
            context.merges.append(merge.outputs[0])
            if context.pivot_for_pred is None:
                context.pivot_for_pred = merge.outputs[0]

    def _switch(self) -> list[Tensor]:
        """Make the Switches. Returns the variables inside the body."""
        context = self.context
        assert context.condition is not None
        switches = []
        for merge in context.merges:
            with self.graph.colocate_with(merge, ignore_existing=True):
                switches.append(make("Switch", (merge, context.condition)))
        self._false_sides = [s.outputs[0] for s in switches]
        inside = []
        for i, switch in enumerate(switches):
            with self._at(i):
                inside.append(identity(switch.outputs[1]))
        return inside

    def _leaves(self, result: Any) -> list[Tensor]:
        """The body's result, flattened in the structure of the variables."""
        structure = self.structure
        if not isinstance(result, (list, tuple)) or (
            len(structure) == 1 and not isinstance(result, type(structure)) and len(result) != 1
        ):
            result = [result]
        result = type(structure)(result) if type(structure) in (list, tuple) else result
        if len(result) != len(structure):
            raise ValueError(
                "The two structures don't have the same nested structure, the same number of elements: there are "
                f"{len(structure)} loop variables, body returns {len(result)} values. It must return the next value of each{at_caller()}"
            )
        same_structure(structure, result, ("loop_vars", "the result of body"))
        return [convert(v) for v in flatten(result)]

    def _check_next(self, merge: Tensor, following: Tensor, value: Tensor) -> None:
        if following.dtype.base is not merge.dtype.base:
            raise TypeError(
                f"{self._which(merge)} has type {merge.dtype.base.name}, but body returns {value.name} "
                f"of type {following.dtype.base.name}; use dt.cast{at_caller()}"
            )
        if not _is_special_case(following.dims, merge.dims):
            raise ValueError(
                f"{self._which(merge)} enters the loop with shape {text(merge.dims)}, but has shape "
                f"{text(following.dims)} after one iteration ({value.name}). If the shape may vary, pass shape_invariants. "
                f"Otherwise use set_shape on the value that body returns{at_caller()}"
            )

    def _which(self, merge: Tensor) -> str:
        i = self.context.merges.index(merge)
        return f"Loop variable {i} (initial value {self.values[i].name})"

    def _exit(self) -> list[Tensor]:
        """Make the Exits. Returns the variables after the loop."""
        context = self.context
        exits = []
        for i, side in enumerate(self._false_sides):
            with as_is(self.graph, context.outer), self._at(i):
                node = make("Exit", (side,))
            self.graph.scopes.mark_seen(node)
            exits.append(node.outputs[0])
        context.exits = exits
        return exits


_OWN: Any = object()
"""A shape invariant that stands for the shape of the initial value."""


def _flat_shapes(structure: Any, shapes: Any) -> list[Any]:
    """Shapes, flattened by the structure of the variables, because a shape may be a list. `_OWN` stands for all shapes."""
    parts = children(structure)
    if parts is None:
        return [shapes]
    if hasattr(structure, "_flow_dims") and (shapes is _OWN or isinstance(shapes, TensorShape)):
        return list(structure._flow_dims(None if shapes is _OWN else shapes))
    if shapes is _OWN:
        inside = [_OWN] * len(parts)
    elif isinstance(structure, Mapping):
        inside = [shapes[k] for k in sorted(structure)]
    else:
        inside = list(shapes) if isinstance(shapes, (list, tuple)) else [shapes]
    if len(inside) != len(parts):
        raise ValueError(f"shape_invariants must have the structure of loop_vars, {describe(structure)}")
    return [s for part, shape in zip(parts, inside, strict=True) for s in _flat_shapes(part, shape)]


def _is_special_case(dims: Dims, of: Dims) -> bool:
    """Whether all shapes that are compatible with `dims` are compatible with `of`."""
    if of is None:
        return True
    if dims is None or not compatible(dims, of):
        return False
    return all(d is not None or o is None for d, o in zip(dims, of, strict=True))


def graph_of_values(values: Sequence[Any]) -> Graph:
    """The graph of the first value with a `graph`, such as a tensor or a variable. The default graph if there is none."""
    graphs = (getattr(v, "graph", None) for v in values)
    return next((g for g in graphs if isinstance(g, Graph)), None) or get_default_graph()


hooks.cond, hooks.case = cond, case
