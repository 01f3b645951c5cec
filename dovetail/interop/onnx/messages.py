"""Reads ONNX messages: models, the types and shapes of values, the attributes of nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType, as_dtype, string
from ...graph.core.errors import InvalidArgumentError, UnimplementedError
from ...graph.core.graph import Tensor
from ...graph.core.shape import Dims
from .registry import Array, UnsupportedError

OPSETS = (7, 28)
"""The supported versions of the standard, inclusive. Before 7, attributes controlled broadcasting."""


def read_model(model: Any) -> tuple[Any, str]:
    """Reads and checks a model, and inlines its functions. Returns it, and its name for error messages.

    Args:
        model: the path of a file, or a message.

    Raises:
        InvalidArgumentError: it is not a valid model, or its version is not in OPSETS.
        OSError: the file cannot be read.
    """
    package = onnx()
    name = "the model"
    if isinstance(model, (str, os.PathLike)):
        name = repr(str(model))
        if not Path(model).is_file():
            raise FileNotFoundError(f"There is no file {name}")
        try:
            message = package.load(os.fspath(model))
            package.checker.check_model(os.fspath(model))
        except Exception as e:  # protobuf's and the checker's errors are of many kinds
            raise InvalidArgumentError.of(f"{name} is not a valid ONNX model: {e}") from None
    else:
        message = model
        try:
            package.checker.check_model(message)
        except Exception as e:
            raise InvalidArgumentError.of(f"This is not a valid ONNX model: {e}") from None
    version = opset_of(message.opset_import)
    if not OPSETS[0] <= version <= OPSETS[1]:
        raise InvalidArgumentError.of(
            f"{name} has opset {version}, but only opsets {OPSETS[0]} to {OPSETS[1]} are supported. "
            "Convert it with onnx.version_converter",
        )
    return (onnx("inliner").inline_local_functions(message) if message.functions else message), name


def opset_of(imported: Any) -> int:
    """Returns the opset version of the standard's own ops."""
    return max((int(o.version) for o in imported if o.domain in ("", "ai.onnx")), default=OPSETS[1])


def element_type(number: int) -> DType:
    """Returns the element type that has this number in ONNX. UnsupportedError: the graph has no such type."""
    messages = onnx()
    if number == messages.TensorProto.STRING:
        return string
    try:
        return as_dtype(messages.helper.tensor_dtype_to_np_dtype(number)).base
    except (TypeError, KeyError, ValueError):
        known = {v: k for k, v in messages.TensorProto.DataType.items()}
        raise UnsupportedError(f"element type {known.get(number, number)}") from None


def element_number(dtype: DType) -> int:
    """Returns the number of an element type in ONNX."""
    messages = onnx()
    if dtype.base is string:
        return int(messages.TensorProto.STRING)
    return int(messages.helper.np_dtype_to_tensor_dtype(dtype.base.np))


def type_of(value: Any) -> tuple[DType, Dims]:
    """Returns the type and the shape of a value. Symbolic sizes are unknown. UnsupportedError: the value is not a tensor."""
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(f"'{value.name}' is a {str(kind).removesuffix('_type')} and not a tensor")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return element_type(tensor.elem_type), None
    dims = tuple(int(d.dim_value) if d.HasField("dim_value") else None for d in tensor.shape.dim)
    return element_type(tensor.elem_type), dims


def type_message(tensor: Tensor | None, names: Sequence[str | None] = ()) -> Any:
    """Returns a tensor's type and shape as a message, which is empty for None. `names`: the names of unknown sizes, by axis."""
    if tensor is None:
        return onnx().TypeProto()
    sizes = (
        None
        if tensor.dims is None
        else [names[i] if n is None and i < len(names) else n for i, n in enumerate(tensor.dims)]
    )
    return onnx("helper").make_tensor_type_proto(element_number(tensor.dtype), sizes)


def array_of(tensor: Any) -> Array:
    """Returns the values of a tensor message. Strings become bytes."""
    element_type(tensor.data_type)
    array: Array = onnx("numpy_helper").to_array(tensor)
    if array.dtype.kind in "USO":
        encoded = [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]
        out = np.empty(len(encoded), object)
        out[:] = encoded
        return out.reshape(array.shape)
    return array


def attributes(node: Any) -> dict[str, Any]:
    """Returns a node's attributes as Python values. Graphs stay messages."""
    types = onnx().AttributeProto
    found: dict[str, Any] = {}
    for a in node.attribute:
        if a.type == types.SPARSE_TENSOR:
            raise UnsupportedError("a sparse constant")
        value = onnx("helper").get_attribute_value(a)
        if a.type == types.STRING:
            value = value.decode()
        elif a.type == types.STRINGS:
            value = [v.decode() for v in value]
        elif a.type == types.TENSOR:
            value = array_of(value)
        elif a.type in (types.INTS, types.FLOATS):
            value = list(value)
        found[a.name] = value
    return found


def onnx(part: str = "") -> Any:
    """Imports the package `onnx`, or one of its modules. UnimplementedError: it is not installed."""
    try:
        return import_module(f"onnx.{part}" if part else "onnx")
    except ModuleNotFoundError as e:
        if e.name != "onnx":
            raise
        raise UnimplementedError.of("ONNX models need the package onnx. Run pip install 'dovetail[onnx]'") from None
