"""Ids of texts and numbers: vocabularies, hash buckets, crossed features."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert, make
from ....graph.core.dtypes import INTEGERS, Array, bool_, int32, int64, string
from ....graph.core.farmhash import fingerprint, joined
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.math.compare import greater, greater_equal
from ....graph.ops.math.static_operands import as_bytes
from ....graph.ops.strings.strings import string_length

HASH_KEY = 0xDECAFCAFFE
"""What combinations begin with, unless said otherwise (TensorFlow's)."""


_fingerprint = functools.lru_cache(1 << 16)(fingerprint)


def _mapped(x: Array, function: Any) -> Array:
    """A function of each element, in an array of int64."""
    return np.fromiter(map(function, x.reshape(-1).tolist()), np.int64, x.size).reshape(x.shape)


# --- vocabularies -----------------------------------------------------------------------------------------------------


def _index_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    entries = attrs["vocabulary"]
    if not isinstance(entries, tuple) or not entries:
        raise ValueError("needs a vocabulary")
    if len(set(entries)) != len(entries):
        raise ValueError("an entry is in the vocabulary twice")
    kind = bytes if x.dtype.base is string else int
    if not all(type(e) is kind for e in entries) or x.dtype.base not in (string, *INTEGERS):
        raise TypeError(f"a value of type {x.dtype.base.name} is in no vocabulary of {type(entries[0]).__name__}")
    if not isinstance(attrs["default_value"], int) or not isinstance(attrs["num_oov_buckets"], int):
        raise TypeError("default_value and num_oov_buckets must be whole numbers")
    if attrs["num_oov_buckets"] < 0:
        raise ValueError("num_oov_buckets must not be negative")
    return [(int64, x.dims)]


# By identity: comparing long ones takes long.
_known: OrderedDict[int, tuple[tuple[Any, ...], dict[Any, int]]] = OrderedDict()
_MOST_KNOWN = 64


def _places(vocabulary: tuple[Any, ...]) -> dict[Any, int]:
    found = _known.get(id(vocabulary))
    if found is None:
        found = _known[id(vocabulary)] = vocabulary, {entry: i for i, entry in enumerate(vocabulary)}
        while len(_known) > _MOST_KNOWN:
            with contextlib.suppress(KeyError):  # another thread was quicker
                _known.popitem(last=False)
    return found[1]


def _index(x: Array, vocabulary: tuple[Any, ...], default_value: int, num_oov_buckets: int) -> Array:
    places, size = _places(vocabulary), len(vocabulary)

    def place(value: Any) -> int:
        entry = as_bytes(value) if x.dtype == object else value
        found = places.get(entry)
        if found is not None:
            return found
        # Numbers are hashed as texts, as TensorFlow's tables do.
        return size + _fingerprint(as_bytes(value)) % num_oov_buckets if num_oov_buckets else default_value

    return _mapped(x, place)


define("VocabularyIndex", _index_rule, _index, device_types=("CPU",))


def vocabulary_index(
    x: TensorLike,
    vocabulary: Sequence[Any],
    default_value: int = -1,
    num_oov_buckets: int = 0,
    name: str | None = None,
) -> Tensor:
    """The index of each value in a vocabulary.

    Args:
        x: text or whole numbers. vocabulary: the same, each entry once.
        default_value: for values not in it. num_oov_buckets: instead, that many hash buckets after the vocabulary.

    >>> vocabulary_index(["b", "c"], ["a", "b"])   # evaluates to [1, -1]
    """
    entries = tuple(int(e) if isinstance(e, (int, np.integer)) else as_bytes(e) for e in vocabulary)
    attrs = {
        "vocabulary": entries,
        "default_value": int(default_value),
        "num_oov_buckets": int(num_oov_buckets),
    }
    return apply("VocabularyIndex", (convert(x),), attrs, name)


# --- combinations -----------------------------------------------------------------------------------------------------


def _cross_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    values, present = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
    if len(values) < 2:
        raise ValueError("needs at least two values to combine")
    if len(values) != len(present) or any(m.dtype.base is not bool_ for m in present):
        raise TypeError("needs to know of all values, and nothing else, which are there")
    for x in values:
        if x.dtype.base not in (string, int32, int64):
            raise TypeError(f"values of type {x.dtype.base.name} cannot be combined; cast them to int64")
        if x.dims is not None and len(x.dims) != 2:
            raise ValueError("each value must be [examples, values of an example]")
    if not isinstance(attrs["num_buckets"], int) or attrs["num_buckets"] < 1:
        raise ValueError("num_buckets must be at least 1")
    if not isinstance(attrs["hash_key"], int) or not 0 <= attrs["hash_key"] < 1 << 63:
        raise ValueError("hash_key must be in [0, 2 ** 63)")
    rows = next((x.dims[0] for x in values if x.dims is not None and x.dims[0] is not None), None)
    count: int | None = 1
    for x in values:
        size = None if x.dims is None else x.dims[1]
        count = None if size is None or count is None else count * size
    return [(int64, (rows, count))]


def _cross(*inputs: Array, num_buckets: int, hash_key: int) -> Array:
    values, present = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]
    if any(x.shape != there.shape for x, there in zip(values, present, strict=True)):
        raise ValueError("which values are there must be told of each")

    def mark(value: Any) -> int:
        return value & (1 << 64) - 1 if isinstance(value, int) else _fingerprint(as_bytes(value))

    marks = [
        [
            [mark(e) if there else None for e, there in zip(*row, strict=True)]
            for row in zip(x.tolist(), m.tolist(), strict=True)
        ]
        for x, m in zip(values, present, strict=True)
    ]

    def cross(parts: Sequence[int | None]) -> int:
        found = hash_key
        for part in parts:
            if part is None:
                return -1
            found = joined(found, part)
        return found % num_buckets

    rows = [[cross(parts) for parts in itertools.product(*row)] for row in zip(*marks, strict=True)]
    width = int(np.prod([x.shape[1] for x in values]))
    return np.array(rows, np.int64).reshape(len(values[0]), width)


define("CrossHashed", _cross_rule, _cross, device_types=("CPU",))


def cross_hashed(
    inputs: Sequence[TensorLike],
    num_buckets: int,
    hash_key: int | None = None,
    name: str | None = None,
    present: Sequence[TensorLike] | None = None,
) -> Tensor:
    """Numbers below `num_buckets` of all combinations of an example's values, as TensorFlow's `sparse.cross_hashed` makes them.

    Args:
        inputs: text or whole numbers, `[examples, values]` each.
        hash_key: the key of the hash; another one gives other buckets.
        present: for each input, which of its values are there, as booleans; None: all but '' and negative numbers.

    Returns:
        `[examples, combinations]`; -1 where a value is missing.
    """
    attrs = {"num_buckets": int(num_buckets), "hash_key": HASH_KEY if hash_key is None else int(hash_key)}
    values = [convert(x) for x in inputs]
    there = [is_there(x) for x in values] if present is None else [convert(m, bool_) for m in present]
    return make("CrossHashed", [*values, *there], attrs, name).outputs[0]


def is_there(x: Tensor) -> Tensor:
    """Whether the values of a feature are there: '' and negative numbers mean none."""
    return greater(string_length(x), 0) if x.dtype.base is string else greater_equal(x, zeros_like(x))


explain_members(sys.modules[__name__])
