"""First values of variables from the checkpoint of another model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..graph.default_graph import get_default_graph
from ..graph.graph_keys import GraphKeys
from ..graph.partitioned import PartitionedVariable
from .checkpoint_state import latest_checkpoint, list_variables
from .saver import Saver


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


def _checkpoint(where: str) -> str:
    if not Path(where).is_dir():
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
    found: dict[str, list[Any]] = {}
    for v in get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES):
        for part in v if isinstance(v, PartitionedVariable) else [v]:
            found.setdefault(_full_name(part), []).append(part)
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


def _read_instead(path: str, shapes: Mapping[str, Any], name: str, parts: list[Any]) -> None:
    if name not in shapes:
        raise ValueError(f"Tensor {name} is not found in {path} checkpoint {dict(shapes)}")
    graph = get_default_graph()
    for part in parts:
        own = part.shape.as_list() if part.save_slice_info is None else list(part.save_slice_info.full_shape)
        if list(shapes[name]) != list(own):
            raise ValueError(
                f"Shape of variable {part.name} ({own}) doesn't match with shape of tensor {name} ({shapes[name]}) from "
                "checkpoint reader."
            )
        with graph.init_scope(), graph.name_scope(None):
            saver = Saver({name: [part]}, filename=str(Path(path).absolute()), name="init_from_checkpoint")
        part.initialize_by(saver._restore_all)


__all__ = ["init_from_checkpoint"]
