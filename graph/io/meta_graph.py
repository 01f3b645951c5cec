"""Graphs with their collections and variables, as in TensorFlow's MetaGraphDef.

A file begins with a msgpack array `["dovetail-meta-graph", version, about]`. The graph follows in the form of `serialization`. `about` is
a map:

    variables     for each variable, the names of its nodes and tensors, and its properties
    collections   name -> values: ["n", node], ["t", tensor], ["v", number of the variable], or ["p", plain value]
    saver         the arguments of a `train.Saver`, or None

Data that are read are not trusted. Names are looked up in the graph that was read, and nothing is evaluated.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from ..control_flow.recovery import recover_flow
from ..core.default_graph import GraphKeys
from ..core.errors import InvalidArgumentError, invalid
from ..core.graph import Graph, Node, Tensor
from ..core.node_table import element_by_name
from ..formats.record_format import MAX_RECORD
from ..variables.partitioned import SaveSliceInfo
from ..variables.ref_and_resource import RefVariable, ResourceVariable
from ..variables.variable import Variable, VariableAggregation, VariableSynchronization
from .serialization import read_stream, records

FORMAT = "dovetail-meta-graph"
VERSION = 1
PLAIN = (bool, int, float, str, bytes)
_MISFITS = (KeyError, ValueError, TypeError, IndexError, AttributeError)
_LOG = logging.getLogger("dovetail")


@dataclass(frozen=True, slots=True)
class MetaGraph:
    """A graph with its collections, as bytes in memory or in a file. `train.import_meta_graph` takes it.

    Attributes:
        source: the bytes, or the file.
    """

    source: bytes | Path

    def open(self) -> BinaryIO:
        """Open the source as a file."""
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes:
        nodes: the nodes, which have been added to the graph.
        variables: the variables, in the order of the file.
        saver: the arguments of a saver, or None.
    """

    nodes: Sequence[Node]
    variables: Sequence[Variable]
    saver: Mapping[str, Any] | None = field(default=None)


def write_meta_graph(
    graph: Graph,
    file: BinaryIO,
    collections: Iterable[str] | None = None,
    saver: Mapping[str, Any] | None = None,
    saved: Sequence[Variable] = (),
) -> None:
    """Write a graph, its collections and its variables.

    Args:
        graph: the graph.
        file: a file that is open for writing bytes.
        collections: names of the collections to write. None means all. Values other than nodes, tensors, variables, numbers and strings
            are omitted and logged. Of a variable with copies, the first copy is written.
        saver: plain values for the importing program.
        saved: variables to write, in addition to those in collections.
    """
    variables: dict[Variable, int] = {}
    kept: dict[str, list[Any]] = {}
    for v in saved:
        variables.setdefault(v._single(), len(variables))
    for name in graph.get_all_collection_keys() if collections is None else collections:
        values = graph.get_collection(name)
        found = [_written(v, variables) for v in values]
        left_out = sorted({type(v).__name__ for v, w in zip(values, found, strict=True) if w is None})
        if left_out and not name.startswith("__") and name != GraphKeys.SAVERS:  # internal collections, and savers
            _LOG.info("collection '%s': not written: values of type %s", name, ", ".join(left_out))
        if isinstance(name, str):
            kept[name] = [w for w in found if w is not None]
    about = {"variables": [parts_of(v) for v in variables], "collections": kept, "saver": saver}
    file.write(msgpack.packb((FORMAT, VERSION, about)))
    for record in records(graph, 0):
        file.write(record)


def read_meta_graph(
    meta: MetaGraph,
    graph: Graph,
    prefix: str = "",
    clear_devices: bool = False,
    check: Callable[[Mapping[str, Any] | None, Sequence[Variable]], object] = lambda saver, variables: None,
) -> Imported:
    """Read a graph that `write_meta_graph` wrote, and add its nodes and collections to another graph.

    Args:
        meta: the meta graph.
        graph: the graph to extend.
        prefix: prefix of all names, such as `scope/`.
        clear_devices: whether to clear the device requests of the nodes.
        check: function that is called with `saver` and the variables before the nodes are added. It raises an error if they do not fit.

    Raises:
        InvalidArgumentError: the data are damaged or not a meta graph, or a name exists already. The graph does not change.
        OSError: the file cannot be read.
    """
    with meta.open() as file:
        try:
            unpacker = msgpack.Unpacker(file, use_list=False, max_buffer_size=MAX_RECORD)
            head = unpacker.unpack()
        except (ValueError, msgpack.UnpackException) as e:
            raise _bad(meta, str(e) or type(e).__name__) from None
        if not isinstance(head, tuple) or len(head) != 3 or head[0] != FORMAT or not isinstance(head[2], dict):
            raise _bad(meta, "it does not begin as one")
        if head[1] != VERSION:
            raise _bad(meta, f"format version {head[1]!r} is not known; this release reads version {VERSION}")
        file.seek(unpacker.tell())
        arrived = read_stream(graph, file, prefix, clear_devices)
    # All parts of the file are checked before the graph changes.
    variables, collections = _collect(head[2], arrived.nodes, prefix, meta)
    saver = head[2].get("saver")
    try:
        check(saver, variables)
    except _MISFITS as e:
        raise _bad(meta, f"its saver does not fit its variables: {type(e).__name__}: {e}") from None
    nodes = arrived.join()
    recover_flow(graph, nodes)
    for name, values in collections.items():
        for value in values:
            graph.add_to_collection(name, value)
    return Imported(nodes, variables, saver)


def _bad(meta: MetaGraph, why: str) -> InvalidArgumentError:
    where = "the data" if isinstance(meta.source, bytes) else str(meta.source)
    return invalid(f"This is not a meta graph of Dovetail ({where}): {why}")


# --- collections ------------------------------------------------------------------------------------------------------


def _written(value: Any, variables: dict[Variable, int]) -> tuple[str, Any] | None:
    """The written form of a collection's value. None if it cannot be written."""
    if isinstance(value, Variable):
        return (
            ("v", variables.setdefault(value, len(variables)))
            if type(value) in (RefVariable, ResourceVariable)
            else None
        )
    if isinstance(value, Node):
        return "n", value.name
    if isinstance(value, Tensor):
        return "t", value.name
    return ("p", value) if isinstance(value, PLAIN) else None


def _collect(
    about: Mapping[str, Any], nodes: Sequence[Node], prefix: str, meta: MetaGraph
) -> tuple[list[Variable], dict[str, list[Any]]]:
    """Make the variables and collections of a file from its nodes."""
    names = Names({node.name: node for node in nodes}, prefix)
    try:
        variables = [variable_of(parts, names) for parts in about["variables"]]
        collections = {
            str(name): [_value(kind, key, names, variables) for kind, key in values]
            for name, values in about["collections"].items()
        }
    except _MISFITS as e:
        raise _bad(meta, f"its collections do not fit its nodes: {type(e).__name__}: {e}") from None
    return variables, collections


def _value(kind: str, key: Any, names: Names, variables: list[Variable]) -> Any:
    match kind:
        case "v":
            return variables[key]
        case "n":
            return names.node(key)
        case "t":
            return names.tensor(key)
        case "p" if isinstance(key, PLAIN):
            return key
    raise ValueError(f"a collection has a value of kind {kind!r}")


@dataclass(frozen=True, slots=True)
class Names:
    """The nodes and tensors of a file by their names in the file."""

    nodes: Mapping[str, Node]
    prefix: str

    def node(self, name: str) -> Node:
        """The node of a name. KeyError or ValueError if there is none."""
        found = element_by_name(self.nodes, f"{self.prefix}{name}", allow_tensor=False)
        assert isinstance(found, Node)
        return found

    def tensor(self, name: str) -> Tensor:
        """The tensor of a name. KeyError or ValueError if there is none."""
        found = element_by_name(self.nodes, f"{self.prefix}{name}", allow_operation=False)
        assert isinstance(found, Tensor)
        return found


# --- variables --------------------------------------------------------------------------------------------------------


def parts_of(v: Variable) -> dict[str, Any]:
    """The names of a variable's nodes and tensors, and its properties. A constraint is omitted, because it is a Python function."""
    part = v.save_slice_info
    found = {
        "place": v._handle.name,
        "initial_value": v._initial_value.name,
        "initializer": v._initializer.name,
        "starts_by": None if v._starts_by is None else v._starts_by.name,
        "trainable": v._trainable,
        "synchronization": v.synchronization.name,
        "aggregation": v.aggregation.name,
        "slice": None if part is None else (part.full_name, part.full_shape, part.var_offset, part.var_shape),
    }
    if isinstance(v, ResourceVariable):
        cached = None if v._cached is None else v._cached.name
        return found | {"read": v._element.name, "is_initialized": v._is_initialized.name, "cached": cached}
    assert isinstance(v, RefVariable)
    return found | {"read": v._snapshot.name}


def variable_of(parts: Mapping[str, Any], names: Names) -> Variable:
    """The inverse of `parts_of`."""
    handle = names.tensor(parts["place"])
    kinds: dict[str, type[Variable]] = {"VariableV2": RefVariable, "VarHandleOp": ResourceVariable}
    v: Any = object.__new__(kinds[handle.op.type])
    v._handle = handle
    v._initial_value = names.tensor(parts["initial_value"])
    v._initializer = names.node(parts["initializer"])
    if parts["starts_by"] is not None:
        v._starts_by = names.node(parts["starts_by"])
    v._trainable, v._constraint = bool(parts["trainable"]), None
    v.synchronization = VariableSynchronization[parts["synchronization"]]
    v.aggregation = VariableAggregation[parts["aggregation"]]
    if parts["slice"] is not None:
        name, *lists = parts["slice"]
        v.save_slice_info = SaveSliceInfo(f"{names.prefix}{name}", *(list(map(int, one)) for one in lists))
    read = names.tensor(parts["read"])
    if isinstance(v, RefVariable):
        v._snapshot = read
    else:
        v._element, v._is_initialized = read, names.tensor(parts["is_initialized"])
        v._cached = None if parts["cached"] is None else names.tensor(parts["cached"])
    found: Variable = v
    return found
