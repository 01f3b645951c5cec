"""Random programs of nested loops and conds, told twice: as a graph, and as Python that computes at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import dovetail as tf

PLACES = [f"{job}/task:0/cpu:{i}" for job in ("/job:a", "/job:b", "/job:c") for i in (0, 1)]
FLOAT = np.float32


@dataclass
class Block:
    """Statements, and which of the values that they see and make come out."""

    statements: list[Any] = field(default_factory=list)
    results: list[int] = field(default_factory=list)


@dataclass
class Op:
    kind: str
    place: str
    a: int
    b: int


@dataclass
class Choose:
    place: str
    value: int
    limit: int
    yes: Block
    no: Block


@dataclass
class Repeat:
    place: str
    trips: int | None  # None: as many as the value `value` says
    value: int
    first: list[int]
    body: Block


@dataclass
class Update:
    variable: int
    value: int


KINDS = ("add", "sub", "mul", "max", "neg", "const", "read")
STATEMENTS = (*KINDS, *["if", "while", "update"] * 3)


@st.composite
def blocks(draw: st.DrawFn, seen: int, results: int, depth: int, variables: int, places: list[str]) -> Block:
    """A block that sees `seen` values and gives `results`."""
    block = Block()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(places))
        some = st.integers(0, seen - 1)
        kind = draw(st.sampled_from(STATEMENTS))
        if kind == "if" and depth:
            inner = blocks(seen, 1, depth - 1, variables, places)
            block.statements.append(Choose(place, draw(some), draw(st.integers(-3, 3)), draw(inner), draw(inner)))
            seen += 1
        elif kind == "while" and depth:
            count = draw(st.integers(1, 2))
            body = draw(blocks(seen + count, count, depth - 1, variables, places))
            trips = draw(st.none() | st.integers(0, 3))
            first = [draw(some) for _ in range(count)]
            block.statements.append(Repeat(place, trips, draw(some), first, body))
            seen += count
        elif kind == "update" and variables:
            block.statements.append(Update(draw(st.integers(0, variables - 1)), draw(some)))
            seen += 1
        else:
            name = kind if kind in KINDS and (kind != "read" or variables) else "add"
            b = draw(st.integers(0, max(variables - 1, 0)) if name == "read" else some)
            block.statements.append(Op(name, place, draw(some), b))
            seen += 1
    block.results = [draw(st.integers(0, seen - 1)) for _ in range(results)]
    return block


def tamed(x: Any) -> Any:
    """Values stay small, whatever is multiplied."""
    return x - 5.0 * np.round(x / 5.0)


@dataclass
class Dual:
    """A value, and how fast it changes in one direction: forward-mode differentiation, against reverse mode."""

    v: Any
    d: Any

    def sum(self) -> Any:
        return self.v.sum()

    def __neg__(self) -> Dual:
        return Dual(-self.v, -self.d)

    def __add__(self, other: Dual) -> Dual:
        return Dual(self.v + other.v, self.d + other.d)

    def __sub__(self, other: Dual) -> Dual:
        return Dual(self.v - other.v, self.d - other.d)

    def __mul__(self, other: Dual) -> Dual:
        return Dual(self.v * other.v, self.d * other.v + self.v * other.d)

    def maximum(self, other: Dual) -> Dual:
        return Dual(np.maximum(self.v, other.v), np.where(self.v >= other.v, self.d, other.d))

    def tamed(self) -> Dual:
        return Dual(tamed(self.v), self.d)


class InPython:
    """The program as it is meant. `variables` and all values are arrays, or all of them are `Dual`s."""

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables

    def block(self, block: Block, values: list[Any]) -> list[Any]:
        values = list(values)
        for s in block.statements:
            if isinstance(s, Choose):
                branch = s.yes if values[s.value].sum() < s.limit else s.no
                values += self.block(branch, values)
            elif isinstance(s, Repeat):
                now = [values[i] for i in s.first]
                trips = s.trips if s.trips is not None else int(abs(values[s.value].sum())) % 4
                for _ in range(trips):
                    now = self.block(s.body, values + now)
                values += now
            elif isinstance(s, Update):
                self.variables[s.variable] = tamed(self.variables[s.variable] + values[s.value])
                values.append(self.variables[s.variable])
            else:
                values.append(self.op(s, values))
        return [values[i] for i in block.results]

    def op(self, s: Op, values: list[Any]) -> Any:
        a = values[s.a]
        if s.kind == "const":
            if isinstance(a, Dual):
                return Dual(np.full_like(a.v, s.b), np.zeros_like(a.v))
            return np.full_like(a, s.b)
        if s.kind == "neg":
            return -a
        if s.kind == "read":
            return self.variables[s.b]
        b = values[s.b]
        if s.kind == "max":
            made = a.maximum(b) if isinstance(a, Dual) else np.maximum(a, b)
        else:
            made = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}[s.kind](a, b)
        return made.tamed() if isinstance(made, Dual) else tamed(made)


class InGraph:
    """The same program as nodes."""

    def __init__(self, variables: list[Any]) -> None:
        self.variables = variables

    def block(self, block: Block, values: list[Any]) -> list[Any]:
        values = list(values)
        effects: list[Any] = []
        for s in block.statements:
            # Statements with effects happen one after another, as in Python.
            with tf.control_dependencies(effects[-1:]):
                made = self.statement(s, values)
            values += made
            effects += [t.op for t in made]
        with tf.control_dependencies(effects):
            return [tf.identity(values[i]) for i in block.results]

    def statement(self, s: Any, values: list[Any]) -> list[Any]:
        if isinstance(s, Choose):
            with tf.device(s.place):
                pred = tf.reduce_sum(values[s.value]) < float(s.limit)
            yes, no = (lambda b=b: self.block(b, values) for b in (s.yes, s.no))
            return [tf.cond(pred, yes, no)]
        if isinstance(s, Repeat):
            return self.loop(s, values)
        if isinstance(s, Update):
            v = self.variables[s.variable]
            change = v.assign(self.tamed(v.read_value() + values[s.value]))
            with tf.control_dependencies([change.op]):
                return [v.read_value()]
        with tf.device(s.place):
            return [self.op(s, values)]

    def loop(self, s: Repeat, values: list[Any]) -> list[Any]:
        with tf.device(s.place):
            if s.trips is not None:
                trips: Any = tf.constant(s.trips)
            else:
                trips = tf.cast(tf.abs(tf.reduce_sum(values[s.value])), tf.int32) % 4

        def body(i: Any, *now: Any) -> Any:
            with tf.device(s.place):
                following = i + 1
            return [following, *self.block(s.body, [*values, *now])]

        return list(tf.while_loop(lambda i, *_: i < trips, body, [0, *(values[i] for i in s.first)])[1:])

    def op(self, s: Op, values: list[Any]) -> Any:
        a = values[s.a]
        if s.kind == "const":
            return tf.constant(s.b, a.dtype, a.shape.as_list())
        if s.kind == "neg":
            return -a
        if s.kind == "read":
            return self.variables[s.b].read_value()
        functions = {"add": tf.add, "sub": tf.subtract, "mul": tf.multiply, "max": tf.maximum}
        return self.tamed(functions[s.kind](a, values[s.b]))

    @staticmethod
    def tamed(x: Any) -> Any:
        return x - 5.0 * tf.round(x / 5.0)


@dataclass
class Program:
    """A random program, its graph, and what it gives."""

    block: Block
    shape: tuple[int, ...]
    homes: list[str]
    feeds: list[list[int]]
    resource: bool

    def build(self, dtype: Any = tf.float32) -> tuple[list[Any], list[Any], Any]:
        """Placeholders, results and initializer, in the default graph."""
        xs = [tf.placeholder(dtype, self.shape) for _ in self.feeds[0]]
        variables = []
        for i, home in enumerate(self.homes):
            with tf.device(home):
                first = np.full(self.shape, i + 1, FLOAT)
                variables.append(tf.Variable(first, name=f"v{i}", use_resource=self.resource))
        results = InGraph(variables).block(self.block, xs)
        return xs, results, tf.variables_initializer(variables)

    def expected(self) -> Iterator[list[Any]]:
        """What each step gives, in Python."""
        python = InPython([np.full(self.shape, i + 1, FLOAT) for i in range(len(self.homes))])
        for feed in self.feeds:
            yield python.block(self.block, [np.full(self.shape, v, FLOAT) for v in feed])


@st.composite
def programs(draw: st.DrawFn, variables: int = 2) -> Program:
    places = draw(st.lists(st.sampled_from([*PLACES, ""]), min_size=1, max_size=4, unique=True))
    inputs = draw(st.integers(1, 2))
    homes = draw(st.lists(st.sampled_from(places), max_size=variables))
    block = draw(blocks(inputs, draw(st.integers(1, 3)), 3, len(homes), places))
    feeds = draw(st.lists(st.lists(st.integers(-4, 4), min_size=inputs, max_size=inputs), min_size=1, max_size=3))
    return Program(block, draw(st.sampled_from([(), (2,)])), homes, feeds, draw(st.booleans()))
