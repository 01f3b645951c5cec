"""Graphs as bytes: for messages between processes, and for files.

One form serves both: a stream of small msgpack arrays, the records, that can be written and read piece by
piece whatever the size of the graph.

    ["dovetail-graph", version, nodes before, seed]   first
    ["s", text]                                       a text that later records name by its number (0, 1, ...)
    ["b", outer or -1, spec, description, file, line] a device block, numbered likewise; told, never applied
    ["c", bytes]                                      a piece of a large constant, which the next node takes
    ["n", name, op, inputs, control inputs, attrs, device, colocation, container, file, line, shapes, block]
    ["l", node, node]                                 a loop's Merge, and the NextIteration that leads back
    ["end", number of nodes]                          last, so that a stream that was cut is noticed

`inputs` is flat: node number and output number in turn. A loop's Merge, which comes before its
NextIteration, has its first input twice there. A node's device is what it asked for when it was
made; loading does not apply device blocks again. Element types and arrays travel as msgpack extension types,
arrays as raw elements.

What is read is not trusted. Nothing is unpickled or evaluated; each record is checked; each node's types and
shapes are inferred again from its definition; the graph changes only after the last record was found good.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgpack
import numpy as np

from . import dtypes
from .dtypes import DType
from .errors import InvalidArgumentError
from .graph import Graph
from .node import Node, Tensor
from .opdef import OpDef, opdef as find_opdef
from .scopes import DeviceBlock
from .shape import Dims, as_dims, compatible, merge
from .source import locate
from .verify import find_cycle

Array: TypeAlias = np.ndarray[Any, Any]

FORMAT = "dovetail-graph"
VERSION = 1
CHUNK = 64 << 20  # bytes of a constant in one record; msgpack's own limit is 4 GiB
MAX_RECORD = 4 * CHUNK  # bytes of any record
MAX_RANK = 32
MAX_NAME = 4096  # characters
MAX_DEPTH = 8  # tuples inside one another, in one attr

_DTYPE, _ARRAY, _CHUNKED = 1, 2, 3  # msgpack extension types
_BY_NAME = {t.name: t for base in dtypes.ALL for t in (base, base.ref)}
_PLAIN = frozenset({type(None), bool, int, float, str, bytes, DType})


def graph_to_bytes(graph: Graph, from_version: int = 0) -> bytes:
    """The nodes of a graph from number `from_version` on, as bytes for `extend_from_bytes`.

    Raises:
        InvalidArgumentError: a node has an attr that cannot travel; the text names both.
    """
    return b"".join(records(graph, from_version))


def extend_from_bytes(graph: Graph, data: bytes | memoryview) -> list[Node]:
    """Append the nodes that `graph_to_bytes` wrote, to a graph that has exactly the nodes before them.

    Raises:
        InvalidArgumentError: anything is wrong with the data; the text names the node. The graph has not
            changed then.
    """
    reader = _Reader(max(len(data), 1))
    reader.feed(data)
    return _restore(graph, reader)


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file, piece by piece. The file appears whole or not at all.

    Nodes are kept with their names, devices, shapes, source lines and device blocks, and the graph-level
    seed; Python objects around them (collections, `Variable` objects) are not.
    """
    target = Path(path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            for record in records(graph, 0):
                file.write(record)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> Graph:
    """Read a graph that `save` wrote.

    Raises:
        InvalidArgumentError: the file is damaged or no graph. OSError: it cannot be read.
    """
    graph = Graph()
    with Path(path).open("rb") as file:
        _restore(graph, _Reader(MAX_RECORD, file))
    return graph


def import_stream(graph: Graph, file: Any, prefix: str = "", clear_devices: bool = False) -> list[Node]:
    """Append a saved graph's nodes to a graph that may have nodes of its own.

    Args:
        file: an open file of bytes, at the beginning of what `records` gave.
        prefix: put before all names (and those of colocation groups, loops and state that go by a node's name), such as `scope/`.
        clear_devices: let the nodes ask for no device.

    Raises:
        InvalidArgumentError: the data are damaged, or a name is taken. Nothing has been added then.
    """
    return _restore(graph, _Reader(MAX_RECORD, file), _Import(prefix, clear_devices))


# --- writing ------------------------------------------------------------------------------------------------


def records(graph: Graph, start: int) -> Iterator[bytes]:
    """The nodes from number `start` on, as records one after the other. Errors as of `graph_to_bytes`."""
    nodes = graph.nodes
    if graph.has_open_loops:
        raise InvalidArgumentError(
            None, None, "The graph cannot be saved or run now: it is in the middle of building a while_loop"
        )
    loops: list[tuple[int, int]] = []
    if not 0 <= start <= len(nodes):
        raise InvalidArgumentError(None, None, f"from_version must be in [0, {len(nodes)}], not {start}")
    out: list[bytes] = []  # records that must come before the next node
    pack = msgpack.Packer(default=lambda value: _extension(value, out), autoreset=True).pack
    texts: dict[str, int] = {}
    blocks: dict[DeviceBlock | None, int] = {None: -1}
    lines: dict[
        tuple[int, int], tuple[int, int]
    ] = {}  # one line makes many nodes; a code object hashes slowly, its id does not

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
    stop = len(nodes)  # another thread may add nodes meanwhile: they are for the next message
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
        code, at = node._origin
        place = lines.get((id(code), at))
        if place is None:
            line = locate(node._origin)
            place = lines[id(code), at] = number(line.file), line.line
        try:
            record = pack(
                (
                    "n", node.name, number(node.opdef.name), inputs, [c.index for c in node.controls],
                    node.attrs, number(node.device), node.colocation, number(node.container), *place,
                    [t.dims for t in node.outputs], block_number(node.blocks),
                )
            )  # fmt: skip
        except (TypeError, ValueError, OverflowError) as e:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' ({node.type}) made at {node.source} cannot be saved or sent: {e}. "
                "An attr is None, a bool, a number, text, bytes, a dtype, an array, or a tuple of those.",
            ) from None
        if len(record) > MAX_RECORD:
            raise InvalidArgumentError(
                node,
                node,
                f"Node '{node.name}' made at {node.source} holds {len(record)} bytes of text or attrs; "
                f"at most {MAX_RECORD} can be saved or sent",
            )
        if out:
            yield from out
            out.clear()
        yield record
    for loop in loops:
        yield pack(("l", *loop))
    yield pack(("end", stop - start))


def _extension(value: Any, out: list[bytes]) -> Any:
    """What msgpack does not know: an element type, or an array, whose pieces go to `out` when it is large."""
    if isinstance(value, DType):
        return msgpack.ExtType(_DTYPE, value.name.encode())
    if isinstance(value, np.ndarray):
        dtype = dtypes.as_dtype(value.dtype)
        if dtype is dtypes.string:
            items = [v.encode() if isinstance(v, str) else v for v in value.ravel()]
            if not all(isinstance(v, bytes) for v in items):
                raise TypeError("an array of objects holds something that is not text")
            return msgpack.ExtType(_ARRAY, msgpack.packb((dtype.name, value.shape, items)))
        if value.nbytes <= CHUNK:
            return msgpack.ExtType(_ARRAY, msgpack.packb((dtype.name, value.shape, value.tobytes())))
        flat: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        raw = memoryview(flat)
        pieces = range(0, len(raw), CHUNK)
        out.extend(msgpack.packb(("c", raw[i : i + CHUNK])) for i in pieces)
        return msgpack.ExtType(_CHUNKED, msgpack.packb((dtype.name, value.shape, len(pieces))))
    raise TypeError(f"{value!r} is a {type(value).__name__}")


# --- reading ------------------------------------------------------------------------------------------------


class RecordedBlock(DeviceBlock):
    """A device block that a loaded node was made in: told in `explain`, never applied."""

    __slots__ = ("_description",)

    def __init__(self, outer: DeviceBlock | None, spec: str | None, description: str, file: str, line: int) -> None:
        self.outer = outer
        self.spec = spec
        self.function = None
        self.merged = None
        self._origin = (file, line)
        self._description = description

    @property
    def clears(self) -> bool:
        """Whether it was `device(None)`."""
        return self.spec is None and self._description.startswith("None")

    def describe(self) -> str:
        """What the block asked for, in words."""
        return self._description


class _BadError(Exception):
    """What is wrong with a record; `_restore` adds which one it is."""


class _Reader:
    """The records of a stream. Pieces of a large constant are kept until the node that takes them comes."""

    def __init__(self, limit: int, file: Any = None) -> None:
        names = (
            "max_buffer_size",
            "max_str_len",
            "max_bin_len",
            "max_array_len",
            "max_map_len",
            "max_ext_len",
        )
        limits = dict.fromkeys(names, limit)
        self._pieces: list[bytes] = []
        self._unpacker = msgpack.Unpacker(file, use_list=False, ext_hook=self._extension, **limits)
        self.feed = self._unpacker.feed

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for record in self._unpacker:
            if type(record) is not tuple or not record:
                raise _BadError("a record is not an array")
            if record[0] != "c":
                yield record
            elif len(record) == 2 and isinstance(record[1], bytes):
                self._pieces.append(record[1])
            else:
                raise _BadError("a piece of a constant is not bytes")

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _DTYPE:
            return _dtype(data.decode())
        if code not in (_ARRAY, _CHUNKED):
            raise _BadError(f"unknown extension type {code}")
        name, shape, content = msgpack.unpackb(data, use_list=False)
        if code == _CHUNKED:
            if type(content) is not int or not 0 < content <= len(self._pieces):
                raise _BadError("pieces of a constant are missing")
            taken, self._pieces[:content] = self._pieces[:content], []
            content = b"".join(taken)
        return _array(_dtype(name), shape, content)


def _dtype(name: Any) -> DType:
    found = _BY_NAME.get(name) if isinstance(name, str) else None
    if found is None:
        raise _BadError(f"no element type is called {name!r}")
    return found


def _array(dtype: DType, shape: Any, content: Any) -> Array:
    if type(shape) is not tuple or len(shape) > MAX_RANK or not all(type(d) is int and d >= 0 for d in shape):
        raise _BadError("a constant's shape is malformed")
    count = math.prod(shape)
    if dtype is dtypes.string:
        if type(content) is not tuple or len(content) != count or not all(type(v) is bytes for v in content):
            raise _BadError("a constant of text does not hold what its shape says")
        array: Array = np.empty(count, object)
        array[:] = content
        array = array.reshape(shape)
        array.flags.writeable = False
        return array
    if dtype.np.hasobject or dtype.is_ref:
        raise _BadError(f"no constant holds {dtype.name}")
    if type(content) is not bytes or len(content) != count * dtype.size:
        raise _BadError(f"a constant of {count} {dtype.name} does not have {count * dtype.size} bytes")
    array = np.frombuffer(content, dtype.np).reshape(shape)
    if dtype.is_bool and count and array.view(np.uint8).max() > 1:
        raise _BadError("a constant of bool holds something else")
    return array


@dataclass(frozen=True, slots=True)
class _Import:
    """How a whole graph is put into another one; see `import_stream`."""

    prefix: str
    clear_devices: bool


def _restore(graph: Graph, reader: _Reader, how: _Import | None = None) -> list[Node]:
    """Read a stream, check all of it, and append its nodes."""
    builder = _Builder(graph, how)
    try:
        for record in reader:
            builder.take(record)
        builder.finish()
    except InvalidArgumentError:
        raise
    except _BadError as e:
        raise InvalidArgumentError(None, None, f"Malformed graph data, {builder.position()}: {e}") from None
    except (
        ValueError,
        TypeError,
        KeyError,
        UnicodeDecodeError,
        msgpack.UnpackException,
        msgpack.OutOfData,
        RecursionError,
    ) as e:
        raise InvalidArgumentError(
            None, None, f"Malformed graph data, {builder.position()}: {type(e).__name__}: {e}"
        ) from None
    try:
        graph.adopt(builder.nodes, builder.has_late_edges)
    except (ValueError, RuntimeError) as e:
        raise InvalidArgumentError(None, None, f"These nodes cannot be added to the graph: {e}") from None
    return builder.nodes


class _Builder:
    """Nodes made from records, kept apart from the graph until all are good."""

    def __init__(self, graph: Graph, how: _Import | None) -> None:
        self.graph = graph
        self.base = len(graph)
        self.how = how
        self.shift = 0 if how is None else self.base  # what is added to the stream's numbers of nodes
        self.nodes: list[Node] = []
        self.has_late_edges = False
        self._texts: list[str] = []
        self._ops: dict[int, OpDef] = {}
        self._devices: dict[int, str] = {}
        self._blocks: list[RecordedBlock] = []
        self._controls: list[tuple[int, ...]] = []
        self._names: set[str] = set()
        self._seed: int | None = None
        self._started = self._ended = False

    def position(self) -> str:
        """Where reading stands, for errors."""
        return f"after node '{self.nodes[-1].name}'" if self.nodes else "at its start"

    def take(self, record: tuple[Any, ...]) -> None:
        """Check and keep one record."""
        if not self._started:
            self._header(record)
        elif self._ended:
            raise _BadError("something follows the end")
        elif record[0] == "n" and len(record) == 13:
            self._node(*record[1:])
        elif record[0] == "s" and len(record) == 2 and type(record[1]) is str:
            self._texts.append(record[1])
        elif record[0] == "b" and len(record) == 6:
            self._block(*record[1:])
        elif record[0] == "l" and len(record) == 3:
            self._loop(*record[1:])
        elif record[0] == "end" and len(record) == 2:
            self._ended = True
            if record[1] != len(self.nodes):
                raise _BadError(f"{len(self.nodes)} nodes arrived, {record[1]!r} were sent")
        else:
            raise _BadError(f"unknown record {record[0]!r} of {len(record)} parts")

    def finish(self) -> None:
        """The checks that need all nodes: the stream is whole, and control edges close no cycle."""
        if not self._ended:
            raise _BadError("the data end too early")
        for node, controls in zip(self.nodes, self._controls, strict=True):
            if controls:
                node.controls = tuple([self._at(i, len(self.nodes)) for i in controls])
                self.has_late_edges = self.has_late_edges or max(controls) + self.shift >= node.index
        if self.has_late_edges:
            cycle = find_cycle([*self.graph.nodes[: self.base], *self.nodes])
            if cycle:
                raise _BadError("control edges close a cycle: " + " -> ".join(n.name for n in cycle))
        if self.base == 0 and self._seed is not None:
            self.graph.seed = self._seed

    def _header(self, record: tuple[Any, ...]) -> None:
        if len(record) != 4 or record[0] != FORMAT:
            raise _BadError("this is no graph")
        _, version, start, seed = record
        if version != VERSION:
            raise _BadError(f"format version {version!r} is not known; this release reads version {VERSION}")
        if start != self.base - self.shift:
            raise _BadError(f"the data continue a graph of {start!r} nodes, this one has {self.base - self.shift}")
        if seed is not None and type(seed) is not int:
            raise _BadError("the seed is no number")
        self._seed = seed
        self._started = True

    def _loop(self, merge: Any, following: Any) -> None:
        target, source = self._at(merge, len(self.nodes)), self._at(following, len(self.nodes))
        is_new = target.index >= self.base
        if not is_new or (target.type, source.type) != ("Merge", "NextIteration") or len(target.inputs) != 2:
            raise _BadError(f"nodes number {merge} and {following} are no loop's Merge and NextIteration")
        (mine, _), (theirs,) = target.inputs, source.outputs
        if mine.dtype.base is not theirs.dtype.base or not compatible(target.outputs[0].dims, theirs.dims):
            raise _BadError(f"what '{source.name}' leads back does not fit '{target.name}'")
        target.inputs = (mine, theirs)

    def _text(self, number: Any) -> str:
        if type(number) is not int or not 0 <= number < len(self._texts):
            raise _BadError(f"text number {number!r} does not exist")
        return self._texts[number]

    def _at(self, index: Any, made: int) -> Node:
        """The node of that number, among those of the graph (but for an import) and the first `made` new ones."""
        if type(index) is not int or not 0 <= index < self.base - self.shift + made:
            raise _BadError(f"node number {index!r} does not exist")
        number: int = index + self.shift
        return self.graph.nodes[number] if number < self.base else self.nodes[number - self.base]

    def _block(self, outer: Any, spec: Any, description: Any, file: Any, line: Any) -> None:
        if type(outer) is not int or not -1 <= outer < len(self._blocks) or type(description) is not str:
            raise _BadError("a device block is malformed")
        if spec is not None and type(spec) is not str:
            raise _BadError("a device block's request is malformed")
        around = None if outer < 0 else self._blocks[outer]
        self._blocks.append(RecordedBlock(around, spec, description, self._text(file), _count(line)))

    def _op(self, number: Any) -> OpDef:
        if number not in self._ops:
            self._ops[number] = find_opdef(self._text(number))
        return self._ops[number]

    def _device(self, number: Any) -> str:
        # A device function's answer is kept as it was spelled, so the placer is who judges it, here as at its
        # origin.
        device = self._devices.get(number)
        if device is None:
            device = self._text(number)
            if len(device) > MAX_NAME or not device.isprintable():
                raise _BadError("its device is no device's name")
            self._devices[number] = device
        return device

    def _node(
        self, name: Any, op: Any, inputs: Any, controls: Any, attrs: Any, device: Any, colocation: Any,
            container: Any,
        file: Any, line: Any, shapes: Any, block: Any,
    ) -> None:  # fmt: skip
        if type(name) is not str or not 0 < len(name) <= MAX_NAME or ":" in name or not name.isprintable():
            raise _BadError(f"{name!r} is no node's name")
        if self.how is not None:
            name, attrs, colocation = self._under(self.how.prefix, name, attrs, colocation)
        if name in self._names or name in self.graph:
            raise InvalidArgumentError(None, None, f"Malformed graph data: a node called '{name}' exists already")
        try:
            node = self._made(op, inputs, attrs, shapes)
            node.name = name
            node.device = "" if self.how is not None and self.how.clear_devices else self._device(device)
            node.container = self._text(container)
            node._origin = (self._text(file), _count(line))
            node.colocation = _texts(colocation)
            node.blocks = None if block == -1 else self._blocks[_count(block)]
            if type(controls) is not tuple or not all(type(c) is int for c in controls):
                raise _BadError("its control inputs are malformed")
        except Exception as e:
            # Op definitions check attrs that users give; what a message holds may surprise them in any way.
            raise InvalidArgumentError(None, None, f"Malformed graph data: node '{name}': {_message(e)}") from None
        node.index = self.base + len(self.nodes)
        self._names.add(name)
        self.nodes.append(node)
        self._controls.append(controls)

    def _under(self, prefix: str, name: str, attrs: Any, colocation: Any) -> tuple[str, Any, Any]:
        """A node's name, attrs and colocation groups, with a prefix to all names."""
        if (
            prefix and type(attrs) is dict
        ):  # a loop goes by its frame's name, state by its node's unless it has one of its own
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
            raise _BadError("its inputs are malformed")
        taken = []
        for i in range(0, len(inputs), 2):
            outputs = self._at(inputs[i], made).outputs
            output = inputs[i + 1]
            if type(output) is not int or not 0 <= output < len(outputs):
                raise _BadError(f"output {output!r} of node number {inputs[i]} does not exist")
            taken.append(outputs[output])
        node.inputs = tuple(taken)
        if type(attrs) is not dict:
            raise _BadError("its attrs are malformed")
        for key, value in attrs.items():
            if type(key) is not str or not key.isidentifier():
                raise _BadError(f"{key!r} is no attr's name")
            if type(value) not in _PLAIN:
                _check_attr(key, value, 0)
        node.attrs = attrs
        signature = definition.infer(node.inputs, attrs)
        if type(shapes) is not tuple or len(shapes) != len(signature):
            raise _BadError(f"it has {len(signature)} outputs, the data tell of another number")
        node.outputs = tuple(
            [_output(node, i, *made, known) for i, (made, known) in enumerate(zip(signature, shapes, strict=True))]
        )
        node.controls = ()
        return node


def _output(node: Node, index: int, dtype: Any, dims: Any, known: Any) -> Tensor:
    """An output as its op infers it, with what else is known of its shape: both told by a message."""
    if not isinstance(dtype, DType):
        raise _BadError(f"its attrs give it a value of type {dtype!r}")
    return Tensor(node, index, dtype, _dims(dims if dims == known else merge(_dims(dims), _dims(known))))


def _message(e: Exception) -> str:
    return (
        str(e)
        if isinstance(e, (_BadError, ValueError, TypeError, InvalidArgumentError)) and str(e)
        else f"{type(e).__name__}: {e}"
    )


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _BadError(f"{value!r} is no count")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if type(value) is not tuple or not all(type(v) is str for v in value):
        raise _BadError("its colocation groups are malformed")
    return value


def _dims(value: Any) -> Dims:
    if value is not None and (
        type(value) is not tuple or not all(d is None or (type(d) is int and d >= 0) for d in value)
    ):
        raise _BadError("a shape is malformed")
    return as_dims(value)


def _check_attr(name: str, value: Any, depth: int) -> None:
    if type(value) is tuple and depth < MAX_DEPTH:
        for item in value:
            if type(item) not in _PLAIN:
                _check_attr(name, item, depth + 1)
    elif not isinstance(value, np.ndarray):
        raise _BadError(f"attr {name} holds a {type(value).__name__}")
