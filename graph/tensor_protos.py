"""`TensorProto`: a tensor as TensorFlow's messages hold it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .build import fill_shape, to_array
from .dtypes import (
    INTEGERS,
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
    uint32,
    uint64,
)
from .errors import InvalidArgumentError
from .messages import message
from .shape import dims_of_proto, set_dims

Array = np.ndarray[Any, Any]

_LISTS = {
    float32: "float_val",
    float64: "double_val",
    int64: "int64_val",
    bool_: "bool_val",
    uint32: "uint32_val",
    uint64: "uint64_val",
}


def make_tensor_proto(values: Any, dtype: Any = None, shape: Any = None, verify_shape: bool = False) -> Any:
    """A `TensorProto` of values.

    Args:
        values: an array, a number, text, or nested lists of them. dtype: None: what NumPy makes of them, but float32 and int32 of
            Python's numbers.
        shape: None: that of the values; the last value fills what they leave. verify_shape: refuse another shape than theirs.

    Raises:
        UnimplementedError: the package `protobuf` is not installed. TypeError, ValueError: the values do not fit.

    >>> make_ndarray(make_tensor_proto([[1, 2], [3, 4]]))
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    array = to_array(values, None if dtype is None else as_dtype(dtype).base)
    if shape is not None:
        array = fill_shape(array, tuple(int(d) for d in shape), verify_shape)
    return tensor_proto(array)


def tensor_proto(array: Array) -> Any:
    """A `TensorProto` of an array; texts are bytes or str."""
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
    """The array that a `TensorProto` holds; texts are bytes.

    Raises:
        InvalidArgumentError: it is malformed.
    """
    dims = dims_of_proto(tensor.tensor_shape)
    if dims is None or None in dims:
        raise InvalidArgumentError(None, None, "A TensorProto's shape is not known")
    shape = tuple(d for d in dims if d is not None)
    try:
        dtype = as_dtype(int(tensor.dtype))
        return _array(tensor, dtype.base, math.prod(shape)).reshape(shape)
    except (TypeError, ValueError) as e:
        raise InvalidArgumentError(None, None, f"A TensorProto is malformed: {e}") from None


def _array(tensor: Any, dtype: DType, count: int) -> Array:
    if dtype.np.hasobject and dtype is not string:
        raise ValueError(f"no constant holds {dtype.name}")
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype.np).copy()
    if dtype is string:
        found: Array = np.empty(len(tensor.string_val), object)
        found[:] = list(tensor.string_val)
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
    return fill_shape(found, (count,))  # the last value stands for all that follow


__all__ = ["make_ndarray", "make_tensor_proto", "tensor_proto"]
