"""Writes and reads graphs as bytes, in the form of `record_format`.

Data that are read are not trusted. Nothing is unpickled or evaluated, and each record is checked. The types and shapes of each node are
inferred again from its op's definition. The graph changes only after the last record was checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from ..core.dtypes import DType
from ..core.errors import InvalidArgumentError, invalid
from ..core.graph import Graph, Node, Tensor
from ..core.opdef import Attrs, OpDef, opdef as find_opdef
from ..core.scopes import DeviceBlock, RecordedBlock
from ..core.shape import Dims, as_dims, compatible, merge
from ..core.source_location import locate
from ..core.verify import find_cycle
from ..formats.atomic_files import write_durably
from ..formats.record_format import FORMAT, MAX_RECORD, VERSION, MalformedError, Reader, extension


def graph_to_bytes(graph: Graph, from_version: int = 0, attrs_of: Callable[[Node], Attrs] | None = None) -> bytes:
    """The nodes of a graph from number `from_version` on, as bytes for `extend_from_bytes`.

    Args:
        graph: the graph.
        from_version: the number of the first node.
        attrs_of: returns the attributes to write for a node. If it is None, those of the node.

    Raises:
        InvalidArgumentError: a node has an attribute that cannot be written. The message names both.
    """
    return b"".join(records(graph, from_version, attrs_of))


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file atomically.

    The file has the nodes with their names, devices, shapes, source lines and device blocks, and the graph-level seed. It does
    not have collections and `Variable` objects.

    Args:
        graph: the graph.
        path: name of the file.

    >>> save(dt.get_default_graph(), "/tmp/model.graph")
    """

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            file.writelines(records(graph, 0))

    write_durably(Path(path), write)


def records(graph: Graph, start: int, attrs_of: Callable[[Node], Attrs] | None = None) -> Iterator[bytes]:
    """The records of the nodes from number `start` on. Arguments and errors are as for `graph_to_bytes`."""
    nodes = graph.nodes
    if graph.flow.has_open_loops:
        raise invalid("The graph cannot be saved or run now: it is in the middle of building a while_loop")
    loops: list[tuple[int, int]] = []
    if not 0 <= start <= len(nodes):
        raise invalid(f"from_version must be in [0, {len(nodes)}], not {start}")
    out: list[bytes] = []  # records that must come before the next node
    pack = msgpack.Packer(default=lambda value: extension(value, out), autoreset=True).pack
    texts: dict[str, int] = {}
    blocks: dict[DeviceBlock | None, int] = {None: -1}
    # By the id of the code object, because many nodes come from one line, and a code object hashes slowly.
    lines: dict[tuple[int, int], tuple[int, int]] = {}

    def number(text: str) -> int:
        found = texts.get(text)
        if found is None:
            found = texts[text] = len(texts)
            out.append(pack(("s", text)))
        return found

    def block_number(block: DeviceBlock | None) -> int:
        chain = []
        while block not in blocks:
            assert block is not None
            chain.append(block)
            block = block.outer
        for b in reversed(chain):
            line = b.source
            record = ("b", blocks[b.outer], b.spec, b.describe(), number(line.file), line.line)
            blocks[b] = len(blocks) - 1
            out.append(pack(record))
        return blocks[chain[0] if chain else block]

    yield pack((FORMAT, VERSION, start, graph.seed))
    stop = len(nodes)  # another thread may add nodes meanwhile, which are for the next message
    for index in range(start, stop):
        node = nodes[index]
        inputs: list[int] = []
        back = node.back_edge
        if back is not None:
            loops.append((index, back.index))
        for t in node.inputs:
            if t.op is back:
                t = node.inputs[0]
            inputs += (t.op.index, t.value_index)
        attrs = node.attrs if attrs_of is None else attrs_of(node)
        code, at = node._origin
        place = lines.get((id(code), at))
        if place is None:
            line = locate(node._origin)
            place = lines[id(code), at] = number(line.file), line.line
        try:
            record = pack(
                (
                    "n", node.name, number(node.opdef.name), inputs, [c.index for c in node.controls],
                    attrs, number(node.device), node.colocation, number(node.container), *place,
                    [t.dims for t in node.outputs], block_number(node.blocks),
                )
            )  # fmt: skip
        except (TypeError, ValueError, OverflowError) as e:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' ({node.type}) created at {node.source} cannot be saved or sent: {e}. "
                "An attr is None, a bool, a number, text, bytes, a dtype, an array, or a tuple of those.",
            ) from None
        if len(record) > MAX_RECORD:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' created at {node.source} holds {len(record)} bytes of text or attrs; "
                f"at most {MAX_RECORD} can be saved or sent",
            )
        if out:
            yield from out
            out.clear()
        yield record
        searched = graph.searched.get(node)
        if searched is not None:
            chosen = pack(("p", index, number(searched)))
            yield from out
            out.clear()
            yield chosen
    for loop in loops:
        yield pack(("l", *loop))
    yield pack(("end", stop - start))


# --- reading ----------------------------------------------------------------------------------------------------------


MAX_NAME = 4096  # characters
MAX_DEPTH = 8  # of nested tuples in an attribute
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, DType})


def extend_from_bytes(graph: Graph, data: bytes | memoryview) -> list[Node]:
    """Append the nodes that `graph_to_bytes` wrote to a graph that has exactly the nodes before them.

    Args:
        graph: the graph to extend.
        data: the bytes.

    Raises:
        InvalidArgumentError: the data are malformed. The message names the node. The graph does not change.
    """
    reader = Reader(max(len(data), 1))
    reader.feed(data)
    return _read(graph, reader).join()


def load(path: str | os.PathLike[str]) -> Graph:
    """Read a graph that `save` wrote.

    Raises:
        InvalidArgumentError: the file is damaged or not a graph.
        OSError: the file cannot be read.

    >>> graph = load("/tmp/model.graph")
    """
    graph = Graph()
    with Path(path).open("rb") as file:
        _read(graph, Reader(MAX_RECORD, file)).join()
    return graph


def read_stream(graph: Graph, file: Any, prefix: str = "", clear_devices: bool = False) -> Arrived:
    """Read a saved graph's nodes for a graph that may already have nodes. `Arrived.join` adds them.

    Args:
        graph: the graph to extend.
        file: a file that is open for reading bytes, at the beginning of the records.
        prefix: prefix of all names, such as `scope/`. It also applies to colocation groups, loops and state with the names of nodes.
        clear_devices: whether to clear the device requests of the nodes.

    Raises:
        InvalidArgumentError: the data are damaged, or a name exists already.
    """
    return _read(graph, Reader(MAX_RECORD, file), Import(prefix, clear_devices))


@dataclass(frozen=True, slots=True)
class Arrived:
    """Nodes that were read and checked. They refer to their graph, but are not in it until they join it.

    Attributes:
        graph: the graph.
        nodes: the nodes, whose numbers continue those of the graph.
        has_late_edges: whether a control edge goes against their order.
        seed: the graph-level seed of the data, or None.
        searched: devices that a placement search has chosen for nodes.
    """

    graph: Graph
    nodes: list[Node]
    has_late_edges: bool
    seed: int | None
    searched: dict[Node, str]

    def join(self) -> list[Node]:
        """Append the nodes to their graph. InvalidArgumentError if it has changed meanwhile or may not grow."""
        try:
            self.graph.insertion.adopt(self.nodes, self.has_late_edges)
        except (ValueError, RuntimeError) as e:
            raise invalid(f"These nodes cannot be added to the graph: {e}") from None
        if self.seed is not None:
            self.graph.seed = self.seed
        self.graph.searched.update(self.searched)
        return self.nodes


@dataclass(frozen=True, slots=True)
class Import:
    """How a whole graph is added to another one.

    Attributes:
        prefix: as for `read_stream`.
        clear_devices: as for `read_stream`.
        outside: nodes of the graph that may be inputs of the new nodes. They have the numbers -1, -2, ...
    """

    prefix: str
    clear_devices: bool = False
    outside: tuple[Node, ...] = ()


def _read(graph: Graph, reader: Reader, how: Import | None = None) -> Arrived:
    """Read and check a stream."""
    builder = Builder(graph, how)
    try:
        for record in reader:
            builder.take(record)
        return builder.finish()
    except InvalidArgumentError:
        raise
    except MalformedError as e:
        raise invalid(f"Malformed graph data, {builder.position()}: {e}") from None
    except (
        ValueError,
        TypeError,
        KeyError,
        UnicodeDecodeError,
        msgpack.UnpackException,
        msgpack.OutOfData,
        RecursionError,
    ) as e:
        raise invalid(f"Malformed graph data, {builder.position()}: {type(e).__name__}: {e}") from None


class Builder:
    """Makes nodes from records, outside the graph until all are checked. Call `take` for each record, then `finish`."""

    def __init__(self, graph: Graph, how: Import | None) -> None:
        self.graph = graph
        self.base = len(graph)
        self.how = how
        self.shift = 0 if how is None else self.base  # the difference between numbers in the graph and in the stream
        self.nodes: list[Node] = []
        self._texts: list[str] = []
        self._ops: dict[int, OpDef] = {}
        self._devices: dict[int, str] = {}
        self._blocks: list[RecordedBlock] = []
        self._controls: list[tuple[int, ...]] = []
        self._names: set[str] = set()
        self._seed: int | None = None
        self._searched: dict[Node, str] = {}
        self._started = self._ended = False

    def position(self) -> str:
        """The position in the stream, for errors."""
        return f"after node '{self.nodes[-1].name}'" if self.nodes else "at its start"

    def take(self, record: tuple[Any, ...]) -> None:
        """Check a record, and make what it describes."""
        if not self._started:
            self._header(record)
        elif self._ended:
            raise MalformedError("something follows the end")
        elif record[0] == "n" and len(record) == 13:
            self._node(*record[1:])
        elif record[0] == "s" and len(record) == 2 and type(record[1]) is str:
            self._texts.append(record[1])
        elif record[0] == "b" and len(record) == 6:
            self._block(*record[1:])
        elif record[0] == "l" and len(record) == 3:
            self._loop(*record[1:])
        elif record[0] == "p" and len(record) == 3:
            self._placed(*record[1:])
        elif record[0] == "end" and len(record) == 2:
            self._ended = True
            if record[1] != len(self.nodes):
                raise MalformedError(f"{len(self.nodes)} nodes arrived, {record[1]!r} were sent")
        else:
            raise MalformedError(f"unknown record {record[0]!r} of {len(record)} parts")

    def finish(self) -> Arrived:
        """Check that the stream is complete and control edges do not close a cycle. Returns the nodes."""
        if not self._ended:
            raise MalformedError("the data end too early")
        has_late_edges = False
        for node, controls in zip(self.nodes, self._controls, strict=True):
            if controls:
                node.controls = tuple([self._at(i, len(self.nodes)) for i in controls])
                has_late_edges = has_late_edges or max(controls) + self.shift >= node.index
        if has_late_edges:
            cycle = find_cycle([*self.graph.nodes[: self.base], *self.nodes])
            if cycle:
                raise MalformedError("control edges close a cycle: " + " -> ".join(n.name for n in cycle))
        return Arrived(self.graph, self.nodes, has_late_edges, None if self.base else self._seed, self._searched)

    def _header(self, record: tuple[Any, ...]) -> None:
        if len(record) != 4 or record[0] != FORMAT:
            raise MalformedError("this is no graph")
        _, version, start, seed = record
        if version != VERSION:
            raise MalformedError(f"format version {version!r} is not known; this release reads version {VERSION}")
        if start != self.base - self.shift:
            raise MalformedError(f"the data continue a graph of {start!r} nodes, this one has {self.base - self.shift}")
        if seed is not None and type(seed) is not int:
            raise MalformedError("the seed is no number")
        self._seed = seed
        self._started = True

    def _loop(self, merge: Any, following: Any) -> None:
        target, source = self._at(merge, len(self.nodes)), self._at(following, len(self.nodes))
        is_new = target.index >= self.base
        if not is_new or (target.type, source.type) != ("Merge", "NextIteration") or len(target.inputs) != 2:
            raise MalformedError(f"nodes number {merge} and {following} are no loop's Merge and NextIteration")
        (mine, _), (theirs,) = target.inputs, source.outputs
        if mine.dtype.base is not theirs.dtype.base or not compatible(target.outputs[0].dims, theirs.dims):
            raise MalformedError(f"what '{source.name}' leads back does not fit '{target.name}'")
        target.inputs = (mine, theirs)

    def _placed(self, index: Any, device: Any) -> None:
        name = self._device(device)
        if type(index) is not int or not self.nodes or index + self.shift != self.nodes[-1].index:
            raise MalformedError(f"the device that a search chose for node number {index!r} does not follow that node")
        if self.how is None or not self.how.clear_devices:
            self._searched[self.nodes[-1]] = name

    def _text(self, number: Any) -> str:
        if type(number) is not int or not 0 <= number < len(self._texts):
            raise MalformedError(f"text number {number!r} does not exist")
        return self._texts[number]

    def _at(self, index: Any, made: int) -> Node:
        """The node of a number, which must be that of a node in the graph (or outside an import) or of the first `made` new nodes."""
        if type(index) is int and index < 0 and self.how is not None and -index <= len(self.how.outside):
            return self.how.outside[-index - 1]
        if type(index) is not int or not 0 <= index < self.base - self.shift + made:
            raise MalformedError(f"node number {index!r} does not exist")
        number: int = index + self.shift
        return self.graph.nodes[number] if number < self.base else self.nodes[number - self.base]

    def _block(self, outer: Any, spec: Any, description: Any, file: Any, line: Any) -> None:
        if type(outer) is not int or not -1 <= outer < len(self._blocks) or type(description) is not str:
            raise MalformedError("a device block is malformed")
        if spec is not None and type(spec) is not str:
            raise MalformedError("a device block's request is malformed")
        around = None if outer < 0 else self._blocks[outer]
        self._blocks.append(RecordedBlock(around, spec, description, self._text(file), _count(line)))

    def _op(self, number: Any) -> OpDef:
        if number not in self._ops:
            self._ops[number] = find_opdef(self._text(number))
        return self._ops[number]

    def _device(self, number: Any) -> str:
        # The result of a device function is not canonical. The placer checks it, as in the process that made it.
        device = self._devices.get(number)
        if device is None:
            device = self._text(number)
            if len(device) > MAX_NAME or not device.isprintable():
                raise MalformedError("its device is no device's name")
            self._devices[number] = device
        return device

    def _node(
        self, name: Any, op: Any, inputs: Any, controls: Any, attrs: Any, device: Any, colocation: Any,
            container: Any,
        file: Any, line: Any, shapes: Any, block: Any,
    ) -> None:  # fmt: skip
        if type(name) is not str or not 0 < len(name) <= MAX_NAME or ":" in name or not name.isprintable():
            raise MalformedError(f"{name!r} is no node's name")
        if self.how is not None:
            name, attrs, colocation = self._under(self.how.prefix, name, attrs, colocation)
        if name in self._names or name in self.graph:
            raise invalid(f"Malformed graph data: a node called '{name}' exists already")
        try:
            node = self._made(op, inputs, attrs, shapes)
            node.name = name
            node.device = "" if self.how is not None and self.how.clear_devices else self._device(device)
            node.container = self._text(container)
            node._origin = (self._text(file), _count(line))
            node.colocation = _texts(colocation)
            node.blocks = None if block == -1 else self._blocks[_count(block)]
            if type(controls) is not tuple or not all(type(c) is int for c in controls):
                raise MalformedError("its control inputs are malformed")
        except Exception as e:
            # Op definitions expect attributes of users. Those of a message may cause any error.
            raise invalid(f"Malformed graph data: node '{name}': {_message(e)}") from None
        node.index = self.base + len(self.nodes)
        self._names.add(name)
        self.nodes.append(node)
        self._controls.append(controls)

    def _under(self, prefix: str, name: str, attrs: Any, colocation: Any) -> tuple[str, Any, Any]:
        """A node's name, attributes and colocation groups, with a prefix for all names."""
        # A loop has the name of its frame. State has the name of its node unless it has another shared name.
        if prefix and type(attrs) is dict:
            if "frame_name" in attrs:
                attrs = attrs | {"frame_name": f"{prefix}{attrs['frame_name']}"}
            if attrs.get("shared_name") == name:
                attrs = attrs | {"shared_name": f"{prefix}{name}"}
        return f"{prefix}{name}", attrs, tuple([f"{prefix}{c}" for c in _texts(colocation)]) if prefix else colocation

    def _made(self, op: Any, inputs: Any, attrs: Any, shapes: Any) -> Node:
        node = Node()
        node.graph = self.graph
        node.opdef = definition = self._op(op)
        made = len(self.nodes)
        if type(inputs) is not tuple or len(inputs) % 2:
            raise MalformedError("its inputs are malformed")
        taken = []
        for i in range(0, len(inputs), 2):
            outputs = self._at(inputs[i], made).outputs
            output = inputs[i + 1]
            if type(output) is not int or not 0 <= output < len(outputs):
                raise MalformedError(f"output {output!r} of node number {inputs[i]} does not exist")
            taken.append(outputs[output])
        node.inputs = tuple(taken)
        if type(attrs) is not dict:
            raise MalformedError("its attrs are malformed")
        for key, value in attrs.items():
            if type(key) is not str or not key.isidentifier():
                raise MalformedError(f"{key!r} is no attr's name")
            if type(value) not in _PLAIN:
                _check_attr(key, value, 0)
        node.attrs = attrs
        signature = definition.infer(node.inputs, attrs)
        if shapes is None:  # the inferred shapes are complete
            shapes = (None,) * len(signature)
        if type(shapes) is not tuple or len(shapes) != len(signature):
            raise MalformedError(f"it has {len(signature)} outputs, the data have another number")
        node.outputs = tuple(
            [_output(node, i, *made, known) for i, (made, known) in enumerate(zip(signature, shapes, strict=True))]
        )
        node.controls = ()
        return node


def _output(node: Node, index: int, dtype: Any, dims: Any, known: Any) -> Tensor:
    """An output as its op infers it, with the merged shape of the message. Both depend on data that are not trusted."""
    if not isinstance(dtype, DType):
        raise MalformedError(f"its attrs give it a value of type {dtype!r}")
    return Tensor(node, index, dtype, _dims(dims if dims == known else merge(_dims(dims), _dims(known))))


def _message(e: Exception) -> str:
    return (
        str(e)
        if isinstance(e, (MalformedError, ValueError, TypeError, InvalidArgumentError)) and str(e)
        else f"{type(e).__name__}: {e}"
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise MalformedError(f"{value!r} is no count")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not tuple or not all(type(v) is str for v in value):
        raise MalformedError("its colocation groups are malformed")
    return value


def _dims(value: Any) -> Dims:
    if value is not None and (
        type(value) is not tuple or not all(d is None or (type(d) is int and d >= 0) for d in value)
    ):
        raise MalformedError("a shape is malformed")
    return as_dims(value)


def _check_attr(name: str, value: Any, depth: int) -> None:
    if type(value) is tuple and depth < MAX_DEPTH:
        for item in value:
            if type(item) not in _PLAIN:
                _check_attr(name, item, depth + 1)
    elif not isinstance(value, np.ndarray):
        raise MalformedError(f"attr {name} holds a {type(value).__name__}")
