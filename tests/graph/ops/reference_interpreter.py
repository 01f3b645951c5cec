"""The reference evaluator: runs a graph node by node with the ops' NumPy references. Slow, simple, right.

Everything else that runs graphs is compared with it: the fused kernels, the partitioned and distributed
runtime. It knows nothing of devices. Nodes run one at a time, in order of creation wherever control edges
allow it; the nodes of a loop again and again, until its LoopCond is false. A node that takes a dead tensor,
or waits for a dead node, does not run, and is dead itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InternalError, InvalidArgumentError, OpError
from dovetail.graph.core.frames import Frames, Item, Loop, has_control_flow, in_order
from dovetail.graph.core.graph import Graph, Node, Tensor
from dovetail.graph.core.shape import compatible, text
from dovetail.graph.resources.async_request import Request
from dovetail.graph.resources.resource_manager import DEAD, Context, Resources, SessionState
from dovetail.graph.resources.variable import VariableState


class Interpreter:
    """Evaluates one graph on NumPy.

    Args:
        graph: what to run; it may grow between runs.
        resources: where variables and queues live; None: new, empty ones.
        session_state: counts of runs and the seed of unseeded random ops; None: new, with a random seed.
        check: compare each result with the type and shape that the op's rule inferred.

    >>> x = placeholder("float32", [2])
    >>> Interpreter(x.graph).run(x * 2.0, {x: [1, 2]})
    array([2., 4.], dtype=float32)
    """

    def __init__(
        self,
        graph: Graph,
        resources: Resources | None = None,
        session_state: SessionState | None = None,
        check: bool = False,
    ) -> None:
        self.graph = graph
        self.resources = Resources() if resources is None else resources
        self.session_state = SessionState() if session_state is None else session_state
        self.check = check

    def run(self, fetches: Any, feeds: Mapping[Any, Any] | None = None) -> Any:
        """Values of the fetches.

        Args:
            fetches: a tensor, a node (gives None), a name, anything convertible such as a variable, or a list
                of those.
            feeds: values for tensors; a fed tensor's node does not run for it.

        Raises:
            InvalidArgumentError: a placeholder is needed and not fed, or a fed value does not fit. Any error
                of the ops' own.
        """
        many = isinstance(fetches, Sequence) and not isinstance(fetches, str)
        elements = [self.graph.as_graph_element(f) for f in (fetches if many else [fetches])]
        values = self._feed(feeds or {})
        wanted = [e.op if isinstance(e, Tensor) else e for e in elements if e not in values]
        step = _Step(self, values)
        with np.errstate(all="ignore"):
            step.run(_schedule(wanted, values))
        results = [step.fetch(e) if isinstance(e, Tensor) else None for e in elements]
        return results if many else results[0]

    def _feed(self, feeds: Mapping[Any, Any]) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for key, value in feeds.items():
            tensor = self.graph.as_graph_element(key, allow_operation=False)
            assert isinstance(tensor, Tensor)
            array = np.asarray(value, tensor.dtype.np)
            if not compatible(array.shape, tensor.dims):
                raise InvalidArgumentError(
                    tensor.op,
                    tensor.op,
                    f"Cannot feed value of shape {text(array.shape)} for Tensor '{tensor.name}', "
                    f"which has shape {text(tensor.dims)}",
                )
            values[tensor] = array
        return values

    def _context(self, node: Node) -> Context:
        return Context(
            node.name, node.container, self.resources, self.session_state, tuple(t.dims for t in node.outputs)
        )


def interpret(fetches: Any, feeds: Any = None) -> Any:
    """The values of fetches in the default graph, each checked against what is known of it."""
    return Interpreter(get_default_graph(), check=True).run(fetches, feeds)


class _Step:
    """One run: the values so far. In a loop, a value is that of the current iteration."""

    def __init__(self, interpreter: Interpreter, given: Mapping[Tensor, Any]) -> None:
        self.interpreter = interpreter
        self.given = given
        self.values: dict[Tensor, Any] = dict(given)
        self.dead: set[Node] = set()

    def fetch(self, tensor: Tensor) -> Any:
        """A value for the user."""
        value = self.values[tensor]
        if value is DEAD:
            raise InvalidArgumentError(
                tensor.op, tensor.op, f"{tensor.name} has no value: it is made in a branch that was not taken"
            )
        return _read(tensor, value)

    def run(self, items: Sequence[Item]) -> None:
        """Run nodes and loops, in order."""
        for item in items:
            if isinstance(item, Loop):
                self._loop(item)
            elif self._is_dead(item):
                self.dead.add(item)
                self._keep(item, [DEAD] * len(item.outputs))
            else:
                self.dead.discard(item)
                self._node(item)

    def _is_dead(self, node: Node) -> bool:
        if node.type == "ControlTrigger":
            return False
        if any(c in self.dead for c in node.controls):
            return True
        dead = [self.values[t] is DEAD for t in node.inputs]
        return any(dead) if node.type != "Merge" else all(dead)

    def _loop(self, loop: Loop) -> None:
        values = self.values
        following = [values[m.inputs[0]] for m in loop.merges]
        iteration = 0
        while True:
            for merge, value in zip(loop.merges, following, strict=True):
                self._keep(merge, (value, np.int32(min(iteration, 1))))
                (self.dead.add if value is DEAD else self.dead.discard)(merge)
            self.run(loop.head)
            again = values[loop.condition.outputs[0]]
            if again is DEAD or not again:
                break
            self.run(loop.body)
            following = [values[m.inputs[1]] for m in loop.merges]
            iteration += 1
        for node in loop.body:  # what the Exits take
            if isinstance(node, Node) and node.inputs and node.inputs[-1].op is loop.condition:
                value = values[node.inputs[0]]
                self.values[node.outputs[0]] = value
                (self.dead.add if value is DEAD else self.dead.discard)(node)

    def _node(self, node: Node) -> None:
        op = node.opdef
        if op.reference is None:
            raise _not_fed(node)
        takes_place = op.ref_inputs
        values = [self.values[t] for t in node.inputs]
        inputs = [v if i in takes_place else _read(node.inputs[i], v) for i, v in enumerate(values)]
        attrs = op.kernel_attrs(node.attrs)
        try:
            if op.is_stateful:
                result = op.reference(self.interpreter._context(node), *inputs, **attrs)
                if isinstance(result, Request):
                    what = result.what
                    result.cancel()
                    raise InternalError(node, node, f"'{node.name}' waits for {what}, and nothing else runs")
            else:
                result = op.reference(*inputs, **attrs)
        except OpError as e:
            if e.node_def is None:
                e.node_def = e.op = node
            raise
        except (ValueError, TypeError, IndexError, OverflowError) as e:
            operands = ", ".join(f"{t.name}: {text(np.shape(v))}" for t, v in zip(node.inputs, inputs, strict=True))
            raise InvalidArgumentError(
                node, node, f"{node.type} '{node.name}' failed on ({operands}), created at {node.source}: {e}"
            ) from e
        if len(node.outputs) == 1:
            result = (result,)
        if self.interpreter.check:
            _check(node, result)
        self._keep(node, result if node.outputs else ())

    def _keep(self, node: Node, results: Sequence[Any]) -> None:
        for tensor, value in zip(node.outputs, results, strict=True):
            if tensor not in self.given:  # an output that was fed keeps the fed value
                self.values[tensor] = value


def _schedule(wanted: Iterable[Node], given: Mapping[Any, Any]) -> list[Item]:
    """All that `wanted` need, each after what it needs, loops in one piece."""
    nodes = execution_order(wanted, given)
    if not has_control_flow(nodes):
        return list(nodes)
    return Frames(nodes, [t for t in given if isinstance(t, Tensor)]).schedule()


def execution_order(wanted: Iterable[Node], given: Mapping[Any, Any] | None = None) -> list[Node]:
    """All nodes that `wanted` need, each after what it needs; in order of creation wherever edges allow it.

    Args:
        wanted: nodes to run.
        given: tensors whose values are there already: their nodes are not needed for them.
    """
    given = given or {}
    needs: dict[Node, list[Node]] = {}
    todo = list(wanted)
    while todo:
        node = todo.pop()
        if node not in needs:
            # A placeholder that is given needs not run, so nothing waits for it.
            before = (c for c in node.controls if not (c.type == "Placeholder" and c.outputs[0] in given))
            back = node.back_edge
            data = {t.op: None for t in node.inputs if t not in given and t.op is not back}
            needs[node] = list(data | dict.fromkeys(before))
            todo.extend(needs[node])
            if back is not None:
                todo.append(back)
    return in_order(sorted(needs, key=lambda n: n.index), needs.__getitem__)


def _read(tensor: Tensor, value: Any) -> Any:
    """A value as it is, a handle too; a reference variable's place as the variable's value at this moment."""
    return value.read() if tensor.dtype.is_ref and isinstance(value, VariableState) else value


def _not_fed(node: Node) -> InvalidArgumentError:
    (tensor,) = node.outputs
    return InvalidArgumentError(
        node,
        node,
        f"You must feed a value for placeholder tensor '{node.name}' with dtype {tensor.dtype.name} "
        f"and shape {text(tensor.dims)} (created at {node.source}): "
        "session.run(..., feed_dict={tensor: value})",
    )


def _check(node: Node, result: tuple[Any, ...]) -> None:
    """InternalError unless the results have the inferred types and fit the inferred shapes."""
    if len(node.outputs) != (len(result) if node.outputs else 0):
        raise InternalError(node, node, f"{node.type} gave {len(result)} results, its rule says {len(node.outputs)}")
    for tensor, value in zip(node.outputs, result, strict=False):
        if tensor.dtype.is_ref or tensor.dtype.np == np.dtype(object) or value is DEAD:
            continue
        if not isinstance(value, np.ndarray | np.generic):
            raise InternalError(node, node, f"{node.type} gave a {type(value).__name__}, not an array")
        if value.dtype != tensor.dtype.np:
            raise InternalError(node, node, f"{node.type} gave {value.dtype}, its rule says {tensor.dtype.name}")
        if not compatible(value.shape, tensor.dims):
            raise InternalError(
                node, node, f"{node.type} gave shape {text(value.shape)}, its rule says {text(tensor.dims)}"
            )
