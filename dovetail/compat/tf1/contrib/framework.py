"""Steps, variables, checkpoints and `arg_scope` of `tf.contrib.framework`."""

from collections.abc import Callable
from typing import Any

from ....api import nest
from ....graph.core.default_graph import get_default_graph
from ....train.global_step import assert_global_step, create_global_step, get_global_step, get_or_create_global_step
from ....train.saving.checkpoint_state import list_variables, load_checkpoint, load_variable
from ..training.warm_starting import init_from_checkpoint
from .arg_scope import add_arg_scope, arg_scope, arg_scoped_arguments, current_arg_scope, has_arg_scope
from .variables import (
    add_model_variable,
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    filter_variables,
    get_local_variables,
    get_model_variables,
    get_trainable_variables,
    get_unique_variable,
    get_variable_full_name,
    get_variables,
    get_variables_by_name,
    get_variables_by_suffix,
    get_variables_to_restore,
    global_variable,
    local_variable,
    model_variable,
    variable,
)


def deprecated(date: str | None, instructions: str, warn_once: bool = True) -> Callable[[Any], Any]:
    """A decorator that leaves a function as it is."""
    return lambda decorated: decorated


def get_name_scope() -> str:
    """The name of the open name scopes, as `a/b`; "" outside all."""
    return get_default_graph().get_name_scope()


__all__ = [
    "add_arg_scope",
    "add_model_variable",
    "arg_scope",
    "arg_scoped_arguments",
    "assert_global_step",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "assign_from_values",
    "assign_from_values_fn",
    "create_global_step",
    "current_arg_scope",
    "deprecated",
    "filter_variables",
    "get_global_step",
    "get_local_variables",
    "get_model_variables",
    "get_name_scope",
    "get_or_create_global_step",
    "get_trainable_variables",
    "get_unique_variable",
    "get_variable_full_name",
    "get_variables",
    "get_variables_by_name",
    "get_variables_by_suffix",
    "get_variables_to_restore",
    "global_variable",
    "has_arg_scope",
    "init_from_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "local_variable",
    "model_variable",
    "nest",
    "variable",
]
