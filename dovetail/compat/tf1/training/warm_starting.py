"""Initial values of variables from the checkpoint of another model.

If the vocabularies differ, rows (or columns) are remapped by word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.graph import Tensor
from ....graph.formats.text_lines import vocabulary_of
from ....graph.ops.array.creation import zeros
from ....graph.ops.array.gather import gather
from ....graph.ops.math.compare import where_v2
from ....graph.variables.partitioned import PartitionedVariable
from ....graph.variables.variable import Variable
from ....train.saving.checkpoint_state import checkpoint_of, list_variables
from ....train.saving.saved_items import cpu_of
from ....train.saving.saver import stored_value


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Mapping[str, Any]) -> None:
    """Change the initializers of existing variables: they read the values of a checkpoint.

    Args:
        ckpt_dir_or_file: a checkpoint, or a folder, whose newest checkpoint is used.
        assignment_map: names in the checkpoint -> variables:
            `{"name": "other_name"}` or `{"name": variable}` for one variable (or the list of its parts);
            `{"scope/": "other_scope/"}` for all variables in a scope; "/" is the root scope.

    Raises:
        ValueError: there is no checkpoint; the checkpoint or the graph has no such variable; or shapes differ.

    >>> init_from_checkpoint("/tmp/pretrained", {"encoder/": "model/encoder/"})
    """
    path = checkpoint_of(ckpt_dir_or_file)
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
    """Change the initializers of existing variables: they read the values of another model's checkpoint.

    Args:
        ckpt_to_initialize_from: a checkpoint, or a folder, whose newest checkpoint is used.
        vars_to_warm_start: a regular expression that selects trainable variables; a list of these, for global variables; or a list of
            variables. None: the trainable variables that `var_name_to_vocab_info` names.
        var_name_to_vocab_info: name -> `VocabInfo`, for variables whose vocabulary differs from that of the checkpoint.
        var_name_to_prev_var_name: name -> name in the checkpoint, where they differ.

    Raises:
        ValueError: there is no checkpoint; it lacks a variable, or has another shape; or a dictionary names a variable that is not
            selected.

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
    path = checkpoint_of(ckpt_to_initialize_from)
    shapes = dict(list_variables(path))
    for name, parts in chosen.items():
        old = renamed.get(name, name)
        if name in infos:
            _check_there(path, shapes, old)
            start_by_vocabulary(parts, path, old, shapes[old], infos[name])
        elif vars_to_warm_start is not None:
            _read_instead(path, shapes, old, parts)


def _chosen(selection: Any) -> dict[str, list[Any]]:
    """The variables that `vars_to_warm_start` means, by name; parts of one together."""
    graph = get_default_graph()
    if selection is None or isinstance(selection, str):
        found = graph.get_collection(GraphKeys.TRAINABLE_VARIABLES, selection)
    elif not isinstance(selection, (list, tuple)):
        raise ValueError(f"`vars_to_warm_start must be a `list` or `str`.  Given type is {type(selection)}")
    elif all(isinstance(w, str) for w in selection):
        found = [v for w in selection for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES, w)]
    elif all(isinstance(w, (Variable, PartitionedVariable, list)) for w in selection):
        found = list(selection)
    else:
        raise ValueError(
            "If `vars_to_warm_start` is a list, it must be all `Variable` or all `str`.  Given types are "
            f"{[type(w) for w in selection]}"
        )
    return by_name(found)


def _full_name(variable: Any) -> str:
    part = variable.save_slice_info
    name: str = variable.op.name if part is None else part.full_name
    return name


def _global() -> dict[str, list[Any]]:
    """The graph's variables by name; parts of one together."""
    return by_name(get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES))


def by_name(variables: Iterable[Any]) -> dict[str, list[Any]]:
    """Variables by name; parts of one together."""
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


class VocabInfo(NamedTuple):
    """The vocabularies of a variable in a model and in a checkpoint, for `train.warm_start`.

    Attributes:
        new_vocab: file with a word per line, of this model.
        old_vocab: file with a word per line, of the checkpoint's model.
        new_vocab_size: number of lines of `new_vocab` to use.
        old_vocab_size: number of lines of `old_vocab` to use; -1: all.
        num_oov_buckets: number of entries after those of the words, for words that are not in the vocabulary.
        backup_initializer: initializer of entries that the checkpoint lacks; None: zeros.
        axis: the axis of the variable that the vocabulary indexes: 0 or 1.
    """

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0


def start_by_vocabulary(parts: Sequence[Variable], path: str, name: str, shape: Sequence[int], info: VocabInfo) -> None:
    """Initialize the parts of a variable from a checkpoint's tensor of that name and shape, remapped by word.

    Raises:
        ValueError: the axis is another one, or sizes do not fit.
    """
    axis = info.axis
    if axis not in (0, 1) or axis >= len(shape):
        raise ValueError(f"The only supported values for the axis argument are 0 and 1.  Provided axis: {axis}")
    old = _words(info.old_vocab, info.old_vocab_size)
    if len(old) > shape[axis]:
        raise ValueError(
            f"The vocabulary {info.old_vocab} has {len(old)} words, tensor {name} of checkpoint {path} {shape[axis]} entries"
        )
    numbers = {word: i for i, word in enumerate(old)}
    new = _words(info.new_vocab, info.new_vocab_size)
    rows = np.array([*(numbers.get(word, -1) for word in new), *[-1] * info.num_oov_buckets], np.int64)
    for part in parts:
        slice_info = part.save_slice_info
        sizes = [int(n or 0) for n in part.shape.as_list()]
        full = sizes if slice_info is None else list(slice_info.full_shape)
        offset = [0] * len(sizes) if slice_info is None else list(slice_info.var_offset)
        expected = [len(rows) if a == axis else n for a, n in enumerate(shape)]
        if full != expected:
            raise ValueError(
                f"Variable {part.name} has shape {full}; by the vocabulary and tensor {name} of {path} it must be {expected}"
            )
        graph = part.graph
        with graph.init_scope(), graph.name_scope(None), graph.device(None), graph.device(cpu_of(part)):
            found = stored_value(path, name, part.dtype, None)
            for a, (start, count) in enumerate(zip(offset, sizes, strict=True)):
                chosen = rows[start : start + count] if a == axis else np.arange(start, start + count)
                found = gather(found, np.maximum(chosen, 0), axis=a)
            known = (rows[offset[axis] : offset[axis] + sizes[axis]] >= 0).reshape([-1, *[1] * (len(sizes) - axis - 1)])
            value = where_v2(np.broadcast_to(known, sizes), found, _others(info.backup_initializer, part))
            change = part.assign(value)
        part.initialize_by(getattr(change, "op", change), value)


def _words(file: str, size: int) -> list[str]:
    lines = vocabulary_of(file)
    if size > len(lines):
        raise ValueError(f"The vocabulary {file} has {len(lines)} words, fewer than {size}")
    return lines if size < 0 else lines[:size]


def _others(initializer: Any, part: Variable) -> Tensor:
    """Values of entries that the checkpoint does not have."""
    if initializer is None:
        return zeros(part.shape.as_list(), part.dtype.base)
    made = initializer() if isinstance(initializer, type) else initializer
    found: Tensor = made(part.shape.as_list(), dtype=part.dtype.base)
    return found
