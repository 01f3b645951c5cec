"""Signatures of TensorFlow's ops: inputs, outputs and attributes.

`signatures.jsonl` has a line per op that both systems have, and for older ops in `node_mapping.NEWER`. An argument is `x: T` (a tensor
whose type is the attribute T), `x: float32`, `values: N*T` (N tensors) or `data: *T` (a tensor for each type in the list T). `&` marks a
reference. An attribute is its kind, followed by its default if it has one. `tests/graph/tensorflow/signatures.py` writes the file with
an installed TensorFlow.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ..core.dtypes import DType
from ..formats.values import MisfitError

REQUIRED = object()
"""The default of an attribute without default."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output.

    Attributes:
        name: its name.
        type: the name of an element type, or of the attribute with the type.
        number: the name of the attribute with the number of tensors, or ''.
        is_list: whether `type` is the name of an attribute with a list of types.
        is_ref: whether it is a reference.
    """

    name: str
    type: str
    number: str
    is_list: bool
    is_ref: bool

    @classmethod
    def parse(cls, text: str) -> Argument:
        """Parse text such as `values: N*T`."""
        name, kind = text.split(": ")
        is_ref, kind = kind.startswith("&"), kind.removeprefix("&")
        number, star, kind = kind.rpartition("*")
        return cls(name, kind, number, bool(star) and not number, is_ref)


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs, outputs and attributes of an op.

    Attributes:
        op: name of the op.
        inputs: its inputs.
        outputs: its outputs.
        attrs: name -> (kind, default). Kinds are TensorFlow's: `int`, `list(type)`, `shape` ...
        inferred: names of the attributes that are inferred from inputs and outputs.
    """

    op: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    attrs: Mapping[str, tuple[str, Any]]
    inferred: frozenset[str]

    def inferred_attrs(self, inputs: Sequence[DType], outputs: Sequence[DType]) -> dict[str, Any]:
        """Infer attributes from the types of inputs and outputs. MisfitError if the types do not fit the signature."""
        found: dict[str, Any] = {}
        for arguments, types in ((self.inputs, inputs), (self.outputs, outputs)):
            self._infer(arguments, types, found)
        return found

    def _infer(self, arguments: Sequence[Argument], types: Sequence[DType], found: dict[str, Any]) -> None:
        counts = _counts(arguments, len(types), found)
        at = 0
        for argument, count in zip(arguments, counts, strict=True):
            mine = [t.base for t in types[at : at + count]]
            at += count
            if argument.is_list:
                value: Any = tuple(mine)
            elif any(t is not mine[0] for t in mine):
                raise MisfitError(f"'{argument.name}' has several types")
            else:
                value = mine[0] if mine else None
            if argument.type not in self.attrs:
                if value is not None and value.name != argument.type:
                    raise MisfitError(f"'{argument.name}' is {value.name}, not {argument.type}")
            elif value is not None and found.setdefault(argument.type, value) != value:
                raise MisfitError(f"attribute {argument.type} is {found[argument.type]} and {value}")
            if argument.number:
                found[argument.number] = count


def _counts(arguments: Sequence[Argument], total: int, found: Mapping[str, Any]) -> list[int]:
    """The number of tensors of each argument, if there are `total` tensors."""
    single = sum(not (a.number or a.is_list) for a in arguments)
    many = [a for a in arguments if a.number or a.is_list]
    rest = total - single
    known = {}
    for a in many:
        if a.number in found:
            known[a.name] = found[a.number]
        elif a.is_list and a.type in found:
            known[a.name] = len(found[a.type])
    rest -= sum(known.values())
    unknown = [a for a in many if a.name not in known]
    share, left = divmod(rest, len(unknown)) if unknown else (0, rest)
    if rest < 0 or left or len({a.number for a in unknown}) > 1:
        raise MisfitError(f"{total} tensors for ({', '.join(a.name for a in arguments)})")
    return [known.get(a.name, share) if a.number or a.is_list else 1 for a in arguments]


@functools.cache
def signatures() -> Mapping[str, Signature]:
    """All signatures, by the op's name."""
    text = resources.files(__package__).joinpath("signatures.jsonl").read_text(encoding="utf-8")
    return {s.op: s for s in map(_signature, text.splitlines())}


def _signature(line: str) -> Signature:
    row = json.loads(line)
    inputs, outputs = (tuple(map(Argument.parse, row[k])) for k in ("in", "out"))
    attrs = {name: (kind, default[0] if default else REQUIRED) for name, (kind, *default) in row["attrs"].items()}
    inferred = frozenset(w for a in (*inputs, *outputs) for w in (a.type, a.number) if w in attrs)
    return Signature(row["op"], inputs, outputs, attrs, inferred)
