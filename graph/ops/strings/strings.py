"""Elementwise ops on strings: hash buckets, conversion to and from numbers, case, length, base64.

Elements are bytes. Hash buckets have the same numbers as in TensorFlow.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Sequence
from functools import partial
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
from ...core.farmhash import fingerprint, hash64, hashes, keyed_hash
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, choice_attr, define, typed_attr
from ..math.static_operands import as_bytes

NUMBERS = (float32, float64, int32, int64)


def each(x: Array, f: Callable[[bytes], Any], dtype: Any = object) -> Array:
    """Apply a function to each element of a string array."""
    return np.fromiter((f(as_bytes(item)) for item in x.flat), dtype, x.size).reshape(x.shape)


def need_strings(tensor: Tensor) -> None:
    """TypeError unless the tensor holds strings."""
    if tensor.dtype.base is not string:
        raise TypeError(f"the input must be strings, not {tensor.dtype.base.name}")


def _of_each(f: Callable[..., Callable[[bytes], Any]], dtype: Any = object) -> Callable[..., Array]:
    """A reference. `f(**attrs)` returns the function of an element."""
    return lambda x, **attrs: each(x, f(**attrs), dtype)


def _define(
    name: str,
    reference: Callable[..., Array],
    result: DType = string,
    check: Callable[[Attrs], None] = lambda attrs: None,
) -> None:
    """Define an elementwise op."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        (x,) = inputs
        need_strings(x)
        check(attrs)
        return [(result, x.dims)]

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


def _buckets(hashed: Callable[..., Any]) -> Callable[..., Array]:
    """The reference of an op that applies a 64-bit hash to strings, and to the op's key if it has one."""

    def reference(x: Array, *, num_buckets: int, **key: Any) -> Array:
        found = hashes([as_bytes(item) for item in x.flat], partial(hashed, **key))
        return (found % np.uint64(num_buckets)).astype(np.int64).reshape(x.shape)

    return reference


_define("StringToHashBucket", _buckets(hash64), int64, _check_buckets)
_define("StringToHashBucketFast", _buckets(fingerprint), int64, _check_buckets)
_define("StringToHashBucketStrong", _buckets(keyed_hash), int64, _check_buckets)


def string_to_hash_bucket_fast(input: TensorLike, num_buckets: int, name: str | None = None) -> Tensor:
    """Hash each string to an int64 in [0, num_buckets) by FarmHash. The result is the same on all platforms (`core/farmhash.py`).

    >>> string_to_hash_bucket_fast(["Berlin", "Paris"], 1000)
    """
    return _apply("StringToHashBucketFast", input, name, num_buckets=int(num_buckets))


def string_to_hash_bucket(
    string_tensor: TensorLike = None, num_buckets: int | None = None, name: str | None = None, input: TensorLike = None
) -> Tensor:
    """`string_to_hash_bucket_fast` by TensorFlow's older hash function, which gives other buckets."""
    if num_buckets is None:
        raise ValueError("num_buckets is missing")
    given = string_tensor if input is None else input
    return _apply("StringToHashBucket", given, name, num_buckets=int(num_buckets))


def string_to_hash_bucket_strong(
    input: TensorLike, num_buckets: int, key: Sequence[int], name: str | None = None
) -> Tensor:
    """`string_to_hash_bucket_fast` by SipHash with a secret key of two numbers. Without the key, buckets cannot be predicted."""
    attrs = {"num_buckets": int(num_buckets), "key": tuple(int(k) for k in key)}
    return _apply("StringToHashBucketStrong", input, name, **attrs)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _infer_number(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    need_strings(x)
    if attrs.get("out_type") not in NUMBERS:
        raise TypeError(f"out_type must be one of {', '.join(d.name for d in NUMBERS)}")
    return [(attrs["out_type"], x.dims)]


def number_of(text: str, dtype: np.dtype[Any]) -> Any:
    """The number that a string represents. ValueError or OverflowError if it does not represent a number of this type."""
    if "_" in text or not text.isascii():
        raise ValueError  # Python would accept it
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
    """Parse strings as numbers: float32, float64, int32 or int64. InvalidArgumentError if a string is not a number of the type."""
    given = string_tensor if input is None else input
    return _apply("StringToNumber", given, name, out_type=as_dtype(out_type).base)


def _infer_as_string(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    if x.dtype.base not in (*ALL_NUMBERS, bool_, string):
        raise TypeError(f"{x.dtype.base.name} cannot be converted to string")
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
        return (
            form if math.isfinite(number) else form.replace("%0", "%")
        ) % number  # inf and nan are not padded with zeros

    return text_array((written(item).encode() for item in x.flat), x.shape)


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
    """Convert numbers and bools to strings.

    Args:
        input: numbers, bools or strings.
        precision: the number of digits after the decimal point. -1 means 6.
        scientific: write floats as `1.500000e+00`.
        shortest: write floats as `1.5`.
        width: pad shorter strings to this width. Bools are not padded.
        fill: how to pad: "" or " " with blanks on the left, "-" with blanks on the right, "0" with zeros, "+" with a sign.
        name: name of the node.

    Raises:
        ValueError: options for floats are given for another type, or contradict each other.
    """
    attrs = {
        "precision": precision, "scientific": scientific, "shortest": shortest, "width": width, "fill": fill,
    }  # fmt: skip
    return apply("AsString", (convert(input, name="input"),), attrs, name)


# --- case, length, base64 ---------------------------------------------------------------------------------------------


def _length(*, unit: str) -> Callable[[bytes], int]:
    return len if unit == "BYTE" else lambda item: len(item.decode(errors="replace"))


def check_unit(attrs: Attrs) -> None:
    """ValueError unless the attribute `unit` is "BYTE" or "UTF8_CHAR"."""
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
            raise invalid("Invalid base64 input: it is not in the URL-safe alphabet, or has incomplete padding")
        try:
            return base64.b64decode(item + b"=" * (-len(item) % 4), altchars=b"-_", validate=True)
        except binascii.Error as e:
            raise invalid(f"Invalid base64 input: {e}") from None

    return decoded


def _base64(*, pad: bool) -> Callable[[bytes], bytes]:
    return lambda item: base64.urlsafe_b64encode(item) if pad else base64.urlsafe_b64encode(item).rstrip(b"=")


def _letters(of_text: Callable[[str], str], of_bytes: Callable[[bytes], bytes]) -> Callable[..., Array]:
    return _of_each(lambda *, encoding="": _in_letters(of_text) if encoding else of_bytes)


_define("StringStrip", _of_each(lambda: bytes.strip))
_define("StringLower", _letters(str.lower, bytes.lower), check=_check_encoding)
_define("StringUpper", _letters(str.upper, bytes.upper), check=_check_encoding)
_define("StringLength", _of_each(_length, np.int32), int32, check_unit)
_define("EncodeBase64", _of_each(_base64))
_define("DecodeBase64", _of_each(_unbase64))


def string_strip(input: TensorLike, name: str | None = None) -> Tensor:
    """Strip whitespace at both ends."""
    return _apply("StringStrip", input, name)


def string_lower(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """Convert to lower case: ASCII letters, or all letters with encoding="utf-8"."""
    return _apply("StringLower", input, name, encoding=encoding)


def string_upper(input: TensorLike, encoding: str = "", name: str | None = None) -> Tensor:
    """Convert to upper case: ASCII letters, or all letters with encoding="utf-8"."""
    return _apply("StringUpper", input, name, encoding=encoding)


def string_length(input: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """The length of each string in bytes, or in characters with unit="UTF8_CHAR". int32."""
    return _apply("StringLength", input, name, unit=unit)


def encode_base64(input: TensorLike, pad: bool = False, name: str | None = None) -> Tensor:
    """Encode strings in base64 with the URL-safe alphabet. `pad` pads them with `=`."""
    return _apply("EncodeBase64", input, name, pad=bool(pad))


def decode_base64(input: TensorLike, name: str | None = None) -> Tensor:
    """Decode strings that are URL-safe base64. InvalidArgumentError if one is malformed."""
    return _apply("DecodeBase64", input, name)
