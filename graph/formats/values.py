"""`TensorProto` and `AttrValue`: tensors and attributes in TensorFlow's messages, and their conversion to attributes of nodes.

| TensorFlow's kind | attribute of a node |
| --- | --- |
| `int`, `float`, `bool` | the same |
| `string` | str, or bytes if it is not UTF-8 |
| `type` | `DType` |
| `shape` | a tuple of sizes, with None for an unknown size, or None for an unknown shape |
| `tensor` | an array |
| `list(...)` | a tuple |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.build import fill_shape, to_array
from ..core.dtypes import (
    INTEGERS,
    Array,
    DType,
    as_dtype,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int64,
    string,
    text_array,
    uint32,
    uint64,
)
from ..core.errors import invalid
from ..core.shape import dims_of_proto, set_dims
from .protos import message


class MisfitError(ValueError):
    """A node does not fit TensorFlow's signature of its op."""


_LISTS = {
    float32: "float_val",
    float64: "double_val",
    int64: "int64_val",
    bool_: "bool_val",
    uint32: "uint32_val",
    uint64: "uint64_val",
}


def make_tensor_proto(values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False) -> Any:
    """Make a `TensorProto`.

    Args:
        values: an array, a number, a string, or nested lists of them.
        dtype: element type. If it is None, NumPy's type, but float32 and int32 for Python numbers.
        shape: shape of the tensor. If it is None, that of the values. The last value is repeated to fill it.
        verify_shape: whether the values must have exactly this shape.

    Raises:
        UnimplementedError: the package `protobuf` is not installed.
        TypeError: the values do not fit the type.
        ValueError: the values do not fit the shape.

    >>> make_ndarray(make_tensor_proto([[1, 2], [3, 4]]))
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    array = to_array(values, None if dtype is None else as_dtype(dtype).base)
    if shape is not None:
        array = fill_shape(array, tuple(int(d) for d in shape), verify_shape)
    return tensor_proto(array)


def tensor_proto(array: Array) -> Any:
    """The `TensorProto` of an array. Strings are bytes or str."""
    dtype = as_dtype(array.dtype)
    proto = message("TensorProto")(dtype=dtype.enum)
    set_dims(proto.tensor_shape, array.shape)
    if dtype is string:
        proto.string_val.extend([v.encode() if isinstance(v, str) else bytes(v) for v in array.ravel()])
    elif array.size == 1 and dtype.base in (*INTEGERS, float32, float64, bool_):
        getattr(proto, _LISTS.get(dtype, "int_val")).extend(array.ravel().tolist())
    else:
        proto.tensor_content = np.ascontiguousarray(array).tobytes()
    return proto


def make_ndarray(tensor: Any) -> Array:
    """The array in a `TensorProto`. Strings are bytes.

    Raises:
        InvalidArgumentError: the message is malformed.
    """
    dims = dims_of_proto(tensor.tensor_shape)
    if dims is None or None in dims:
        raise invalid("A TensorProto's shape is not known")
    shape = tuple(d for d in dims if d is not None)
    try:
        dtype = as_dtype(int(tensor.dtype))
        return _array(tensor, dtype.base, math.prod(shape)).reshape(shape)
    except (TypeError, ValueError) as e:
        raise invalid(f"A TensorProto is malformed: {e}") from None


def _array(tensor: Any, dtype: DType, count: int) -> Array:
    if dtype.np.hasobject and dtype is not string:
        raise ValueError(f"no constant holds {dtype.name}")
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype.np).copy()
    if dtype is string:
        found = text_array(tensor.string_val)
    elif dtype in (float16, bfloat16):
        found = np.array(tensor.half_val, np.uint16).view(dtype.np)
    elif dtype in (complex64, complex128):
        parts = tensor.scomplex_val if dtype is complex64 else tensor.dcomplex_val
        found = np.array(parts, dtype.np.type(0).real.dtype).view(dtype.np)
    elif dtype.size == 1 and dtype.is_floating:
        found = np.frombuffer(tensor.float8_val, dtype.np)
    else:
        found = np.array(getattr(tensor, _LISTS.get(dtype, "int_val")), dtype.np)
    if not found.size and count:
        found = np.array([b""], object) if dtype is string else np.zeros(1, dtype.np)
    return fill_shape(found, (count,))  # the last value is repeated


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
    """Set an `AttrValue`. MisfitError if the value is not of this kind."""
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
    """A value in the type of a message's field."""
    if kind == "string":
        return value.encode() if isinstance(value, str) else bytes(value)
    if kind == "type":
        return as_dtype(value).enum
    made: Callable[[Any], Any] = {"int": int, "float": float, "bool": bool}[kind]
    if made(value) != value:
        raise ValueError("another type")
    return made(value)


def read_attr(proto: Any, kind: str) -> Any:
    """The value of an `AttrValue`. MisfitError if it is of another kind."""
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
            return float(str(np.float32(value)))  # 0.001, not the float32 nearest to it
        case "func":
            raise MisfitError("functions are not supported")
    return value


def read_type(value: int) -> DType:
    """The element type of a number of `DataType`, or the base type of a reference type. MisfitError if it is unknown."""
    try:
        return as_dtype(int(value)).base
    except TypeError:
        raise MisfitError(f"no element type has the number {value}") from None


def default_of(kind: str, default: Any) -> Any:
    """The value of a signature's default, as an attribute of a node."""
    if kind == "type":
        return as_dtype(default)
    if kind.startswith("list("):
        return tuple([default_of(kind[5:-1], v) for v in default])
    return tuple(default) if isinstance(default, list) else default
