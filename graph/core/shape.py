"""Static shapes: the part of a tensor's shape that is known before the graph runs.

Internally a shape is plain data, `Dims`: a tuple of sizes, where None is an unknown size, or None if the rank is unknown. `TensorShape` and
`Dimension` wrap it for users, under TensorFlow 1's names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from .hooks import hooks

Dims: TypeAlias = tuple[int | None, ...] | None
MAX_RANK = 254
"""The largest rank of a tensor, as in TensorFlow."""
VALUE_RANK = 64
"""The largest rank of a value in a step, a message or a constant, as in NumPy."""


def is_static(dims: Dims) -> bool:
    """Whether every size is known."""
    return dims is not None and None not in dims


def static_sizes(shape: Any, error: str) -> list[int]:
    """The sizes of a fully defined shape. ValueError with the text `error`, which has {} for the shape, if a size is unknown."""
    dims = as_dims(shape)
    if dims is None or not is_static(dims):
        raise ValueError(error.format(text(dims)))
    return [d for d in dims if d is not None]


def element_count(dims: Dims) -> int | None:
    """Number of elements, or None while a size is unknown. `()` has one element."""
    if dims is None or None in dims:
        return None
    return math.prod(dims)  # type: ignore[arg-type]


def of_rank(rank: int | None) -> Dims:
    """A shape of unknown sizes. None if the rank is unknown or larger than `MAX_RANK`.

    The length of a vector of sizes may be larger, because passes over the graph try large numbers for unknown lengths.
    """
    return None if rank is None or rank > MAX_RANK else (None,) * rank


def compatible(a: Dims, b: Dims) -> bool:
    """Whether some complete shape is compatible with both."""
    if a is None or b is None or a == b:
        return True
    return len(a) == len(b) and all(x is None or y is None or x == y for x, y in zip(a, b, strict=True))


def merge(a: Dims, b: Dims) -> Dims:
    """The combination of two partly known shapes.

    Raises:
        ValueError: they contradict each other.

    >>> merge((None, 3), (2, None))
    (2, 3)
    """
    if a is None or b is None or a == b:
        return b if a is None else a
    if not compatible(a, b):
        raise ValueError(f"Shapes {text(a)} and {text(b)} are not compatible")
    return tuple(y if x is None else x for x, y in zip(a, b, strict=True))


def common(a: Dims, b: Dims) -> Dims:
    """The most specific shape that is compatible with both: sizes that differ are unknown. None if the ranks differ."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))


def broadcast(a: Dims, b: Dims) -> Dims:
    """The shape of an elementwise operation on two operands (NumPy's rule).

    An unknown size meets a size above 1 as that size; an unknown size meets 1 or another unknown size as unknown.

    Raises:
        ValueError: a pair of sizes differs and neither is 1.

    >>> broadcast((4, 1), (3,))
    (4, 3)
    """
    if a == b:
        return a
    if a is None or b is None:
        return None
    if len(a) < len(b):
        a, b = b, a
    padded = (1,) * (len(a) - len(b)) + b
    out: list[int | None] = []
    for x, y in zip(a, padded, strict=True):
        if x == y or y == 1:
            out.append(x)
        elif x == 1:
            out.append(y)
        elif x is None or y is None:
            out.append(y if x is None else x)
        else:
            raise ValueError(
                f"Shapes {text(a)} and {text(b)} cannot be broadcast together: Dimensions must be equal, but are {x} and {y}"
            )
    return tuple(out)


def text(dims: Dims) -> str:
    """`(2, ?)`, or `<unknown>` when the rank is unknown, as TensorFlow 1 prints shapes."""
    if dims is None:
        return "<unknown>"
    inner = ", ".join("?" if d is None else str(d) for d in dims)
    return f"({inner},)" if len(dims) == 1 else f"({inner})"


def as_dims(value: Any) -> Dims:
    """Convert a shape to `Dims`: None, an int, a sequence, a TensorShape, or an array of sizes.

    -1 and None both mean an unknown size in a sequence.

    Raises:
        TypeError: not a shape.
        ValueError: a negative size.
    """
    if value is None:
        return None
    if isinstance(value, TensorShape):
        return value.dims_tuple
    if hasattr(value, "unknown_rank"):  # a TensorShapeProto
        return dims_of_proto(value)
    if hasattr(value, "__index__") and not hasattr(value, "__iter__"):  # SupportsIndex would cost 5 µs here
        return (_as_size(value),)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"A shape is None, an int or a sequence of sizes, not {value!r}")
    return tuple(_as_size(d) for d in value)


def _as_size(d: Any) -> int | None:
    if isinstance(d, Dimension):
        return d.value
    if d is None:
        return None
    if isinstance(d, float) and d.is_integer():  # n / 2, as programs write it
        d = int(d)
    try:
        size = operator.index(d)
    except TypeError:
        raise TypeError(f"A size in a shape is an int or None, not {d!r}") from None
    if size < -1:
        raise ValueError(f"A size in a shape cannot be negative: {size}")
    return None if size == -1 else size


def set_dims(proto: Any, dims: Dims) -> None:
    """Write a shape into a `TensorShapeProto`."""
    if dims is None:
        proto.unknown_rank = True
    else:
        proto.SetInParent()
        for d in dims:
            proto.dim.add(size=-1 if d is None else d)


def dims_of_proto(proto: Any) -> Dims:
    """The shape in a `TensorShapeProto`."""
    if proto.unknown_rank:
        return None
    return tuple(None if d.size < 0 else int(d.size) for d in proto.dim)


class Dimension:
    """One size of a `TensorShape`, possibly unknown. Behaves like its int; `.value` is the int or None, as in TensorFlow 1.

    Arithmetic with an unknown size gives an unknown size. Comparing with one gives None, as in TensorFlow 1.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: int | None = _as_size(value)

    def __index__(self) -> int:
        if self.value is None:
            raise TypeError(
                "This size is not known before the graph runs; use dt.shape(tensor) for the size at run time"
            )
        return self.value

    __int__ = __index__

    def __hash__(self) -> int:
        return hash(self.value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dimension, (self.value,)

    def __repr__(self) -> str:
        return f"Dimension({self.value})"

    def __str__(self) -> str:
        return "?" if self.value is None else str(self.value)

    # --- operations with another size or a number -------------------------------------------------------------------

    def is_compatible_with(self, other: Any) -> bool:
        """Whether both may be the same size."""
        return compatible((self.value,), (_as_size(other),))

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise a ValueError unless `is_compatible_with(other)`."""
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {other} are not compatible")

    def merge_with(self, other: Any) -> Dimension:
        """The size if both are the same size; ValueError if they cannot be."""
        self.assert_is_compatible_with(other)
        return self if self.value is not None else Dimension(other)

    def _with(self, other: Any, f: Callable[[int, int], Any]) -> Any:
        """`f` of both sizes; None when one is unknown."""
        b = other.value if isinstance(other, Dimension) else other
        if isinstance(b, float) and b.is_integer():
            b = int(b)
        if b is not None and not hasattr(b, "__index__"):
            return NotImplemented
        return None if self.value is None or b is None else f(self.value, operator.index(b))

    def _size(self, other: Any, f: Callable[[int, int], int]) -> Any:
        """`f` of both sizes as a size. ValueError if it is negative."""
        found = self._with(other, f)
        if found is not NotImplemented and found is not None and found < 0:
            raise ValueError(f"Dimension {found} must be >= 0")
        return found if found is NotImplemented else Dimension(found)

    def __add__(self, other: Any) -> Any:
        return self._size(other, operator.add)

    def __sub__(self, other: Any) -> Any:
        return self._size(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._size(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._size(other, operator.mul)

    def __floordiv__(self, other: Any) -> Any:
        return self._size(other, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._size(other, lambda a, b: b // a)

    def __mod__(self, other: Any) -> Any:
        return self._size(other, operator.mod)

    def __rmod__(self, other: Any) -> Any:
        return self._size(other, lambda a, b: b % a)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        if hasattr(other, "__rtruediv__") and not isinstance(other, (Dimension, int, float)):
            return NotImplemented  # the tensor's operator handles it
        raise _no_fraction("Dimension", type(other).__name__)

    def __rtruediv__(self, other: Any) -> Any:
        raise _no_fraction(type(other).__name__, "Dimension")

    def __eq__(self, other: object) -> Any:
        return self._with(other, operator.eq)

    def __ne__(self, other: object) -> Any:
        return self._with(other, operator.ne)

    def __lt__(self, other: Any) -> Any:
        return self._with(other, operator.lt)

    def __le__(self, other: Any) -> Any:
        return self._with(other, operator.le)

    def __gt__(self, other: Any) -> Any:
        return self._with(other, operator.gt)

    def __ge__(self, other: Any) -> Any:
        return self._with(other, operator.ge)


def _no_fraction(a: str, b: str) -> TypeError:
    return TypeError(f"unsupported operand type(s) for /: '{a}' and '{b}', please use // instead")


class TensorShape:
    """The static shape of a tensor: its sizes, as far as they are known before the graph runs.

    >>> TensorShape([None, 3]).as_list()
    [None, 3]
    """

    __slots__ = ("dims_tuple",)

    def __init__(self, dims: Any) -> None:
        self.dims_tuple: Dims = as_dims(dims)

    @property
    def dims(self) -> list[Dimension] | None:
        """The sizes, or None when the rank is unknown."""
        return None if self.dims_tuple is None else [Dimension(d) for d in self.dims_tuple]

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self.dims_tuple is None else len(self.dims_tuple)

    ndims = rank

    def as_list(self) -> list[int | None]:
        """The sizes as a list of int or None.

        Raises:
            ValueError: the rank is unknown.
        """
        if self.dims_tuple is None:
            raise ValueError("as_list() is not defined on a TensorShape of unknown rank")
        return list(self.dims_tuple)

    def num_elements(self) -> int | None:
        """Product of the sizes, or None while one is unknown."""
        return element_count(self.dims_tuple)

    def is_fully_defined(self) -> bool:
        """Whether every size is known."""
        return is_static(self.dims_tuple)

    def is_compatible_with(self, other: Any) -> bool:
        """Whether some complete shape is compatible with both."""
        return compatible(self.dims_tuple, as_dims(other))

    def assert_is_compatible_with(self, other: Any) -> None:
        """Raise ValueError unless `is_compatible_with(other)`."""
        merge(self.dims_tuple, as_dims(other))

    def merge_with(self, other: Any) -> TensorShape:
        """The combination of two partly known shapes; ValueError if they contradict each other."""
        return TensorShape(merge(self.dims_tuple, as_dims(other)))

    def concatenate(self, other: Any) -> TensorShape:
        """This shape followed by the other."""
        b = as_dims(other)
        return TensorShape(None if self.dims_tuple is None or b is None else self.dims_tuple + b)

    __add__ = concatenate

    def __radd__(self, other: Any) -> TensorShape:
        return TensorShape(other).concatenate(self)

    def most_specific_compatible_shape(self, other: Any) -> TensorShape:
        """The most specific shape that is compatible with both: sizes that differ are unknown."""
        return TensorShape(common(self.dims_tuple, as_dims(other)))

    def as_proto(self) -> Any:
        """A `TensorShapeProto`."""
        proto = hooks.message("TensorShapeProto")()
        set_dims(proto, self.dims_tuple)
        return proto

    def with_rank(self, rank: int) -> TensorShape:
        """This shape with that rank. ValueError if it has another rank."""
        return self.merge_with((None,) * rank)

    def with_rank_at_least(self, rank: int) -> TensorShape:
        """This shape. ValueError if its rank is known and smaller."""
        if self.dims_tuple is not None and len(self.dims_tuple) < rank:
            raise ValueError(f"Shape {self} must have rank at least {rank}")
        return self

    def with_rank_at_most(self, rank: int) -> TensorShape:
        """This shape. ValueError if its rank is known and larger."""
        if self.dims_tuple is not None and len(self.dims_tuple) > rank:
            raise ValueError(f"Shape {self} must have rank at most {rank}")
        return self

    def assert_has_rank(self, rank: int) -> None:
        """Raise a ValueError if the shape is known to have another rank."""
        if self.dims_tuple is not None and len(self.dims_tuple) != rank:
            raise ValueError(f"Shape {self} must have rank {rank}")

    def assert_same_rank(self, other: Any) -> None:
        """Raise a ValueError if the ranks are known and differ."""
        dims = as_dims(other)
        if self.dims_tuple is not None and dims is not None and len(self.dims_tuple) != len(dims):
            raise ValueError(f"Shapes {self} and {TensorShape(dims)} must have the same rank")

    def assert_is_fully_defined(self) -> None:
        """Raise a ValueError if a size or the rank is not known."""
        if not self.is_fully_defined():
            raise ValueError(f"Shape {self} is not fully defined")

    def __len__(self) -> int:
        if self.dims_tuple is None:
            raise ValueError("A TensorShape of unknown rank has no length")
        return len(self.dims_tuple)

    def __iter__(self) -> Iterator[Dimension]:
        if self.dims_tuple is None:
            raise ValueError("Cannot iterate over a TensorShape of unknown rank")
        return iter([Dimension(d) for d in self.dims_tuple])

    def __getitem__(self, key: Any) -> Any:
        if self.dims_tuple is None:
            if not isinstance(key, slice):
                return Dimension(None)
            start, stop = key.start or 0, key.stop
            return TensorShape(None if stop is None or min(start, stop) < 0 else (None,) * (stop - start))
        picked = self.dims_tuple[key]
        return TensorShape(picked) if isinstance(key, slice) else Dimension(picked)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TensorShape, Sequence, int, Dimension)) and other is not None:
            return NotImplemented
        try:
            return self.dims_tuple == as_dims(other)
        except (TypeError, ValueError):
            return False

    def __hash__(self) -> int:
        return hash(self.dims_tuple)

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorShape, (self.dims_tuple,)

    def __bool__(self) -> bool:
        return self.dims_tuple is not None

    def __str__(self) -> str:
        return text(self.dims_tuple)

    def __repr__(self) -> str:
        return f"TensorShape({None if self.dims_tuple is None else list(self.dims_tuple)})"


def unknown_shape(rank: int | None = None, ndims: int | None = None) -> TensorShape:
    """A shape with unknown sizes, of the given rank (old name `ndims`), or of unknown rank."""
    found = rank if rank is not None else ndims
    return TensorShape(None if found is None else (None,) * found)


def dimension_value(dimension: Any) -> int | None:
    """The value of a `Dimension`, an int or None. An int or None is returned as it is."""
    return _as_size(dimension)


def dimension_at_index(shape: TensorShape, index: int) -> Dimension:
    """One size of a shape. It is unknown if the rank is."""
    found: Dimension = shape[index]
    return found
