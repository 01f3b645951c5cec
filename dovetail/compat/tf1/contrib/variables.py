"""Variables as `tf.contrib.framework` made and found them: *model variables* are those that a saved model needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....graph.core.build import placeholder
from ....graph.core.default_graph import GraphKeys, device as _device, get_default_graph
from ....graph.core.dtypes import float32
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.variables.scope import VariableScope, get_variable, get_variable_scope
from ....graph.variables.store import global_variables
from ....graph.variables.variable import Variable
from ....train.saving.checkpoint_state import load_checkpoint
from ....train.saving.saver import Saver
from .arg_scope import add_arg_scope


@add_arg_scope
def variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """A variable by `get_variable`, on a device of its own if one is given; arguments as there.

    Args:
        collections: it joins these, and `GLOBAL_VARIABLES` where there are none.
        device: device, or device function, of the variable; None: as the blocks around say.
        custom_getter: makes the variable in the place of `get_variable`.
    """
    getter = get_variable
    if custom_getter is not None:  # it is given the whole name
        getter = partial(custom_getter, reuse=get_variable_scope().reuse)
    with _device(device or ""):
        return getter(
            name, shape=shape, dtype=dtype, initializer=initializer, regularizer=regularizer, trainable=trainable,
            collections=list(dict.fromkeys(collections or [GraphKeys.GLOBAL_VARIABLES])), caching_device=caching_device,
            partitioner=partitioner, use_resource=use_resource, synchronization=synchronization, aggregation=aggregation,
        )  # fmt: skip


@add_arg_scope
def model_variable(
    name: str,
    shape: Any = None,
    dtype: Any = float32,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    use_resource: bool | None = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """A variable of the model: as `variable`, and in the collections `GLOBAL_VARIABLES` and `MODEL_VARIABLES`."""
    joined = [*(collections or ()), GraphKeys.GLOBAL_VARIABLES, GraphKeys.MODEL_VARIABLES]
    return variable(
        name, shape=shape, dtype=dtype, initializer=initializer, regularizer=regularizer, trainable=trainable,
        collections=joined, caching_device=caching_device, device=device, partitioner=partitioner, custom_getter=custom_getter,
        use_resource=use_resource, synchronization=synchronization, aggregation=aggregation,
    )  # fmt: skip


def local_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Variable:
    """A variable of this process, which is not saved."""
    return _plain(initial_value, validate_shape, name, use_resource, GraphKeys.LOCAL_VARIABLES)


def global_variable(
    initial_value: Any, validate_shape: bool = True, name: str | None = None, use_resource: bool | None = None
) -> Variable:
    """A variable that is not trained, and is saved."""
    return _plain(initial_value, validate_shape, name, use_resource, GraphKeys.GLOBAL_VARIABLES)


def _plain(value: Any, validate_shape: bool, name: str | None, use_resource: bool | None, collection: str) -> Variable:
    return Variable(
        value,
        trainable=False,
        collections=[collection],
        validate_shape=validate_shape,
        name=name,
        use_resource=use_resource,
    )


# --- finding ---------------------------------------------------------------------------------------------------------


def add_model_variable(var: Any) -> None:
    """Let a variable be one of the model's."""
    get_default_graph().add_to_collections([GraphKeys.MODEL_VARIABLES], var)


def get_variables(
    scope: str | VariableScope | None = None, suffix: str | None = None, collection: str = GraphKeys.GLOBAL_VARIABLES
) -> list[Any]:
    """The variables of a collection whose names begin with the scope and end with `/suffix`."""
    if isinstance(scope, VariableScope):
        scope = scope.name
    if suffix is not None:
        suffix = suffix if ":" in suffix else suffix + ":0"
        scope = (scope or "") + ".*" + suffix
    return list(get_default_graph().get_collection(collection, scope))


def get_model_variables(scope: str | VariableScope | None = None, suffix: str | None = None) -> list[Any]:
    """As `get_variables`, of the model's."""
    return get_variables(scope, suffix, GraphKeys.MODEL_VARIABLES)


def get_local_variables(scope: str | VariableScope | None = None, suffix: str | None = None) -> list[Any]:
    """As `get_variables`, of the local ones."""
    return get_variables(scope, suffix, GraphKeys.LOCAL_VARIABLES)


def get_trainable_variables(scope: str | VariableScope | None = None, suffix: str | None = None) -> list[Any]:
    """As `get_variables`, of those that are trained."""
    return get_variables(scope, suffix, GraphKeys.TRAINABLE_VARIABLES)


def get_variables_by_suffix(suffix: str, scope: str | VariableScope | None = None) -> list[Any]:
    """Those that end with `suffix`."""
    return get_variables(scope, suffix)


def get_variables_by_name(given_name: str, scope: str | VariableScope | None = None) -> list[Any]:
    """Those of this name, in whatever scope."""
    return [v for v in get_variables(scope) if v.op.name.rpartition("/")[2] == given_name.rpartition("/")[2]
            and v.op.name.endswith(given_name)]  # fmt: skip


def get_unique_variable(var_op_name: str) -> Any:
    """The one variable whose operation has this name.

    Raises:
        ValueError: there is none, or there are several.
    """
    found = [v for v in get_variables(re.escape(var_op_name)) if v.op.name == var_op_name]
    if len(found) != 1:
        raise ValueError(
            f"Variable {var_op_name} does not uniquely identify a variable"
            if found
            else f"Couldn't find variable {var_op_name}"
        )
    return found[0]


def get_variable_full_name(var: Any) -> str:
    """The name under which a checkpoint has a variable."""
    return str(var.op.name)


def get_variables_to_restore(include: Sequence[str] | None = None, exclude: Sequence[str] | None = None) -> list[Any]:
    """The global variables whose names begin with one of `include` (None: all), and with none of `exclude`."""
    if any(isinstance(given, str) for given in (include, exclude)):
        raise TypeError("include and exclude are lists of scopes, not strings")
    wanted = global_variables() if include is None else [v for scope in include for v in get_variables(scope)]
    left_out = {v for scope in exclude or () for v in get_variables(scope)}
    return [v for v in dict.fromkeys(wanted) if v not in left_out]


def filter_variables(
    var_list: Iterable[Any],
    include_patterns: Sequence[str] | None = None,
    exclude_patterns: Sequence[str] | None = None,
    reg_search: bool = True,
) -> list[Any]:
    """The variables in whose names one of the patterns is found (None: all), and none of those to exclude.

    Args:
        reg_search: look anywhere in a name; else only at its beginning.
    """
    look = re.search if reg_search else re.match

    def found(patterns: Sequence[str], v: Any) -> bool:
        return any(look(p, v.op.name) for p in patterns)

    return [
        v for v in var_list
        if (not include_patterns or found(include_patterns, v)) and not found(exclude_patterns or (), v)
    ]  # fmt: skip


# --- assigning -------------------------------------------------------------------------------------------------------


def assign_from_values(var_names_to_values: Mapping[str, Any]) -> tuple[Any, dict[Any, Any]]:
    """What gives variables values: the op to run, and what to feed it, so that the values are not part of the graph.

    Args:
        var_names_to_values: name of a variable's operation -> value.

    >>> op, feeds = assign_from_values({"conv1/weights": weights})
    >>> session.run(op, feeds)
    """
    feeds: dict[Any, Any] = {}
    assigned = []
    for name, value in var_names_to_values.items():
        var: Any = get_unique_variable(name)
        array = np.asarray(value)
        fed = placeholder(var.dtype.base_dtype, array.shape, name=f"placeholder/{var.op.name}")
        assigned.append(var.assign(fed).op)
        feeds[fed] = array
    return group(*assigned), feeds


def assign_from_values_fn(var_names_to_values: Mapping[str, Any]) -> Callable[[Any], None]:
    """The same as a function of the session: an `init_fn`."""
    op, feeds = assign_from_values(var_names_to_values)

    def assign(session: Any) -> None:
        session.run(op, feeds)

    return assign


def _by_name(var_list: Iterable[Any] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(var_list, Mapping):
        return dict(var_list)
    variables: Iterable[Any] = var_list
    return {v.op.name: v for v in variables}


def assign_from_checkpoint(
    model_path: str, var_list: Iterable[Any] | Mapping[str, Any], ignore_missing_vars: bool = False
) -> tuple[Any, dict[Any, Any]]:
    """What gives variables the values of a checkpoint, as `assign_from_values`.

    Args:
        var_list: variables, or a mapping from their names in the checkpoint.
        ignore_missing_vars: leave out what it does not have.

    Raises:
        ValueError: the checkpoint lacks one, or has it in another shape.
    """
    reader = load_checkpoint(model_path)
    values = {}
    for name, var in _by_name(var_list).items():
        if not reader.has_tensor(name):
            if ignore_missing_vars:
                continue
            raise ValueError(f"Checkpoint is missing variable [{name}]")
        value = reader.get_tensor(name)
        if not var.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"Total size of new array must be unchanged for {name} lh_shape: [{value.shape}], rh_shape: [{var.shape}]"
            )
        values[var.op.name] = value
    return assign_from_values(values)


def assign_from_checkpoint_fn(
    model_path: str,
    var_list: Iterable[Any] | Mapping[str, Any],
    ignore_missing_vars: bool = False,
    reshape_variables: bool = False,
) -> Callable[[Any], None] | None:
    """A function of the session that restores variables from a checkpoint: an `init_fn`; None: it has none of them.

    Args:
        var_list: as of `assign_from_checkpoint`.
        ignore_missing_vars: as of `assign_from_checkpoint`.
        reshape_variables: take a value of another shape with as many elements.

    Raises:
        ValueError: there is nothing to restore.
    """
    wanted = _by_name(var_list)
    if not wanted:
        raise ValueError("var_list cannot be empty")
    if ignore_missing_vars:
        reader = load_checkpoint(model_path)
        wanted = {name: v for name, v in wanted.items() if reader.has_tensor(name)}
        if not wanted:
            return None
    saver = Saver(wanted, reshape=reshape_variables)

    def restore(session: Any) -> None:
        saver.restore(session, model_path)

    return restore


__all__ = [
    "add_model_variable",
    "assign_from_checkpoint",
    "assign_from_checkpoint_fn",
    "assign_from_values",
    "assign_from_values_fn",
    "filter_variables",
    "get_local_variables",
    "get_model_variables",
    "get_trainable_variables",
    "get_unique_variable",
    "get_variable_full_name",
    "get_variables",
    "get_variables_by_name",
    "get_variables_by_suffix",
    "get_variables_to_restore",
    "global_variable",
    "local_variable",
    "model_variable",
    "variable",
]
