"""A small language for rewrite rules: both sides of a rule are written as arithmetic.

    Rule("logarithm of an exponential", "Log(Exp(x))", "x", fast=True)

A name stands for any tensor, and for the same one wherever it is repeated. A number stands for a constant of one element with that
value. An op is called by its type, with its attributes as keywords; a lower-case name as an attribute's value matches any value.
`+ - * / **` are AddV2, Sub, Mul, RealDiv and Pow, a unary minus is Neg. `{a, b}` matches what a or b matches, `(e := a)` names what a
matched e. Operands of + and * match in either order.

Patterns are Python expressions, read by Python's own parser, once.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.graph import Node, Tensor
from ...ir.nodes import inferred_node
from ...ir.symbolic_shape import SymbolicShapes

COMMUTES = frozenset({"AddV2", "Mul"})
"""Ops whose operands match in either order. Maximum is not one: of 0 and -0 its result depends on their order."""

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "AddV2",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "RealDiv",
    ast.Pow: "Pow",
}


@dataclass(frozen=True, slots=True)
class Name:
    """Matches any tensor."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """Matches a constant of one element. It may not be 0, which equals -0.0."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Op:
    """A node of one type. `attrs`: what each attribute must be, a `Name` for anything. `called`: a name for what it matched."""

    type: str
    args: tuple[Pattern, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    called: str = ""


@dataclass(frozen=True, slots=True)
class Either:
    """One of several. `called`: a name for what it matched."""

    patterns: tuple[Pattern, ...]
    called: str = ""


Pattern: TypeAlias = Name | Number | Op | Either
ProducerOf: TypeAlias = Callable[[Tensor], Node | None]
"""The node that makes a tensor, or None where nothing may be assumed of how it is made."""


def parse(text: str) -> Pattern:
    """A pattern from its text.

    Raises:
        ValueError: it is not written in the language above.
    """
    return _read(ast.parse(text.strip(), mode="eval").body)


def _read(e: ast.expr) -> Pattern:
    if isinstance(e, ast.Name):
        return Name(e.id)
    if isinstance(e, ast.Constant) and isinstance(e.value, int | float):
        return Number(e.value)
    if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
        inner = _read(e.operand)
        return Number(-inner.value) if isinstance(inner, Number) else Op("Neg", (inner,))
    if isinstance(e, ast.BinOp) and type(e.op) in _OPERATORS:
        return Op(_OPERATORS[type(e.op)], (_read(e.left), _read(e.right)))
    if isinstance(e, ast.Call) and isinstance(e.func, ast.Name):
        attrs = tuple((str(k.arg), _attr(k.value)) for k in e.keywords)
        return Op(e.func.id, tuple(map(_read, e.args)), attrs)
    if isinstance(e, ast.Set):
        return Either(tuple(map(_read, e.elts)))
    if isinstance(e, ast.NamedExpr) and isinstance(named := _read(e.value), Op | Either):
        return replace(named, called=e.target.id)
    raise ValueError(f"not part of a rule's language: {ast.unparse(e)}")


def _attr(e: ast.expr) -> Any:
    return Name(e.id) if isinstance(e, ast.Name) else ast.literal_eval(e)


def roots(pattern: Pattern) -> frozenset[str]:
    """The types of node at which it can match."""
    if isinstance(pattern, Op):
        return frozenset({pattern.type})
    return frozenset().union(*map(roots, pattern.patterns)) if isinstance(pattern, Either) else frozenset()


def needs(pattern: Pattern) -> frozenset[str]:
    """Types of node that a match needs. A fast check that skips a rule for a whole graph."""
    if isinstance(pattern, Op):
        return frozenset({pattern.type}).union(*map(needs, pattern.args))
    if isinstance(pattern, Either):
        return frozenset.intersection(*map(needs, pattern.patterns))
    return frozenset({"Const"}) if isinstance(pattern, Number) else frozenset()


# --- matching ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A match: tensors and attributes by name, and the nodes that the pattern covers, the root last."""

    names: Mapping[str, Any]
    nodes: tuple[Node, ...]


def match(pattern: Pattern, root: Node, producer_of: ProducerOf) -> Iterator[Found]:
    """All ways in which a pattern matches at a node of one output."""
    return _of_tensor(pattern, root.outputs[0], producer_of, Found({}, ()), root)


def _of_node(pattern: Op, node: Node, producer_of: ProducerOf, found: Found, root: Node) -> Iterator[Found]:
    if node.opdef.name == pattern.type and len(node.inputs) == len(pattern.args):
        orders: list[Sequence[Tensor]] = [node.inputs]
        if pattern.type in COMMUTES and node.inputs[0] is not node.inputs[1]:
            orders.append(node.inputs[::-1])
        names = _attrs(pattern.attrs, node.attrs, found.names)
        if names is None:
            return
        start = Found(names, found.nodes)
        for order in orders:
            for f in _of_all(pattern.args, order, producer_of, start, root):
                yield Found(f.names, (*f.nodes, node))


def _of_all(
    patterns: Sequence[Pattern], tensors: Sequence[Tensor], producer_of: ProducerOf, found: Found, root: Node
) -> Iterator[Found]:
    if not patterns:
        yield found
        return
    for f in _of_tensor(patterns[0], tensors[0], producer_of, found, root):
        yield from _of_all(patterns[1:], tensors[1:], producer_of, f, root)


def _of_tensor(pattern: Pattern, tensor: Tensor, producer_of: ProducerOf, found: Found, root: Node) -> Iterator[Found]:
    if isinstance(pattern, Name):
        before = found.names.get(pattern.name)
        if before is None:
            yield Found({**found.names, pattern.name: tensor}, found.nodes)
        elif before is tensor:
            yield found
        return
    node = root if tensor is root.outputs[0] else producer_of(tensor)
    if node is None:
        return
    if isinstance(pattern, Number):
        if _holds(node, pattern.value, root):
            yield found
        return
    ways: Iterator[Found]
    if isinstance(pattern, Either):
        ways = itertools.chain.from_iterable(_of_tensor(p, tensor, producer_of, found, root) for p in pattern.patterns)
    else:
        ways = _of_node(pattern, node, producer_of, found, root)
    for f in ways:
        if not pattern.called:
            yield f
        elif f.names.get(pattern.called, tensor) is tensor:
            yield Found({**f.names, pattern.called: tensor}, f.nodes)


def _attrs(
    wanted: Sequence[tuple[str, Any]], attrs: Mapping[str, Any], names: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """The names with those of the attributes added; None if an attribute does not match."""
    for name, value in wanted:
        if isinstance(value, Name):
            names = {**names, value.name: attrs.get(name)}
        elif attrs.get(name) != value:
            return None
    return names


def _holds(node: Node, number: int | float, root: Node) -> bool:
    """Whether a node is a constant of this one number, with a shape that cannot enlarge the result's."""
    if node.opdef.name != "Const":
        return False
    array = node.attrs["value"]
    if array.size != 1 or array.dtype.kind not in "fiu" and node.outputs[0].dtype.np.kind != "V":
        return False
    if array.ndim and root.outputs[0].dims is None:
        return False
    return bool(array.item() == number)


# --- rules -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """A rule's match, for a right side that is a function.

    `m["x"]` is the tensor (or attribute) named x.

    Attributes:
        found: what the names stand for.
        root: the node to replace.
        uses: how often a tensor is taken or fetched, or more: known to rules of a walk that counts.
        sizes: of the tensors so far.
        made: the nodes that the rule has made.
    """

    found: Found
    root: Node
    producer_of: ProducerOf
    uses: Callable[[Tensor], int]
    sizes: SymbolicShapes
    made: list[Node] = field(default_factory=list)

    def make(self, op: str, inputs: Sequence[Tensor], attrs: dict[str, Any], of: Node | None = None) -> Tensor:
        """A new node's tensor. The node precedes the root and has the root's name, or that of the node it stands for."""
        self.made.append(inferred_node(op, inputs, attrs, of or self.root))
        return self.made[-1].outputs[0]

    def __getitem__(self, name: str) -> Any:
        return self.found.names[name]

    def value(self, tensor: Tensor) -> Any:
        """The value of a constant tensor; None if it is not a constant."""
        node = self.producer_of(tensor)
        return node.attrs["value"] if node is not None and node.opdef.name == "Const" else None

    def constant(self, array: Any) -> Tensor:
        """A new constant."""
        array = np.array(array)
        array.flags.writeable = False
        return self.make("Const", (), {"value": array})


@dataclass(frozen=True)  # no slots: the parsed pattern lives in the instance
class Rule:
    """One rewrite.

    Attributes:
        name: the name in logs.
        pattern: the left side.
        into: the right side: text in the same language, or a function that makes it (None: the rule does not apply).
        fast: it may change rounding, or the handling of NaN and infinity: only under `fast_math`.
        beside: an op that the pattern does not name, and without which the rule does not apply.
        integer: it applies to results of integers only. Checked first: matching costs a hundred times as much.
    """

    name: str
    pattern: str
    into: str | Callable[[Match], Tensor | None]
    fast: bool = False
    beside: str = ""
    integer: bool = False

    @cached_property
    def parsed(self) -> Pattern:
        """The pattern."""
        return parse(self.pattern)

    @cached_property
    def needs(self) -> frozenset[str]:
        """Types of node that a graph must have for the rule to apply."""
        return needs(self.parsed) | ({self.beside} - {""})

    @cached_property
    def result(self) -> Pattern | None:
        """The right side, if it is text."""
        return parse(self.into) if isinstance(self.into, str) else None

    def apply(self, m: Match) -> Tensor | None:
        """The tensor that replaces the root's; None: the rule does not apply here."""
        if callable(self.into):
            return self.into(m)
        assert self.result is not None
        return _built(self.result, m)


def _built(pattern: Pattern, m: Match) -> Tensor:
    if isinstance(pattern, Name):
        tensor: Tensor = m[pattern.name]
        return tensor
    assert isinstance(pattern, Op), "the right side of a rule is made of names and ops"
    attrs = {k: m[v.name] if isinstance(v, Name) else v for k, v in pattern.attrs}
    return m.make(pattern.type, [_built(p, m) for p in pattern.args], attrs)
