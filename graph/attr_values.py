"""`AttrValue`: an attribute of a node as TensorFlow's messages hold it, to and from the values that nodes have here.

| TensorFlow's kind | here |
| --- | --- |
| `int`, `float`, `bool` | the same |
| `string` | str; bytes where it is no text |
| `type` | `DType` |
| `shape` | a tuple of sizes, None where one is unknown; None where all is |
| `tensor` | an array |
| `list(...)` | a tuple |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .dtypes import DType, as_dtype
from .shape import dims_of_proto, set_dims
from .tensor_protos import make_ndarray, tensor_proto
from .tensorflow_ops import MisfitError

_FIELDS = {
    "int": "i",
    "float": "f",
    "bool": "b",
    "string": "s",
    "type": "type",
    "shape": "shape",
    "tensor": "tensor",
    "func": "func",
}


def write_attr(proto: Any, kind: str, value: Any) -> None:
    """Set an `AttrValue`. MisfitError: the value is not of that kind."""
    try:
        if kind.startswith("list("):
            inner = kind[5:-1]
            proto.list.SetInParent()
            field = getattr(proto.list, _FIELDS[inner])
            for item in value:
                if inner == "shape":
                    set_dims(field.add(), item)
                elif inner == "tensor":
                    field.add().CopyFrom(tensor_proto(item))
                else:
                    field.append(_plain(inner, item))
        elif kind == "shape":
            set_dims(proto.shape, value)
        elif kind == "tensor":
            proto.tensor.CopyFrom(tensor_proto(np.asarray(value)))
        else:
            setattr(proto, _FIELDS[kind], _plain(kind, value))
    except (TypeError, ValueError, KeyError, AttributeError) as e:
        raise MisfitError(f"{value!r} is no {kind}: {e}") from None


def _plain(kind: str, value: Any) -> Any:
    """A value as a message's field takes it."""
    if kind == "string":
        return value.encode() if isinstance(value, str) else bytes(value)
    if kind == "type":
        return as_dtype(value).enum
    made: Callable[[Any], Any] = {"int": int, "float": float, "bool": bool}[kind]
    if made(value) != value:
        raise ValueError("another type")
    return made(value)


def read_attr(proto: Any, kind: str) -> Any:
    """The value of an `AttrValue`. MisfitError: it has none of that kind."""
    which = proto.WhichOneof("value")
    if kind.startswith("list("):
        if which != "list":
            raise MisfitError(f"a {kind} was expected, not {which or 'nothing'}")
        inner = kind[5:-1]
        return tuple([_value(inner, v) for v in getattr(proto.list, _FIELDS[inner])])
    if which != _FIELDS[kind]:
        raise MisfitError(f"a {kind} was expected, not {which or 'nothing'}")
    return _value(kind, getattr(proto, which))


def _value(kind: str, value: Any) -> Any:
    match kind:
        case "string":
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case "type":
            return read_type(value)
        case "shape":
            return dims_of_proto(value)
        case "tensor":
            return make_ndarray(value)
        case "float":
            return float(str(np.float32(value)))  # 0.001, and not what is nearest to it in 32 bits
        case "func":
            raise MisfitError("functions are not supported")
    return value


def read_type(value: int) -> DType:
    """The type of a number of `DataType`; that of a reference is its base's. MisfitError: there is none."""
    try:
        return as_dtype(int(value)).base
    except TypeError:
        raise MisfitError(f"no element type has the number {value}") from None


def default_of(kind: str, default: Any) -> Any:
    """A default of a signature, as nodes have it."""
    if kind == "type":
        return as_dtype(default)
    if kind.startswith("list("):
        return tuple([default_of(kind[5:-1], v) for v in default])
    return tuple(default) if isinstance(default, list) else default


__all__ = ["default_of", "read_attr", "read_type", "write_attr"]
