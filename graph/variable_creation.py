"""How variables are made: of which kind where the program does not say, and by whom, in a `variable_creator_scope`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from .aggregation import VariableAggregation, VariableSynchronization
from .default_graph import get_default_graph

_resource_by_default = [False]  # what `use_resource=None` means; in a list so that it can be switched


def enable_resource_variables() -> None:
    """Make variables resource variables from now on, where `use_resource` is not given."""
    _resource_by_default[0] = True


def disable_resource_variables() -> None:
    """Make variables reference variables from now on, where `use_resource` is not given (TF1's default)."""
    _resource_by_default[0] = False


def resource_variables_enabled() -> bool:
    """Whether variables are resource variables where `use_resource` is not given."""
    return _resource_by_default[0]


class Creation(type):
    """The metaclass of `Variable`. `Variable(...)` asks the functions of the open `variable_creator_scope` blocks, innermost first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cls.__base__, Creation):  # a kind of variable, which the program names itself: nobody is asked
            return super().__call__(*args, **kwargs)
        graph = get_default_graph()
        if graph.outermost is not graph:  # a variable that a function makes belongs to the graph around it
            with graph.outermost.as_default():
                return cls(*args, **kwargs)
        wanted = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        creators = graph.scopes.creators
        create = partial(_create, partial(super().__call__))
        for creator in creators:
            create = partial(creator, create)
        return create(**wanted)


_ARGUMENTS = (
    "initial_value", "trainable", "collections", "validate_shape", "caching_device", "name", "variable_def", "dtype",
    "expected_shape", "import_scope", "constraint", "use_resource", "synchronization", "aggregation", "shape",
)  # fmt: skip


def _create(make: Callable[..., Any], **kwargs: Any) -> Any:
    """The innermost creator: a variable. How its copies are kept equal is of interest only where there are copies."""
    synchronization = VariableSynchronization(kwargs.pop("synchronization", None) or VariableSynchronization.AUTO)
    aggregation = VariableAggregation(kwargs.pop("aggregation", None) or VariableAggregation.NONE)
    if kwargs.get("trainable") is None and synchronization is VariableSynchronization.ON_READ:
        kwargs["trainable"] = False
    variable = make(**kwargs)
    if kwargs.get("variable_def") is not None:
        return variable
    variable.synchronization, variable.aggregation = synchronization, aggregation
    return variable


@contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """A block in which `variable_creator(next_creator, **kwargs)` makes the variables.

    `kwargs` are `Variable`'s arguments by name; `next_creator(**kwargs)` makes the variable as it would be made otherwise. The
    innermost block is asked first.

    >>> def on_ps(next_creator, **kwargs):
    ...     with dt.device("/job:ps"):
    ...         return next_creator(**kwargs)
    >>> with variable_creator_scope(on_ps):
    ...     v = Variable(1.0)
    """
    scopes = get_default_graph().scopes
    saved, scopes.creators = scopes.creators, (*scopes.creators, variable_creator)
    try:
        yield
    finally:
        scopes.creators = saved


@contextmanager
def without_creators(which: Callable[[Any], bool] = lambda creator: True) -> Iterator[None]:
    """A block in which those functions of `variable_creator_scope` blocks that `which` chooses make no variables."""
    scopes = get_default_graph().scopes
    saved, scopes.creators = scopes.creators, tuple(c for c in scopes.creators if not which(c))
    try:
        yield
    finally:
        scopes.creators = saved
