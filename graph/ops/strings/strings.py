"""Elementwise text ops: matching, replacing, hash buckets, conversion to and from numbers.

Elements are bytes, as everywhere in a graph. Hash buckets have TensorFlow's numbers.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import (
    NUMBERS as ALL_NUMBERS,
    Array,
    DType,
    as_dtype,
    bool_,
    float32,
    float64,
    int32,
    int64,
    string,
    text_array,
)
from ...core.errors import invalid
from ...core.farmhash import fingerprint, hash64, keyed_hash
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, choice_attr, define, typed_attr
from ..math.static_operands import as_bytes

NUMBERS = (float32, float64, int32, int64)


def each(x: Array, f: Callable[[bytes], Any], dtype: Any = object) -> Array:
    """A function of each element."""
    out = np.empty(x.shape, dtype)
    for at, item in np.ndenumerate(x):
        out[at] = f(as_bytes(item))
    return out


def need_text_in(tensor: Tensor) -> None:
    """TypeError: an input is no text."""
    if tensor.dtype.base is not string:
        raise TypeError(f"the input must be text, not {tensor.dtype.base.name}")


def _define(
    name: str,
    f: Callable[..., Callable[[bytes], Any]],
    result: DType = string,
    check: Callable[[Attrs], None] = lambda attrs: None,
) -> None:
    """An op of each element: `f(**attrs)` gives the function."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        (x,) = inputs
        need_text_in(x)
        check(attrs)
        return [(result, x.dims)]

    def reference(x: Array, **attrs: Any) -> Array:
        return each(x, f(**attrs), result.np)

    define(name, infer, reference, device_types=("CPU",))


def _apply(op: str, x: TensorLike, name: str | None, **attrs: Any) -> Tensor:
    return apply(op, (convert(x, string, name="input"),), attrs, name)


# --- buckets ----------------------------------------------------------------------------------------------------------


def _check_buckets(attrs: Attrs) -> None:
    if typed_attr(attrs, "num_buckets", int) < 1:
        raise ValueError(f"num_buckets must be at least 1, not {attrs['num_buckets']}")
    key = attrs.get("key", (0, 0))
    if not isinstance(key, tuple) or len(key) != 2 or not all(type(k) is int and 0 <= k < 1 << 64 for k in key):
        raise ValueError(f"key must be two numbers of 64 bits, not {key!r}")


def _buckets(hashed: Callable[..., int]) -> Callable[..., Callable[[bytes], int]]:
    """The function of an op, of a hash of 64 bits: of the text, and of the op's key where it has one."""
    return lambda *, num_buckets, **key: lambda item: hashed(item, **key) % num_buckets


_define("StringToHashBucket", _buckets(hash64), int64, _check_buckets)
_define("StringToHashBucketFast", _buckets(fingerprint), int64, _check_buckets)
_define("StringToHashBucketStrong", _buckets(keyed_hash), int64, _check_buckets)


def string_to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """A number from 0 to `num_buckets - 1` for each text, int64: the same for the same text, everywhere and always (`core/farmhash.py`).

    >>> string_to_hash_bucket_fast(["Berlin", "Paris"], 1000)
    """
    return _apply("StringToHashBucketFast", input, name, num_buckets=int(num_buckets))


def string_to_hash_bucket(
    string_tensor: TensorLike = None, num_buckets: int | None = None, name: str | None = None, input: TensorLike = None
) -> Tensor:
    """As `string_to_hash_bucket_fast`, by the hash that TensorFlow had before: other numbers."""
    if num_buckets is None:
        raise ValueError("num_buckets is missing")
    given = string_tensor if input is None else input
    return _apply("StringToHashBucket", given, name, num_buckets=int(num_buckets))


def string_to_hash_bucket_strong(
    input: TensorLike, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """As `string_to_hash_bucket_fast`, by SipHash: only a holder of the key, two numbers, can predict the buckets."""
    attrs = {"num_buckets": int(num_buckets), "key": tuple(int(k) for k in key)}
    return _apply("StringToHashBucketStrong", input, name, **attrs)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _infer_number(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    need_text_in(x)
    if attrs.get("out_type") not in NUMBERS:
        raise TypeError(f"out_type must be one of {', '.join(d.name for d in NUMBERS)}")
    return [(attrs["out_type"], x.dims)]


def number_of(text: str, dtype: np.dtype[Any]) -> Any:
    """A text's number. ValueError, OverflowError: it has none of this type."""
    if "_" in text or not text.isascii():
        raise ValueError  # a number for Python alone
    if dtype.kind != "f":
        return dtype.type(int(text))
    return dtype.type(float.fromhex(text) if "0x" in text.lower() else float(text))


def _to_number(x: Array, *, out_type: DType) -> Array:
    def number(item: bytes) -> Any:
        try:
            return number_of(item.decode(), out_type.np)
        except (ValueError, OverflowError):
            raise invalid(
                f"StringToNumberOp could not correctly convert string: {item.decode(errors='replace')}"
            ) from None

    return each(x, number, out_type.np)


define("StringToNumber", _infer_number, _to_number, device_types=("CPU",))


def string_to_number(
    string_tensor: TensorLike = None, out_type: Any = float32, name: str | None = None, input: TensorLike = None
) -> Tensor:
    """The numbers that texts write: float32, float64, int32 or int64. InvalidArgumentError in a step: one is no number."""
    given = string_tensor if input is None else input
    return _apply("StringToNumber", given, name, out_type=as_dtype(out_type).base)


def _infer_as_string(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    if x.dtype.base not in (*ALL_NUMBERS, bool_, string):
        raise TypeError(f"{x.dtype.base.name} cannot be written")
    if attrs["scientific"] and attrs["shortest"]:
        raise ValueError("Cannot specify both scientific and shortest notation")
    if (attrs["scientific"] or attrs["shortest"] or attrs["precision"] >= 0) and not x.dtype.base.is_floating:
        raise ValueError("scientific, shortest and precision are for floats")
    if attrs["fill"] not in ("", " ", "-", "0", "+"):
        raise ValueError(f"fill must be ' ', '-', '0' or '+', not {attrs['fill']!r}")
    return [(string, x.dims)]


def _as_string(x: Array, *, precision: int, scientific: bool, shortest: bool, width: int, fill: str) -> Array:
    floating = x.dtype.kind == "f" or x.dtype.name == "bfloat16"
    kind = ("e" if scientific else "g" if shortest else "f") if floating else "s" if x.dtype.kind in "bO" else "d"
    form = f"%{fill}{width if width >= 0 else ''}{f'.{precision}' if precision >= 0 else ''}{kind}"

    def written(value: Any) -> str:
        if kind == "s":
            return str(bool(value)).lower() if x.dtype == bool else form % as_bytes(value).decode()
        if not floating:
            return form % int(value)
        number = float(value)
        return (form if math.isfinite(number) else form.replace("%0", "%")) % number  # zeros go before digits alone

    return text_array((written(item).encode() for _, item in np.ndenumerate(x)), x.shape)


define("AsString", _infer_as_string, _as_string, device_types=("CPU",))


def as_string(
    input: TensorLike,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Numbers and truth values as text. The words `true` and `false` are not padded.

    Args:
        precision: digits after the decimal point; -1: 6.
        scientific: how floats are written; else as `1.500000`.
        shortest: how floats are written; else as `1.500000`.
        width: shorter text is padded with blanks on the left; with fill="-" on the right; with fill="0" with zeros.
    """
    attrs = {
        "precision": precision, "scientific": scientific, "shortest": shortest, "width": width, "fill": fill,
    }  # fmt: skip
    return apply("AsString", (convert(input, name="input"),), attrs, name)


# --- each by itself ---------------------------------------------------------------------------------------------------


def _length(*, unit: str) -> Callable[[bytes], int]:
    return len if unit == "BYTE" else lambda item: len(item.decode(errors="replace"))


def check_unit(attrs: Attrs) -> None:
    """ValueError if the unit of lengths is unknown."""
    choice_attr(attrs, "unit", ("BYTE", "UTF8_CHAR"))


def _check_encoding(attrs: Attrs) -> None:
    if attrs.get("encoding", "") not in ("", "utf-8"):
        raise ValueError(f"encoding must be '' (ASCII) or 'utf-8', not {attrs['encoding']!r}")


def _in_letters(f: Callable[[str], str]) -> Callable[[bytes], bytes]:
    return lambda item: f(item.decode(errors="replace")).encode()


def _unbase64() -> Callable[[bytes], bytes]:
    def decoded(item: bytes) -> bytes:
        filled = len(item) - len(item.rstrip(b"="))
        if b"+" in item or b"/" in item or filled > 2 or (filled and len(item) % 4):
            raise invalid("Invalid base64 input: it is not of the alphabet of URLs, or is filled up in part")
        try:
            return base64.b64decode(item + b"=" * (-len(item) % 4), altchars=b"-_", validate=True)
        except binascii.Error as e:
            raise invalid(f"Invalid base64 input: {e}") from None

    return decoded


def _base64(*, pad: bool) -> Callable[[bytes], bytes]:
    return lambda item: base64.urlsafe_b64encode(item) if pad else base64.urlsafe_b64encode(item).rstrip(b"=")


_define("StringStrip", lambda: bytes.strip)
_define(
    "StringLower", lambda *, encoding="": _in_letters(str.lower) if encoding else bytes.lower, check=_check_encoding
)
_define(
    "StringUpper", lambda *, encoding="": _in_letters(str.upper) if encoding else bytes.upper, check=_check_encoding
)
_define("StringLength", _length, int32, check_unit)
_define("EncodeBase64", _base64)
_define("DecodeBase64", _unbase64)


def string_strip(input: TensorLike, name: str | None = None) -> Tensor:
    """Without blanks at both ends."""
    return _apply("StringStrip", input, name)


def string_lower(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """With small letters; of ASCII, or of all alphabets with encoding="utf-8"."""
    return _apply("StringLower", input, name, encoding=encoding)


def string_upper(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """With capital letters; of ASCII, or of all alphabets with encoding="utf-8"."""
    return _apply("StringUpper", input, name, encoding=encoding)


def string_length(input: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """How long each text is, int32: in bytes, or in characters (unit="UTF8_CHAR")."""
    return _apply("StringLength", input, name, unit=unit)


def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """Bytes as text, in the alphabet of URLs; `pad`: filled up with `=`."""
    return _apply("EncodeBase64", input, name, pad=bool(pad))


def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """The bytes of such text. InvalidArgumentError in a step: it is none."""
    return _apply("DecodeBase64", input, name)
