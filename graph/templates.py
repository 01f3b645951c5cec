"""Functions that share their variables over all calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .variable_scope import variable_scope


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Callable[..., Any]:
    """A function whose variables are made at its first call, and used again by all others.

    Args:
        name_: name of the variable scope, made unique.
        func_: what is called; it makes variables by `get_variable`.
        create_scope_now_: whether the name is made unique now, not at the first call.
        unique_name_: a name that is taken as it is.
        custom_getter_: as of `variable_scope`.
        kwargs: arguments for `func_`.

    Raises:
        ValueError: a later call makes a variable that the first one did not.

    >>> scale = dt.make_template("scale", lambda x: x * dt.get_variable("w", []))
    >>> y, z = scale(a), scale(b)   # one variable, 'scale/w'
    """
    function = partial(func_, **kwargs) if kwargs else func_
    scopes: list[Any] = []
    called: list[bool] = []

    def open_scope() -> Any:
        if scopes:
            return variable_scope(scopes[0], reuse=True if called else None)
        return variable_scope(unique_name_, default_name=name_, custom_getter=custom_getter_)

    def template(*args: Any, **more: Any) -> Any:
        with open_scope() as scope:
            if not scopes:
                scopes.append(scope)
            found = function(*args, **more)
            called.append(True)
            return found

    if create_scope_now_:
        with open_scope() as scope:
            scopes.append(scope)
    return template


__all__ = ["make_template"]
