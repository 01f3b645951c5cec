"""Python's operators on tensors: `a + b`, `t[1:]`.

Each operator builds a node. The function that builds it is defined with its op, in `graph/ops`, and registers itself in `operators`
when its module is imported.
"""
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import dis
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from numbers import Number
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar

from numpy import ndarray

from .argument_names import explains_arguments
from .hooks import hooks
from .source_location import at_caller, is_own

_T = TypeVar("_T")

operators: dict[str, Callable[..., Any]] = {}
"""Operator -> the function that builds its node: `{"add": add, "getitem": getitem, ...}`."""
assignments: list[Callable[..., Callable[..., Any]]] = []
"""A list of one function, which returns the method that assigns to a slice of a variable (`ops.state.scatter_state`)."""

names_in_trace: ContextVar[dict[str, int] | None] = ContextVar("names_in_trace", default=None)
"""In a trace: class of a layer -> the last number in a default name. None outside traces."""


def is_tracing() -> bool:
    """Whether a function is being traced (`dt.compile`). There a user of `==` nearly always means to compare elements."""
    return names_in_trace.get() is not None


TO_GET_IT = "to get its value, return it from the compiled function, or call session.run(tensor)"


def needs_value(text: str) -> Callable[..., Any]:
    """A method that needs the tensor's value, and raises TypeError. In the text, {} stands for the tensor."""

    def refuse(self: object, *args: object, **options: object) -> Never:
        raise TypeError(f"{text.format(repr(self))}{at_caller()}")

    return refuse


class Reference:
    """A hashable reference to a tensor or variable. It equals other references to the same object."""

    __slots__ = ("_object",)

    def __init__(self, object: Any) -> None:
        self._object = object

    def deref(self) -> Any:
        """The tensor or variable."""
        return self._object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other._object is self._object

    def __hash__(self) -> int:
        return id(self._object)


def _compares_containers(frame: FrameType) -> bool:
    """Whether a frame compares two containers, whose elements Python compares.

    The instruction before the comparison loads the right operand: a display such as `[t]`, or a name whose value is a container.
    """
    *_, load = (i for i in dis.get_instructions(frame.f_code) if i.offset < frame.f_lasti)
    name = load.argval[-1] if isinstance(load.argval, tuple) else load.argval  # Python 3.13 loads two names at once
    values = {**frame.f_globals, **frame.f_locals}
    return load.opname.startswith(("BUILD_", "LIST_")) or isinstance(values.get(name), (list, tuple, dict))


def _warn_of_comparison(other: object) -> None:
    """Warn if the user's code compares a tensor by `==` or `!=`. `in`, `list.index` and dictionaries rightly compare identity."""
    frame = sys._getframe(2)
    code, at = frame.f_code, frame.f_lasti
    if (
        isinstance(other, (TensorOperators, ndarray, Number))
        and code.co_code[at] == dis.opmap["COMPARE_OP"]
        and code.co_name not in ("__eq__", "__ne__")  # of a class that holds tensors
        and not is_own(code.co_filename)
        and not _compares_containers(frame)
    ):
        warnings.warn(
            "`==` and `!=` compare tensors by identity, as in TensorFlow 1, and give one Python bool. "
            "To compare elements, use dt.equal(a, b) or dt.math.not_equal(a, b); to ask for identity, write `is`",
            stacklevel=3,
        )


class TensorOperators(Generic[_T]):
    """Python's operators and common NumPy methods for tensors and variables. `_T` is their result type: `Tensor`."""

    __slots__ = ()
    __array_priority__ = 100  # so that `ndarray + tensor` calls the tensor's operator

    def __add__(self, other: Any) -> _T:
        return operators["add"](self, other)

    def __radd__(self, other: Any) -> _T:
        return operators["add"](other, self)

    def __sub__(self, other: Any) -> _T:
        return operators["sub"](self, other)

    def __rsub__(self, other: Any) -> _T:
        return operators["sub"](other, self)

    def __mul__(self, other: Any) -> _T:
        return operators["mul"](self, other)

    def __rmul__(self, other: Any) -> _T:
        return operators["mul"](other, self)

    def __truediv__(self, other: Any) -> _T:
        return operators["truediv"](self, other)

    def __rtruediv__(self, other: Any) -> _T:
        return operators["truediv"](other, self)

    def __floordiv__(self, other: Any) -> _T:
        return operators["floordiv"](self, other)

    def __rfloordiv__(self, other: Any) -> _T:
        return operators["floordiv"](other, self)

    def __mod__(self, other: Any) -> _T:
        return operators["mod"](self, other)

    def __rmod__(self, other: Any) -> _T:
        return operators["mod"](other, self)

    def __pow__(self, other: Any) -> _T:
        return operators["pow"](self, other)

    def __rpow__(self, other: Any) -> _T:
        return operators["pow"](other, self)

    def __matmul__(self, other: Any) -> _T:
        return operators["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> _T:
        return operators["matmul"](other, self)

    def __and__(self, other: Any) -> _T:
        return operators["and"](self, other)

    def __rand__(self, other: Any) -> _T:
        return operators["and"](other, self)

    def __or__(self, other: Any) -> _T:
        return operators["or"](self, other)

    def __ror__(self, other: Any) -> _T:
        return operators["or"](other, self)

    def __xor__(self, other: Any) -> _T:
        return operators["xor"](self, other)

    def __rxor__(self, other: Any) -> _T:
        return operators["xor"](other, self)

    def __lt__(self, other: Any) -> _T:
        return operators["lt"](self, other)

    def __le__(self, other: Any) -> _T:
        return operators["le"](self, other)

    def __gt__(self, other: Any) -> _T:
        return operators["gt"](self, other)

    def __ge__(self, other: Any) -> _T:
        return operators["ge"](self, other)

    def __eq__(self, other: object) -> bool:
        # Identity, as in TensorFlow 1, because tensors and variables are keys of dictionaries. `in` also calls this, so it must be fast.
        if is_tracing():
            _warn_of_comparison(other)
        return self is other if isinstance(other, TensorOperators) else NotImplemented

    __hash__ = object.__hash__

    def __neg__(self) -> _T:
        return operators["neg"](self)

    def __abs__(self) -> _T:
        return operators["abs"](self)

    def __invert__(self) -> _T:
        return operators["invert"](self)

    def __getitem__(self, key: Any) -> _T:
        return operators["getitem"](self, key)

    @property
    def ndim(self) -> int:
        """The number of axes. ValueError if it is not known statically; see `dt.rank`."""
        known: int | None = self.shape.ndims  # type: ignore[attr-defined]
        if known is None:
            raise ValueError(
                f"The number of axes of {self!r} is not known before the graph runs; dt.rank gives it as a tensor"
            )
        return known

    @property
    def T(self) -> _T:  # noqa: N802  (NumPy's name)
        """The tensor with its axes reversed."""
        return operators["transpose"](self)

    def reshape(self, *shape: Any) -> _T:
        """The same elements in another shape: `x.reshape(2, -1)` or `x.reshape([2, -1])`. See `dt.reshape`."""
        return operators["reshape"](self, shape[0] if len(shape) == 1 else shape)

    def astype(self, dtype: Any) -> _T:
        """The elements in another type. See `dt.cast`."""
        return operators["cast"](self, dtype)

    @explains_arguments
    def sum(self, axis: Any = None, keepdims: bool = False, dtype: Any = None, out: None = None) -> _T:
        """The sum over axes: a number, several, or None for all. `out` must be None; NumPy's functions pass it."""
        return self._reduced("sum", axis, keepdims, dtype, out)

    @explains_arguments
    def mean(self, axis: Any = None, keepdims: bool = False, dtype: Any = None, out: None = None) -> _T:
        """The mean over axes, as in `sum`."""
        return self._reduced("mean", axis, keepdims, dtype, out)

    @explains_arguments
    def max(self, axis: Any = None, keepdims: bool = False, out: None = None) -> _T:
        """The largest element over axes, as in `sum`."""
        return self._reduced("max", axis, keepdims, None, out)

    @explains_arguments
    def min(self, axis: Any = None, keepdims: bool = False, out: None = None) -> _T:
        """The smallest element over axes, as in `sum`."""
        return self._reduced("min", axis, keepdims, None, out)

    def _reduced(self, how: str, axis: Any, keepdims: bool, dtype: Any, out: None) -> _T:
        if out is not None:
            raise TypeError(f"{how} of a tensor makes a new tensor; it cannot write into `out`")
        return operators[how](self if dtype is None else operators["cast"](self, dtype), axis, keepdims)

    if not TYPE_CHECKING:  # to a type checker they are errors

        def __setitem__(self, key: Any, value: Any) -> Never:
            raise TypeError(
                f"{type(self).__name__!r} object does not support item assignment: use dt.tensor_scatter_nd_update(tensor, indices, "
                "updates), or dt.where(mask, new, tensor); of a variable, v[i].assign(new)"
            )

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError. For attributes of other libraries' tensors, and misspelt ones, the error names what to use."""
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name[:1] != "_":
                text += hooks.instead_of_attribute(name)
            raise AttributeError(text, name=name, obj=self)

    def experimental_ref(self) -> Reference:
        """A hashable reference to this object, for sets and dicts."""
        return Reference(self)
