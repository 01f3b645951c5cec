"""First values of variables from the checkpoint of another model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.formats.atomic_files import path_of
from ...graph.variables.partitioned import PartitionedVariable
from ...graph.variables.variable import Variable
from .checkpoint_state import latest_checkpoint, list_variables
from .saved_items import cpu_of
from .saver import stored_value
from .vocabularies import VocabInfo, start_by_vocabulary


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Mapping[str, Any]) -> None:
    """Let initializers of variables that are there already read values from a checkpoint, instead of what they made before.

    Args:
        ckpt_dir_or_file: a checkpoint, or a folder: its newest.
        assignment_map: from what the checkpoint has to what it is for, in one of these ways:
            `{"name": "other_name"}` or `{"name": variable}`: one variable (or the list of its parts);
            `{"scope/": "other_scope/"}`: all variables in a scope; "/" is the scope around all.

    Raises:
        ValueError: there is no checkpoint, or no such variable in it, or in the graph; or shapes differ.

    >>> init_from_checkpoint("/tmp/pretrained", {"encoder/": "model/encoder/"})
    """
    path = _checkpoint(ckpt_dir_or_file)
    shapes = dict(list_variables(path))
    for old, new in assignment_map.items():
        if isinstance(new, str) and new.endswith("/"):
            pairs = _in_scope(shapes, old, new)
        elif isinstance(new, str):
            pairs = [(old, _variables_of(new))]
        else:
            pairs = [(old, list(new) if isinstance(new, (list, tuple, PartitionedVariable)) else [new])]
        for name, parts in pairs:
            _read_instead(path, shapes, name, parts)


def warm_start(
    ckpt_to_initialize_from: str,
    vars_to_warm_start: Any = ".*",
    var_name_to_vocab_info: Mapping[str, VocabInfo] | None = None,
    var_name_to_prev_var_name: Mapping[str, str] | None = None,
) -> None:
    """Let initializers of variables that are there already read values from a checkpoint of another model.

    Args:
        ckpt_to_initialize_from: a checkpoint, or a folder: its newest.
        vars_to_warm_start: which variables: a regular expression for trainable ones; a list of such for all global ones; a list of
            variables; None: the trainable ones that `var_name_to_vocab_info` names.
        var_name_to_vocab_info: for variables whose vocabulary is another one than in the checkpoint.
        var_name_to_prev_var_name: the checkpoint's name for a variable, where it has another one there.

    Raises:
        ValueError: there is no checkpoint; it has no such variable, or another shape; or a dictionary names a variable that is not
            to be started.

    >>> warm_start("/tmp/pretrained", vars_to_warm_start="encoder.*")
    """
    chosen = _chosen(vars_to_warm_start)
    infos, renamed = dict(var_name_to_vocab_info or {}), dict(var_name_to_prev_var_name or {})
    for what, given in (("var_name_to_prev_var_name", renamed), ("var_name_to_vocab_info", infos)):
        unused = [name for name in given if name not in chosen]
        if unused:
            raise ValueError(
                f"You provided the following variables in {what} that were not used: {', '.join(unused)}.  Perhaps you misspelled them?  "
                f"Here is the list of viable variable names: {', '.join(chosen)}"
            )
    path = _checkpoint(ckpt_to_initialize_from)
    shapes = dict(list_variables(path))
    for name, parts in chosen.items():
        old = renamed.get(name, name)
        if name in infos:
            _check_there(path, shapes, old)
            start_by_vocabulary(parts, path, old, shapes[old], infos[name])
        elif vars_to_warm_start is not None:
            _read_instead(path, shapes, old, parts)


def _chosen(wanted: Any) -> dict[str, list[Any]]:
    """The variables that `vars_to_warm_start` means, by name; parts of one together."""
    graph = get_default_graph()
    if wanted is None or isinstance(wanted, str):
        found = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES, wanted)
    elif not isinstance(wanted, (list, tuple)):
        raise ValueError(f"`vars_to_warm_start must be a `list` or `str`.  Given type is {type(wanted)}")
    elif all(isinstance(w, str) for w in wanted):
        found = [v for w in wanted for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES, w)]
    elif all(isinstance(w, (Variable, PartitionedVariable, list)) for w in wanted):
        found = list(wanted)
    else:
        raise ValueError(
            "If `vars_to_warm_start` is a list, it must be all `Variable` or all `str`.  Given types are "
            f"{[type(w) for w in wanted]}"
        )
    return _by_name(found)


def _checkpoint(where: str) -> str:
    if not path_of(where).is_dir():
        return str(where)
    found = latest_checkpoint(str(where))
    if found is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in given directory {where}")
    return found


def _full_name(variable: Any) -> str:
    part = variable.save_slice_info
    name: str = variable.op.name if part is None else part.full_name
    return name


def _global() -> dict[str, list[Any]]:
    """The graph's variables by name; parts of one together."""
    return _by_name(get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES))


def _by_name(variables: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for v in variables:
        for part in v if isinstance(v, (PartitionedVariable, list)) else [v]:
            kept = found.setdefault(_full_name(part), [])
            if part not in kept:
                kept.append(part)
    return found


def _variables_of(name: str) -> list[Any]:
    known = _global()
    if name not in known:
        raise ValueError(f"Variable {name} is not in the graph; it has {', '.join(sorted(known)) or 'none'}")
    return known[name]


def _in_scope(shapes: Mapping[str, Any], old: str, new: str) -> list[tuple[str, list[Any]]]:
    if not old.endswith("/"):
        raise ValueError(
            f"Assignment map with scope only name {new} should map to scope only {old}. Should be 'scope/': 'other_scope/'."
        )
    before = "" if old == "/" else old
    scope = "" if new == "/" else new
    found = [(before + name.removeprefix(scope), parts) for name, parts in _global().items() if name.startswith(scope)]
    missing = [name for name, _ in found if name not in shapes]
    if missing:
        raise ValueError(f"The checkpoint has no {', '.join(missing)}, which {old!r}: {new!r} asks for")
    return found


def _check_there(path: str, shapes: Mapping[str, Any], name: str) -> None:
    if name not in shapes:
        raise ValueError(f"Tensor {name} is not found in {path} checkpoint {dict(shapes)}")


def _read_instead(path: str, shapes: Mapping[str, Any], name: str, parts: list[Any]) -> None:
    _check_there(path, shapes, name)
    graph = get_default_graph()
    for part in parts:
        own = part.shape.as_list() if part.save_slice_info is None else list(part.save_slice_info.full_shape)
        if list(shapes[name]) != list(own):
            raise ValueError(
                f"Shape of variable {part.name} ({own}) doesn't match with shape of tensor {name} ({shapes[name]}) from "
                "checkpoint reader."
            )
        spec = "" if part.save_slice_info is None else part.save_slice_info.spec
        with graph.init_scope(), graph.name_scope("init_from_checkpoint/"):
            with graph.device(None), graph.device(cpu_of(part)), graph.name_scope("checkpoint_initializer"):
                value = stored_value(path, name, part.dtype, part.shape.dims_tuple, spec)
            change = part.assign(value, read_value=False)
        part.initialize_by(getattr(change, "op", change), value)


__all__ = ["init_from_checkpoint", "warm_start"]
