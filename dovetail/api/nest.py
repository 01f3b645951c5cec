"""`dt.nest`: structures of lists, tuples, named tuples and dicts. Sparse tensors and `IndexedSlices` are leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..graph.core.nest import children, describe


def _parts(structure: Any) -> list[Any] | None:
    return None if hasattr(structure, "_flow_parts") else children(structure)


def is_nested(seq: Any) -> bool:
    """Whether the argument is a structure rather than a leaf."""
    return _parts(seq) is not None


is_sequence = is_nested


def flatten(structure: Any) -> list[Any]:
    """The leaves in order. A dict counts in the order of its sorted keys.

    >>> flatten([1, (2, {"b": 4, "a": 3})])
    [1, 2, 3, 4]
    """
    parts = _parts(structure)
    return [structure] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """A structure with the form of `structure` and the leaves `flat_sequence`.

    Raises:
        ValueError: the number of leaves differs from that of the structure.

    >>> pack_sequence_as([0, (0, 0)], [1, 2, 3])
    [1, (2, 3)]
    """
    leaves = flatten(structure)
    if len(leaves) != len(flat_sequence):
        raise ValueError(f"Structure had {len(leaves)} elements, but flat_sequence had {len(flat_sequence)} elements: "
                         f"{describe(structure)}")  # fmt: skip
    return _packed(structure, iter(flat_sequence))


def _packed(structure: Any, leaves: Iterator[Any]) -> Any:
    parts = _parts(structure)
    return next(leaves) if parts is None else _rebuilt(structure, [_packed(part, leaves) for part in parts])


def _rebuilt(structure: Any, parts: Sequence[Any]) -> Any:
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), parts, strict=True))
        return kind((k, by_key[k]) for k in structure)
    return kind(*parts) if hasattr(structure, "_fields") else kind(parts)


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """Check that two structures have the same form.

    Args:
        nest1: a structure.
        nest2: another structure.
        check_types: also compare types, such as list and tuple. If False, only depths, lengths and keys are compared.

    Raises:
        ValueError: lengths, depths or keys differ.
        TypeError: types differ.
    """
    a, b = _parts(nest1), _parts(nest2)
    if a is None and b is None:
        return
    where = f"{describe(nest1)} and {describe(nest2)}"
    if a is None or b is None or len(a) != len(b):
        raise ValueError(f"The two structures don't have the same nested structure: {where}")
    mappings = isinstance(nest1, Mapping), isinstance(nest2, Mapping)
    if check_types and type(nest1) is not type(nest2) and not all(mappings):
        raise TypeError(f"The two structures don't have the same sequence type: {where}")
    if all(mappings) and set(nest1) != set(nest2):
        raise ValueError(f"The two dictionaries don't have the same set of keys: {where}")
    for x, y in zip(a, b, strict=True):
        assert_same_structure(x, y, check_types)


def map_structure(func: Callable[..., Any], *structure: Any, check_types: bool = True) -> Any:
    """A structure with `func(leaf, ...)` in place of each leaf.

    Args:
        func: takes one leaf of each structure.
        structure: one or more structures of the same form.
        check_types: as in `assert_same_structure`.

    Raises:
        ValueError, TypeError: the structures have different forms.

    >>> map_structure(lambda x, y: x + y, {"a": 1, "b": [2]}, {"a": 10, "b": [20]})
    {'a': 11, 'b': [22]}
    """
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types)
    return pack_sequence_as(structure[0], [func(*x) for x in zip(*map(flatten, structure), strict=True)])


def flatten_up_to(shallow_tree: Any, input_tree: Any, check_types: bool = True) -> list[Any]:
    """The parts of `input_tree` at the leaves of the shallower structure `shallow_tree`, in order.

    Raises:
        ValueError, TypeError: `shallow_tree` is not a prefix of `input_tree`.

    >>> flatten_up_to([0, 0], [[1, 2], 3])
    [[1, 2], 3]
    """
    assert_shallow_structure(shallow_tree, input_tree, check_types)
    parts, inner = _parts(shallow_tree), _parts(input_tree)
    if parts is None or inner is None:
        return [input_tree]
    return [v for x, y in zip(parts, inner, strict=True) for v in flatten_up_to(x, y, check_types)]


def map_structure_up_to(shallow_tree: Any, func: Callable[..., Any], *inputs: Any) -> Any:
    """The shallow structure, with `func(part, ...)` in place of each leaf; there is one part of each structure of `inputs`.

    Raises:
        ValueError, TypeError: `shallow_tree` is not a prefix of each of `inputs`.

    >>> map_structure_up_to([0, 0], sum, [[1, 2], [3]])
    [3, 3]
    """
    found = [func(*x) for x in zip(*(flatten_up_to(shallow_tree, i) for i in inputs), strict=True)]
    return pack_sequence_as(shallow_tree, found)


def assert_shallow_structure(shallow_tree: Any, input_tree: Any, check_types: bool = True) -> None:
    """Check that `shallow_tree` is a prefix of `input_tree`.

    Args:
        shallow_tree: the shallower structure.
        input_tree: the deeper structure.
        check_types: also compare types, such as list and tuple.

    Raises:
        ValueError: lengths or keys differ.
        TypeError: types differ, or a leaf of `input_tree` stands where `shallow_tree` has a structure.
    """
    parts, inner = _parts(shallow_tree), _parts(input_tree)
    if parts is None:
        return
    where = f"{describe(shallow_tree)} and {describe(input_tree)}"
    if inner is None:
        raise TypeError(f"If shallow structure is a sequence, input must also be a sequence: {where}")
    if check_types and type(shallow_tree) is not type(input_tree):
        raise TypeError(f"The two structures don't have the same sequence type: {where}")
    if len(parts) != len(inner) or (isinstance(shallow_tree, Mapping) and set(shallow_tree) != set(input_tree)):
        raise ValueError(f"The two structures don't have the same sequence length: {where}")
    for x, y in zip(parts, inner, strict=True):
        assert_shallow_structure(x, y, check_types)


__all__ = [
    "assert_same_structure",
    "assert_shallow_structure",
    "flatten",
    "flatten_up_to",
    "is_nested",
    "is_sequence",
    "map_structure",
    "map_structure_up_to",
    "pack_sequence_as",
]
