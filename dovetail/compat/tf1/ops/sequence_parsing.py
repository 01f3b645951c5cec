"""Parsing of sequence examples, examples in JSON, and serialized tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert, make
from ....graph.core.dtypes import Array, DType, as_dtype, int64, string, text_array
from ....graph.core.errors import invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define
from ....graph.formats.protos import message
from ....graph.formats.values import make_ndarray, tensor_proto
from ....graph.ops.io.parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
    by_key,
    check_kinds,
    columns,
    columns_of,
    described,
    feature_dims,
    messages_of,
    without_padding,
)
from ....graph.ops.math.static_operands import as_bytes, need_rank, op_scope


def _context(attrs: Attrs) -> dict[str, Any]:
    """The attributes of the features of whole examples, by the names that they have for examples."""
    return {key.removeprefix("context_"): value for key, value in attrs.items() if key.startswith("context_")}


def _lists(attrs: Attrs) -> list[tuple[str, DType, Any, bool, bool]]:
    """(name, type, shape of an element, whether there are any number of values, whether it may be missing) of each list."""
    names = ("list_keys", "list_types", "list_shapes", "list_sparse", "list_missing")
    return list(zip(*(attrs[name] for name in names), strict=True))


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The context's columns and counts; of each list the values and how long they are, of one of any number also how many each has."""
    (serialized,) = inputs
    if serialized.dtype.base is not string:
        raise TypeError(f"examples are text, not {serialized.dtype.name}")
    outer = serialized.dims
    out = columns_of(outer, _context(attrs))
    for _, dtype, dims, sparse, _ in _lists(attrs):
        inner = (None, None) if sparse else (None, *dims)
        out.append((dtype, None if outer is None else (*outer, *inner)))
        out.append((int64, outer if not sparse or outer is None else (*outer, None)))
    return out


def _parse(serialized: Array, **attrs: Any) -> tuple[Array, ...]:
    examples = messages_of(serialized, "SequenceExample")
    found = list(columns([e.context.feature for e in examples], serialized.shape, **_context(attrs)))
    for key, dtype, dims, sparse, missing in _lists(attrs):
        lists = [_steps(example, key, missing or sparse) for example in examples]
        longest = max((len(steps) for steps in lists), default=0)
        feature = {
            "keys": (key,), "feature_types": (dtype,), "feature_shapes": (() if sparse else dims,), "sequences": (sparse,),
            "defaults": (None,), "counted": (key,),
        }  # fmt: skip
        parts = [columns(steps, (len(steps),), **feature) for steps in lists]  # type: ignore[arg-type]
        found.append(_stacked([values for values, _ in parts], longest, dims, sparse, dtype).reshape(
            (*serialized.shape, longest, *_inner([values for values, _ in parts], dims, sparse))
        ))  # fmt: skip
        if sparse:
            counts = np.zeros((len(parts), longest), np.int64)
            for row, (_, each) in zip(counts, parts, strict=True):
                row[: len(each)] = each
            found.append(counts.reshape((*serialized.shape, longest)))
        else:
            found.append(np.array([len(steps) for steps in lists], np.int64).reshape(serialized.shape))
    return tuple(found)


def _inner(parts: Sequence[Array], dims: Any, sparse: bool) -> tuple[int, ...]:
    """The shape of one step."""
    return (max((values.shape[1] for values in parts), default=0),) if sparse else tuple(dims)


def _stacked(parts: Sequence[Array], longest: int, dims: Any, sparse: bool, dtype: DType) -> Array:
    """The steps of all examples, filled up to the longest."""
    out = np.full((len(parts), longest, *_inner(parts, dims, sparse)), b"" if dtype is string else 0, dtype.np)
    for row, values in zip(out, parts, strict=True):
        row[tuple(slice(n) for n in values.shape)] = values
    return out


def _steps(example: Any, key: str, missing: bool) -> list[dict[str, Any]]:
    """The features of a list, each as an example that has this one."""
    lists = example.feature_lists.feature_list
    if key in lists:
        return [{key: feature} for feature in lists[key].feature]
    if missing:
        return []
    raise invalid(
        f"Name: <unknown>, Feature list '{key}' is required but could not be found.  Did you mean to include it in "
        "feature_list_dense_missing_assumed_empty or feature_list_dense_defaults? Say allow_missing=True"
    )


define("ParseSequenceExampleV2", _rule, _parse, device_types=("CPU",))

Parsed = dict[str, Any]


def _sequences(
    serialized: Tensor, context: Mapping[str, Any], lists: Mapping[str, Any], name: str | None
) -> tuple[Parsed, Parsed, Parsed]:
    """(features of whole examples, lists, how long the dense ones are)."""
    if not context and not lists:
        raise ValueError("Missing features: say which are to be parsed")
    of_context = described(context, (FixedLenFeature, VarLenFeature))
    check_kinds(lists, (FixedLenSequenceFeature, VarLenFeature))
    keys = sorted(lists)
    sparse = tuple(isinstance(lists[key], VarLenFeature) for key in keys)
    attrs = {f"context_{key}": value for key, value in of_context.items()} | {
        "list_keys": tuple(keys),
        "list_types": tuple(as_dtype(lists[key].dtype) for key in keys),
        "list_shapes": tuple(() if s else feature_dims(lists[key]) for key, s in zip(keys, sparse, strict=True)),
        "list_sparse": sparse,
        "list_missing": tuple(bool(getattr(lists[key], "allow_missing", True)) for key in keys),
    }
    with op_scope(name, "ParseSequenceExample", serialized):
        outputs = make("ParseSequenceExampleV2", (serialized,), attrs).outputs
        first = len(outputs) - 2 * len(keys)
        pairs = dict(zip(keys, zip(outputs[first::2], outputs[first + 1 :: 2], strict=True), strict=True))
        whole = by_key(of_context, outputs[:first])
        found = {key: without_padding(*pairs[key]) if s else pairs[key][0] for key, s in zip(keys, sparse, strict=True)}
        return whole, found, {key: pairs[key][1] for key, s in zip(keys, sparse, strict=True) if not s}


def parse_single_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_name: Any = None,
    name: str | None = None,
) -> tuple[Parsed, Parsed]:
    """The features of one serialized `SequenceExample`.

    Args:
        serialized: text, a scalar.
        context_features: name -> `FixedLenFeature` or `VarLenFeature`, of the whole.
        sequence_features: name -> `FixedLenSequenceFeature` (the shape of one step; allow_missing: no list is an
            empty one) or `VarLenFeature` (any number of values each step).
        example_name: accepted.

    Returns:
        (name -> tensor of the context, name -> tensor of the lists: `[steps, ...]`, a `SparseTensor` of a `VarLenFeature`).
    """
    found = convert(serialized, string, name="serialized")
    need_rank(found.dims, 0, "serialized")
    return _sequences(found, context_features or {}, sequence_features or {}, name)[:2]


def parse_sequence_example(
    serialized: TensorLike,
    context_features: Mapping[str, Any] | None = None,
    sequence_features: Mapping[str, Any] | None = None,
    example_names: Any = None,
    name: str | None = None,
) -> tuple[Parsed, Parsed, Parsed]:
    """The features of a batch of serialized `SequenceExample`s, `[batch]`: as `parse_single_sequence_example`, with an axis in front.
    Shorter lists are filled up with 0 or empty text; the third result has how long the dense ones are, name -> int64 `[batch]`.
    """
    found = convert(serialized, string, name="serialized")
    need_rank(found.dims, 1, "serialized")
    return _sequences(found, context_features or {}, sequence_features or {}, name)


# --- one text for another ---------------------------------------------------------------------------------------------


def _text_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    if x.dtype.base is not string:
        raise TypeError(f"JSON is text, not {x.dtype.name}")
    return [(string, x.dims)]


def _from_json(x: Array) -> Array:
    kind = message("Example")
    from google.protobuf import json_format

    out = np.empty(x.shape, object)
    for at, item in np.ndenumerate(x):
        try:
            out[at] = json_format.Parse(as_bytes(item), kind()).SerializeToString()
        except json_format.ParseError as e:
            raise invalid(f"Error while parsing JSON: {e}") from None
    return out


define("DecodeJSONExample", _text_rule, _from_json, device_types=("CPU",))


def decode_json_example(json_examples: TensorLike, name: str | None = None) -> Tensor:
    """Serialized `Example`s for ones that are written as JSON; text of any shape."""
    return make("DecodeJSONExample", (convert(json_examples, string, name="json_examples"),), None, name).outputs[0]


def _tensor_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    if x.dtype.base is not string:
        raise TypeError(f"a serialized tensor is text, not {x.dtype.name}")
    need_rank(x.dims, 0, "serialized")
    return [(attrs["out_type"], None)]


def _tensor(serialized: Array, *, out_type: DType) -> Array:
    if serialized.ndim:
        raise invalid(f"Expected `serialized` to be a scalar, got shape: {list(serialized.shape)}")
    data = as_bytes(serialized.item())
    try:
        proto = message("TensorProto").FromString(data)
    except Exception as e:
        shown = data[:40].decode(errors="replace")
        raise invalid(f"Could not parse `serialized` as TensorProto: '{shown}': {e}") from None
    found = make_ndarray(proto)
    if found.dtype != out_type.np:
        raise invalid(f"Type mismatch between parsed tensor ({found.dtype}) and dtype ({out_type.name})")
    return found


define("ParseTensor", _tensor_rule, _tensor, device_types=("CPU",))


def parse_tensor(serialized: TensorLike, out_type: Any, name: str | None = None) -> Tensor:
    """The tensor in a serialized `TensorProto`, a scalar text; `out_type` must be its type."""
    operand = convert(serialized, string, name="serialized")
    return make("ParseTensor", (operand,), {"out_type": as_dtype(out_type).base}, name).outputs[0]


define(
    "SerializeTensor",
    lambda inputs, attrs: [(string, ())],
    lambda x: text_array([tensor_proto(x).SerializeToString()], ()),
    device_types=("CPU",),
)


def serialize_tensor(tensor: TensorLike, name: str | None = None) -> Tensor:
    """A tensor as a serialized `TensorProto`, a scalar text, which `parse_tensor` reads."""
    return make("SerializeTensor", (convert(tensor, name="tensor"),), None, name).outputs[0]


explain_members(sys.modules[__name__])
