"""`Example` and what it is made of: the protocol buffers that TensorFlow's record files hold, field by field the same.

The classes are made when they are first used, from the description below, by the package `protobuf`.
"""

from __future__ import annotations

import functools
from typing import Any

from .errors import UnimplementedError

PACKAGE = "tensorflow"  # part of the wire format only in text forms; files written elsewhere say so, too

# Message -> its fields: (name, number, type, repeated). A message of the table is a type; map<a, b> a map from text.
MESSAGES: dict[str, tuple[tuple[str, int, str, bool], ...]] = {
    "BytesList": (("value", 1, "bytes", True),),
    "FloatList": (("value", 1, "float", True),),
    "Int64List": (("value", 1, "int64", True),),
    "Feature": (
        ("bytes_list", 1, "BytesList", False),
        ("float_list", 2, "FloatList", False),
        ("int64_list", 3, "Int64List", False),
    ),
    "Features": (("feature", 1, "map Feature", False),),
    "Example": (("features", 1, "Features", False),),
    "FeatureList": (("feature", 1, "Feature", True),),
    "FeatureLists": (("feature_list", 1, "map FeatureList", False),),
    "SequenceExample": (("context", 1, "Features", False), ("feature_lists", 2, "FeatureLists", False)),
}
ONE_OF = {"Feature": "kind"}  # messages of whose fields one is set


@functools.cache
def message(name: str) -> Any:
    """The class of a message.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
    """
    try:
        from google.protobuf import descriptor_pool, message_factory
    except ImportError:
        raise UnimplementedError(None, None, "Examples are protocol buffers: pip install 'dovetail[records]'") from None
    return message_factory.GetMessageClass(_pool(descriptor_pool).FindMessageTypeByName(f"{PACKAGE}.{name}"))


@functools.cache
def _pool(descriptor_pool: Any) -> Any:
    """A pool of its own: the process may have loaded TensorFlow's classes of the same names."""
    from google.protobuf import descriptor_pb2

    file = descriptor_pb2.FileDescriptorProto(name="dovetail/example.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        if name in ONE_OF:
            described.oneof_decl.add(name=ONE_OF[name])
        for title, number, kind, repeated in fields:
            field = described.field.add(name=title, number=number)
            field.label = field.LABEL_REPEATED if repeated or kind.startswith("map ") else field.LABEL_OPTIONAL
            if name in ONE_OF:
                field.oneof_index = 0
            if kind.startswith("map "):
                entry = "".join(part.capitalize() for part in title.split("_")) + "Entry"
                _set_kind(field, f"{name}.{entry}")
                pair = described.nested_type.add(name=entry)
                pair.options.map_entry = True
                key = pair.field.add(name="key", number=1, label=field.LABEL_OPTIONAL)
                value = pair.field.add(name="value", number=2, label=field.LABEL_OPTIONAL)
                _set_kind(key, "string")
                _set_kind(value, kind.removeprefix("map "))
            else:
                _set_kind(field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _set_kind(field: Any, kind: str) -> None:
    plain = {
        "bytes": field.TYPE_BYTES,
        "float": field.TYPE_FLOAT,
        "int64": field.TYPE_INT64,
        "string": field.TYPE_STRING,
    }
    if kind in plain:
        field.type = plain[kind]
    else:
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


__all__ = ["MESSAGES", "message"]
