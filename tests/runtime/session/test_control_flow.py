"""Branches and loops give the numbers of plain Python, however they are spread over devices and processes.

Random programs of nested loops and conds are told twice: as a graph, and as Python that computes at once. The
graph is cut, packed, unpacked, lowered and run by steps that are joined here, in every order of events, and
now and then by real processes.
"""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from reference_interpreter import Interpreter
from shells import Notebook

import dovetail as tf
from dovetail.codegen.options import KernelOptions
from dovetail.codegen.pipeline import compile_partition, cpu_backend
from dovetail.codegen.reference import NumpyBackend
from dovetail.graph.core.errors import InvalidArgumentError, OpError
from dovetail.graph.resources.resource_manager import DEAD, Context, Resources, SessionState
from dovetail.placer.cluster.spec import Cluster, local_devices
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.partitioned_graph import Partitioned, task_of
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place
from dovetail.placer.schedule.pacing import schedule_receives
from dovetail.runtime.master.lowering import lower_partitions
from dovetail.runtime.worker.executor import Executor
from dovetail.runtime.worker.registration import pack_units, unpack_units
from dovetail.runtime.worker.step import TaskStep

TASKS = ("/job:a/replica:0/task:0", "/job:b/replica:0/task:0", "/job:c/replica:0/task:0")
CLUSTER = Cluster(tuple(d for t in TASKS for d in local_devices(t, {"CPU": 2}, incarnation=1)), TASKS[0])
PLACES = [f"{job}/task:0/cpu:{i}" for job in ("/job:a", "/job:b", "/job:c") for i in (0, 1)]
FLOAT = np.float32


# --- steps joined here --------------------------------------------------------------------------------------


class Joined:
    """The devices of `CLUSTER` in one process, with state that stays from run to run.

    `messages` counts what the last run sent between tasks, by the name of the value and the destination.
    """

    def __init__(self, graph: tf.Graph, paced: bool = False) -> None:
        self.graph = graph
        self.paced = paced  # whether sends are held back while their receiver is far behind
        self.resources = {task: Resources() for task in TASKS}
        self.states = {task: SessionState(5) for task in TASKS}
        self.messages: Counter[tuple[str, str]] = Counter()
        self.dead: Counter[str] = Counter()

    def cut(self, fetches: Sequence[Any], feeds: Sequence[Any] = (), targets: Sequence[Any] = ()) -> Partitioned:
        nodes = needed(self.graph, fetches, targets, feeds)
        cut = partition(nodes, place(self.graph, CLUSTER).device_of, fetches=fetches, feeds=feeds)
        return schedule_receives(cut) if self.paced else cut

    def run(
        self,
        fetches: Sequence[Any],
        feeds: Mapping[Any, Any] | None = None,
        targets: Sequence[Any] = (),
        seed: int = 0,
    ) -> list[Any]:
        feeds = feeds or {}
        cut = self.cut(fetches, list(feeds), targets)
        units = unpack_units(pack_units(lower_partitions(cut, self.graph)))
        ready: list[Executor] = []
        outcomes: dict[str, Any] = {}
        steps: dict[str, TaskStep] = {}
        flying: list[tuple[str, int | str, Any]] = []
        chance = random.Random(seed)
        self.messages.clear()
        self.dead.clear()

        def push(destination: str, channel: int | str, value: Any, more: bool) -> None:
            name = cut.channels[int(str(channel).partition("@")[0])].name
            self.messages[name, task_of(destination)] += 1
            self.dead[name] += value is DEAD
            flying.append((destination, channel, value))

        backend = cpu_backend(KernelOptions()) if seed % 2 else NumpyBackend()
        for task in TASKS:
            programs = [
                # Every other run is of rewritten graphs.
                compile_partition(u, backend, lambda node, task=task: self._context(node, task))
                for u in units
                if task_of(u.device) == task
            ]
            if programs:
                shell = Notebook()
                shell.ready, shell.push = ready, push  # type: ignore[method-assign]
                shell.finish = partial(outcomes.__setitem__, task)  # type: ignore[method-assign]
                steps[task] = TaskStep(1, "s", programs, {t.name: v for t, v in feeds.items()}, shell)
        for step in chance.sample(list(steps.values()), len(steps)):
            step.start()
        while ready or flying:
            if ready and (not flying or chance.random() < 0.6):
                ready.pop(chance.randrange(len(ready))).run()
            else:
                destination, channel, value = flying.pop(chance.randrange(len(flying)))
                steps[task_of(destination)].deliver(channel, value)
        found: dict[str, Any] = {}
        for outcome in outcomes.values():
            if isinstance(outcome, OpError):
                raise outcome
        waits = [w for s in steps.values() for w in s.waits_for()]
        assert len(outcomes) == len(steps), waits
        assert not any(s._arrived for s in steps.values()), "something was sent that nobody took"
        for outcome in outcomes.values():
            found.update(outcome)
        return [found[t.name] if t not in feeds else feeds[t] for t in fetches]

    def _context(self, node: Any, task: str) -> Context:
        return Context(
            node.name,
            node.container,
            self.resources[task],
            self.states[task],
            tuple(t.dims for t in node.outputs),
        )


# --- random programs ----------------------------------------------------------------------------------------


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


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, deadline=None, suppress_health_check=CHECKS)
@given(programs(), st.integers(0, 1000), st.booleans())
def test_any_spread_gives_python_s_numbers(program: Program, seed: int, paced: bool) -> None:
    with tf.Graph().as_default() as graph:
        xs, results, init = program.build()
        joined, reference = Joined(graph, paced), Interpreter(graph, check=True)
        joined.run([], targets=[init])
        reference.run(init)
        for feed, expected in zip(program.feeds, program.expected(), strict=True):
            feeds = {x: np.full(program.shape, v, FLOAT) for x, v in zip(xs, feed, strict=True)}
            np.testing.assert_array_equal(reference.run(results, feeds), expected)
            np.testing.assert_array_equal(joined.run(results, feeds, seed=seed), expected)


@settings(max_examples=100, deadline=None, suppress_health_check=CHECKS)
@given(programs(variables=0), st.integers(0, 1000), st.booleans())
def test_any_spread_gives_python_s_derivatives(program: Program, seed: int, colocate: bool) -> None:
    """Reverse mode over devices against forward mode in Python, in one direction."""
    with tf.Graph().as_default() as graph:
        xs, results, _ = program.build(tf.float64)
        grads = tf.gradients(results, xs, colocate_gradients_with_ops=colocate, unconnected_gradients="zero")
        joined, reference = Joined(graph), Interpreter(graph, check=True)
        for feed in program.feeds:
            feeds = {x: np.full(program.shape, v, np.float64) for x, v in zip(xs, feed, strict=True)}
            ways = [i + 1.0 for i in range(len(xs))]
            values = [Dual(v, np.full_like(v, w)) for v, w in zip(feeds.values(), ways, strict=True)]
            expected = sum(r.d.sum() for r in InPython([]).block(program.block, values))
            found = reference.run(grads, feeds)
            np.testing.assert_allclose(sum(w * g.sum() for w, g in zip(ways, found, strict=True)), expected, 1e-9)
            np.testing.assert_array_equal(joined.run(grads, feeds, seed=seed), found)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with tf.LocalCluster({"a": 1, "b": 1, "c": 1}, device_count={"CPU": 2}) as cluster:
        yield cluster.target("a")


@settings(max_examples=40, deadline=None, suppress_health_check=CHECKS)
@given(programs())
def test_processes_give_python_s_numbers(target: str, program: Program) -> None:
    with tf.Graph().as_default() as graph:
        xs, results, init = program.build()
        config = tf.ConfigProto(isolate_session_state=True)
        with tf.Session(target, graph=graph, config=config) as session:
            session.run(init)
            for feed, expected in zip(program.feeds, program.expected(), strict=True):
                feeds = {x: np.full(program.shape, v, FLOAT) for x, v in zip(xs, feed, strict=True)}
                np.testing.assert_array_equal(session.run(results, feeds), expected)


# --- what crosses -------------------------------------------------------------------------------------------

HERE, THERE = "/job:a/task:0/cpu:0", "/job:b/task:0/cpu:0"


def spread_loop(trips: Any, captured: Any = None) -> Any:
    """x = x + x (+ captured) on another task than the loop's."""

    def body(i: Any, x: Any) -> Any:
        with tf.device(THERE):
            y = tf.add(x, x, name="dbl")
            if captured is not None:
                y = tf.add(y, captured, name="more")
        return i + 1, y

    with tf.device(HERE):
        return tf.while_loop(lambda i, x: i < trips, body, [tf.constant(0), tf.constant(1.0)], name="w")


@pytest.mark.parametrize("initial", [lambda v: v, lambda v: tf.assign_add(v, 2.0)])
def test_a_loop_starts_with_the_value_of_a_variable_of_another_task(initial: Any, target: str) -> None:
    with tf.device(THERE):
        v = tf.Variable(3.0, use_resource=False)
    with tf.device(HERE):
        first = tf.convert_to_tensor(initial(v))
        _, x = tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + x), [tf.constant(0), first])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(v.initializer)
        assert session.run([x, first]) == [16 * session.run(v), session.run(v)]


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_an_iteration_costs_one_message_per_crossing_tensor(trips: int) -> None:
    graph = tf.get_default_graph()
    _, x = spread_loop(trips)
    joined = Joined(graph)
    assert joined.run([x]) == [2.0**trips]
    out, back = TASKS[1], TASKS[0]
    expected = {("w/LoopCond:0", out): trips + 1}
    if trips:
        expected |= {("w/Identity_1:0", out): trips, ("w/dbl:0", back): trips}
    assert joined.messages == expected


def test_what_a_loop_captures_crosses_once() -> None:
    graph = tf.get_default_graph()
    with tf.device(HERE):
        c = tf.random_uniform([], 1.0, 2.0, seed=1)
    _, x = spread_loop(5, c)
    joined = Joined(graph)
    joined.run([x])
    assert joined.messages["w/more/Enter:0", TASKS[1]] + joined.messages[c.name, TASKS[1]] == 1


def test_two_devices_of_a_far_task_share_the_message() -> None:
    graph = tf.get_default_graph()

    def body(x: Any) -> Any:
        with tf.device("/job:b/task:0/cpu:0"):
            a = x * 2.0
        with tf.device("/job:b/task:0/cpu:1"):
            b = x + 1.0
        return a + b

    with tf.device(HERE):
        y = tf.while_loop(lambda x: x < 100.0, body, [tf.constant(1.0)], name="w")
    joined = Joined(graph)
    expected, trips = 1.0, 0
    while expected < 100:
        expected, trips = expected * 3 + 1, trips + 1
    assert joined.run([y]) == [expected]
    assert joined.messages["w/LoopCond:0", TASKS[1]] == trips + 1
    assert joined.messages["w/Identity:0", TASKS[1]] == trips


def test_what_only_the_body_needs_does_not_cross_after_the_last_iteration() -> None:
    graph = tf.get_default_graph()

    seen: list[Any] = []

    def again(i: Any, s: Any) -> Any:
        with tf.device(HERE):
            seen.append(tf.multiply(i, 2, name="twice"))
            return seen[0] < 6

    def body(i: Any, s: Any) -> Any:
        with tf.device(THERE):
            return i + 1, s + tf.cast(seen[0], tf.float32)

    with tf.device(HERE):
        _, s = tf.while_loop(again, body, [0, 0.0], name="w")
    joined = Joined(graph)
    assert joined.run([s]) == [0.0 + 2.0 + 4.0]
    assert joined.messages["w/twice:0", TASKS[1]] == 3
    assert joined.messages["w/LoopCond:0", TASKS[1]] == 4


def test_a_branch_not_taken_is_told_of_and_does_nothing() -> None:
    graph = tf.get_default_graph()
    p = tf.placeholder(tf.bool, [])
    with tf.device(HERE):
        x = tf.constant(3.0)
    with tf.device(THERE):
        v = tf.Variable(0.0, name="v")

    def branch() -> Any:
        with tf.device(THERE), tf.control_dependencies([tf.assign_add(v, 1.0)]):
            return tf.exp(x, name="far")

    y = tf.cond(p, branch, lambda: -x, name="k")
    joined = Joined(graph)
    joined.run([], targets=[v.initializer])
    assert joined.run([y], {p: False}) == [-3.0]
    assert joined.dead["k/far:0"] == 1
    assert joined.run([v]) == [0.0]
    assert joined.run([y], {p: True}) == [np.exp(FLOAT(3.0))]
    assert joined.dead.total() == 0
    assert joined.run([v]) == [1.0]


def test_a_loop_in_a_branch_not_taken_ends_at_once_everywhere() -> None:
    graph = tf.get_default_graph()
    p = tf.placeholder(tf.bool, [])
    y = tf.cond(p, lambda: spread_loop(3)[1], lambda: 0.5, name="k")
    joined = Joined(graph)
    assert joined.run([y], {p: False}) == [0.5]
    assert joined.messages["k/w/LoopCond:0", TASKS[1]] == 1
    assert joined.run([y], {p: True}) == [8.0]


def test_a_loop_variable_lives_beside_its_merge_whatever_its_parts_ask_for() -> None:
    graph = tf.get_default_graph()

    def anywhere(node: Any) -> str:
        return THERE if node.type in ("Enter", "NextIteration", "Exit") else HERE

    with tf.device(anywhere):
        y = tf.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, [1.0], name="w")
    joined = Joined(graph)
    assert place(graph, CLUSTER).device_of("w/Enter").startswith("/job:b")
    assert joined.run([y]) == [16.0]
    assert not joined.messages


# --- errors -------------------------------------------------------------------------------------------------


def test_what_is_inside_a_loop_cannot_be_fetched() -> None:
    graph = tf.get_default_graph()
    tf.while_loop(lambda x: x < 9.0, lambda x: tf.multiply(x, 2.0, name="inner"), [1.0], name="w")
    with tf.Session() as session, pytest.raises(ValueError, match="not fetchable"):
        session.run("w/inner:0")
    inner = graph.get_tensor_by_name("w/inner:0")
    with pytest.raises(InvalidArgumentError, match="one value per iteration"):
        Joined(graph).run([inner])


def test_a_value_from_a_branch_that_was_not_taken_cannot_be_fetched() -> None:
    p = tf.placeholder(tf.bool, [])
    kept: list[Any] = []

    def branch() -> Any:
        kept.append(tf.constant(2.0))
        return kept[0]

    tf.cond(p, branch, lambda: 1.0)
    y = kept[0] * 3.0
    with tf.Session() as session:
        assert session.run(y, {p: True}) == 6.0
        with pytest.raises(InvalidArgumentError, match="a branch that was not taken"):
            session.run(y, {p: False})


def test_an_error_inside_a_loop_names_the_node() -> None:
    x = tf.placeholder(tf.float32, [None, 2])
    y = tf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, tf.matmul(a, a, name="bad")), [0, x], name="w",
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 2])],
    )  # fmt: skip
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match="node 'w/bad'"):
        session.run(y[1], {x: np.ones((3, 2))})


def test_a_loop_without_end_stops_with_its_step(target: str) -> None:
    with tf.device(THERE):
        y = tf.while_loop(lambda x: x < 1.0, lambda x: x * 0.5, [0.5])
    with tf.Session(target) as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(y, options=tf.RunOptions(timeout_in_ms=300))
        assert session.run(tf.constant(1)) == 1


def test_in_this_process_too_a_loop_without_end_stops_with_its_step() -> None:
    y = tf.while_loop(lambda x: x < 1.0, lambda x: x * 0.5, [0.5])
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"Timed out: this step ran for 0\.1 s"):
            session.run(y, options=tf.RunOptions(timeout_in_ms=100))
        assert session.run(tf.constant(1), options=tf.RunOptions(timeout_in_ms=-1)) == 1
    with (
        tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=100)) as session,
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        session.run(y)


# --- functions along an axis, and gradients, over devices -----------------------------------------------------


def test_map_and_scan_work_on_far_devices(target: str) -> None:
    x = tf.placeholder(tf.float32, [None, 2])

    def far(v: Any) -> Any:
        with tf.device(THERE):
            return tf.tanh(v) * 2.0

    def further(s: Any, v: Any) -> Any:
        with tf.device("/job:c/task:0/cpu:1"):
            return s * 0.5 + v

    y = tf.scan(further, tf.map_fn(far, x))
    (grad,) = tf.gradients(y, x)
    feed = {x: np.arange(8, dtype=FLOAT).reshape(4, 2) / 8}
    reference = Interpreter(tf.get_default_graph()).run([y, grad], feed)
    with tf.Session(target, config=tf.ConfigProto(kernel_backend="numpy")) as session:  # whose tanh is the reference's
        for mine, theirs in zip(session.run([y, grad], feed), reference, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("read", [lambda w: w.read_value(), lambda w: w], ids=["read_value", "variable"])
def test_a_training_loop_in_the_graph(target: str, read: Callable[[Any], Any]) -> None:
    """All steps of a training run in one step of the session: weights on a ps, the loop on a worker."""
    with tf.device("/job:c"):
        w = tf.get_variable("w", initializer=np.zeros(3, FLOAT))
    goal = tf.constant([1.0, -2.0, 3.0])

    def body(i: Any) -> Any:
        with tf.device(THERE):
            loss = tf.reduce_sum(tf.square(read(w) - goal))
            (grad,) = tf.gradients(loss, w)
        with tf.control_dependencies([tf.assign_sub(w, 0.1 * grad)]):
            return i + 1

    done = tf.while_loop(lambda i: tf.logical_and(i < 50, tf.reduce_sum(w) < 100.0), body, [0])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(w.initializer)
        assert session.run(done) == 50
        np.testing.assert_allclose(session.run(w), [1, -2, 3], atol=1e-3)


def test_a_loop_may_run_ahead_of_those_that_it_sends_to(target: str) -> None:
    """Nothing comes back to the loop's own task, so it never pauses: what it makes must leave all the same."""
    with tf.device("/job:c"):
        total = tf.Variable(0.0, name="total")

    def body(i: Any, n: Any) -> Any:
        with tf.device(THERE):
            change = tf.assign_add(total, tf.cast(i, tf.float32))
        with tf.control_dependencies([change]), tf.device("/job:c"):
            n = tf.identity(n)
        return i + 1, n

    with tf.device(HERE):
        i, n = tf.while_loop(lambda i, n: i < 3000, body, [0, 0])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(total.initializer)
        assert session.run([i, n]) == [3000, 0]
        assert session.run(total) == sum(range(3000))
