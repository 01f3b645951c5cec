"""Substrings, splitting and joining; CSV records as columns of numbers and strings."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.constant_value import static_value
from ...core.dtypes import Array, float32, float64, int32, int64, string, text_array
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import Dims, broadcast, merge
from ...tensors.sparse_tensor import SparseTensor
from ..math.static_operands import as_bytes, dims_of, index_operand, need_index, need_rank, normal_axis
from .strings import check_unit, need_strings, number_of


def _infer_substr(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, *numbers = inputs
    need_strings(x)
    for t in numbers:
        need_index(t, "pos and len")
    check_unit(attrs)
    return [(string, broadcast(x.dims, merge(*(t.dims for t in numbers))))]


def _substr(x: Array, pos: Array, length: Array, *, unit: str) -> Array:
    x, pos, length = np.broadcast_arrays(x, pos, length)
    out = np.empty(x.shape, object)
    for at, item in np.ndenumerate(x):
        text: Any = as_bytes(item) if unit == "BYTE" else as_bytes(item).decode(errors="replace")
        begin = int(pos[at])
        if not -len(text) <= begin <= len(text):
            raise invalid(
                f"pos {begin} out of range for string '{as_bytes(item).decode(errors='replace')}' at index {at}"
            )
        begin += len(text) if begin < 0 else 0
        out[at] = as_bytes(text[begin : begin + max(0, int(length[at]))])
    return out


define("Substr", _infer_substr, _substr, device_types=("CPU",))


def substr(input: TensorLike, pos: TensorLike, len: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """Substrings of `len` bytes or characters, from `pos` on. The three operands broadcast.

    Args:
        input: strings.
        pos: where the substrings begin, ints. Negative ones count from the end.
        len: their lengths, ints.
        name: name of the node.
        unit: "BYTE" or "UTF8_CHAR".

    Raises:
        InvalidArgumentError: in a step, `pos` is out of range.
    """
    operands = convert(input, string, name="input"), convert(pos, name="pos"), convert(len, name="len")
    return apply("Substr", operands, {"unit": unit}, name)


def _infer_join(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "separator", str)
    if not inputs:
        raise ValueError("needs at least one input")
    dims: Dims = ()
    for t in inputs:
        need_strings(t)
        dims = broadcast(dims, t.dims)
    return [(string, dims)]


def _join(*parts: Array, separator: str) -> Array:
    several, between = np.broadcast_arrays(*parts), separator.encode()
    together = zip(*(p.flat for p in several), strict=True)
    return text_array((between.join(map(as_bytes, items)) for items in together), several[0].shape)


define("StringJoin", _infer_join, _join, device_types=("CPU",))


def string_join(inputs: Sequence[TensorLike], separator: str = "", name: str | None = None) -> Tensor:
    """Concatenate the strings of several tensors element by element. All have one shape, or are scalars.

    >>> string_join([["a", "b"], "!"])   # evaluates to [b"a!", b"b!"]
    """
    operands = [convert(x, string, name="inputs") for x in inputs]
    dims: Dims = None
    try:  # the op broadcasts, for `+`; TensorFlow's string_join does not
        for t in operands:
            dims = dims if t.dims == () else merge(dims, t.dims)
    except ValueError as e:
        names = ", ".join(map(repr, operands))
        raise ValueError(f"string_join: {e}. The inputs must be scalars or have one shape, not {names}") from None
    return make("StringJoin", operands, {"separator": separator}, name).outputs[0]


def _infer_reduce_join(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, *given = inputs
    need_strings(x)
    typed_attr(attrs, "separator", str)
    axes = attrs.get("axes")
    if axes is not None and (not isinstance(axes, tuple) or not all(type(a) is int for a in axes)):
        raise TypeError("attribute axes must hold ints")
    for t in given:
        need_index(t, "axes")
        keep = x.dims is not None and attrs["keep_dims"]
        return [(string, (None,) * len(x.dims or ()) if keep else None)]
    if x.dims is None:
        return [(string, () if axes is None and not attrs["keep_dims"] else None)]
    gone = range(len(x.dims)) if axes is None else [normal_axis(a, len(x.dims)) for a in axes]
    if attrs["keep_dims"]:
        return [(string, tuple(1 if i in gone else d for i, d in enumerate(x.dims)))]
    return [(string, tuple(d for i, d in enumerate(x.dims) if i not in gone))]


def _reduce_join(
    x: Array, given: Array | None = None, *, axes: tuple[int, ...] | None, keep_dims: bool, separator: str
) -> Array:
    if given is not None:
        axes = tuple(given.reshape(-1).tolist())
    if axes is not None and any(not -x.ndim <= a < x.ndim for a in axes):
        raise invalid(f"Invalid reduction dimension: axes {list(axes)} of an input with {x.ndim} dimensions")
    gone = list(range(x.ndim))[::-1] if axes is None else [a % x.ndim for a in axes]
    if len(set(gone)) < len(gone):
        raise invalid(f"Duplicate reduction dimension: axes {list(axes or ())} of an input with {x.ndim} dimensions")
    kept = [a for a in range(x.ndim) if a not in gone]
    turned = x.transpose([*kept, *gone[::-1]])
    outer = turned.shape[: len(kept)]
    rows = (turned[(*at, ...)].reshape(-1) for at in np.ndindex(outer))
    out = text_array((separator.encode().join(map(as_bytes, row)) for row in rows), outer)
    return out.reshape([1 if a in gone else x.shape[a] for a in range(x.ndim)]) if keep_dims else out


define("ReduceJoin", _infer_reduce_join, _reduce_join, device_types=("CPU",))


def reduce_join(
    inputs: TensorLike,
    axis: Any = None,
    keep_dims: bool = False,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Concatenate strings along axes.

    Args:
        inputs: strings.
        axis: the axes, joined in this order. None means all, beginning with the last.
        keep_dims: keep the joined axes with size 1.
        separator: what to put between strings.
        name: name of the node.
        reduction_indices: old name of `axis`.
        keepdims: newer name of `keep_dims`.

    Raises:
        ValueError: an axis does not exist or occurs twice. InvalidArgumentError if only the step knows.

    >>> reduce_join([["a", "b"], ["c", "d"]], axis=0)   # evaluates to [b"ac", b"bd"]
    """
    given = axis if axis is not None else reduction_indices
    operands, known = [convert(inputs, string, name="inputs")], None
    if given is not None:
        axes = index_operand(given, "axis")
        known = static_value(axes)
        if known is None:
            operands.append(axes)
    attrs = {
        "axes": None if known is None else tuple(dims_of(known)), "keep_dims": bool(keep_dims if keepdims is None else keepdims),
        "separator": separator,
    }  # fmt: skip
    return apply("ReduceJoin", operands, attrs, name)


def _infer_split(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for t in inputs:
        need_strings(t)
    x, *ends = inputs
    if x.dims is not None and len(x.dims) != 1:
        raise ValueError(f"the input must be a vector of strings, not of shape {x.shape}")
    for t in ends:
        need_rank(t.dims, 0, "delimiter")
    typed_attr(attrs, "delimiter", str)
    return [(int64, (None, 2)), (string, (None,)), (int64, (2,))]


def _split(
    x: Array, given: Array | None = None, *, delimiter: str, skip_empty: bool, whole: bool, most: int
) -> tuple[Array, Array, Array]:
    rows: list[list[bytes]] = []
    if given is not None and given.ndim:
        raise invalid(f"delimiter must be a scalar, not of shape {list(given.shape)}")
    ends = delimiter.encode() if given is None else as_bytes(given[()])
    for item in x:
        text = as_bytes(item)
        if whole:
            parts = text.split(ends, most) if ends else _words(text, most)
        elif ends:
            parts = re.split(b"[" + re.escape(ends) + b"]", text) if text else []  # as in TensorFlow
        else:
            parts = [text[i : i + 1] for i in range(len(text))]
        rows.append([p for p in parts if p] if skip_empty else parts)
    count = sum(len(r) for r in rows)
    indices = np.array([(i, j) for i, row in enumerate(rows) for j in range(len(row))], np.int64).reshape(count, 2)
    values = text_array(part for row in rows for part in row)
    return indices, values, np.array([len(rows), max((len(r) for r in rows), default=0)], np.int64)


def _words(text: bytes, most: int) -> list[bytes]:
    """The words of a string, after at most `most` splits. The remainder after the last split may be empty, as in TensorFlow."""
    if most == 0:
        return [text]
    words = text.split(None, most)
    return [*words, b""] if len(words) == most else words


define("StringSplit", _infer_split, _split, device_types=("CPU",))


def string_split_v2(
    input: TensorLike = None,
    sep: TensorLike = None,
    maxsplit: int = -1,
    result_type: str = "SparseTensor",
    source: TensorLike = None,
    name: str | None = None,
) -> SparseTensor:
    """Split strings like Python's `str.split`.

    Args:
        input: a vector of strings.
        sep: the separator. None means runs of whitespace.
        maxsplit: the largest number of splits per string. -1 means no limit. With whitespace, the remainder may be an empty string.
        result_type: must be "SparseTensor".
        source: old name of `input`.
        name: name of the node.

    Returns:
        A `SparseTensor` with a row per string.
    """
    return split_strings(
        input if input is not None else source, "" if sep is None else sep, False, True, maxsplit, name, result_type
    )


def split_strings(
    source: TensorLike, ends: TensorLike, skip_empty: bool, whole: bool, most: int, name: str | None, result_type: str
) -> SparseTensor:
    """Add a `StringSplit` node.

    Args:
        source: a vector of strings.
        ends: the delimiter, or without `whole` several one-byte delimiters. "": whitespace with `whole`, else every byte is a part.
        skip_empty: leave out empty parts.
        whole: whether `ends` is one delimiter.
        most: the largest number of splits, with `whole`. -1 means no limit.
        name: name of the node.
        result_type: must be "SparseTensor".
    """
    if result_type != "SparseTensor":
        raise ValueError(f"result_type must be 'SparseTensor', not {result_type!r}: ragged tensors are not supported")
    fixed = isinstance(ends, (str, bytes))
    delimiter = "" if not fixed else ends if isinstance(ends, str) else ends.decode()
    attrs = {"delimiter": delimiter, "skip_empty": bool(skip_empty), "whole": whole, "most": int(most)}
    operands = [convert(source, string, name="source"), *([] if fixed else [convert(ends, string, name="delimiter")])]
    return SparseTensor(*make("StringSplit", operands, attrs, name).outputs)


# --- CSV --------------------------------------------------------------------------------------------------------------


TYPES = (float32, float64, int32, int64, string)


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    records, *defaults = inputs
    if records.dtype.base is not string:
        raise TypeError(f"records must be strings, not {records.dtype.name}")
    if not defaults:
        raise ValueError("each column needs a default or an empty vector")
    for t in defaults:
        if t.dtype.base not in TYPES:
            raise TypeError(f"columns are {', '.join(d.name for d in TYPES)}, not {t.dtype.base.name}")
        if t.dims is not None and (len(t.dims) > 1 or t.dims not in ((), (0,), (1,), (None,))):
            raise ValueError(f"a default must hold one value or none, not be of shape {t.dims}")
    delim, columns = attrs.get("field_delim"), attrs.get("select_cols")
    if not isinstance(delim, str) or len(delim) != 1:
        raise ValueError(f"field_delim must be one character, not {delim!r}")
    if not isinstance(columns, tuple):
        raise ValueError(f"select_cols must be numbers of columns, not {columns!r}")
    if columns and len(columns) != len(defaults):
        raise ValueError(f"Length of select_cols and record_defaults do not match. {len(columns)} and {len(defaults)}")
    if columns and columns[0] < 0:
        raise ValueError(f"select_cols contains negative values. {columns}")
    if sorted(set(columns)) != list(columns):
        raise ValueError(f"select_cols is not strictly increasing. {columns}")
    return [(t.dtype.base, records.dims) for t in defaults]


def _decode(
    records: Array,
    *defaults: Array,
    field_delim: str,
    use_quote_delim: bool,
    na_value: str,
    select_cols: tuple[int, ...],
) -> Any:
    kinds = [d.dtype for d in defaults]
    columns = [np.empty(records.size, dtype) for dtype in kinds]
    one = rf'(?:"(?:[^"]|"")*"|[^"{re.escape(field_delim)}]*)'
    whole = re.compile(rf"(?:{one}{re.escape(field_delim)})*{one}", re.DOTALL)
    quoting: Any = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    for row, record in enumerate(records.reshape(-1)):
        line = as_bytes(record).decode()
        try:
            parsed = next(csv.reader([line], delimiter=field_delim, quoting=quoting, strict=True), [""])
        except csv.Error as e:
            raise invalid(
                f"Quoted field has to end with quote followed by delim or end, in record {row}: {line!r}: {e}"
            ) from None
        if use_quote_delim and '"' in line and not whole.fullmatch(line):
            raise invalid(f"Unquoted fields cannot have quotes/CRLFs inside, in record {row}: {line!r}")
        fields = parsed
        if select_cols:
            if select_cols[-1] >= len(fields):
                raise invalid(f"Expect {select_cols[-1] + 1} fields at least but have {len(fields)} in record {row}")
            fields = [fields[i] for i in select_cols]
        if len(fields) != len(defaults):
            raise invalid(f"Expect {len(defaults)} fields but have {len(fields)} in record {row}")
        for at, (field, default, column) in enumerate(zip(fields, defaults, columns, strict=True)):
            column[row] = _value(field, default, at, row, na_value)
    found = tuple(c.reshape(records.shape) for c in columns)
    return found[0] if len(found) == 1 else found


def _value(field: str, default: Array, at: int, row: int, missing: str) -> Any:
    if field in ("", missing):
        if not default.size:
            raise invalid(f"Field {at} is required but missing in record {row}!")
        value = default.reshape(-1)[0]
        return value.encode() if isinstance(value, str) else value
    if default.dtype == object:
        return field.encode()
    try:
        return number_of(field, default.dtype)
    except (ValueError, OverflowError):
        raise invalid(f"Field {at} in record {row} is not a valid {default.dtype.name}: {field}") from None


define("DecodeCSV", _rule, _decode, device_types=("CPU",))


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """Parse CSV records into one tensor per column, in the shape of `records`.

    Args:
        records: strings, one record each.
        record_defaults: for each column the value of empty fields, which also determines the type: float32, float64, int32, int64 or
            string. An empty vector of the type means that fields must not be empty.
        field_delim: the delimiter between fields.
        use_quote_delim: whether fields may be quoted with `"`, which is doubled inside them.
        name: name of the node.
        na_value: a field that also counts as empty.
        select_cols: the columns to return, in ascending order. None means all.

    Raises:
        ValueError: a default has another shape, or `select_cols` is invalid.
        TypeError: a default has another type.
        InvalidArgumentError: in a step, a record does not have these fields.

    >>> x, label = decode_csv(line, [[0.0], [""]])
    """
    operands = [convert(records, string, name="records")]
    operands += [convert(d, name="record_defaults") for d in record_defaults]
    attrs: dict[str, Any] = {
        "field_delim": field_delim,
        "use_quote_delim": bool(use_quote_delim),
        "na_value": na_value,
        "select_cols": tuple(int(c) for c in select_cols or ()),
    }
    return list(make("DecodeCSV", operands, attrs, name or "DecodeCSV").outputs)
