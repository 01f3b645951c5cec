"""CSV lines as columns of numbers and text."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import Array, float32, float64, int32, int64, string
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define
from ..math.static_operands import as_bytes
from .strings import number_of

TYPES = (float32, float64, int32, int64, string)


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    records, *defaults = inputs
    if records.dtype.base is not string:
        raise TypeError(f"records are text, not {records.dtype.name}")
    if not defaults:
        raise ValueError("there must be a default, or an empty vector, for each column")
    for t in defaults:
        if t.dtype.base not in TYPES:
            raise TypeError(f"columns are {', '.join(d.name for d in TYPES)}, not {t.dtype.base.name}")
        if t.dims is not None and (len(t.dims) > 1 or t.dims not in ((), (0,), (1,), (None,))):
            raise ValueError(f"a default is one value or none, not of shape {t.dims}")
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


define("DecodeCSV", infer=_rule, reference=_decode, device_types=("CPU",))


def decode_csv(
    records: TensorLike,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """Lines of values as one tensor per column, each of the shape of `records`.

    Args:
        records: text, a line each.
        record_defaults: for each column the value of an empty field, which also gives the type: float32, float64, int32, int64 or
            string. An empty vector of that type: the field must not be empty.
        field_delim: what is between fields. use_quote_delim: `"` may be around a field, and is doubled in it.
        na_value: text that counts as empty, too. select_cols: the columns to return, in rising order; None: all.

    Raises:
        ValueError, TypeError: defaults of other types or shapes. InvalidArgumentError, in a step: a line with other fields.

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
