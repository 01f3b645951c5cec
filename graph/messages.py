"""TensorFlow's protocol buffers, field by field the same: classes that are made when they are first used, by the package `protobuf`.

The tables say what the messages hold. They are `example_messages` (records of training data) and `graph_messages` (graphs, saved
models, checkpoints). A field is a line such as `repeated NodeDef node = 1`, as in a `.proto` file; `map<K>` has text for its keys.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from .errors import UnimplementedError
from .example_messages import MESSAGES as EXAMPLES
from .graph_messages import ENUMS, MESSAGES as GRAPHS

PACKAGE = "tensorflow"  # part of the wire format only in text forms and `Any`; files written elsewhere say so, too
MESSAGES = EXAMPLES | GRAPHS

_FIELD = re.compile(r"(repeated |map |oneof )?([\w.]+) (\w+) = (\d+)")
_PLAIN = ("bytes", "string", "float", "double", "bool", "int32", "int64", "uint32", "uint64", "fixed32")


@functools.cache
def message(name: str) -> Any:
    """The class of a message, such as `GraphDef`; a nested one is `AttrValue.ListValue`.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
    """
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError:
        raise UnimplementedError(
            None, None, f"{name} is a protocol buffer of TensorFlow's: pip install 'dovetail[records]'"
        ) from None
    return message_factory.GetMessageClass(_pool(descriptor_pool).FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool(descriptor_pool: Any) -> Any:
    """A pool of its own: the process may have loaded TensorFlow's classes of the same names."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="dovetail/messages.proto", package=PACKAGE, syntax="proto3")
    for name, numbers in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for title, number in numbers.items():
            enum.value.add(name=title, number=number)
    described: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        outer, _, inner = name.rpartition(".")
        described[name] = (described[outer].nested_type if outer else file.message_type).add(name=inner)
        for line in fields:
            _add_field(described[name], name, line)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(described: Any, name: str, line: str) -> None:
    found = _FIELD.fullmatch(line)
    if found is None:
        raise ValueError(f"{name}: {line!r} is no field")
    label, kind, title, number = found.groups()
    field = described.field.add(name=title, number=int(number))
    field.label = field.LABEL_REPEATED if label in ("repeated ", "map ") else field.LABEL_OPTIONAL
    if label == "oneof ":
        if not described.oneof_decl:
            described.oneof_decl.add(name="kind" if name in ("Feature", "CollectionDef") else "value")
        field.oneof_index = 0
    if label != "map ":
        _set_kind(field, kind)
        return
    entry = "".join(part.capitalize() for part in title.split("_")) + "Entry"
    _set_kind(field, f"{name}.{entry}")
    pair = described.nested_type.add(name=entry)
    pair.options.map_entry = True
    for at, (half, of) in enumerate((("key", "string"), ("value", kind)), 1):
        _set_kind(pair.field.add(name=half, number=at, label=field.LABEL_OPTIONAL), of)


def _set_kind(field: Any, kind: str) -> None:
    if kind in _PLAIN:
        field.type = getattr(field, f"TYPE_{kind.upper()}")
    else:
        field.type = field.TYPE_ENUM if kind in ENUMS else field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{kind}"


__all__ = ["EXAMPLES", "MESSAGES", "message"]
