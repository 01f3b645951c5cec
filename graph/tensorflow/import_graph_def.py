"""`import_graph_def`: adds the nodes of a `GraphDef` to a graph.

The message is not trusted. It is read and checked, and types and shapes are inferred again, before the graph changes. One error names
all unsupported ops. Device blocks around the call apply, as in TensorFlow. The request of a node has precedence, field by field. So a
model can be distributed over a cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..control_flow.recovery import recover_flow
from ..core.build import convert
from ..core.constant_value import static_value
from ..core.default_graph import get_default_graph
from ..core.dtypes import resource
from ..core.errors import InvalidArgumentError, UnimplementedError, invalid
from ..core.frames import topological
from ..core.graph import Graph, Node, Tensor
from ..core.opdef import opdef
from ..core.scopes import DeviceBlock, requested_device
from ..core.source_location import Origin, caller, locate
from ..formats.protos import message
from ..formats.record_format import FORMAT, VERSION, MalformedError
from ..io.serialization import Builder, Import
from .node_mapping import COMPOSED, UnsupportedError, attrs_of, composed_attrs, op_of

Ends = list[tuple[int, int]]  # outputs, as number of the node and of the output
_MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, MalformedError)
_SHAPELESS = 21  # up to this version of graphs, a placeholder of unknown shape is written as a scalar


def import_graph_def(
    graph_def: Any,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Iterable[str] | None = None,
    name: str | None = None,
    op_dict: None = None,
    producer_op_list: None = None,
) -> list[Any] | None:
    """Add the nodes of a `GraphDef` to the default graph.

    Args:
        graph_def: a `GraphDef` of Dovetail's or TensorFlow's classes, or its bytes.
        input_map: name of a tensor of the message (`x:0`, `x`, or `^x` for a control input) -> the tensor or node that replaces it.
        return_elements: names of nodes and tensors of the message to return.
        name: name scope of the nodes. `import` by default. '' adds no scope.
        op_dict: accepted for compatibility with TensorFlow.
        producer_op_list: accepted for compatibility with TensorFlow.

    Returns:
        The nodes and tensors of `return_elements`, or None if it is None.

    Raises:
        UnimplementedError: the package `protobuf` is not installed, or ops are not supported. The message lists them.
        InvalidArgumentError: the message is malformed, or an attribute is not supported. The graph does not change.
        ValueError: a name of `input_map` or `return_elements` is not in the message, or a name exists already.

    >>> graph_def = GraphDef()
    >>> graph_def.ParseFromString(open("frozen.pb", "rb").read())
    >>> logits, = import_graph_def(graph_def, {"input:0": images}, ["logits:0"], name="net")
    """
    graph = get_default_graph()
    definition = as_graph_def(graph_def)
    with graph.name_scope("import" if name is None else name) as scope:
        pass
    reader = _Importer(graph, definition, scope or "", input_map or {}, caller())
    nodes = reader.read()
    return None if return_elements is None else [reader.element(str(e), nodes) for e in return_elements]


def as_graph_def(value: Any) -> Any:
    """A `GraphDef` of Dovetail's class, from one of TensorFlow's class or from bytes. InvalidArgumentError if the bytes are malformed."""
    kind = message("GraphDef")
    if isinstance(value, kind):
        return value
    data = value.SerializeToString() if hasattr(value, "SerializeToString") else value
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"graph_def must be a GraphDef, not {value!r}")
    found = kind()
    try:
        found.ParseFromString(bytes(data))
    except Exception as e:  # protobuf's DecodeError, which has no class without the package
        raise invalid(f"This is not a GraphDef: {e}") from None
    return found


class _Importer:
    """An import: makes the message's nodes in topological order, by records."""

    def __init__(self, graph: Graph, definition: Any, prefix: str, mapped: Mapping[str, Any], origin: Origin) -> None:
        self.graph = graph
        self.definition = definition
        self.prefix = prefix
        self.origin = origin
        self.protos = {p.name: p for p in definition.node}
        outside: dict[Node, int] = {}
        self.mapped = {key: self._outside(key, value, outside) for key, value in _normal(mapped, graph).items()}
        self.builder = Builder(graph, Import(prefix, outside=tuple(outside)))
        self.texts: dict[str, int] = {}
        self.made: dict[str, Ends] = {}  # name in the message -> its outputs
        self.numbers: dict[str, int] = {}  # name in the message -> its node
        self.used: set[str] = set()

    @staticmethod
    def _outside(key: str, value: Any, outside: dict[Node, int]) -> tuple[int, int]:
        node = value.op if isinstance(value, Tensor) else value
        number = outside.setdefault(node, -1 - len(outside))
        return number, value.value_index if isinstance(value, Tensor) else -1

    def read(self) -> dict[str, Node]:
        """Make all nodes and add them to the graph. Returns them by their names in the message."""
        self._check()
        take = self.builder.take
        take((FORMAT, VERSION, 0, None))
        order = self._order()
        for name in order:
            self._node(self.protos[name])
        for name in order:
            self._close_loop(self.protos[name])
        unused = sorted(self.mapped.keys() - self.used)
        if unused:
            raise ValueError(f"input_map names what the graph_def does not take: {', '.join(unused)}")
        take(("end", len(self.builder.nodes)))
        try:
            arrived = self.builder.finish()
        except MalformedError as e:
            raise invalid(f"This GraphDef cannot be imported: {e}") from None
        around = self.graph.scopes.device
        for node in arrived.nodes:
            if not node.colocation:
                node.blocks = DeviceBlock(around, node.device, self.origin) if node.device else around
                node.device = requested_device(node, node.blocks)
        recover_flow(self.graph, arrived.join())
        return {name: arrived.nodes[number] for name, number in self.numbers.items()}

    def _check(self) -> None:
        """UnimplementedError if ops are not supported. InvalidArgumentError if two nodes have the same name."""
        if len(self.protos) != len(self.definition.node):
            twice = [n for n, count in Counter(p.name for p in self.definition.node).items() if count > 1]
            raise invalid(f"This GraphDef has several nodes called '{twice[0]}'")
        functions = len(self.definition.library.function)
        missing: Counter[str] = Counter()
        first: dict[str, str] = {}
        for proto in self.definition.node:
            try:
                op_of(proto)
            except UnsupportedError:
                missing[proto.op] += 1
                first.setdefault(proto.op, proto.name)
        if missing:
            listed = ", ".join(f"{op} ({count}; such as '{first[op]}')" for op, count in sorted(missing.items()))
            more = f" It has {functions} functions, which are TensorFlow 2's." if functions else ""
            raise UnimplementedError.of(f"This GraphDef has ops that Dovetail does not have: {listed}.{more}")

    def _order(self) -> list[str]:
        """Names in a topological order without back edges, which is close to the order of the message."""
        needs: dict[str, set[str]] = {}
        for name, proto in self.protos.items():
            before = {s for s, _ in map(_split, proto.input) if not self._is_back_edge(proto, s)}
            before -= {s for s, i in map(_split, proto.input) if self._key(s, i) in self.mapped}
            for source in before:
                if source not in self.protos:
                    raise invalid(f"Node '{name}' ({proto.op}) of this GraphDef takes '{source}', which is not in it")
            needs[name] = before
        order, stuck = topological({name: i for i, name in enumerate(self.protos)}, needs)
        if stuck is not None:
            raise invalid(f"The nodes of this GraphDef form a cycle, at '{stuck}'")
        return order

    def _is_back_edge(self, proto: Any, source: str) -> bool:
        return proto.op == "Merge" and source in self.protos and self.protos[source].op == "NextIteration"

    @staticmethod
    def _key(source: str, index: int) -> str:
        return f"^{source}" if index < 0 else f"{source}:{index}"

    def _taken(self, proto: Any) -> tuple[Ends, list[int]]:
        """The inputs of a node, and its control inputs."""
        inputs: Ends = []
        controls: list[int] = []
        for source, index in map(_split, proto.input):
            key = self._key(source, index)
            if key in self.mapped:
                self.used.add(key)
                number, output = self.mapped[key]
                if index < 0:
                    controls.append(number)
                else:
                    inputs.append((number, output))
            elif index < 0:
                controls.append(self.numbers[source])
            elif self._is_back_edge(proto, source):
                inputs.append(inputs[0])  # until the loop is closed
            elif index < len(self.made[source]):
                inputs.append(self.made[source][index])
            else:
                raise invalid(f"Node '{proto.name}' of this GraphDef takes '{key}', which does not exist")
        return inputs, controls

    def _node(self, proto: Any) -> None:
        inputs, controls = self._taken(proto)
        groups = (
            [v.decode().removeprefix("loc:@") for v in proto.attr["_class"].list.s] if "_class" in proto.attr else []
        )
        container = proto.attr["container"].s.decode() if "container" in proto.attr else ""
        beside = (controls, proto.device, tuple(g for g in groups if g in self.protos and g != proto.name), container)
        try:
            if proto.op in COMPOSED:
                self._compose(proto, inputs, beside)
                return
            definition = opdef(op_of(proto))
            attrs = attrs_of(proto, definition, [self._tensor(end) for end in inputs])
            if proto.op == "Placeholder" and attrs["shape"] == () and self.definition.versions.producer <= _SHAPELESS:
                attrs["shape"] = None
            number = self._take(proto.name, definition.name, inputs, attrs, beside)
        except InvalidArgumentError as e:
            raise invalid(
                f"Node '{proto.name}' ({proto.op}) of this GraphDef cannot be imported: {e.message}"
            ) from None
        except _MISFITS as e:
            raise invalid(f"Node '{proto.name}' ({proto.op}) of this GraphDef cannot be imported: {e}") from None
        self._tell(proto.name, number, [(number, i) for i in range(len(self.builder.nodes[number].outputs))])

    def _tell(self, name: str, number: int, ends: Ends) -> None:
        self.numbers[name] = number
        self.made[name] = ends

    def _take(self, name: str, op: str, inputs: Ends, attrs: dict[str, Any], beside: tuple[Any, ...]) -> int:
        """Make one node. Returns its number."""
        controls, device, colocation, container = beside
        line = locate(self.origin)
        flat = tuple(n for end in inputs for n in end)
        texts = [self._text(t) for t in (op, device, container, line.file)]
        record = (
            "n",
            name,
            texts[0],
            flat,
            tuple(controls),
            attrs,
            texts[1],
            colocation,
            texts[2],
            texts[3],
            line.line,
            None,
            -1,
        )
        self.builder.take(record)
        return len(self.builder.nodes) - 1

    def _text(self, text: str) -> int:
        if text not in self.texts:
            self.builder.take(("s", text))
            self.texts[text] = len(self.texts)
        return self.texts[text]

    def _tensor(self, end: tuple[int, int]) -> Tensor:
        number, output = end
        nodes = self.builder.nodes if number >= 0 else self.builder.how.outside  # type: ignore[union-attr]
        return nodes[number if number >= 0 else -number - 1].outputs[output]

    def _compose(self, proto: Any, inputs: Ends, beside: tuple[Any, ...]) -> None:
        """Make the nodes that a function makes in a separate graph."""
        scratch = Graph()
        stand_ins: dict[Tensor, tuple[int, int]] = {}
        with scratch.as_default():
            given = []
            for end in inputs:
                tensor = self._tensor(end)
                op, attrs = _stand_in(tensor)
                given.append(scratch.create(op, (), attrs).outputs[0])
                stand_ins[given[-1]] = end
            count = len(scratch)
            with scratch.name_scope(f"{proto.name}/"):
                result = COMPOSED[proto.op](composed_attrs(proto), *given)
        outputs = [] if isinstance(result, Node) else list(result) if isinstance(result, list) else [result]
        last = result if isinstance(result, Node) else outputs[-1].op
        numbers: dict[Node, int] = {}
        for node in scratch.nodes[count:]:
            taken = [stand_ins[t] if t in stand_ins else (numbers[t.op], t.value_index) for t in node.inputs]
            waits = [*beside[0], *(numbers[c] for c in node.controls)]
            called = proto.name if node is last else node.name
            numbers[node] = self._take(called, node.type, taken, node.attrs, (waits, *beside[1:]))
        ends = [stand_ins[t] if t in stand_ins else (numbers[t.op], t.value_index) for t in outputs]
        self._tell(proto.name, numbers[last], ends)

    def _close_loop(self, proto: Any) -> None:
        for source, _ in map(_split, proto.input):
            if self._is_back_edge(proto, source):
                self.builder.take(("l", self.numbers[proto.name], self.numbers[source]))

    def element(self, name: str, nodes: Mapping[str, Node]) -> Node | Tensor:
        """The node or tensor of a name in the message. ValueError if there is none."""
        source, colon, output = name.partition(":")
        if colon:
            key = f"{source}:{output}"
            if key in self.mapped:
                number, index = self.mapped[key]
                assert self.builder.how is not None
                return self.builder.how.outside[-number - 1].outputs[index]
            if source in self.made and output.isdecimal() and int(output) < len(self.made[source]):
                return self._tensor(self.made[source][int(output)])
        elif source in nodes:
            return nodes[source]
        raise ValueError(f"return_elements: the graph_def has no {name!r}")


def _stand_in(tensor: Tensor) -> tuple[str, dict[str, Any]]:
    """The op and attributes of a node without inputs that stands for a tensor: a constant, a variable, or a placeholder."""
    node = tensor.op
    if tensor.dtype.is_ref or tensor.dtype is resource:
        while node.inputs:
            node = node.inputs[0].op
    if node.type in ("Const", "VariableV2", "VarHandleOp"):
        return node.type, dict(node.attrs)
    value = static_value(tensor)
    if value is not None:
        return "Const", {"value": value}
    return "Placeholder", {"dtype": tensor.dtype.base, "shape": tensor.dims}


def _split(text: str) -> tuple[str, int]:
    """Split an input such as `x:1` into name and number. The number of `^x` is -1."""
    if text.startswith("^"):
        return text[1:], -1
    name, _, index = text.partition(":")
    return name, int(index) if index else 0


def _normal(mapped: Mapping[str, Any], graph: Graph) -> dict[str, Node | Tensor]:
    """An `input_map` with complete names as keys and tensors or nodes as values."""
    out: dict[str, Node | Tensor] = {}
    for key, value in mapped.items():
        key = key.decode() if isinstance(key, bytes) else str(key)
        if key.startswith("^"):
            element = graph.as_graph_element(value)
            out[key] = element.op if isinstance(element, Tensor) else element
        else:
            out[key if ":" in key else f"{key}:0"] = convert(value)
    return out
