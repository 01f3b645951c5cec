"""Insertion of nodes into a graph.

A new node gets its control inputs, name and device from the open blocks (`scopes.py`) and from the branch or loop that is being built
(`flow_table.py`). A node that was saved or sent already has them. All steps that may fail come first, so that a refused node does not
change the graph.

`graph.py` defines `Node` and imports this module, so nodes and tensors are `Any` here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from .flow_table import FlowTable
from .node_table import NodeTable
from .opdef import OpDef
from .scopes import ScopeStack, checked_name, control_inputs_for, requested_device
from .shape import text
from .source_location import Origin, at_line, locate

Node: TypeAlias = Any


class NodeInsertion:
    """Puts nodes into one graph.

    Args:
        table: the nodes of the graph.
        stack: its open blocks.
        flow: its branches and loops.
        own_gradients: node -> the gradient rule that overrides that of its op.
        lock: held while the graph changes.
    """

    __slots__ = ("_flow", "_lock", "_own_gradients", "_stack", "_table")

    def __init__(
        self,
        table: NodeTable,
        stack: ScopeStack,
        flow: FlowTable,
        own_gradients: dict[Node, Any],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._table = table
        self._stack = stack
        self._flow = flow
        self._own_gradients = own_gradients
        self._lock = lock

    def insert(self, node: Node, name: str | None) -> None:
        """Insert a new node, which has its op, inputs and outputs. The rest is taken from the open blocks.

        Args:
            node: the node.
            name: the requested name, as in `Graph.create`.

        Raises:
            ValueError: the name is invalid, or the node takes a tensor of one iteration of a loop. Device functions may raise other errors.
        """
        with self._lock:
            stack, table, flow = self._stack, self._table, self._flow
            scopes = stack.shared if stack.per_thread is None else stack.of_thread()
            definition, inputs = node.opdef, node.inputs
            node.colocation = ()
            node.container = scopes.container
            variables = (
                [inputs[i].op for i in definition.ref_inputs[: len(inputs)] if inputs[i].dtype.is_ref]
                if definition.ref_inputs
                else []
            )
            # An op that takes a reference to a variable is treated as if inside `colocate_with(variable)`, which hides device blocks.
            block = node.blocks = None if variables else scopes.device
            if scopes.control is None:
                node.controls = ()
            else:
                node.controls = control_inputs_for(scopes.control, {t.op for t in inputs})
            # The name is reserved before device functions run, because they see it, though they may still fail.
            try:
                if not name or name == definition.name:
                    node.name = stack.unique_name(definition.name, scopes.name)
                elif name[-1] == "/":
                    node.name = name[:-1]
                else:
                    node.name = stack.unique_name(checked_name(name, scopes.name, "node"), scopes.name)
            except (TypeError, ValueError, LookupError):
                _check_is_text(name, node)
                raise
            if node.name in table.by_name:
                table.check_is_new(node.name)
            if scopes.flow is not None:
                flow.let_in(node, scopes, variables)
            elif flow.homes:
                flow.keep_out(node)
            if block is None:
                node.device = ""
            elif block.merged is not None:
                node.device = block.merged
            else:
                node.device = requested_device(node, block)
            if variables or scopes.colocation:
                _colocate(node, (*scopes.colocation, *variables))
            node.index = len(table.nodes)
            table.nodes.append(node)
            table.by_name[node.name] = node
            if scopes.control is not None:
                scopes.mark_seen(node)
            if scopes.gradients and definition.name in scopes.gradients:
                self._own_gradients[node] = scopes.gradients[definition.name]

    def adopt(self, nodes: Sequence[Node], has_late_edges: bool = False) -> None:
        """Append nodes that `io.serialization` has rebuilt and checked, all or none. The open blocks do not apply to them.

        Args:
            nodes: nodes of this graph, whose numbers follow that of its last node.
            has_late_edges: whether a control edge among them goes from a later node to an earlier one.

        Raises:
            RuntimeError: the graph is finalized, or has grown since the nodes were numbered.
            ValueError: a name is taken.
        """
        with self._lock:
            table = self._table
            table.check_not_finalized("adding nodes that were saved or sent")
            if nodes and nodes[0].index != len(table.nodes):
                raise RuntimeError("Graph has grown while nodes that were saved or sent were being added")
            for node in nodes:
                table.check_is_new(node.name)
            table.nodes.extend(nodes)
            in_use = self._stack.names_in_use
            for node in nodes:
                table.by_name[node.name] = node
                in_use.setdefault(node.name.lower(), 1)
                for key in ("frame_name", "source"):  # of a loop, and of a call of `gradients`
                    if key in node.attrs:
                        in_use.setdefault(str(node.attrs[key]).lower(), 1)
            table.has_late_edges |= has_late_edges


def _colocate(node: Node, peers: tuple[Node, ...]) -> None:
    """Colocate a node with the peers of `colocate_with` blocks, innermost last. The innermost one with a device determines its device."""
    for p in reversed(peers):
        if p.device:
            node.device = p.device
            break
    node.colocation = tuple(sorted({g for p in peers for g in (p.colocation or (p.name,))}))


def explained(error: Exception, op: OpDef, inputs: Sequence[Any], name: str | None, origin: Origin) -> Exception:
    """The op's error, with the node, its operands and the user's source line."""
    operands = "".join(f"\n  input {i}: {t.name} {t.dtype.name} {text(t.dims)}" for i, t in enumerate(inputs))
    return type(error)(f"{op.name} '{_refused_name(name, op)}': {error}{operands}{at_line(origin)}")


def _check_is_text(name: object, node: Node) -> None:
    """TypeError if the requested name of a node is not a text."""
    if not isinstance(name, str):
        kind = type(name).__name__
        raise TypeError(
            f"{node.opdef.name}: name must be a text, not a value of type {kind}: {name!r:.60}{at_line(node._origin)}"
        ) from None


def foreign(tensor: Any, op: OpDef, name: str | None, origin: Origin) -> ValueError:
    """The error of a node that takes a tensor of another graph."""
    return ValueError(
        f"{op.name} '{_refused_name(name, op)}' at {locate(origin)} takes {tensor!r} of another graph (created at "
        f"{tensor.op.source}); all inputs must belong to one graph. In a compiled function make a variable inside the function, "
        "with dt.get_variable: all traces share it"
    )


def _refused_name(name: str | None, op: OpDef) -> str:
    """The name that a refused node would have had. Functions that add one node pass its scope as the name, with a trailing slash."""
    return (name or op.name).removesuffix("/")
