"""Nodes and tensors: what a graph is made of.

A `Node` is one operation in the graph; a `Tensor` is one of its outputs: a name for a value that will exist when the graph
runs. TensorFlow 1 calls a node `Operation`; both names are public. Both are made by `Graph.create` only.

Operators on tensors (`a + b`, `t[1:]`) build nodes too. The functions behind them live with their ops, which import this
module; they put themselves into `operators` when they are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .opdef import OpDef
from .shape import Dims, TensorShape, merge, text
from .source_location import Origin, SourceLine, locate

if TYPE_CHECKING:
    from .graph import Graph
    from .scopes import DeviceBlock

# Python operator -> the function that builds its node: {"add": add, "getitem": ..., ...}. Rows come from graph/ops/.
operators: dict[str, Callable[..., Tensor]] = {}
assignments: list[
    Callable[[Tensor], Callable[..., Tensor]]
] = []  # one: gives the method that sets a slice of a variable


class Reference:
    """A tensor or variable as an object: equal to another reference of the same one."""

    __slots__ = ("_object",)

    def __init__(self, object: Any) -> None:
        self._object = object

    def deref(self) -> Any:
        """The tensor or variable."""
        return self._object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


class TensorOperators:
    """Python's operators for anything that stands for a tensor (tensors, variables)."""

    __slots__ = ()
    __array_priority__ = 100  # so that `ndarray + tensor` asks the tensor

    def __add__(self, other: Any) -> Tensor:
        return operators["add"](self, other)

    def __radd__(self, other: Any) -> Tensor:
        return operators["add"](other, self)

    def __sub__(self, other: Any) -> Tensor:
        return operators["sub"](self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return operators["sub"](other, self)

    def __mul__(self, other: Any) -> Tensor:
        return operators["mul"](self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return operators["mul"](other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return operators["truediv"](self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return operators["truediv"](other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return operators["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return operators["floordiv"](other, self)

    def __mod__(self, other: Any) -> Tensor:
        return operators["mod"](self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return operators["mod"](other, self)

    def __pow__(self, other: Any) -> Tensor:
        return operators["pow"](self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return operators["pow"](other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return operators["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return operators["matmul"](other, self)

    def __and__(self, other: Any) -> Tensor:
        return operators["and"](self, other)

    def __rand__(self, other: Any) -> Tensor:
        return operators["and"](other, self)

    def __or__(self, other: Any) -> Tensor:
        return operators["or"](self, other)

    def __ror__(self, other: Any) -> Tensor:
        return operators["or"](other, self)

    def __xor__(self, other: Any) -> Tensor:
        return operators["xor"](self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return operators["xor"](other, self)

    def __lt__(self, other: Any) -> Tensor:
        return operators["lt"](self, other)

    def __le__(self, other: Any) -> Tensor:
        return operators["le"](self, other)

    def __gt__(self, other: Any) -> Tensor:
        return operators["gt"](self, other)

    def __ge__(self, other: Any) -> Tensor:
        return operators["ge"](self, other)

    def __neg__(self) -> Tensor:
        return operators["neg"](self)

    def __abs__(self) -> Tensor:
        return operators["abs"](self)

    def __invert__(self) -> Tensor:
        return operators["invert"](self)

    def __getitem__(self, key: Any) -> Tensor:
        return operators["getitem"](self, key)

    def experimental_ref(self) -> Reference:
        """What stands for this object itself in sets and dicts."""
        return Reference(self)


class Tensor(TensorOperators):
    """One output of a node: the name of a value that exists when the graph runs.

    Attributes:
        op: the node that makes it.
        value_index: which of the node's outputs it is.
        dtype: element type; a reference type for a TF1 variable's own output.
        dims: static shape as plain data: sizes or None, or None altogether when the rank is unknown.

    Two tensors are equal only if they are the same one (`==` does not build a node, as in TensorFlow 1; use `dt.equal`).
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
        """The graph it belongs to."""
        return self.op.graph

    @property
    def device(self) -> str:
        """What its node asks for: a canonical, possibly partial device name, or ''."""
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self.dims)

    def get_shape(self) -> TensorShape:
        """The static shape (TF1's spelling)."""
        return TensorShape(self.dims)

    def set_shape(self, shape: Any) -> None:
        """Add what you know about the static shape; ValueError when it contradicts what is known."""
        self.dims = merge(self.dims, TensorShape(shape).dims_tuple)

    def consumers(self) -> list[Node]:
        """Nodes that take this tensor as a data input, in order of creation."""
        return [n for n in self.graph.get_operations() if any(t is self for t in n.inputs)]

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """Run the default (or given) session for this tensor's value."""
        return self.graph.session_for(session, "eval").run(self, feed_dict)

    @property
    def assign(self) -> Callable[..., Tensor]:
        """Of a slice of a variable, `v[1:]`: `assign(value)` sets it. AttributeError: it is another tensor."""
        return assignments[0](self)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.dims or self.dims[0] is None:
            raise TypeError(f"Cannot iterate over {self!r}: its first size is not known before the graph runs")
        return (self[i] for i in range(self.dims[0]))

    def __len__(self) -> int:
        if not self.dims or self.dims[0] is None:
            raise TypeError(f"{self!r} has no length before the graph runs; use dt.shape(tensor)[0]")
        return self.dims[0]

    def __bool__(self) -> bool:
        raise TypeError(
            f"{self!r} has no truth value before the graph runs. Use dt.cond or dt.where to choose inside the graph, "
            "or session.run to get the value."
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(f"{self!r} has no value before the graph runs; get one with session.run(tensor)")

    def __float__(self) -> float:
        raise TypeError(
            f"{self!r} has no value before the graph runs; get one with session.run(tensor), or use dt.cast"
        )

    __int__: Any = __float__

    def __repr__(self) -> str:
        return f"<dt.Tensor '{self.name}' shape={text(self.dims)} dtype={self.dtype.name}>"


@dataclass(slots=True)
class NodeDef:
    """A node in plain data, as TensorFlow 1's device functions read it.

    Attributes:
        name: its name. op: what it does, such as `MatMul`. device: what it asks for.
        input: the tensors it takes (`a`, `b:1`), then the nodes it waits for (`^c`).
        attr: its constants. They are Python values, not messages as in TensorFlow.
    """

    name: str = ""
    op: str = ""
    input: tuple[str, ...] = ()
    device: str = ""
    attr: Mapping[str, Any] = field(default_factory=dict)


class Node:
    """One operation in a graph. TensorFlow 1 calls it `Operation`.

    Attributes:
        graph: the graph it belongs to.
        index: position in order of creation; inputs always come earlier, but for a loop's back edge.
        opdef: the definition of its op.
        name: unique in the graph.
        inputs: the tensors it takes.
        controls: nodes that must have run before it. `control_inputs` gives them as a list, as TensorFlow does.
        outputs: the tensors it makes.
        attrs: constants of this node (`{"transpose_a": False}`).
        device: what it asks for: a canonical, possibly partial device name, or ''.
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
        """The nodes that must have run before it, in a list of the caller's own."""
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
        """An attribute's value; ValueError names those that exist. `_class` is the list of its groups, if it is in others'."""
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
        """TensorFlow's `loc:@` names of its groups; its own when it is in no other."""
        return [b"loc:@" + g.encode() for g in self.colocation or (self.name,)]

    def values(self) -> tuple[Tensor, ...]:
        """The outputs (TF1's spelling)."""
        return self.outputs

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Run the default (or given) session for this node's effect."""
        self.graph.session_for(session, "run").run(self, feed_dict)

    def _add_control_input(self, node: Node) -> None:
        self.graph.add_control_input(self, node)

    def _add_control_inputs(self, nodes: Any) -> None:
        for node in nodes:
            self.graph.add_control_input(self, node)

    def _set_device(self, device: Any) -> None:
        self.graph.set_device(self, device)

    def __repr__(self) -> str:
        return f"<dt.Operation '{self.name}' type={self.type}>"


Operation = Node
