"""Functions that share their variables over all calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.default_graph import GraphKeys, get_default_graph
from .scope import VariableScope, variable_scope


class Template:
    """A function whose variables are made at its first call; see `make_template`."""

    def __init__(self, name: str, function: Callable[..., Any], unique_name: str | None, custom_getter: Any) -> None:
        self.name = name
        self.func = function
        self._unique_name, self._custom_getter = unique_name, custom_getter
        self._scope: VariableScope | None = None
        self._was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trainable = get_default_graph().get_collection_ref(GraphKeys.TRAINABLE_VARIABLES)
        with self.open_scope():
            before = len(trainable)
            found = self.func(*args, **kwargs)
            if self._was_called and len(trainable) > before:
                raise ValueError(
                    f"A call of the template '{self.name}' that is not the first made trainable variables, with Variable instead of "
                    f"get_variable: {[v.name for v in trainable[before:]]}"
                )
            self._was_called = True
            return found

    @contextmanager
    def open_scope(self, name_scope: bool = True) -> Iterator[None]:
        """A block in its variable scope, which is made at the first time; with a name scope of that name."""
        opened = (
            variable_scope(
                self._unique_name,
                self.name,
                custom_getter=self._custom_getter,
                auxiliary_name_scope=name_scope,
            )
            if self._scope is None
            else variable_scope(self._scope, reuse=True if self._was_called else None)
        )
        with opened as scope:
            if self._scope is None:
                self._scope = scope
            yield

    @property
    def variable_scope(self) -> VariableScope | None:
        """The scope of its variables; None before there is one."""
        return self._scope

    @property
    def variable_scope_name(self) -> str | None:
        """The name of that scope, with a slash at the end."""
        return None if self._scope is None else f"{self._scope.name.removesuffix('/')}/" if self._scope.name else ""

    @property
    def global_variables(self) -> list[Any]:
        """Its variables that are global."""
        return [] if self._scope is None else self._scope.global_variables()

    @property
    def local_variables(self) -> list[Any]:
        """Its variables that are local."""
        return [] if self._scope is None else self._scope.local_variables()

    @property
    def variables(self) -> list[Any]:
        """Its variables."""
        return self.global_variables + self.local_variables

    @property
    def trainable_variables(self) -> list[Any]:
        """Its variables that optimizers change."""
        return [] if self._scope is None else self._scope.trainable_variables()

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Its other variables."""
        trainable = self.trainable_variables
        return [v for v in self.variables if not any(v is t for t in trainable)]

    weights = variables
    trainable_weights = trainable_variables
    non_trainable_weights = non_trainable_variables


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Template:
    """A function whose variables are made at its first call, and used again by all others.

    Args:
        name_: name of the variable scope, made unique.
        func_: the function; it makes variables by `get_variable`.
        create_scope_now_: whether the name is made unique now, not at the first call.
        unique_name_: a name that is used unchanged.
        custom_getter_: as of `variable_scope`.
        kwargs: arguments for `func_`.

    Raises:
        ValueError: a later call makes a variable that the first one did not.

    Returns:
        the function, with the attributes `variables`, `trainable_variables` and the like, and `variable_scope`.

    >>> scale = dt.make_template("scale", lambda x: x * dt.get_variable("w", []))
    >>> y, z = scale(a), scale(b)   # one variable, 'scale/w'
    """
    if name_ is None:
        raise ValueError("name cannot be None.")
    template = Template(name_, partial(func_, **kwargs) if kwargs else func_, unique_name_, custom_getter_)
    if create_scope_now_:
        with template.open_scope(name_scope=False):
            pass
    return template
