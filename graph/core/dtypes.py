"""Element types of tensors, under TensorFlow 1's names.

A `DType` is a name, a NumPy dtype and a few facts. Every type has a *reference* type (`float32_ref`), the type of a TF1 variable node's
output: a reference to the variable's storage, not a value. Types are singletons: compare with `is` or `==`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array: TypeAlias = np.ndarray[Any, Any]

_ABOVE_REF = 100  # TensorFlow's convention: enum value of a reference type = value of its base + 100


class DType:
    """An element type of tensors, such as `dt.float32`.

    Attributes:
        name: canonical name, `float32` or `float32_ref`.
        np: the NumPy dtype of values (also under TF's name `as_numpy_dtype`).
        size: bytes per element.
        base: the value type (itself, unless this is a reference type).
        is_ref: whether this is a reference type.
    """

    __slots__ = ("base", "enum", "is_bool", "is_complex", "is_floating", "is_integer", "is_ref", "is_unsigned", "name", "np",
                 "ref", "size")  # fmt: skip

    base: DType
    ref: DType

    def __init__(self, name: str, np_dtype: npt.DTypeLike, enum: int, *, base: DType | None = None) -> None:
        self.name = sys.intern(name)
        self.np = np.dtype(np_dtype)
        self.enum = enum
        self.size = self.np.itemsize
        kind = self.np.kind
        # bfloat16 and the float8 types are registered with NumPy as kind 'V' or 'f', depending on the ml_dtypes release.
        self.is_floating = kind == "f" or name.removesuffix("_ref").startswith(("bfloat16", "float8"))
        self.is_integer = kind in "iu"
        self.is_unsigned = kind == "u"
        self.is_bool = kind == "b"
        self.is_complex = kind == "c"
        self.is_ref = base is not None
        if base is None:
            self.base = self
            self.ref = DType(name + "_ref", np_dtype, enum + _ABOVE_REF, base=self)
        else:
            self.base = base
            self.ref = self

    @property
    def base_dtype(self) -> DType:
        """The value type (TensorFlow's name of `base`)."""
        return self.base

    @property
    def _is_ref_dtype(self) -> bool:
        return self.is_ref

    @property
    def as_numpy_dtype(self) -> type[np.generic]:
        """The NumPy scalar type, callable as in TF1 programs: `dtype.as_numpy_dtype(3)`."""
        return self.np.type

    @property
    def as_datatype_enum(self) -> int:
        """TensorFlow's number for this type."""
        return self.enum

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest finite value."""
        return self.min, self.max

    @property
    def min(self) -> Any:
        """Smallest finite value."""
        return self._info().min if not self.is_bool else False

    @property
    def max(self) -> Any:
        """Largest finite value."""
        return self._info().max if not self.is_bool else True

    def _info(self) -> Any:
        if self.is_integer:
            return np.iinfo(self.np)
        if self.is_floating:
            return ml_dtypes.finfo(self.np)  # type: ignore[no-untyped-call]
        raise TypeError(f"{self.name} has no smallest or largest value")

    def is_compatible_with(self, other: Any) -> bool:
        """Whether a value of `other` may be given where this type is required."""
        other = as_dtype(other)
        return self is other or self is other.ref

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return False
        try:
            return self is as_dtype(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return self.enum

    def __repr__(self) -> str:
        return f"dt.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


# The numbers are TensorFlow's DataType enum, so that files and messages mean the same to both.
float32 = DType("float32", np.float32, 1)
float64 = double = DType("float64", np.float64, 2)
int32 = DType("int32", np.int32, 3)
uint8 = DType("uint8", np.uint8, 4)
int16 = DType("int16", np.int16, 5)
int8 = DType("int8", np.int8, 6)
string = DType("string", np.object_, 7)
complex64 = DType("complex64", np.complex64, 8)
int64 = DType("int64", np.int64, 9)
bool_ = DType("bool", np.bool_, 10)
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, 14)
uint16 = DType("uint16", np.uint16, 17)
complex128 = DType("complex128", np.complex128, 18)
float16 = half = DType("float16", np.float16, 19)
resource = DType("resource", np.object_, 20)
variant = DType("variant", np.object_, 21)
uint32 = DType("uint32", np.uint32, 22)
uint64 = DType("uint64", np.uint64, 23)
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, 24)
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 25)

ALL = (float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_, string,
       complex64, complex128, resource, variant, float8_e5m2, float8_e4m3fn)  # fmt: skip
FLOATS = (float16, bfloat16, float32, float64)
INTEGERS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
NUMBERS = FLOATS + INTEGERS
FLOAT8 = (float8_e4m3fn, float8_e5m2)
"""Storage types: the only computations in them are products on GPUs."""

BY_NAME = {t.name: t for base in ALL for t in (base, base.ref)}
_BY_NAME = BY_NAME | {"double": float64, "half": float16, "float": float32, "str": string}
_BY_NUMPY = {t.np: t for t in ALL if t.np != np.dtype(object)}
_BY_PYTHON: dict[Any, DType] = {float: float32, int: int32, bool: bool_, str: string, bytes: string, object: string}


def as_dtype(value: Any) -> DType:
    """The `DType` for a DType, a name, a NumPy dtype or scalar type, a Python type, or TensorFlow's number.

    `float` means float32, as in TensorFlow, and `int` int32, which TensorFlow refuses.

    Raises:
        TypeError: the value names no element type.

    >>> as_dtype("float32") is as_dtype(np.float32)
    True
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, np.dtype) and (found := _BY_NUMPY.get(value)) is not None:
        return found
    try:
        found = _BY_PYTHON.get(value) or (_BY_NAME.get(value) if isinstance(value, str) else None)
    except TypeError:  # an unhashable value names no type
        found = None
    if found is not None:
        return found
    if isinstance(value, int):
        for t in ALL:
            if value in (t.enum, t.ref.enum):
                return t if value == t.enum else t.ref
    elif value is not None:
        try:
            np_dtype = np.dtype(value)
        except TypeError:
            pass
        else:
            if np_dtype in _BY_NUMPY:
                return _BY_NUMPY[np_dtype]
            if np_dtype.kind in "SUO":
                return string
    raise TypeError(f"Cannot convert value {value!r} to an element type; known types: {', '.join(t.name for t in ALL)}")


def native(array: Array) -> Array:
    """The array in this machine's byte order. A copy if it has another byte order."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def widened(x: Array) -> Array:
    """An array with floats of 8 and 16 bits converted to float32. NumPy multiplies those slowly, and sums need the precision."""
    return x.astype(np.float32) if x.itemsize < 4 and as_dtype(x.dtype).is_floating else x


def text_array(items: Iterable[Any], shape: tuple[int, ...] | None = None) -> Array:
    """An array of type string, from elements that are bytes. A vector if `shape` is None. NumPy's string types would drop zero bytes.

    >>> text_array([b"a"], ())
    array(b'a', dtype=object)
    """
    found = list(items)
    out = np.empty(len(found), object)
    out[:] = found
    return out if shape is None else out.reshape(shape)
