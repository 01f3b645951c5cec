"""The reference evaluator: runs a graph node by node with the ops' NumPy references. Slow, simple, right.

Everything else that runs graphs is compared with it: the fused kernels, the partitioned and distributed
runtime. It knows nothing of devices. Nodes run one at a time, in order of creation wherever control edges
allow it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .errors import InternalError, InvalidArgumentError, OpError
from .graph import Graph
from .node import Node, Tensor
from .shape import compatible, text
from .state import Context, Resources, SessionState, VariableState

Array: TypeAlias = np.ndarray[Any, Any]
Fetch: TypeAlias = Tensor | Node | str


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
        with np.errstate(all="ignore"):
            for node in execution_order(wanted, values):
                self._run_node(node, values)
        results = [_read(e, values[e]) if isinstance(e, Tensor) else None for e in elements]
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

    def _run_node(self, node: Node, values: dict[Any, Any]) -> None:
        op = node.opdef
        if op.reference is None:
            raise _not_fed(node)
        takes_place = op.ref_inputs
        inputs = [values[t] if i in takes_place else _read(t, values[t]) for i, t in enumerate(node.inputs)]
        attrs = op.kernel_attrs(node.attrs)
        try:
            if op.is_stateful:
                result = op.reference(self._context(node), *inputs, **attrs)
            else:
                result = op.reference(*inputs, **attrs)
        except OpError as e:
            if e.node_def is None:
                e.node_def = e.op = node
            raise
        except (ValueError, TypeError, IndexError, OverflowError) as e:
            operands = ", ".join(
                f"{t.name}: {text(np.shape(v))}" for t, v in zip(node.inputs, inputs, strict=True)
            )
            raise InvalidArgumentError(
                node, node, f"{node.type} '{node.name}' failed on ({operands}), made at {node.source}: {e}"
            ) from e
        if len(node.outputs) == 1:
            result = (result,)
        if self.check:
            _check(node, result)
        for tensor, value in zip(node.outputs, result if node.outputs else (), strict=True):
            values.setdefault(tensor, value)  # an output that was fed keeps the fed value

    def _context(self, node: Node) -> Context:
        return Context(
            node.name, node.container, self.resources, self.session_state, tuple(t.dims for t in node.outputs)
        )


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
            before = (
                c for c in node.control_inputs if not (c.type == "Placeholder" and c.outputs[0] in given)
            )
            needs[node] = list({t.op: None for t in node.inputs if t not in given} | dict.fromkeys(before))
            todo.extend(needs[node])
    order = sorted(needs, key=lambda n: n.index)
    if all(before.index < node.index for node in order for before in needs[node]):
        return order
    return _topological(order, needs)


def _topological(nodes: list[Node], needs: dict[Node, list[Node]]) -> list[Node]:
    """Kahn's algorithm, the oldest ready node first."""
    users: dict[Node, list[Node]] = {n: [] for n in nodes}
    waiting = {}
    for node in nodes:
        waiting[node] = len(needs[node])
        for before in needs[node]:
            users[before].append(node)
    ready = [(n.index, n) for n in nodes if not waiting[n]]
    order = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for user in users[node]:
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.index, user))
    if len(order) < len(nodes):
        stuck = next(n for n in nodes if waiting[n])
        raise InvalidArgumentError(
            stuck, stuck, f"The graph has a cycle through '{stuck.name}' (made at {stuck.source})"
        )
    return order


def _read(tensor: Tensor, value: Any) -> Any:
    """A value as it is, a handle too; a reference variable's place as the variable's value at this moment."""
    return value.read() if tensor.dtype.is_ref and isinstance(value, VariableState) else value


def _not_fed(node: Node) -> InvalidArgumentError:
    (tensor,) = node.outputs
    return InvalidArgumentError(
        node,
        node,
        f"You must feed a value for placeholder tensor '{node.name}' with dtype {tensor.dtype.name} "
        f"and shape {text(tensor.dims)} (made at {node.source}): "
        "session.run(..., feed_dict={tensor: value})",
    )


def _check(node: Node, result: tuple[Any, ...]) -> None:
    """InternalError unless the results have the inferred types and fit the inferred shapes."""
    if len(node.outputs) != (len(result) if node.outputs else 0):
        raise InternalError(
            node, node, f"{node.type} gave {len(result)} results, its rule says {len(node.outputs)}"
        )
    for tensor, value in zip(node.outputs, result, strict=False):
        if tensor.dtype.is_ref or tensor.dtype.np == np.dtype(object):
            continue
        if not isinstance(value, np.ndarray | np.generic):
            raise InternalError(node, node, f"{node.type} gave a {type(value).__name__}, not an array")
        if value.dtype != tensor.dtype.np:
            raise InternalError(
                node, node, f"{node.type} gave {value.dtype}, its rule says {tensor.dtype.name}"
            )
        if not compatible(value.shape, tensor.dims):
            raise InternalError(
                node, node, f"{node.type} gave shape {text(value.shape)}, its rule says {text(tensor.dims)}"
            )
