"""Tensors, nodes and graphs: what a program builds.

A `Node` is one operation in the graph. A `Tensor` is one of its outputs: a name for a value that exists when the graph runs.
TensorFlow 1 calls a node `Operation`; both names are public. Only `Graph.create` makes nodes and tensors.

A graph only grows. A node's inputs exist before it does, so the data edges cannot form a cycle, but for those that close a loop
(`flow_table.py`). A control edge that is added later could close one, and is refused when it would. Every check of a new node happens
before the graph changes.

A graph has a `NodeTable`, a `FlowTable` of its branches and loops, `Collections`, a `ScopeStack` of the blocks that are open in it, and a
`NodeInsertion`, which gives a new node what it gets from all of these. The three types here refer to each other, so they share a module;
everything else in `core` is below them or above them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from .dtypes import DType
from .flow_table import FlowTable
from .hooks import hooks
from .node_insertion import NodeInsertion, explained, foreign
from .node_table import Collections, NodeTable
from .opdef import NodeDef, OpDef, opdef as find_opdef
from .operators import TO_GET_IT, TensorOperators, assignments, needs_value
from .scopes import DeviceBlock, DeviceContext, NameContext, OpContext, Scopes, ScopeStack, as_canonical, open_blocks
from .shape import Dims, TensorShape, merge, text
from .source_location import Origin, SourceLine, at_caller, caller, locate


class Tensor(TensorOperators["Tensor"]):
    """One output of a node. It stands for a value that exists when the graph runs.

    Attributes:
        op: the node that produces it.
        value_index: which of the node's outputs it is.
        dtype: element type; a reference type for a TF1 variable's own output.
        dims: static shape as plain data: a tuple of sizes, None for an unknown size; or None if the rank is unknown.

    As in TensorFlow 1, `==` compares identity and does not build a node; use `dt.equal` to compare elements.
    """

    __slots__ = ("dims", "dtype", "op", "value_index")

    def __init__(self, op: Node, value_index: int, dtype: DType, dims: Dims) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self.dims = dims

    @property
    def name(self) -> str:
        """`<node>:<output>`, such as `add_1:0`."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        """The graph of its node."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The requested device of its node: a canonical, possibly partial device name, or ''."""
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self.dims)

    def get_shape(self) -> TensorShape:
        """The static shape (TensorFlow 1's name of `shape`)."""
        return TensorShape(self.dims)

    def set_shape(self, shape: Any) -> None:
        """Refine the static shape. ValueError if `shape` contradicts it."""
        self.dims = merge(self.dims, TensorShape(shape).dims_tuple)

    def consumers(self) -> list[Node]:
        """The nodes with this tensor as a data input, in order of creation."""
        return [n for n in self.graph.get_operations() if any(t is self for t in n.inputs)]

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """The value of this tensor, computed in the default (or given) session."""
        return open_blocks.session_for(self.graph, session, "eval").run(self, feed_dict)

    @property
    def assign(self) -> Callable[..., Tensor]:
        """Assigns to a slice of a variable: `v[1:].assign(value)`. AttributeError if the tensor is not a slice of a variable."""
        return assignments[0](self)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.dims or self.dims[0] is None:
            what = f"Cannot iterate over {self!r}: its first size is not known before the graph runs"
            raise TypeError(f"{what}. Use dt.map_fn, dt.while_loop, or an op on all rows{at_caller()}")
        return (self[i] for i in range(self.dims[0]))

    def __len__(self) -> int:
        if not self.dims or self.dims[0] is None:
            raise TypeError(f"{self!r} has no length before the graph runs; use dt.shape(tensor)[0]")
        return self.dims[0]

    __bool__ = needs_value(
        f"{{}} has no truth value before the graph runs. Use dt.cond or dt.where to choose inside the graph; {TO_GET_IT}"
    )
    __contains__ = needs_value(
        "What {} contains is not known before the graph runs; use dt.reduce_any(dt.equal(tensor, value))"
    )
    __array__ = needs_value(
        f"{{}} has no value before the graph runs, so NumPy cannot compute with it. Use an op of dovetail; {TO_GET_IT}"
    )
    __float__ = __int__ = needs_value(
        f"{{}} has no value before the graph runs. To change its type, use dt.cast; {TO_GET_IT}"
    )

    def __repr__(self) -> str:
        return f"<dt.Tensor '{self.name}' shape={text(self.dims)} dtype={self.dtype.name}>"


class Node:
    """An operation in a graph. TensorFlow 1 calls it `Operation`.

    Attributes:
        graph: the graph it belongs to.
        index: position in order of creation; inputs always come earlier, except for a loop's back edge.
        opdef: the definition of its op.
        name: unique in the graph.
        inputs: its input tensors.
        controls: nodes that must run before it. `control_inputs` returns them as a list, as in TensorFlow.
        outputs: its output tensors.
        attrs: constants of this node (`{"transpose_a": False}`).
        device: the requested device: a canonical, possibly partial device name, or ''.
        colocation: names of colocation groups besides its own.
        blocks: the device blocks that were open when it was made, innermost first through `outer`.
        container: container for its state, '' for the default.
    """

    __slots__ = ("_origin", "attrs", "blocks", "colocation", "container", "controls", "device", "graph", "index", "inputs",
                 "name", "opdef", "outputs")  # fmt: skip

    graph: Graph
    index: int
    opdef: OpDef
    name: str
    inputs: tuple[Tensor, ...]
    controls: tuple[Node, ...]
    outputs: tuple[Tensor, ...]
    attrs: dict[str, Any]
    device: str
    colocation: tuple[str, ...]
    blocks: DeviceBlock | None
    container: str
    _origin: Origin

    @property
    def type(self) -> str:
        """The op's name, such as `MatMul`."""
        return self.opdef.name

    @property
    def control_inputs(self) -> list[Node]:
        """The nodes that must run before it, as a new list."""
        return list(self.controls)

    @control_inputs.setter
    def control_inputs(self, nodes: Iterable[Node]) -> None:
        self.controls = tuple(nodes)

    @property
    def back_edge(self) -> Node | None:
        """The NextIteration that leads back to this node, if it is a loop's Merge."""
        if self.opdef.name == "Merge" and len(self.inputs) == 2 and self.inputs[1].op.opdef.name == "NextIteration":
            return self.inputs[1].op
        return None

    @property
    def before(self) -> list[Node]:
        """The nodes that run before this one (in its iteration): those of its data inputs, then its control inputs."""
        back = self.back_edge
        return [*(t.op for t in self.inputs if t.op is not back), *self.controls]

    @property
    def source(self) -> SourceLine:
        """The user's line that made this node."""
        return locate(self._origin)

    def get_attr(self, name: str) -> Any:
        """The value of an attribute. `_class` gives the colocation groups. ValueError, with the existing attributes, if there is none."""
        if name == "_class" and self.colocation:
            return self.colocation_groups()
        if name not in self.attrs:
            raise ValueError(
                f"Node '{self.name}' ({self.type}) has no attribute '{name}'; it has: {', '.join(self.attrs) or 'none'}"
            )
        return self.attrs[name]

    @property
    def node_def(self) -> NodeDef:
        """The node in plain data: name, op, input, device, attr."""
        taken = [t.op.name if t.value_index == 0 else t.name for t in self.inputs]
        taken += [f"^{c.name}" for c in self.controls]
        return NodeDef(self.name, self.type, tuple(taken), self.device, dict(self.attrs))

    def colocation_groups(self) -> list[bytes]:
        """The names of its colocation groups in TensorFlow's form `loc:@<node>`. Its own group if it is in no other."""
        return [b"loc:@" + g.encode() for g in self.colocation or (self.name,)]

    def values(self) -> tuple[Tensor, ...]:
        """The outputs (TensorFlow 1's name)."""
        return self.outputs

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Run this node for its effect in the default (or given) session."""
        open_blocks.session_for(self.graph, session, "run").run(self, feed_dict)

    def _add_control_input(self, node: Node) -> None:
        """Add a control input. ValueError if the node is in another graph, or the edge would close a cycle, which the error shows."""
        if node.graph is not self.graph:
            raise ValueError(f"Both {self!r} and {node!r} must belong to one graph")
        self.graph.table.add_control_edge(node, self)

    def _add_control_inputs(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._add_control_input(node)

    def _set_device(self, device: Any) -> None:
        """Replace the requested device."""
        self.device = as_canonical(device) if device is not None else ""

    def __repr__(self) -> str:
        return f"<dt.Operation '{self.name}' type={self.type}>"


Operation = Node


class Graph:
    """A dataflow graph: nodes and the tensors between them. It only grows.

    Attributes:
        table: its nodes.
        flow: its branches and loops.
        insertion: puts nodes into it.
        own_gradients: node -> the gradient rule that overrides that of its op. None if no gradient passes.
        functions: the number of functions that were traced inside this graph (`FunctionGraph`).
        seed: graph-level random seed (`set_random_seed`).
        searched: node -> the complete name of the device that a search has chosen. The placer uses it if the node may have that device.
        is_mirrored: whether variables have copies that must stay bitwise equal, so that steps use deterministic kernels.

    >>> g = Graph()
    >>> with g.as_default(), g.device("/job:ps"):
    ...     c = constant(1.0)
    >>> c.device
    '/job:ps'
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.table = NodeTable(self, Tensor, Node)
        self.flow = FlowTable(self.table, self._lock)
        self._collections = Collections(self.table)
        self._stack = ScopeStack()
        self.own_gradients: dict[Node, Any] = {}
        self.insertion = NodeInsertion(self.table, self._stack, self.flow, self.own_gradients, self._lock)
        self.functions = 0
        self.seed: int | None = None
        self.searched: dict[Node, str] = {}
        self.is_mirrored = False

    def __str__(self) -> str:
        return hooks.format_graph(self)

    def __repr__(self) -> str:
        return f"<dt.Graph of {len(self)} nodes>"

    def __contains__(self, name: str) -> bool:
        return name in self.table.by_name

    def __len__(self) -> int:
        return len(self.table.nodes)

    def __bool__(self) -> bool:
        return True  # also if it is empty, for `graph or get_default_graph()`

    def to_networkx(self) -> Any:
        """A `networkx.MultiDiGraph`: one vertex per node name, one edge per data or control input."""
        return hooks.to_networkx(self)

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The graph as TensorFlow's `GraphDef`, which `import_graph_def`, TensorFlow, TensorBoard and Netron read.

        Args:
            from_version: write only nodes from this number on.
            add_shapes: write the shapes of outputs as attribute `_output_shapes`.

        Raises:
            UnimplementedError: the package `protobuf` is not installed.
            InvalidArgumentError: a node cannot be serialized (a `py_func`).

        >>> open("graph.pb", "wb").write(g.as_graph_def().SerializeToString())
        """
        return hooks.graph_def_of(self, from_version or 0, add_shapes)

    def as_default(self) -> AbstractContextManager[Graph]:
        """A context in which this is the default graph of the thread."""
        return open_blocks.inside(self)

    def op_scope(self, name: str) -> AbstractContextManager[str]:
        """A context in which a function adds one op and its operands: a name scope, with this graph as the default graph.

        So the constant of `x + 1` is added to the graph of x, and not to another default graph.
        """
        graph = open_blocks.traced_in(self) or self
        return OpContext(graph._stack, name, graph)

    # --- adding nodes ----------------------------------------------------------------------------------------------

    def create(
        self,
        op: OpDef | str,
        inputs: Sequence[Tensor] = (),
        attrs: dict[str, Any] | None = None,
        name: str | None = None,
        *,
        origin: Origin | None = None,
    ) -> Node:
        """Add a node. Most callers use the public functions (`dt.math.add`), which call this.

        Args:
            op: the op. inputs: tensors of this graph. attrs: constants of the node. name: requested name, made unique in the current name
            scope; a name that ends in '/' is used unchanged. None means the op's name. origin: the location in the user's program; None:
            found on the call stack.

        Raises:
            TypeError, ValueError: the inputs' types or shapes, or the attributes, are invalid for the op, or the name is invalid. The graph
                is unchanged then.
            RuntimeError: the graph is finalized.
        """
        definition = op if isinstance(op, OpDef) else find_opdef(op)
        if attrs is None:
            attrs = {}
        if origin is None:
            origin = caller()
        if self.functions and (function := open_blocks.traced_in(self)) is not None:
            return function.create(definition, inputs, attrs, name, origin=origin)
        table = self.table
        if table.is_finalized:
            table.check_not_finalized(f"adding a {definition.name} at {locate(origin)}")
        for t in inputs:
            if t.op.graph is not self:
                raise foreign(t, definition, name, origin)
        try:
            signature = definition.infer(inputs, attrs)
        except (TypeError, ValueError) as e:
            raise explained(e, definition, inputs, name, origin) from None
        node = Node()
        node.graph = self
        node.opdef = definition
        node._origin = origin
        node.inputs = tuple(inputs)
        node.attrs = attrs
        if len(signature) == 1:
            node.outputs = (Tensor(node, 0, *signature[0]),)
        else:
            node.outputs = tuple([Tensor(node, i, dtype, dims) for i, (dtype, dims) in enumerate(signature)])
        self.insertion.insert(node, name)
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
            op_type: name of the op.
            inputs: tensors of this graph.
            name: as in `create`.
            attrs: `AttrValue` messages, by name, for attributes that differ from the op's defaults.
            dtypes: accepted without effect.
            input_types: accepted without effect.
            op_def: accepted without effect.
            compute_shapes: accepted without effect.
            compute_device: accepted without effect.

        Raises:
            ValueError: there is no such op, or it consists of several nodes. Other errors as for `create`.
        """
        op, own = hooks.node_from_tensorflow(op_type, inputs, attrs or {})
        with self.as_default():
            return self.create(op, inputs, own, name or op_type)

    # --- nodes -----------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes in order of creation."""
        return self.table.nodes

    @property
    def version(self) -> int:
        """The number of nodes, which increases with every new node."""
        return len(self.table.nodes)

    @property
    def finalized(self) -> bool:
        """Whether the graph is finalized: no node can be added."""
        return self.table.is_finalized

    def finalize(self) -> None:
        """Refuse new nodes from now on, so that a training loop that adds nodes by mistake fails."""
        self.table.is_finalized = True

    def unfinalize(self) -> None:
        """Allow new nodes again."""
        self.table.is_finalized = False

    def get_operations(self) -> list[Node]:
        """All nodes in order of creation, as a new list."""
        return list(self.table.nodes)

    def get_operation_by_name(self, name: str) -> Node:
        """The node of that name. KeyError if there is none. ValueError if it is a tensor's name."""
        node: Node = self.table.element(name, allow_tensor=False)
        return node

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of that name (`add:0`). KeyError if there is none. ValueError if it is a node's name."""
        tensor: Tensor = self.table.element(name, allow_operation=False)
        return tensor

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Tensor | Node:
        """The tensor or node for an object of this graph, or for a name.

        Raises:
            KeyError: the name is not in this graph.
            ValueError: the object belongs to another graph, or the name is malformed.
            TypeError: the object is neither a name nor a graph element, or of a kind that is not allowed.
        """
        found: Tensor | Node = self.table.element(obj, allow_tensor, allow_operation)
        return found

    def is_feedable(self, tensor: Any) -> bool:
        """Whether a value may be fed for the tensor."""
        return tensor not in self.table.unfeedable

    def is_fetchable(self, element: Any) -> bool:
        """Whether the value of an element may be fetched."""
        node = element.op if isinstance(element, Tensor) else element
        return node not in self.table.unfetchable

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Refuse feeds for this tensor from now on."""
        self.table.unfeedable.add(tensor)

    def prevent_fetching(self, node: Node) -> None:
        """Refuse fetches of this node from now on."""
        self.table.unfetchable.add(node)

    # --- collections -----------------------------------------------------------------------------------------------

    def add_to_collection(self, name: str, value: Any) -> None:
        """Append to a collection. RuntimeError if the graph is finalized."""
        self._collections.add(name, value)

    def add_to_collections(self, names: Iterable[str] | str, value: Any) -> None:
        """Append to several collections, once each. RuntimeError if the graph is finalized."""
        for name in {names} if isinstance(names, str) else dict.fromkeys(names):
            self.add_to_collection(name, value)

    def get_collection(self, name: str, scope: str | None = None) -> list[Any]:
        """A copy of a collection; with `scope`, only items whose name matches that regular expression from the start."""
        return self._collections.get(name, scope)

    def get_collection_ref(self, name: str) -> list[Any]:
        """The collection itself, created if needed; changes to the list change the collection."""
        return self._collections.lists.setdefault(name, [])

    def get_all_collection_keys(self) -> list[str]:
        """Names of the collections that are not empty."""
        return [k for k, v in self._collections.lists.items() if v]

    collections = property(get_all_collection_keys)

    def clear_collection(self, name: str) -> None:
        """Empty a collection. RuntimeError if the graph is finalized."""
        self._collections.clear(name)

    # --- blocks ----------------------------------------------------------------------------------------------------

    @property
    def scopes(self) -> Scopes:
        """The open blocks, of this thread if the graph keeps them per thread."""
        return self._stack.current

    @scopes.setter
    def scopes(self, scopes: Scopes) -> None:
        self._stack.current = scopes

    def _get_control_flow_context(self) -> Any:
        """The branch or loop that is being built, or None: TensorFlow's name, which programs use."""
        return self.scopes.flow

    def switch_to_thread_local(self) -> None:
        """From now on, keep the open blocks per thread. Each thread starts from a copy of what is open now."""
        self._stack.switch_to_thread_local()

    def encloses(self, graph: Graph) -> bool:
        """Whether `graph` is outside this one, as it may be for the graph of a function."""
        return False

    @property
    def outermost(self) -> Graph:
        """The graph that sessions run: this graph, or for a function's graph the outermost enclosing graph."""
        return self

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """A context whose nodes request a device: a string, a DeviceSpec, a function of the node, or None to clear.

        Blocks nest; fields of inner blocks take precedence. `requested_device` (scopes.py) has the rules.

        Raises:
            ValueError: the name is malformed, at entry.
            RuntimeError: blocks are exited in the wrong order.
        """
        return DeviceContext((open_blocks.traced_in(self) or self)._stack, device_name_or_function)

    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> AbstractContextManager[None]:
        """A context whose nodes of the given ops have other gradients.

        Args:
            op_type_map: op -> name of a gradient that `RegisterGradient` registered.

        Raises:
            TypeError: `op_type_map` is not such a dictionary.
            LookupError: there is no gradient of that name.
        """
        return self._stack.overriding_gradients(op_type_map)

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """A context whose nodes share the device of `op` (a node, tensor or variable). Device blocks around it do not apply inside.

        `ignore_existing=True` also hides outer `colocate_with` blocks; only then may `op` be None.
        """
        traced = open_blocks.traced_in(self)
        if traced is not None:
            return traced.colocate_with(op, ignore_existing)
        return self._stack.colocated(
            lambda: None if op is None else self.table.node_of(op, "_colocation_node", "colocate_with"),
            ignore_existing,
        )

    def init_scope(self) -> AbstractContextManager[None]:
        """A context for nodes that outlive a step, such as variables: control dependencies of outer blocks do not apply.

        Directly inside `colocate_with`, the device blocks that it hides apply again, as in TensorFlow.
        """
        return (open_blocks.traced_in(self) or self)._stack.outside_the_step()

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
        """A context whose nodes run after the given nodes, tensors or variables.

        None hides outer blocks, branches and loops: nodes that are created inside are outside all of them.
        """
        traced = open_blocks.traced_in(self)
        if traced is not None:
            return traced.control_dependencies(control_inputs)
        if control_inputs is None:
            return self._stack.waiting_for(None)
        return self._stack.waiting_for(lambda: self.table.awaited_nodes(control_inputs))

    def name_scope(self, name: str | None) -> AbstractContextManager[str]:
        """A context whose nodes' names start with `<name>/`. Yields the scope's name with a trailing slash.

        A name that ends with '/' is used unchanged, which re-enters a scope; None or '' leaves all scopes.
        """
        return NameContext((open_blocks.traced_in(self) or self)._stack, name)

    def get_name_scope(self) -> str:
        """The name of the open scopes, without a trailing slash; '' outside all scopes."""
        return self._stack.current.name

    def container(self, container_name: str) -> AbstractContextManager[str]:
        """A context whose stateful nodes have their state in this container."""
        return self._stack.in_container(container_name)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """A name in the current scope that no node has: `add`, `add_1`, ... Case does not distinguish, as in TensorFlow."""
        return self._stack.unique_name(name, self._stack.current.name, mark_as_used)
