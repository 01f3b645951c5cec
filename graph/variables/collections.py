"""The lists of variables that a graph keeps, and what initialises them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..core.build import apply, graph_of
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.graph import Node, Tensor
from ..ops.array.identity_and_placeholders import group
from ..ops.state import variables


def global_variables(scope: str | None = None) -> list[Any]:
    """The variables that all tasks share; with `scope`, those whose name matches that regular expression."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def all_variables() -> list[Any]:
    """Old spelling of `global_variables()`."""
    return global_variables()


def local_variables(scope: str | None = None) -> list[Any]:
    """The variables that each client has for itself; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """The variables that optimizers change by default; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Any]:
    """The variables that a model needs for inference; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Any]:
    """The variables that have a moving average; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Iterable[Any] | None, name: str = "init") -> Node:
    """One node that gives each of these variables its initial value."""
    node: Node = group(*[v.initializer for v in var_list or ()], name=name)
    return node


def global_variables_initializer() -> Node:
    """One node that initializes all global variables made so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Node:
    """One node that initializes all local variables made so far."""
    return variables_initializer(local_variables())


def initialize_variables(var_list: Iterable[Any], name: str = "init") -> Node:
    """Old spelling of `variables_initializer`."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Node:
    """Old spelling of `global_variables_initializer`."""
    return global_variables_initializer()


def initialize_local_variables() -> Node:
    """Old spelling of `local_variables_initializer`."""
    return local_variables_initializer()


def assert_variables_initialized(var_list: Sequence[Any] | None = None) -> Node | None:
    """A node that fails with FailedPreconditionError while one of the variables has no value.

    Args:
        var_list: variables to ask; None: all global and local ones. Where there are none, the result is None.
    """
    if var_list is None:
        var_list = [*global_variables(), *local_variables()]
    if not var_list:
        return None
    reads = []
    for v in var_list:
        with v.graph.colocate_with(v):
            reads.append(v.read_value().op)
    node: Node = group(*reads, name="assert_variables_initialized")
    return node


def report_uninitialized_variables(
    var_list: Sequence[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """The names of the variables that have no value yet, as a string vector: empty means ready.

    Args:
        var_list: variables to ask; None: all global and local ones.
    """
    if var_list is None:
        var_list = [*global_variables(), *local_variables()]
    with graph_of(*[variables.as_place(v) for v in var_list]).name_scope(name):
        flags = [variables.is_variable_initialized(v) for v in var_list]
        # The names leave as text, which only CPUs hold.
        with graph_of(*flags).device("/cpu:0"):
            return apply("UninitializedNames", flags, {"names": tuple([v.op.name for v in var_list])})


is_variable_initialized = variables.is_variable_initialized
