"""The graph under construction. What is in it: `node_table.py`; the blocks that are open in it: `graph_scopes.py`.

A graph only grows. A node's inputs exist before it does, so the data edges cannot form a cycle, but for those that close a loop
(`close_loop`); a control edge added later could, and is refused when it would. Every check of a new node happens before the
graph changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from .cycles import path_between
from .graph_scopes import Blocks, OpContext, open_blocks, pushed
from .node import Node, Tensor
from .opdef import OpDef, opdef as find_opdef
from .scopes import Scopes, as_canonical, checked_name, control_inputs_for, requested_device
from .shape import text
from .source_location import Origin, caller, locate

if TYPE_CHECKING:
    from ..control_flow.contexts import FlowContext


class Graph(Blocks):
    """A dataflow graph.

    >>> g = Graph()
    >>> with g.as_default(), g.device("/job:ps"):
    ...     c = constant(1.0)
    >>> c.device
    '/job:ps'
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        # Control edges against the order of creation: while there are none, no edge can close a cycle.
        self._has_late_edges = False
        self._flow: dict[Node, FlowContext] = {}  # for nodes made inside a branch or a loop
        self.own_gradients: dict[Node, Any] = {}
        """Nodes with a gradient rule of their own in place of their op's: a function, or None where no gradient passes."""
        self._open_loops = 0  # loops whose last iteration edge is still missing
        self.seed: int | None = None
        """Graph-level random seed (`set_random_seed`)."""
        self.is_mirrored = False
        """Whether variables have copies that must hold the same bits: then steps run with deterministic kernels."""

    def __str__(self) -> str:
        from .printing import format_graph

        return format_graph(self)

    def __repr__(self) -> str:
        return f"<dt.Graph of {len(self._nodes)} nodes>"

    def to_networkx(self) -> Any:
        """A `networkx.MultiDiGraph`: one vertex per node name, one edge per data or control input."""
        from .printing import to_networkx

        return to_networkx(self)

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The graph as TensorFlow's `GraphDef`, which `import_graph_def`, TensorFlow, TensorBoard and Netron read.

        Args:
            from_version: nodes from this number on. add_shapes: tell the shapes of outputs, as `_output_shapes`.

        Raises:
            UnimplementedError: the package `protobuf` is not installed. InvalidArgumentError: a node cannot be written (a `py_func`).

        >>> open("graph.pb", "wb").write(g.as_graph_def().SerializeToString())
        """
        from ..tensorflow.export_graph_def import graph_def_of

        return graph_def_of(self, from_version or 0, add_shapes)

    def as_default(self) -> AbstractContextManager[Graph]:
        """A context in which this is the default graph of the thread."""
        return pushed(open_blocks.graphs, self)

    def op_scope(self, name: str) -> AbstractContextManager[str]:
        """The block in which a function builds one op with its operands: a name scope, with this as the default graph.

        So that the constants of `x + 1` land in x's graph, whichever graph is the default one.
        """
        return OpContext(self._traced() or self, name)

    def session_for(self, session: Any, method: str) -> Any:
        """The given or else the default session; ValueError when there is none or it runs another graph."""
        if session is None:
            session = open_blocks.sessions[-1] if open_blocks.sessions else None
            if session is None:
                raise ValueError(
                    f"No default session is open: use `with dt.Session():`, or pass a session to {method}(session=...)"
                )
        if session.graph is not self:
            raise ValueError(f"The session runs another graph: pass the right one to {method}(session=...)")
        return session

    # --- growing ---------------------------------------------------------------------------------------------------

    def create(
        self,
        op: OpDef | str,
        inputs: Sequence[Tensor] = (),
        attrs: dict[str, Any] | None = None,
        name: str | None = None,
        *,
        origin: Origin | None = None,
    ) -> Node:
        """Add a node. Most callers use the public functions (`dt.add`), which call this.

        Args:
            op: what it does.
            inputs: tensors of this graph.
            attrs: constants of the node.
            name: wished name, made unique in the current name scope; ending in '/' it is taken as it stands. None: the op's name.
            origin: the place in the user's program; None: found on the call stack.

        Raises:
            TypeError, ValueError: the op refuses the inputs' types, shapes or the attrs, or the name cannot be one; nothing has changed
                then.
            RuntimeError: the graph is finalized.
        """
        definition = op if isinstance(op, OpDef) else find_opdef(op)
        if attrs is None:
            attrs = {}
        if origin is None:
            origin = caller()
        if self.functions and (function := self._traced()) is not None:
            return function.create(definition, inputs, attrs, name, origin=origin)
        if self._finalized:
            self._check_not_finalized(f"adding a {definition.name} at {locate(origin)}")
        for t in inputs:
            if t.op.graph is not self:
                raise ValueError(
                    f"{definition.name} '{_called(name, definition)}' at {locate(origin)} takes {t!r} of another graph (made at "
                    f"{t.op.source}); all inputs must belong to one graph"
                )
        try:
            signature = definition.infer(inputs, attrs)
        except (TypeError, ValueError) as e:
            raise _explained(e, definition, inputs, name, origin) from None
        with self._lock:
            scopes = self._scopes if self._thread_scopes is None else self._current_scopes()
            node = Node()
            node.graph = self
            node.opdef = definition
            node._origin = origin
            node.inputs = tuple(inputs)
            node.attrs = attrs
            node.outputs = tuple([Tensor(node, i, dtype, dims) for i, (dtype, dims) in enumerate(signature)])
            node.colocation = ()
            node.container = scopes.container
            places = (
                [inputs[i].op for i in definition.ref_inputs[: len(inputs)] if inputs[i].dtype.is_ref]
                if definition.ref_inputs
                else []
            )
            # Who takes a variable's place is made as if inside `colocate_with(variable)`, which hides the device blocks.
            block = node.blocks = None if places else scopes.device
            if scopes.control is None:
                node.controls = ()
            else:
                node.controls = control_inputs_for(scopes.control, {t.op for t in inputs})
            # The name is taken last but one: a device function sees it, and may still fail.
            if name is None or not name:
                node.name = self.unique_name(definition.name)
            elif name[-1] == "/":
                node.name = name[:-1]
            else:
                node.name = self.unique_name(checked_name(name, scopes.name, "node"))
            if node.name in self._by_name:
                raise ValueError(
                    f"A node called '{node.name}' exists already (made at {self._by_name[node.name].source})"
                )
            if scopes.flow is not None:
                self._let_in(node, scopes, places)
            elif self._flow:
                self._keep_out(node)
            if block is None:
                node.device = ""
            elif block.merged is not None:
                node.device = block.merged
            else:
                node.device = requested_device(node, block)
            if places or scopes.colocation:
                self._colocate(node, (*scopes.colocation, *places))
            node.index = len(self._nodes)
            self._nodes.append(node)
            self._by_name[node.name] = node
            if scopes.control is not None:
                scopes.mark_seen(node)
            if scopes.gradients and definition.name in scopes.gradients:
                self.own_gradients[node] = scopes.gradients[definition.name]
        return node

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Tensor],
        dtypes: Any = None,
        input_types: Any = None,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        op_def: Any = None,
        compute_shapes: bool = True,
        compute_device: bool = True,
    ) -> Node:
        """Add a node of one of TensorFlow's ops.

        Args:
            op_type: name of the op. inputs: tensors of this graph. name: as of `create`.
            attrs: `AttrValue` messages, by name, of what is not the op's default.
            dtypes, input_types, op_def, compute_shapes, compute_device: accepted for TensorFlow's sake; the op says them itself.

        Raises:
            ValueError: there is no such op, or it is made of several nodes. The others: as of `create`.
        """
        from ..tensorflow.node_mapping import told_node

        op, told = told_node(op_type, inputs, attrs or {})
        with self.as_default():
            return self.create(op, inputs, told, name or op_type)

    def _let_in(self, node: Node, scopes: Scopes, places: list[Node]) -> None:
        """Give a node that is made inside a branch or a loop its inputs there."""
        flow = scopes.flow
        assert flow is not None
        # What is made on the way is named under the node (a Const, in TensorFlow, has no scope of its own), and goes with it
        # where it takes a variable's place.
        saved = scopes.name, scopes.device, scopes.colocation
        if node.opdef.name != "Const":
            scopes.name = node.name
        if places:
            scopes.device, scopes.colocation = None, (*scopes.colocation, *places)
        try:
            node.inputs, node.controls = flow.admit(node, node.inputs, node.controls)
        finally:
            scopes.name, scopes.device, scopes.colocation = saved
        if flow.home is not None:
            self._flow[node] = flow.home
            self._unfetchable.add(node)
            self._unfeedable.update(node.outputs)

    def _keep_out(self, node: Node) -> None:
        """Refuse a node outside all loops that takes what one iteration makes."""
        for before in node.before:
            home = self._flow.get(before)
            if home is not None and home.loop is not None:
                raise ValueError(
                    f"'{node.name}' ({node.type}) at {node.source} is outside {home.loop.name} but takes '{before.name}' (made at "
                    f"{before.source}), which has one value per iteration; make it a loop variable, and use what while_loop returns"
                )

    def flow_of(self, node: Node) -> FlowContext | None:
        """The branch or loop in which a node's outputs are; None outside all. A loop's Exits are outside it."""
        return self._flow.get(node)

    def set_flow(self, homes: Mapping[Node, FlowContext]) -> None:
        """Tell in which branch or loop the outputs of nodes are that came without."""
        self._flow.update(homes)

    @property
    def has_flow(self) -> bool:
        """Whether there are branches or loops."""
        return bool(self._flow)

    @contextmanager
    def building_loop(self) -> Iterator[None]:
        """A block in which a loop is built. Until it is left, other threads wait, and the graph cannot be saved or sent."""
        with self._lock:
            self._open_loops += 1
            try:
                yield
            finally:
                self._open_loops -= 1

    @property
    def has_open_loops(self) -> bool:
        """Whether a loop is being built: its Merges do not have their second inputs yet."""
        return self._open_loops > 0

    def close_loop(self, merge: Node, next_iteration: Node) -> None:
        """Lead a loop variable back: give its Merge the NextIteration as second input, in place of a second Enter."""
        merge.inputs = (merge.inputs[0], next_iteration.outputs[0])

    def adopt(self, nodes: Sequence[Node], has_late_edges: bool = False) -> None:
        """Append nodes that `serialize` has rebuilt and checked. All or none; the open blocks do not apply to them.

        Args:
            nodes: nodes of this graph, numbered on from its last one.
            has_late_edges: whether a control edge among them goes against the order of creation.

        Raises:
            RuntimeError: the graph is finalized, or has grown since the nodes were numbered. ValueError: a name is taken.
        """
        with self._lock:
            self._check_not_finalized("adding nodes that were saved or sent")
            if nodes and nodes[0].index != len(self._nodes):
                raise RuntimeError("Graph has grown while nodes that were saved or sent were being added")
            for node in nodes:
                if node.name in self._by_name:
                    raise ValueError(
                        f"A node called '{node.name}' exists already (made at {self._by_name[node.name].source})"
                    )
            self._nodes.extend(nodes)
            for node in nodes:
                self._by_name[node.name] = node
                self._names_in_use.setdefault(node.name.lower(), 1)
            self._has_late_edges |= has_late_edges

    def _colocate(self, node: Node, peers: tuple[Node, ...]) -> None:
        """Apply `colocate_with(peer)` blocks, innermost last: the innermost peer with a device gives it; groups never nest."""
        for p in reversed(peers):
            if p.device:
                node.device = p.device
                break
        node.colocation = tuple(sorted({g for p in peers for g in (p.colocation or (p.name,))}))

    def add_control_input(self, node: Node, before: Node) -> None:
        """Make `node` wait for `before`.

        Raises:
            ValueError: they belong to other graphs, or the edge would close a cycle (the text shows it).
        """
        if node.graph is not self or before.graph is not self:
            raise ValueError(f"Both {node!r} and {before!r} must belong to this graph")
        if before in node.controls:
            return
        if before.index >= node.index or self._has_late_edges:
            path = path_between(before, node)
            if path is not None:
                raise ValueError(
                    f"A control edge from '{before.name}' to '{node.name}' would close a cycle: "
                    + " -> ".join(n.name for n in [*path, before])
                )
        if before.index >= node.index:
            self._has_late_edges = True
        node.controls = (*node.controls, before)

    def set_device(self, node: Node, device: Any) -> None:
        """Replace what a node asks for (TF1's `op._set_device`)."""
        node.device = as_canonical(device) if device is not None else ""


def _explained(e: Exception, op: OpDef, inputs: Sequence[Tensor], name: str | None, origin: Origin) -> Exception:
    """The op's complaint, with the node, its operands and the user's line."""
    line = locate(origin)
    operands = "".join(f"\n  input {i}: {t.name} {t.dtype.name} {text(t.dims)}" for i, t in enumerate(inputs))
    code = f"\n    {line.text}" if line.text else ""
    return type(e)(f"{op.name} '{_called(name, op)}': {e}{operands}\n  at {line}{code}")


def _called(name: str | None, op: OpDef) -> str:
    """What a node that is refused would have been called; a function that builds one names it by its scope, with a slash."""
    return (name or op.name).removesuffix("/")
