"""Parsing of serialized examples and of raw bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make, to_array
from ...core.dtypes import (
    FLOATS,
    Array,
    DType,
    as_dtype,
    bool_,
    float32,
    int8,
    int16,
    int32,
    int64,
    string,
    text_array,
    uint8,
    uint16,
)
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define
from ...core.shape import Dims, as_dims, is_static, text
from ...formats.protos import message
from ...tensors.sparse_tensor import SparseTensor
from ..array.concat_stack import concat
from ..array.gather import gather_nd
from ..array.sequences import sequence_mask
from ..array.shapes import expand_dims, shape
from ..math.compare import where
from ..math.static_operands import as_bytes
from ..sparse.arrange import sparse_reorder

KINDS = {float32: "float_list", int64: "int64_list", string: "bytes_list"}
"""Element type of a feature -> the field of an example's feature that holds it."""
RAW = (*FLOATS, bool_, int8, int16, int32, int64, uint8, uint16)


# --- descriptions of features -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedLenFeature:
    """A feature that has the same shape in each example.

    Attributes:
        shape: its shape.
        dtype: float32, int64 or string.
        default_value: its value in examples that lack it. None means that the feature is required.
    """

    shape: Any
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True, slots=True)
class FixedLenSequenceFeature:
    """A feature with any number of values of a shape. In a batch, shorter sequences are padded.

    Attributes:
        shape: the shape of one value.
        dtype: float32, int64 or string.
        allow_missing: must be True. An example that lacks the feature has no values.
        default_value: the padding. None means 0, or the empty string.
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


@dataclass(frozen=True, slots=True)
class VarLenFeature:
    """A feature with any number of values, which becomes a `SparseTensor` with one row per example.

    Attributes:
        dtype: float32, int64 or string.
    """

    dtype: Any


@dataclass(frozen=True, slots=True)
class SparseFeature:
    """A `SparseTensor` whose values and coordinates are in different features.

    Attributes:
        index_key: the feature with the coordinates, int64, or a list of features for several axes.
        value_key: the feature with the values.
        dtype: element type of the values.
        size: size of the axis, or a list of sizes.
        already_sorted: whether the coordinates of each example are in ascending order.
    """

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False

    @property
    def index_keys(self) -> list[str]:
        """The features with the coordinates, one per axis."""
        return [self.index_key] if isinstance(self.index_key, str) else list(self.index_key)


# --- the op -----------------------------------------------------------------------------------------------------------


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (serialized,) = inputs
    if serialized.dtype.base is not string:
        raise TypeError(f"examples must be strings, not {serialized.dtype.name}")
    return columns_of(serialized.dims, attrs)


def columns_of(outer: Dims, attrs: Attrs) -> list[Output]:
    """The outputs for features of examples of shape `outer`: an output per feature, and the value counts of those in `counted`.

    The shape of a feature follows `outer`. Sequences have an unknown size between the two.
    """
    keys, dtypes, shapes = attrs["keys"], attrs["feature_types"], attrs["feature_shapes"]
    sequences, defaults = attrs["sequences"], attrs["defaults"]
    if not all(isinstance(k, str) for k in keys) or not len(keys) == len(dtypes) == len(shapes):
        raise ValueError("each feature needs a name, a type and a shape")
    if not len(keys) == len(sequences) == len(defaults):
        raise ValueError("each feature needs an entry in defaults and in sequences")
    out: list[Output] = []
    for key, dtype, dims, sequence in zip(keys, dtypes, shapes, sequences, strict=True):
        if dtype not in KINDS:
            raise TypeError(
                f"feature {key!r}: values are float32, int64 or string, not {getattr(dtype, 'name', dtype)}"
            )
        if not is_static(dims):
            raise ValueError(f"feature {key!r} needs a complete shape, not {text(dims)}")
        inner = (None, *dims) if sequence else tuple(dims)
        out.append((dtype, None if outer is None else (*outer, *inner)))
    return out + [(int64, outer)] * len(attrs.get("counted", ()))


def _parse(serialized: Array, **attrs: Any) -> Any:
    parsed = [example.features.feature for example in messages_of(serialized, "Example")]
    found = columns(parsed, serialized.shape, **attrs)
    return found[0] if len(found) == 1 else found


def messages_of(serialized: Array, name: str) -> list[Any]:
    """Parse strings as protocol buffers of the message `name`. InvalidArgumentError if one is malformed."""
    kind, found = message(name), []
    for item in serialized.reshape(-1):
        try:
            found.append(kind.FromString(as_bytes(item)))
        except Exception as e:
            raise invalid(f"Could not parse example input: {e}") from None
    return found


def columns(
    parsed: Sequence[Any],
    outer: tuple[int, ...],
    *,
    keys: Sequence[str],
    feature_types: Sequence[DType],
    feature_shapes: Sequence[Any],
    sequences: Sequence[bool],
    defaults: Sequence[Any],
    counted: Sequence[str] = (),
) -> tuple[Array, ...]:
    """The arrays of all features of examples, and the value counts of the features in `counted`. An example maps names to features."""
    types = dict(zip(keys, feature_types, strict=True))
    described = zip(keys, feature_types, feature_shapes, sequences, defaults, strict=True)
    found = tuple(_column(parsed, outer, *feature) for feature in described)
    return found + tuple(_counts(parsed, outer, key, types[key]) for key in counted)


def _column(
    examples: Sequence[Any], outer: tuple[int, ...], key: str, dtype: DType, dims: Any, sequence: bool, default: Any
) -> Array:
    """One feature of all examples."""
    count = int(np.prod(dims, dtype=np.int64))
    rows: list[Array] = []
    for number, features in enumerate(examples):
        values = _values(features, key, dtype, number)
        if values is None:
            if sequence:
                values = np.zeros(0, dtype.np)
            elif default is None:
                raise invalid(
                    f"Name: example {number}, Feature: {key} (data type: {dtype.name}) is required but could not be found."
                )
            else:
                values = np.broadcast_to(default, dims).reshape(-1)
        if (not sequence and len(values) != count) or (sequence and (not count or len(values) % count)):
            raise invalid(
                f"Key: {key}, Index: {number}. Number of {dtype.name} values != expected. Values size: {len(values)} but output "
                f"shape: {tuple(dims)}"
            )
        rows.append(values)
    if not sequence:
        joined = np.concatenate(rows) if rows else np.zeros(0, dtype.np)
        return joined.reshape((*outer, *dims))
    longest = max((len(r) for r in rows), default=0)
    fill = default if default is not None else (b"" if dtype is string else 0)
    filled = np.full((len(rows), longest), fill, dtype.np)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return filled.reshape((*outer, longest // count if count else 0, *dims))


def _counts(examples: Sequence[Any], outer: tuple[int, ...], key: str, dtype: DType) -> Array:
    """The number of values of a feature in each example."""
    rows = (_values(features, key, dtype, number) for number, features in enumerate(examples))
    counts = np.array([0 if values is None else len(values) for values in rows], np.int64)
    return counts.reshape(outer)


def _values(features: Any, key: str, dtype: DType, number: int) -> Array | None:
    """The values of a feature. None if the example lacks it."""
    if key not in features:
        return None
    feature = features[key]
    kind = feature.WhichOneof("kind")
    if kind is None:
        return None
    if kind != KINDS[dtype]:
        raise invalid(
            f"Key: {key}, Index: {number}. Data types don't match. Expected type: {dtype.name}, and it is a {kind}"
        )
    values = getattr(feature, kind).value
    if dtype is string:
        return text_array(values)
    return np.fromiter(values, dtype.np, len(values))


define("ParseExampleV2", _rule, _parse, device_types=("CPU",))


def parse_example(
    serialized: TensorLike, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """Parse serialized `Example` messages to a tensor per feature.

    Args:
        serialized: strings of any shape, each a serialized `dt.train.Example`.
        features: name -> `FixedLenFeature`, `FixedLenSequenceFeature`, `VarLenFeature` or `SparseFeature`.
        name: name of the node.
        example_names: accepted without effect.

    Returns:
        name -> tensor. Its shape is that of `serialized` followed by the feature's. A `VarLenFeature` gives a `SparseTensor` with one axis
        more than `serialized`, whose size is the largest number of values.

    Raises:
        ValueError: there are no features, or a description is invalid.
        InvalidArgumentError: in a step, an example lacks a required feature, or has values of another type or number.

    >>> parsed = parse_example(batch, {"x": FixedLenFeature([784], dt.float32), "y": FixedLenFeature([], dt.int64)})
    """
    if not features:
        raise ValueError("Missing features: describe the features to parse")
    operand = convert(serialized, string, name="serialized")
    if not any(isinstance(feature, SparseFeature) for feature in features.values()):
        return _parsed(operand, features, name)
    plain = {key: feature for key, feature in features.items() if not isinstance(feature, SparseFeature)}
    sparse = {key: feature for key, feature in features.items() if isinstance(feature, SparseFeature)}
    parts: dict[str, Any] = dict(plain)
    for key, feature in sparse.items():
        for part, dtype in (*((k, int64) for k in feature.index_keys), (feature.value_key, as_dtype(feature.dtype))):
            known = parts.setdefault(part, VarLenFeature(dtype))
            if not isinstance(known, VarLenFeature) or as_dtype(known.dtype) is not dtype:
                raise ValueError(
                    f"Conflicting type for feature {part!r}: {key!r} takes it for a VarLenFeature of {dtype.name}"
                )
    found = _parsed(operand, parts, name)
    return {key: _joined(sparse[key], found) if key in sparse else found[key] for key in features}


def _joined(feature: SparseFeature, parsed: Mapping[str, Any]) -> SparseTensor:
    """The `SparseTensor` of a `SparseFeature`, from its parsed features."""
    axes, values = [parsed[key] for key in feature.index_keys], parsed[feature.value_key]
    sizes = feature.size if isinstance(feature.size, (list, tuple)) else [feature.size]
    if len(sizes) != len(axes):
        raise ValueError(f"a SparseFeature needs one size for each index_key, not {len(sizes)} for {len(axes)}")
    examples = axes[0].indices[:, :-1]
    indices = concat([examples, *(expand_dims(axis.values, 1) for axis in axes)], 1)
    shape_ = concat([axes[0].dense_shape[:-1], convert(list(sizes), int64)], 0)
    found = SparseTensor(indices, values.values, shape_)
    return found if feature.already_sorted else sparse_reorder(found)


def check_kinds(features: Mapping[str, Any], allowed: tuple[type, ...]) -> None:
    """ValueError if a feature is described by a class that is not allowed."""
    for key, feature in features.items():
        if not isinstance(feature, allowed):
            raise ValueError(
                f"Invalid feature {key}:{feature!r}; supported are {', '.join(kind.__name__ for kind in allowed)}"
            )


def described(features: Mapping[str, Any], allowed: tuple[type, ...]) -> dict[str, Any]:
    """The attributes that describe features. ValueError if a feature is described by a class that is not allowed."""
    check_kinds(features, allowed)
    keys = sorted(features)
    each = [_described(key, features[key]) for key in keys]
    attrs: dict[str, Any] = {
        "keys": tuple(keys),
        "feature_types": tuple(dtype for dtype, _, _, _ in each),
        "feature_shapes": tuple(dims for _, dims, _, _ in each),
        "sequences": tuple(sequence for _, _, sequence, _ in each),
        "defaults": tuple(default for _, _, _, default in each),
    }
    counted = tuple(key for key in keys if isinstance(features[key], VarLenFeature))
    if counted:
        attrs["counted"] = counted
    return attrs


def _parsed(serialized: Tensor, features: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    attrs = described(features, (FixedLenFeature, FixedLenSequenceFeature, VarLenFeature))
    return by_key(attrs, make("ParseExampleV2", (serialized,), attrs, name).outputs)


def by_key(attrs: Mapping[str, Any], outputs: Sequence[Tensor]) -> dict[str, Any]:
    """Name of a feature -> tensor, from the outputs of a parsing node."""
    keys, counted = attrs["keys"], attrs.get("counted", ())
    parsed: dict[str, Any] = dict(zip(keys, outputs, strict=False))
    for key, counts in zip(counted, outputs[len(keys) :], strict=True):
        parsed[key] = without_padding(parsed[key], counts)
    return parsed


def without_padding(padded: Tensor, counts: Tensor) -> SparseTensor:
    """Padded rows as a sparse tensor without the padding. `counts` are the numbers of values per row."""
    indices = where(sequence_mask(counts, shape(padded)[-1]))
    return SparseTensor(indices, gather_nd(padded, indices), shape(padded, out_type=int64))


def parse_single_example(
    serialized: TensorLike, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """`parse_example` for one serialized `Example`, a scalar."""
    found = convert(serialized, string, name="serialized")
    if found.shape.rank not in (None, 0):
        raise ValueError(
            f"parse_single_example takes one example, a scalar, not shape {found.shape}; parse_example takes more"
        )
    return parse_example(found, features, name)


def feature_dims(feature: Any) -> Dims:
    """The shape in the description of a feature. A number stands for a vector of that size."""
    return (feature.shape,) if isinstance(feature.shape, int) else as_dims(feature.shape)


def _described(key: str, feature: Any) -> tuple[DType, Dims, bool, Any]:
    """The element type and shape of a feature, whether it is a sequence, and its default."""
    if isinstance(feature, VarLenFeature):
        return as_dtype(feature.dtype), (), True, None
    sequence = isinstance(feature, FixedLenSequenceFeature)
    if sequence and not getattr(feature, "allow_missing", False):
        raise ValueError(f"Unsupported: FixedLenSequenceFeature requires allow_missing to be True. (Feature {key!r})")
    if feature.shape is None:
        raise ValueError(f"Missing shape for feature {key}.")
    dtype, dims = as_dtype(feature.dtype), feature_dims(feature)
    default = feature.default_value
    if default is not None:
        default = to_array(default if dtype is string else np.asarray(default), dtype)
        if sequence and default.size != 1:
            raise ValueError(f"The padding of feature {key!r} must be a scalar, not of shape {default.shape}")
        wanted = () if sequence else dims
        if wanted is not None and is_static(wanted) and default.size not in (1, math.prod(d or 0 for d in wanted)):
            raise ValueError(
                f"The default of feature {key!r} must have shape {text(wanted)}, not {text(default.shape)}"
            )
        if sequence or default.size != 1:
            default = default.reshape(tuple(d or 0 for d in wanted or ()))
    return dtype, dims, sequence, default


# --- raw bytes --------------------------------------------------------------------------------------------------------


def _raw_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = attrs["out_type"]
    if x.dtype.base is not string:
        raise TypeError(f"raw bytes must be strings, not {x.dtype.name}")
    if dtype not in RAW:
        raise TypeError(
            f"out_type {getattr(dtype, 'name', dtype)} is not supported; supported: {', '.join(t.name for t in RAW)}"
        )
    return [(dtype, None if x.dims is None else (*x.dims, None))]


def _raw(x: Array, *, out_type: DType, little_endian: bool) -> Array:
    items = [as_bytes(item) for item in x.reshape(-1)]
    sizes = {len(item) for item in items}
    if len(sizes) > 1:
        raise invalid(f"DecodeRaw requires input strings to all be the same size, but they have {sorted(sizes)} bytes")
    width = np.dtype(out_type.np).itemsize
    size = sizes.pop() if sizes else 0
    if size % width:
        raise invalid(
            f"Input to DecodeRaw has length {size} that is not a multiple of {width}, the size of {out_type.name}"
        )
    found = np.frombuffer(b"".join(items), out_type.np)
    if not little_endian:
        found = found.byteswap()
    return found.reshape((*x.shape, size // width)).copy()


define("DecodeRaw", _raw_rule, _raw, device_types=("CPU",))


def decode_raw(input_bytes: TensorLike, out_type: Any, little_endian: bool = True, name: str | None = None) -> Tensor:
    """Interpret the bytes of strings as numbers: `[...]` -> `[..., bytes per string / bytes per number]`.

    Args:
        input_bytes: strings of the same size.
        out_type: type of the numbers.
        little_endian: whether the least significant byte comes first.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, the sizes differ, or are not a multiple of a number's.
    """
    attrs = {"out_type": as_dtype(out_type), "little_endian": bool(little_endian)}
    return make("DecodeRaw", (convert(input_bytes, string, name="bytes"),), attrs, name).outputs[0]
