"""Symbolic reverse-mode differentiation: `gradients(ys, xs)` adds nodes that compute dys/dxs.

Nodes are visited from the last to the first. Inputs are created before the nodes that take them. So when a node is visited, all
gradients of its outputs exist. They are summed, and the op's gradient rule returns the gradients of its inputs. Only nodes between
xs and ys are visited. There is no recursion, so graphs may have any depth. A loop is visited as a whole (control_flow.py).

Names follow TensorFlow: the gradient of `dense/MatMul` is built under `gradients/dense/MatMul_grad/`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from ..control_flow.cond_while import graph_of_values
from ..control_flow.contexts import LoopContext
from ..core.build import Derivative, apply, constant, convert
from ..core.dtypes import DType, int64, resource
from ..core.graph import Graph, Node, Tensor
from ..core.hooks import hooks
from ..core.shape import compatible, is_static, merge, text
from ..ops.array.concat_stack import concat
from ..ops.array.shapes import shape
from ..ops.control.switch_merge import saved_values
from ..ops.math.arithmetic import add_n
from ..ops.math.cast import cast
from ..tensors.indexed_slices import IndexedSlices
from ..variables.partitioned import PartitionedVariable
from .control_flow import FlowGradients, zeros_for

# Ops whose gradient rules accept IndexedSlices, because input and output are equal. Other rules get dense gradients.
_PASSES_SLICES = frozenset({"Identity", "ReadVariableOp"})


class UnconnectedGradients(enum.Enum):
    """The result of `gradients` for an x on which no y depends: None or zeros."""

    NONE = "none"
    ZERO = "zero"


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: Any = None,
    unconnected_gradients: Any = UnconnectedGradients.NONE,
) -> list[Any]:
    """The derivatives of the sum of ys with respect to each x, as new nodes of the graph.

    Args:
        ys: tensor or list of tensors to differentiate. Integer tensors have no gradients.
        xs: tensor, variable, or list of those. A partitioned variable stands for the list of its parts.
        grad_ys: weights of the ys, each of the shape of its y. None means ones.
        name: scope of the new nodes.
        colocate_gradients_with_ops: whether each gradient node has the device of the node that it differentiates.
            Otherwise the device blocks around this call apply.
        gate_gradients: accepted for compatibility with TensorFlow 1, without effect.
        aggregation_method: accepted for compatibility with TensorFlow 1, without effect.
        stop_gradients: tensors to treat as constants.
        unconnected_gradients: the result for an x on which no y depends, an `UnconnectedGradients`.

    Returns:
        A gradient per x: a tensor of its shape and type, `IndexedSlices` if only some rows were used, or None if no y
            depends on it.

    Raises:
        TypeError: a y is not numeric, or a grad_y and its y have different types.
        ValueError: the number of grad_ys or the shape of one is wrong.

    >>> x = constant(3.0)
    >>> (g,) = gradients(x * x, [x])   # evaluates to 6.0
    """
    targets, sources = _as_list(ys), _parts_of(xs)
    weights = _as_list(grad_ys) if grad_ys is not None else [None] * len(targets)
    if len(weights) != len(targets):
        raise ValueError(f"{len(targets)} ys need as many grad_ys, not {len(weights)}")
    try:
        unconnected = UnconnectedGradients(unconnected_gradients)
    except ValueError:
        raise ValueError(
            f"Unknown value for unconnected_gradients: {unconnected_gradients!r}; it may be 'none' or 'zero'"
        ) from None
    if not targets:
        return [None] * len(sources)
    graph = graph_of_values([*targets, *sources])
    with graph.as_default(), graph.name_scope(name), _called(graph):
        pass_ = ReversePass(
            graph,
            [convert(y, name="y") for y in targets],
            [_source(x) for x in sources],
            [_source(s) for s in _as_list(stop_gradients)],
            colocate_gradients_with_ops,
        )
        pass_.start(weights)
        pass_.run()
        found = [pass_.total(x) for x in pass_.sources]
        if any(g is None for g in found):
            zero = pass_.flat() | (pass_.cut_off_at_loops() if graph.flow else set())
            found = [zeros_for(x) if g is None and x in zero else g for x, g in zip(pass_.sources, found, strict=True)]
        if unconnected is UnconnectedGradients.ZERO:
            found = [zeros_for(x) if g is None else g for x, g in zip(pass_.sources, found, strict=True)]
    return found


@contextmanager
def _called(graph: Graph) -> Iterator[None]:
    """A block that sets the name of a call of `gradients` for gradient rules. It is unique, also among imported graphs."""
    scopes = graph.scopes
    saved, scopes.gradient_call = scopes.gradient_call, graph.unique_name("call")
    try:
        yield
    finally:
        scopes.gradient_call = saved


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _parts_of(xs: Any) -> list[Any]:
    if isinstance(xs, Mapping):
        raise TypeError(
            "xs is a dict: pass a list of tensors or variables, such as dt.nest.flatten(xs), and make a dict of the gradients with "
            "dt.nest.pack_sequence_as(xs, gradients)"
        )
    found = _as_list(xs)
    for x in found:
        if isinstance(x, PartitionedVariable):
            if x is xs:
                return list(x)
            raise TypeError(f"{x!r} has a gradient for each of its parts: pass list(v), or v alone, as xs")
    return found


def _source(x: Any) -> Tensor:
    """The tensor for an x. For a variable it is the reference or handle, so that all reads of it count."""
    ref = getattr(x, "_ref", None)
    return ref() if ref is not None else convert(x, name="x")


def _is_differentiable(dtype: DType) -> bool:
    base = dtype.base
    return base.is_floating or base.is_complex or base is resource  # a handle represents a variable's value


class ReversePass:
    """One call of `gradients`. `received[t]` has the contributions to the gradient of t."""

    def __init__(self, graph: Graph, ys: list[Tensor], xs: list[Tensor], stops: list[Tensor], colocate: bool) -> None:
        for y in ys:
            if not (y.dtype.is_floating or y.dtype.is_complex or y.dtype.is_integer):
                raise TypeError(f"Cannot differentiate {y!r}: only numeric tensors have gradients")
        for t in (*ys, *xs, *stops):
            if t.graph is not graph:
                raise ValueError(
                    f"{t!r} belongs to another graph than {ys[0]!r}; all ys and xs must belong to one graph"
                )
        self.graph = graph
        self.ys = ys
        self.sources = xs
        self.wanted = frozenset(xs)
        self.stops = frozenset(stops)
        self.colocate = colocate
        self.received: dict[Tensor, list[Any]] = {}
        self.constant_near: set[Tensor] = set()  # inputs of nodes whose derivative is `Derivative.ZERO`
        self.flow = FlowGradients(graph, self)

    def start(self, weights: Sequence[Any]) -> None:
        """Record the weight of each y as its gradient."""
        for i, (y, weight) in enumerate(zip(self.ys, weights, strict=True)):
            if not _is_differentiable(y.dtype) and y not in self.wanted:
                continue  # integers have no gradients
            with self.beside(y.op):
                grad = _ones_for(y, f"grad_ys_{i}") if weight is None else _checked_weight(y, weight, i)
                self.received.setdefault(y, []).append(grad)

    def run(self) -> None:
        """Visit the nodes between xs and ys, last first."""
        on_path = self._nodes_between()
        if not self.graph.flow:
            for node in sorted(on_path, key=_index, reverse=True):
                self._node(node, on_path)
        else:
            base = self.flow.base
            self.visit(list(on_path), base.loop if base is not None else None, on_path)

    def visit(self, nodes: Sequence[Node], level: LoopContext | None, on_path: frozenset[Node]) -> None:
        """Visit the nodes of a loop, or those outside loops if `level` is None, and the loops directly inside it, last first."""
        for item in self.flow.last_first(nodes, level):
            if isinstance(item, Node):
                with self.flow.beside(item):
                    self._node(item, on_path)
            else:
                self.flow.through_loop(*item, on_path)

    def _node(self, node: Node, on_path: frozenset[Node]) -> None:
        stops = self.stops
        grads = [None if t in stops else self.total(t) for t in node.outputs]
        if all(g is None for g in grads) and not self.flow.has_half(node):
            return
        with self.beside(node), self.graph.name_scope(node.name + "_grad"):
            if node.type not in _PASSES_SLICES:
                grads = [g._as_tensor() if isinstance(g, IndexedSlices) else g for g in grads]
            contributions = self._contributions(node, grads, on_path)
            if len(contributions) != len(node.inputs):
                raise ValueError(
                    f"The gradient rule of {node.type} returned {len(contributions)} gradients "
                    f"for the {len(node.inputs)} inputs of '{node.name}'"
                )
            for t, g in zip(node.inputs, contributions, strict=True):
                if g is not Derivative.ZERO:
                    self.receive(node, t, g, on_path)
                elif self._leads_to_an_x(t, on_path):
                    self.constant_near.add(t)

    def _contributions(self, node: Node, grads: Sequence[Any], on_path: frozenset[Node]) -> Sequence[Any]:
        if node.type in ("Switch", "RefSwitch"):
            if self.flow.is_way_in(node):
                return self.flow.through_switch(node, grads, on_path)
            return [grads[1], None]  # of a loop: into its body
        if node.type == "Merge":
            return self.flow.through_merge(node, grads[0])
        if node.type in ("Enter", "RefEnter"):  # of a loop that `gradients` is called in
            return [grads[0]]
        rule = self._rule(node)
        assert rule is not None
        return rule(node, *grads)

    def _rule(self, node: Node) -> Callable[..., Sequence[Any]] | None:
        """The gradient rule of a node: its own, or that of its op. None if it blocks gradients."""
        own = self.graph.own_gradients
        rule: Callable[..., Sequence[Any]] | None = own.get(node, node.opdef.gradient)
        return rule

    def total(self, tensor: Tensor) -> Any:
        """The sum of the gradients that a tensor has received so far: None, a tensor, or IndexedSlices."""
        parts = self.received.get(tensor)
        if not parts:
            return None
        if len(parts) > 1:
            with self.flow.beside(tensor.op), self.beside(tensor.op):
                parts[:] = [_sum(parts)]
        return parts[0]

    def receive(self, node: Node, tensor: Tensor, grad: Any, on_path: frozenset[Node]) -> None:
        """Record the gradient that a node contributes to an input, if the input depends on an x."""
        if grad is not None and self._leads_to_an_x(tensor, on_path):
            self.received.setdefault(tensor, []).append(_fitted(tensor, grad, node))

    def beside(self, node: Node) -> AbstractContextManager[None]:
        """A block whose nodes are colocated with a node, if `colocate_gradients_with_ops` is set."""
        return self.graph.colocate_with(node, ignore_existing=True) if self.colocate else nullcontext()

    def _nodes_between(self) -> frozenset[Node]:
        """The nodes to visit: those on a differentiable path from an x to a y."""
        above = self._above()
        if self.graph.flow:
            self._refuse_initial_values(above)
            return self._reached_from_xs(above)
        # Forwards from xs among those nodes, in order of creation.
        on_path: set[Node] = set()
        for node in sorted(above, key=_index):
            if any(self._leads_to_an_x(t, on_path) for t in node.inputs):
                on_path.add(node)
        return frozenset(on_path)

    def _refuse_initial_values(self, above: set[Node]) -> None:
        """ValueError if a y belongs to one iteration of a loop, and an initial value of the loop depends on an x."""
        merges = {t.op for n in above for t in n.inputs if self.flow.is_variable_here(t.op)}
        before = self._above([m.inputs[0].op for m in merges]) if merges else set()
        if self._reached_from_xs(before):
            raise ValueError(
                f"Cannot compute gradient inside while loop with respect to {[x.name for x in self.wanted]}: the initial value of a loop "
                "variable depends on it, and other iterations have other values. Differentiate with respect to the arguments of the "
                "body, or outside the loop"
            )

    def _above(
        self, ends: Sequence[Node] | None = None, without_rules: bool = False, unused_exits: bool = False
    ) -> set[Node]:
        """The nodes from which a path of differentiable tensors leads to a y. `stop_gradients` end a path.

        Args:
            ends: nodes that replace those of the ys.
            without_rules: include nodes without a gradient rule.
            unused_exits: if one variable of a loop is included, include all of them.
        """
        above: set[Node] = set()
        if ends is None:
            ends = [y.op for y in self.ys if y not in self.stops and _is_differentiable(y.dtype)]
        todo = list(ends)
        has_flow = bool(self.graph.flow)
        while todo:
            node = todo.pop()
            if node in above or not (without_rules or self._rule(node)) or (has_flow and self.flow.stops(node)):
                continue
            above.add(node)
            todo.extend(t.op for t in self._inputs(node))
            loop = self.flow.loop_of(node) if unused_exits and node.type == "Exit" else None
            if loop is not None:
                todo.extend(t.op for t in loop.exits if _is_differentiable(t.dtype))
        return above

    def flat(self) -> set[Tensor]:
        """The xs with a path to a y that ends at a derivative of zero, such as that of the gradient of `relu`."""
        found = self._reached_from_xs(self._above([t.op for t in self.constant_near]))
        return {x for x in self.wanted if x in self.constant_near or any(x in n.inputs for n in found)}

    def cut_off_at_loops(self) -> set[Tensor]:
        """The xs whose paths to ys are all blocked in or after a loop, such as by `stop_gradient`, but not the paths to other exits.

        Their gradients are zeros, as in TensorFlow, which differentiates a loop with respect to all or none of its variables.
        """
        by_loops = self._reached_from_xs(self._above(unused_exits=True))
        in_any_way = self._reached_from_xs(self._above(without_rules=True))
        return {x for x in self.wanted if all(any(x in n.inputs for n in found) for found in (by_loops, in_any_way))}

    def _inputs(self, node: Node) -> list[Tensor]:
        """The inputs that may have gradients."""
        found = [t for t in node.inputs if t not in self.stops and _is_differentiable(t.dtype)]
        return found + saved_values(node) if node.type == "StackPopV2" else found

    def _reached_from_xs(self, above: set[Node]) -> frozenset[Node]:
        """The nodes among `above` that depend on an x. The graph may have back edges."""
        users: dict[Tensor, list[Node]] = {}
        for node in sorted(above, key=_index):
            for t in self._inputs(node):
                users.setdefault(t, []).append(node)
        on_path: set[Node] = set()
        todo = [n for x in self.wanted for n in users.get(x, ())]
        while todo:
            node = todo.pop()
            if node not in on_path:
                on_path.add(node)
                todo.extend(n for t in node.outputs for n in users.get(t, ()))
        return frozenset(on_path)

    def _leads_to_an_x(self, tensor: Tensor, on_path: frozenset[Node] | set[Node]) -> bool:
        return tensor in self.wanted or (tensor.op in on_path and tensor not in self.stops)


def _index(node: Node) -> int:
    return node.index


def _ones_for(y: Tensor, name: str) -> Tensor:
    """Ones of y's shape. The nodes have TensorFlow's names: `gradients/Shape` and the Fill `gradients/grad_ys_0`."""
    if is_static(y.dims):
        dims: Tensor = constant(np.array(y.dims, np.int32), name="Shape")
    else:
        dims = shape(y)
    with y.graph.name_scope(name) as scope:
        return apply("Fill", (dims, constant(1, y.dtype.base, name="Const")), None, scope)


def _checked_weight(y: Tensor, weight: Any, index: int) -> Any:
    if isinstance(weight, IndexedSlices):
        if weight.dtype.base is not y.dtype.base:
            raise TypeError(f"grad_ys[{index}] has type {weight.dtype.name}, its y {y!r} has {y.dtype.name}")
        return weight
    tensor = convert(weight, name=f"grad_ys_{index}", prefer=y.dtype.base)
    if tensor.dtype.base is not y.dtype.base:
        raise TypeError(f"grad_ys[{index}] has type {tensor.dtype.name}, its y {y!r} has {y.dtype.name}")
    if not compatible(tensor.dims, y.dims):
        raise ValueError(f"grad_ys[{index}] has shape {text(tensor.dims)}, its y {y!r} has another")
    return tensor


def _fitted(tensor: Tensor, grad: Any, node: Node) -> Any:
    """`grad`, with its static shape refined by the tensor's. TypeError or ValueError if its type or shape is wrong."""
    if isinstance(grad, IndexedSlices):
        return grad
    grad = convert(grad)
    if tensor.dtype.base is resource:
        return grad
    if grad.dtype.base is not tensor.dtype.base:
        raise TypeError(f"The gradient rule of {node.type} returned {grad!r} for the input {tensor!r} of '{node.name}'")
    if grad.dims != tensor.dims:
        try:
            grad.dims = merge(grad.dims, tensor.dims)
        except ValueError:
            raise ValueError(
                f"The gradient rule of {node.type} returned {grad!r} for the input {tensor!r} of '{node.name}'"
            ) from None
    return grad


def _sum(parts: list[Any]) -> Any:
    if all(isinstance(p, IndexedSlices) for p in parts):
        return sum_slices(parts)
    # As in TensorFlow, the gradients of each device are summed first, so that only one sum per device is sent.
    by_device: dict[str, list[Tensor]] = {}
    for p in parts:
        tensor: Tensor = p._as_tensor() if isinstance(p, IndexedSlices) else p
        by_device.setdefault(tensor.device, []).append(tensor)
    sums = []
    for _, tensors in sorted(by_device.items()):
        with tensors[0].graph.colocate_with(tensors[0].op, ignore_existing=True):
            sums.append(add_n(tensors, name="AddN") if len(tensors) > 1 else tensors[0])
    return add_n(sums, name="AddN") if len(sums) > 1 else sums[0]


def sum_slices(parts: Sequence[IndexedSlices]) -> IndexedSlices:
    """The sum of several IndexedSlices: the concatenation of their rows."""
    if len(parts) == 1:
        return parts[0]
    dense_shape = next((p.dense_shape for p in parts if p.dense_shape is not None), None)
    index_type = parts[0].indices.dtype.base
    if any(p.indices.dtype.base is not index_type for p in parts):
        indices = [cast(p.indices, int64) for p in parts]
    else:
        indices = [p.indices for p in parts]
    return IndexedSlices(concat([p.values for p in parts], 0), concat(indices, 0), dense_shape)


hooks.gradients = gradients
