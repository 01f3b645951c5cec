"""First values from the checkpoint of a model that had another vocabulary: rows (or columns) move with their words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...graph.core.graph import Tensor
from ...graph.ops.array.creation import zeros
from ...graph.ops.array.gather import gather
from ...graph.ops.math.compare import where_v2
from ...graph.variables.variable import Variable
from .saved_items import cpu_of
from .saver import stored_value


class VocabInfo(NamedTuple):
    """How the vocabulary of a variable differs from that in a checkpoint, for `train.warm_start`.

    Attributes:
        new_vocab, old_vocab: files with a word per line: of this model, and of the checkpoint's.
        new_vocab_size, old_vocab_size: how many of their lines count; -1: all of the old ones.
        num_oov_buckets: how many entries follow the words', for words that are in no vocabulary.
        backup_initializer: makes the values of entries that the checkpoint does not have; None: zeros.
        axis: which axis of the variable is the vocabulary's: 0 or 1.
    """

    new_vocab: str
    new_vocab_size: int
    num_oov_buckets: int
    old_vocab: str
    old_vocab_size: int = -1
    backup_initializer: Any = None
    axis: int = 0


def start_by_vocabulary(parts: Sequence[Variable], path: str, name: str, shape: Sequence[int], info: VocabInfo) -> None:
    """Let the parts of a variable start with what a checkpoint's tensor of that name and shape has for their words.

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
    lines = Path(file).read_text(encoding="utf-8").splitlines()
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


__all__ = ["VocabInfo", "start_by_vocabulary"]
