"""Python's operators on tensors: `a + b`, `t[1:]`.

Each operator builds a node. The function that builds it is defined with its op, in `graph/ops`, and registers itself in `operators`
when its module is imported.
"""
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

operators: dict[str, Callable[..., Any]] = {}
"""Operator -> the function that builds its node: `{"add": add, "getitem": getitem, ...}`."""
assignments: list[Callable[..., Callable[..., Any]]] = []
"""One function, which returns the method that assigns to a slice of a variable (`ops.state.scatter_state`)."""


class Reference:
    """A tensor or variable as an object: equal to another reference of the same one."""

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


class TensorOperators(Generic[_T]):
    """Python's operators, for tensors and variables. `_T` is their result type: `Tensor`."""

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

    def __neg__(self) -> _T:
        return operators["neg"](self)

    def __abs__(self) -> _T:
        return operators["abs"](self)

    def __invert__(self) -> _T:
        return operators["invert"](self)

    def __getitem__(self, key: Any) -> _T:
        return operators["getitem"](self, key)

    def experimental_ref(self) -> Reference:
        """A hashable reference to this object, for sets and dicts."""
        return Reference(self)
