"""Conversion of Python values to tensors, and application of ops to them.

Every public op function is `apply(...)` on operands converted to tensors by `convert`. An operand that is not a tensor becomes a
Const under the op's name scope (`add/y`), as in TensorFlow, so that graphs have the same names.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from . import dtypes
from .default_graph import get_default_graph
from .dtypes import DType, as_dtype
from .graph import Graph, Node, Tensor
from .hooks import hooks
from .opdef import define
from .shape import Dimension, TensorShape, as_dims, is_static, text
from .source_location import at_caller

TensorLike: TypeAlias = Any
"""Anything convertible to a tensor: a Tensor, a variable, an array, a number, a (nested) list of those."""


class Derivative(enum.Enum):
    """A value that a gradient rule may return in place of a tensor."""

    ZERO = 0
    """The derivative is zero. `gradients` makes zeros only for an x that no other gradient reaches."""


Grads: TypeAlias = list[Tensor | Derivative | None]
"""The gradients of a node's inputs. None if no gradient flows to an input."""


def apply(
    op: str, inputs: Sequence[Tensor] = (), attrs: dict[str, Any] | None = None, name: str | None = None
) -> Tensor:
    """Add a node with one output and return that output."""
    return make(op, inputs, attrs, name).outputs[0]


def make(op: str, inputs: Sequence[Tensor] = (), attrs: dict[str, Any] | None = None, name: str | None = None) -> Node:
    """Add a node to the graph of its inputs, or to the default graph if it has none."""
    return (inputs[0].op.graph if inputs else get_default_graph()).create(op, inputs, attrs, name)


ConversionFunction: TypeAlias = Callable[..., Any]
_conversions: list[tuple[int, Any, ConversionFunction]] = []


def register_tensor_conversion_function(
    base_type: type | tuple[type, ...], conversion_func: ConversionFunction, priority: int = 100
) -> None:
    """Register a function that converts objects of a type to tensors wherever a tensor is accepted.

    Args:
        base_type: a class or a tuple of classes, including their subclasses.
        conversion_func: called as `conversion_func(value, dtype=None, name=None, as_ref=False)`. It returns a tensor, or NotImplemented to
            try the next function.
        priority: functions with smaller numbers are tried first, and those with equal numbers in order of registration.

    Raises:
        TypeError: `base_type` is not a class, or `conversion_func` not a function.
    """
    kinds = base_type if isinstance(base_type, tuple) else (base_type,)
    if not kinds or not all(isinstance(k, type) for k in kinds):
        raise TypeError("base_type must be a type or a tuple of types.")
    if not callable(conversion_func):
        raise TypeError("conversion_func must be callable.")
    _conversions.append((priority, kinds, conversion_func))
    _conversions.sort(key=lambda row: row[0])


def _registered(value: Any, dtype: DType | None, name: str | None, prefer: DType | None) -> Tensor | None:
    """A value converted by a registered function. None if there is no function for it."""
    for _, kinds, function in _conversions:
        if not isinstance(value, kinds):
            continue
        found = NotImplemented
        if dtype is None and prefer is not None:
            with contextlib.suppress(TypeError, ValueError):
                found = function(value, dtype=prefer, name=name, as_ref=False)
        if found is NotImplemented:
            found = function(value, dtype=dtype, name=name, as_ref=False)
        if found is NotImplemented:
            continue
        if not isinstance(found, Tensor):
            raise RuntimeError(f"A conversion function for {type(value).__name__} did not return a tensor: {found!r}")
        made: Tensor = found
        return made
    return None


def convert(value: TensorLike, dtype: Any = None, name: str | None = None, prefer: DType | None = None) -> Tensor:
    """Convert a value to a tensor (TensorFlow 1's `convert_to_tensor`).

    Args:
        value: a tensor, a variable (its value), an array, a number, a string, or nested lists of these.
        dtype: the required element type; None: its own.
        name: name of the Const node for a value.
        prefer: element type for a Python value, tried first; a value that it cannot represent keeps its own type.

    Raises:
        TypeError: the value has another type than `dtype`, or no element type.
        ValueError: it has no regular shape.
    """
    if dtype is not None:
        dtype = as_dtype(dtype)
    if isinstance(value, Tensor):
        tensor = value
    else:
        as_tensor = getattr(value, "_as_tensor", None)  # variables, IndexedSlices: anything that can become a tensor
        registered = _registered(value, dtype, name, prefer) if _conversions else None
        if registered is not None:
            tensor = registered
        elif as_tensor is not None:
            tensor = as_tensor()
        elif isinstance(value, (list, tuple)) and _holds_tensor(value):
            parts, target = _with_registered(value), dtype if dtype is not None else prefer
            try:
                tensor = hooks.pack_list(parts, None if target is None else target.base, name or "packed")
            except TypeError:
                if dtype is not None or prefer is None:
                    raise
                tensor = hooks.pack_list(parts, None, name or "packed")
        else:
            sizes = isinstance(value, (Dimension, TensorShape))
            if sizes and dtype is not None and not dtype.is_integer:
                raise TypeError(f"Cannot convert a {type(value).__name__} to dtype {dtype.name}; use dt.cast")
            target = dtype if dtype is not None else _preferred(value, prefer)
            return constant(value, target, name=name or ("shape_as_tensor" if sizes else "Const"))
    if dtype is not None and tensor.dtype.base is not dtype.base:
        raise TypeError(
            f"Tensor conversion requested dtype {dtype.name} for Tensor with dtype {tensor.dtype.name}: {tensor!r}; use dt.cast"
        )
    return tensor


def _with_registered(value: Any) -> Any:
    """Lists with tensors in place of objects of registered types."""
    if not _conversions:
        return value
    if isinstance(value, (list, tuple)):
        return [_with_registered(v) for v in value]
    found = _registered(value, None, None, None)
    return value if found is None else found


def convert_to_tensor(
    value: TensorLike, dtype: Any = None, name: str | None = None, preferred_dtype: Any = None, dtype_hint: Any = None
) -> Tensor:
    """Convert a value to a tensor.

    Args:
        value: a tensor, a variable (its value), an array, a number, a string, or nested lists of these.
        dtype: the required element type; None: its own.
        name: name of the Const node for a value.
        preferred_dtype: element type for a Python value, tried first; a value that it cannot represent keeps its own type.
        dtype_hint: the same as `preferred_dtype`.

    Raises:
        TypeError: the value has another type than `dtype`, or no element type.
        ValueError: it has no regular shape.
    """
    prefer = preferred_dtype if preferred_dtype is not None else dtype_hint
    return convert(value, dtype, name, None if prefer is None else as_dtype(prefer).base)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(v) for v in value)
    if isinstance(value, Tensor) or hasattr(value, "_as_tensor"):
        return True
    return bool(_conversions) and any(isinstance(value, kinds) for _, kinds, _ in _conversions)


def _preferred(value: Any, prefer: DType | None) -> DType | None:
    """`prefer` if a value may be converted to it: an int to any numeric type, a float to any floating or complex type.

    This also applies to NumPy's numbers, because programs combine float32 tensors with arrays that NumPy makes float64.
    """
    if prefer is None:
        return None
    if isinstance(value, (np.ndarray, np.generic)):
        return _array_preferred(dtypes.native(np.asarray(value)), prefer.base)
    if isinstance(value, (list, tuple)):
        kinds = {_preferred(v, prefer) for v in value}
        return kinds.pop() if len(kinds) == 1 else None if kinds else prefer.base  # no elements fit any type
    if isinstance(value, bool) or prefer.base.is_bool:
        return prefer.base if isinstance(value, bool) and prefer.base.is_bool else None
    if isinstance(value, (int, Dimension, TensorShape)):
        return prefer.base
    if isinstance(value, float):
        return prefer.base if prefer.is_floating or prefer.is_complex else None
    return None


def _array_preferred(value: np.ndarray[Any, Any], prefer: DType) -> DType | None:
    if prefer.is_bool or not (prefer.is_integer or prefer.is_floating or prefer.is_complex):
        return None
    kind = value.dtype.kind
    if kind in "iu" and prefer.is_integer:
        same = np.all(value.astype(prefer.np) == value)
        return prefer if same else None  # a value that would overflow keeps its type, and the op refuses it
    if kind in "biu":
        return prefer
    if as_dtype(value.dtype).is_floating:
        return prefer if prefer.is_floating or prefer.is_complex else None
    return prefer if kind == "c" and prefer.is_complex else None


# In place of NumPy's defaults.
_DEFAULT_TYPES: dict[np.dtype[Any], DType] = {np.dtype(np.float64): dtypes.float32, np.dtype(np.int64): dtypes.int32}


def to_array(value: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """Convert a value to a NumPy array, with TensorFlow's default types: float32 for floats, int32 or else int64 for ints.

    Raises:
        TypeError: no element type fits, or an int does not fit into `dtype`.
        ValueError: the value is None, or its lists are ragged.
    """
    if type(value) is float and (dtype is None or dtype is dtypes.float32):
        return np.array(value, np.float32)
    if isinstance(value, (np.ndarray, np.generic)):
        array = dtypes.native(np.asarray(value))
        if dtype is None:
            return array if as_dtype(array.dtype) is not dtypes.string else _string_array(value, array, None)
        if array.dtype.kind == "O" and dtype is not dtypes.string:
            return to_array(array.tolist(), dtype)
        if dtype is dtypes.string or array.dtype.kind in "US":
            return _string_array(value, array, dtype)
        return array if array.dtype == dtype.np else _as_type(value, array, dtype)
    if value is None:
        raise ValueError(
            "Cannot make a tensor of None: None values not supported. Functions without `return` give None, and so does "
            f"dt.gradients where nothing depends on x{at_caller()}"
        )
    if hasattr(value, "__dlpack__") or hasattr(value, "__array__"):
        return to_array(np.asarray(value), dtype)
    if isinstance(value, TensorShape):
        if not value.is_fully_defined():
            raise ValueError(f"Cannot convert a partially known TensorShape to a Tensor: {value}; use dt.shape(tensor)")
        return to_array(value.as_list() or np.zeros(0, np.int32), dtype)
    leaf = _first_leaf(value)
    try:
        # Strings become objects: NumPy's string types drop trailing zero bytes, and cannot mix str and bytes.
        array = np.array(value, object) if isinstance(leaf, (str, bytes)) else np.array(value)
    except ValueError:
        raise ValueError(
            f"Cannot make a tensor of {shortened(value)}: its lists have unequal lengths; pad them{at_caller()}"
        ) from None
    except OverflowError as e:
        raise TypeError(f"Cannot make a tensor of {shortened(value)}: {e}") from e
    if array.dtype.kind == "O":
        array = _sizes(array)
    if array.dtype.kind in "USO":
        return _string_array(value, array, dtype)
    if dtype is None:
        # A list of arrays keeps their type. Numbers in a list, also those of NumPy, get TensorFlow's default type.
        default = None if _has_array(value) else _DEFAULT_TYPES.get(array.dtype)
        if default is dtypes.int32 and (array.astype(np.int32) != array).any():
            default = dtypes.int64
        dtype = default or as_dtype(array.dtype)
    if dtype is dtypes.string:
        return _string_array(value, array, dtype)
    if dtype.is_integer and array.dtype.kind == "f" and array.size:
        raise TypeError(
            f"Expected {dtype.name}, got {shortened(value)} of type float: a fraction would be lost; use dt.cast"
        )
    if dtype.is_bool and array.dtype.kind != "b" and array.size:
        raise TypeError(f"Expected bool, got {shortened(value)}")
    return _as_type(value, array, dtype)


def _as_type(value: Any, array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Convert an array of numbers to another type. TypeError if a number would change by more than rounding. `value` is for the error."""
    if array.dtype.kind == "c" and not dtype.is_complex:
        raise TypeError(f"Expected {dtype.name}, got {shortened(value)}: the imaginary part would be lost; use np.real")
    if not dtype.is_integer or np.can_cast(array.dtype, dtype.np):
        return array.astype(dtype.np)
    with np.errstate(invalid="ignore"):
        converted = array.astype(dtype.np)
    changed = converted != array
    if changed.any():
        first = array[changed].ravel()[0]
        text = f"{shortened(value)} does not fit into {dtype.name} ({dtype.min} to {dtype.max})"
        if not as_dtype(array.dtype).is_floating or not dtype.min <= first <= dtype.max:
            raise TypeError(text if array.size == 1 else f"{first} in {text}; use dt.cast")
        raise TypeError(
            f"Expected {dtype.name}, got {shortened(value)}: the fraction of {first} would be lost; use dt.cast"
        )
    return converted


def _sizes(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An object array with its `Dimension`s replaced by numbers. ValueError if a dimension is unknown."""
    flat = array.ravel()
    if not any(isinstance(v, Dimension) for v in flat):
        return array
    if any(isinstance(v, Dimension) and v.value is None for v in flat):
        raise ValueError(
            f"Cannot convert an unknown Dimension to a Tensor: {', '.join(map(str, flat))}; use dt.shape(tensor) for sizes that "
            "only the running graph knows"
        )
    return np.array([int(v) if isinstance(v, Dimension) else v for v in flat]).reshape(array.shape)


def _string_array(value: Any, array: np.ndarray[Any, Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    """An array of bytes. Str elements are encoded in UTF-8. TypeError for other elements, or if `dtype` is not string."""
    flat = array.astype(object, copy=False).ravel()
    if any(hasattr(item, "dense_shape") for item in flat):
        raise TypeError(
            f"A tensor is needed here, and {shortened(value)} is sparse: use an op of dt.sparse, or dt.nn.embedding_lookup_sparse for "
            "ids; or make a tensor of it by dt.sparse.to_dense"
        )
    if dtype not in (None, dtypes.string):
        raise TypeError(f"Expected {dtype.name if dtype else ''}, got {shortened(value)}")
    kinds = set(map(type, flat))
    if kinds <= {bytes}:
        return flat.reshape(array.shape)
    out = np.empty(len(flat), object)
    for i, item in enumerate(flat):
        if not isinstance(item, (str, bytes)):
            raise TypeError(f"Expected text, got {shortened(value)}: {type(item).__name__} is not text")
        out[i] = item.encode() if isinstance(item, str) else bytes(item)
    return out.reshape(array.shape)


_NUMBER_TYPES = frozenset({bool, int, float, complex})


def _first_leaf(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _has_array(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        if _NUMBER_TYPES.issuperset(map(type, value)):  # fast, because a list may hold a million numbers
            return False
        return any(_has_array(v) for v in value)
    return isinstance(value, np.ndarray)


def shortened(value: Any) -> str:
    """The text of a value, at most 80 characters of it."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


define("Const", lambda inputs, attrs: [(as_dtype(attrs["value"].dtype), attrs["value"].shape)], lambda *, value: value)


def constant(
    value: Any, dtype: Any = None, shape: Any = None, name: str = "Const", verify_shape: bool = False
) -> Tensor:
    """A tensor with a constant value.

    Args:
        value: an array, a number, a string, or nested lists. Python floats become float32, and ints int32, as in TensorFlow 1.
        dtype: element type; None: the value's own.
        shape: if given, the value is extended to this shape; its last element fills the rest, as in TensorFlow 1.
        name: name of the node.
        verify_shape: raise a TypeError if the value does not have exactly `shape`.

    Raises:
        TypeError: the value has no element type, or does not fit into `dtype`.
        ValueError: it has more elements than `shape`.

    >>> constant([1, 2, 3]).dtype.name
    'int32'
    """
    if isinstance(value, Tensor):
        raise TypeError(f"A constant is made from a value, not from {value!r}; use dt.identity")
    array = to_array(value, as_dtype(dtype).base if dtype is not None else None)
    if shape is not None:
        dims = as_dims(shape)
        if not is_static(dims):
            raise ValueError(f"A constant needs a complete shape, not {text(dims)}")
        assert dims is not None
        array = fill_shape(array, tuple(d for d in dims if d is not None), verify_shape)
    elif array is value or array.base is not None:
        array = array.copy()  # the caller may change the array later; the graph must not change
    array.flags.writeable = False
    return apply("Const", (), {"value": array}, name)


def fill_shape(array: np.ndarray[Any, Any], shape: tuple[int, ...], verify: bool = False) -> np.ndarray[Any, Any]:
    """Extend a value to a shape by repeating its last element. A shape without elements accepts any value.

    Raises:
        ValueError: the value has too many elements.
        TypeError: the value has another shape, and `verify` is set.
    """
    if array.shape == shape:
        return array.copy()
    if verify:
        raise TypeError(f"Expected Tensor's shape: {text(shape)}, got {text(array.shape)}.")
    count = int(np.prod(shape))
    if not count:
        return np.empty(shape, array.dtype)
    if array.size > count or array.size == 0:
        raise ValueError(f"Too many elements provided: shape {text(shape)} holds {count}, the value has {array.size}")
    flat = array.ravel()
    return np.concatenate([flat, np.repeat(flat[-1:], count - array.size)]).reshape(shape)


define("Placeholder", lambda inputs, attrs: [(attrs["dtype"], attrs["shape"])], None, internal_attrs=("dtype", "shape"))


def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor whose value must be fed in every step that needs it.

    Args:
        dtype: the element type.
        shape: the static shape, with None for unknown sizes; None: unknown rank.
        name: name of the node.

    >>> x = placeholder("float32", [None, 784])
    """
    return apply("Placeholder", (), {"dtype": as_dtype(dtype).base, "shape": as_dims(shape)}, name)


def graph_of(*values: Any) -> Graph:
    """The graph of these values; the default graph if none of them is a tensor."""
    for v in values:
        if isinstance(v, Tensor):
            return v.op.graph
        if isinstance(v, (list, tuple)):
            for w in v:
                if isinstance(w, Tensor):
                    return w.op.graph
    return get_default_graph()


def convert_pair(x: TensorLike, y: TensorLike, name: str) -> tuple[Tensor, Tensor, str]:
    """Both operands of a binary op as tensors of one element type, and the node's name.

    A Python value takes the other operand's type and becomes a Const under the op's scope (`add/y`). If neither is a tensor, an array
    as first operand keeps its type.
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x, y, name
    with graph_of(x, y).op_scope(name) as scope:
        first = isinstance(x, Tensor) or hasattr(x, "_as_tensor")
        array = isinstance(x, (np.ndarray, np.generic)) and not (isinstance(y, Tensor) or hasattr(y, "_as_tensor"))
        if first or array:
            a = convert(x) if first else convert(x, name="x")
            b = convert(y, name="y", prefer=a.dtype.base)
        else:
            b = convert(y, name="y")
            a = convert(x, name="x", prefer=b.dtype.base)
    return a, b, scope
