"""`arg_scope`: arguments that several calls have in common, said once around them.

A function takes part if it is decorated with `add_arg_scope`. Scopes nest: the inner one adds to what the outer one says, and what a
call says itself goes before both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
Scope = Mapping[Any, Mapping[str, Any]]
"""Function -> the arguments that it is given."""

_current: ContextVar[Scope] = ContextVar("arg_scope", default=MappingProxyType({}))


def add_arg_scope(func: F) -> F:
    """Let a function take arguments from the scopes around its calls: a decorator.

    >>> @add_arg_scope
    ... def block(inputs, width, activation_fn=dt.nn.relu): ...
    """

    @functools.wraps(func)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **{**_current.get().get(scoped, {}), **kwargs})

    scoped.__dict__["_has_arg_scope"] = True
    return scoped  # type: ignore[return-value]


@contextmanager
def arg_scope(list_ops_or_scope: Iterable[Callable[..., Any]] | Scope, **kwargs: Any) -> Iterator[Scope]:
    """Give functions these arguments wherever they are called inside.

    Args:
        list_ops_or_scope: functions; or a scope that `as` gave, which then counts instead of those around.
        kwargs: the arguments; with a scope there are none.

    Raises:
        ValueError: one of the functions does not take part, or has no such argument; or a scope has arguments beside it.

    >>> with arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-4)) as scope:
    ...     net = slim.conv2d(images, 64, [3, 3])
    >>> with arg_scope(scope):
    ...     net = slim.conv2d(net, 64, [3, 3])
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("When attempting to re-use a scope by suppling a dictionary, kwargs must be empty.")
        scope = list_ops_or_scope
    else:
        scope = dict(_current.get())
        for op in list_ops_or_scope:
            _check(op, kwargs)
            scope[op] = {**scope.get(op, {}), **kwargs}
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def _check(op: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    name = getattr(op, "__name__", str(op))
    if not has_arg_scope(op):
        raise ValueError(f"{name} is not decorated with @add_arg_scope")
    taken = inspect.signature(op).parameters
    unknown = [k for k in kwargs if k not in taken]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
        raise ValueError(f"{name} has no argument {', '.join(map(repr, unknown))}; it has {', '.join(taken)}")


def current_arg_scope() -> Scope:
    """What the scopes around say: a scope for `arg_scope`."""
    return _current.get()


def has_arg_scope(func: Callable[..., Any]) -> bool:
    """Whether a function is decorated with `add_arg_scope`."""
    return bool(getattr(func, "_has_arg_scope", False))


def arg_scoped_arguments(func: Callable[..., Any]) -> tuple[str, ...]:
    """The arguments of a function that a scope can give: those with defaults.

    Raises:
        ValueError: it does not take part.
    """
    _check(func, {})
    return tuple(n for n, p in inspect.signature(func).parameters.items() if p.default is not p.empty)


__all__ = ["add_arg_scope", "arg_scope", "arg_scoped_arguments", "current_arg_scope", "has_arg_scope"]
