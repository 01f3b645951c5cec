"""Nested structures of tensors: lists, tuples, namedtuples and dicts.

Dicts are traversed in the order of their sorted keys, as in TensorFlow. Objects with a method `_flow_parts`, such as `IndexedSlices`, are
structures of the tensors that they consist of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .source_location import at_caller


def flatten(structure: Any) -> list[Any]:
    """The leaves, in order.

    >>> flatten([1, (2, {"b": 4, "a": 3})])
    [1, 2, 3, 4]
    """
    parts = children(structure)
    return [structure] if parts is None else [leaf for part in parts for leaf in flatten(part)]


def pack(structure: Any, leaves: Iterable[Any]) -> Any:
    """A structure of the same form with these leaves, in order. ValueError if their number differs.

    >>> pack([1, (2, 3)], "abc")
    ['a', ('b', 'c')]
    """
    rest = iter(leaves)
    packed = _pack(structure, rest)
    if next(rest, None) is not None:
        raise ValueError(f"more leaves than the structure {describe(structure)} has")
    return packed


def map_structure(function: Callable[..., Any], *structures: Any) -> Any:
    """A structure with `function(leaf, ...)` in place of each leaf. All structures must have the same form."""
    for other in structures[1:]:
        same_structure(structures[0], other)
    return pack(structures[0], [function(*x) for x in zip(*map(flatten, structures), strict=True)])


def same_structure(a: Any, b: Any, what: tuple[str, str] = ("the first", "the second")) -> None:
    """Check that two structures have the same form. A list and a tuple, or two classes of tuple, differ.

    Raises:
        TypeError: their kinds differ.
        ValueError: lengths or keys differ, or one has a leaf where the other has a structure.
    """
    mine, theirs = children(a), children(b)
    if mine is None and theirs is None:
        return
    error: type[Exception] = ValueError
    if mine is not None and theirs is not None:
        is_other_kind = _kind(a) is not _kind(b)
        is_other_size = len(mine) != len(theirs) or (isinstance(a, Mapping) and sorted(a) != sorted(b))
        if not is_other_kind and not is_other_size:
            for x, y in zip(mine, theirs, strict=True):
                same_structure(x, y, what)
            return
        error = TypeError if is_other_kind else ValueError
    forms = f"{what[0]} is {describe(a)}, {what[1]} is {describe(b)}"
    raise error(
        f"The two structures don't have the same nested structure: {forms}; both must have the same form{at_caller()}"
    )


def describe(structure: Any) -> str:
    """A short description of the form: `[., (., .)]`."""
    if isinstance(structure, Mapping):
        return "{" + ", ".join(f"{k!r}: {describe(structure[k])}" for k in sorted(structure)) + "}"
    parts = children(structure)
    if parts is None:
        return "."
    inside = ", ".join(map(describe, parts))
    if isinstance(structure, list):
        return f"[{inside}]"
    return f"({inside})" if type(structure) is tuple else f"{type(structure).__name__}({inside})"


def _kind(structure: Any) -> Any:
    return dict if isinstance(structure, Mapping) else type(structure)


def children(structure: Any) -> list[Any] | None:
    """The direct elements of a structure. None for a leaf."""
    if isinstance(structure, (list, tuple)):
        return list(structure)
    if isinstance(structure, Mapping):
        return [structure[k] for k in sorted(structure)]
    parts_of = getattr(structure, "_flow_parts", None)
    return None if parts_of is None else list(parts_of())


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    parts = children(structure)
    if parts is None:
        try:
            return next(leaves)
        except StopIteration:
            raise ValueError("fewer leaves than the structure has") from None
    made = [_pack(part, leaves) for part in parts]
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        by_key = dict(zip(sorted(structure), made, strict=True))
        return kind((k, by_key[k]) for k in structure)
    if not isinstance(structure, (list, tuple)):
        from_parts: Any = structure
        return from_parts._from_flow_parts(made)
    return kind(*made) if hasattr(structure, "_fields") else kind(made)
