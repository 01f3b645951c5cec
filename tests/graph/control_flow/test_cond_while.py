"""Branches and loops: what they are made of, and what they compute."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter, interpret as run

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.printing import format_node
from dovetail.graph.core.verify import verify
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g
    verify(g)


def lines(graph: tf.Graph) -> list[str]:
    """Name, op and inputs of each node."""
    return [format_node(n).partition(" {")[0].partition(" :")[0] for n in graph.nodes]


# --- what they are made of ----------------------------------------------------------------------------------


def test_a_cond_is_made_of_tensorflow_s_nodes(graph: tf.Graph) -> None:
    x, p = tf.placeholder(tf.float32, [], name="x"), tf.placeholder(tf.bool, [], name="p")
    tf.cond(p, lambda: tf.add(x, x), lambda: tf.multiply(x, 2.0), name="k")
    assert sorted(lines(graph)[2:]) == sorted(
        [
            "k/Switch = Switch(p, p)",
            "k/switch_t = Identity(k/Switch:1)",
            "k/switch_f = Identity(k/Switch)",
            "k/pred_id = Identity(p)",
            "k/Add = AddV2(k/Add/Switch:1, k/Add/Switch:1)",
            "k/Add/Switch = Switch(x, k/pred_id)",
            "k/Mul/y = Const(^k/switch_f)",
            "k/Mul = Mul(k/Mul/Switch, k/Mul/y)",
            "k/Mul/Switch = Switch(x, k/pred_id)",
            "k/Merge = Merge(k/Mul, k/Add)",
        ]
    )


def test_a_loop_is_made_of_tensorflow_s_nodes(graph: tf.Graph) -> None:
    a = tf.placeholder(tf.float32, [2], name="a")
    c = tf.constant([1.0, 2.0], name="c")
    with tf.control_dependencies([c]):
        tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * c), [0, a], name="w")
    assert sorted(lines(graph)[2:]) == sorted(
        [
            "w/Const = Const(^c)",
            "w/Enter = Enter(w/Const)",
            "w/Enter_1 = Enter(a, ^c)",
            "w/Merge = Merge(w/Enter, w/NextIteration)",
            "w/Merge_1 = Merge(w/Enter_1, w/NextIteration_1)",
            "w/Less/y = Const(^w/Merge, ^w/Less/Identity)",
            "w/Less/Identity = Identity(w/Less/Identity/Enter, ^w/Merge)",
            "w/Less/Identity/Enter = Enter(c)",
            "w/Less = Less(w/Merge, w/Less/y)",
            "w/LoopCond = LoopCond(w/Less)",
            "w/Switch = Switch(w/Merge, w/LoopCond)",
            "w/Switch_1 = Switch(w/Merge_1, w/LoopCond)",
            "w/Identity = Identity(w/Switch:1)",
            "w/Identity_1 = Identity(w/Switch_1:1)",
            "w/add/y = Const(^w/Identity, ^w/add/Identity)",
            "w/add/Identity = Identity(w/Less/Identity/Enter, ^w/Identity)",
            "w/add = AddV2(w/Identity, w/add/y)",
            "w/mul = Mul(w/Identity_1, w/Less/Identity/Enter)",
            "w/NextIteration = NextIteration(w/add)",
            "w/NextIteration_1 = NextIteration(w/mul)",
            "w/Exit = Exit(w/Switch)",
            "w/Exit_1 = Exit(w/Switch_1)",
        ]
    )


def test_a_switch_is_colocated_with_its_data(graph: tf.Graph) -> None:
    with tf.device("/job:ps/task:1"):
        x = tf.placeholder(tf.float32, [], name="x")
    with tf.device("/job:worker"):
        tf.cond(tf.constant(True), lambda: tf.negative(x), lambda: tf.exp(x), name="k")
    switch = graph.get_operation_by_name("k/Neg/Switch")
    assert switch.device == "/job:ps/task:1"
    assert switch.colocation == ("x",)
    assert graph.get_operation_by_name("k/Neg").device == "/job:worker"


def test_a_body_s_device_blocks_apply_to_the_body_only(graph: tf.Graph) -> None:
    def body(i: Any) -> Any:
        with tf.device("/job:ps"):
            return tf.add(i, 1, name="next")

    tf.while_loop(lambda i: i < 3, body, [0], name="w")
    devices = {n.name: n.device for n in graph.nodes}
    assert devices["w/next"] == "/job:ps"
    assert devices["w/NextIteration"] == devices["w/Merge"] == devices["w/Less"] == ""


def test_what_is_inside_can_be_neither_fetched_nor_fed(graph: tf.Graph) -> None:
    x = tf.placeholder(tf.float32, [])
    inside: list[Any] = []

    def branch() -> Any:
        inside.append(tf.exp(x))
        return inside[0]

    y = tf.cond(x > 0.0, branch, lambda: x)
    assert not graph.is_fetchable(inside[0])
    assert not graph.is_feedable(inside[0])
    assert graph.is_fetchable(y)
    assert graph.is_feedable(y)
    with tf.Session() as session:
        for key in (inside[0], inside[0].name):
            with pytest.raises(ValueError, match="may not be fed"):
                session.run(y, {x: 1.0, key: 2.0})


def test_the_variables_of_a_body_live_outside_it(graph: tf.Graph) -> None:
    def body(i: Any, s: Any) -> Any:
        v = tf.get_variable("v", initializer=2.0, use_resource=True)
        return i + 1, s * v

    _, s = tf.while_loop(lambda i, s: i < 3, body, [0, 1.0])
    interpreter = Interpreter(graph)
    interpreter.run(tf.global_variables_initializer())
    assert interpreter.run(s) == 8.0


# --- what they compute --------------------------------------------------------------------------------------


def test_only_the_chosen_branch_runs() -> None:
    p = tf.placeholder(tf.bool, [])
    ran: list[str] = []

    def note(which: str) -> Callable[[], Any]:
        def branch() -> Any:
            return tf.py_func(lambda: ran.append(which) or np.float32(len(which)), [], tf.float32)

        return branch

    y = tf.cond(p, note("yes"), note("no"))
    assert run(y, {p: True}) == 3
    assert run(y, {p: False}) == 2
    assert ran == ["yes", "no"]


@pytest.mark.parametrize("x", [-2.0, 3.0, 7.0])
def test_branches_in_loops_in_branches(x: float) -> None:
    t = tf.placeholder(tf.float32, [])

    def loop() -> Any:
        def body(i: Any, a: Any) -> Any:
            return i + 1, tf.cond(a < -3.0, lambda: a + t, lambda: a - 1.0)

        return tf.while_loop(lambda i, a: i < 4, body, [0, t])[1]

    y = tf.cond(t < 0.0, loop, lambda: tf.cond(t > 5.0, lambda: 1.0, lambda: t * t))
    expected = x
    if x < 0:
        for _ in range(4):
            expected = expected + x if expected < -3 else expected - 1
    else:
        expected = 1.0 if x > 5 else x * x
    assert run(y, {t: x}) == expected


def test_loops_in_loops() -> None:
    def outer(i: Any, total: Any) -> Any:
        def inner(j: Any, t: Any) -> Any:
            return j + 1, t + i * j

        return i + 1, tf.while_loop(lambda j, t: j <= i, inner, [0, total])[1]

    _, total = tf.while_loop(lambda i, t: i < 5, outer, [0, 0])
    assert run(total) == sum(i * j for i in range(5) for j in range(i + 1))


def test_loop_variables_change_places_at_once() -> None:
    _, a, b = tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), [0, 10, 20])
    assert run([a, b]) == [20, 10]


def test_a_loop_that_never_runs_gives_its_first_values() -> None:
    x = tf.placeholder(tf.float32, [])
    assert run(tf.while_loop(lambda v: v < 0.0, lambda v: v * 2.0, [x]), {x: 1.0}) == 1.0


@pytest.mark.parametrize(("limit", "expected"), [(0, 1.0), (3, 8.0), (100, 64.0)])
def test_maximum_iterations_stops_a_loop(limit: int, expected: float) -> None:
    y = tf.while_loop(lambda v: v < 50.0, lambda v: v * 2.0, [1.0], maximum_iterations=limit)
    assert run(y) == expected


def test_assignments_happen_once_per_iteration(graph: tf.Graph) -> None:
    v = tf.Variable(0.0, name="v")

    def body(i: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, 1.5)]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 4, body, [0])
    interpreter = Interpreter(graph)
    interpreter.run(v.initializer)
    interpreter.run(loop)
    assert interpreter.run(v) == 6.0


def test_a_loop_reads_a_reference_variable_that_it_changes_at_each_turn(graph: tf.Graph) -> None:
    """Reads before the change in the program's text (the condition's), after it, and in a branch."""
    v = tf.Variable(2.0, use_resource=False)
    w = tf.Variable(0.0, use_resource=False)

    def squared(i: Any) -> Any:
        with tf.control_dependencies([v.assign(v * v)]):
            return i + 1

    def counted(i: Any, total: Any) -> Any:
        def changed() -> Any:
            with tf.control_dependencies([w.assign_add(1.0)]):
                return w + 0.0

        return i + 1, total + tf.cond(i % 2 > 0, changed, lambda: w * 10.0)

    squares = tf.while_loop(lambda i: i < 4, squared, [0])
    _, total = tf.while_loop(lambda i, total: tf.logical_and(i < 9, w < 2.0), counted, [0, 0.0])
    copy = tf.Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    assert str(copy) == str(graph)
    for runs in (Interpreter(graph, check=True).run, tf.Session().run):
        runs([v.initializer, w.initializer])
        assert runs(squares) == 4
        assert runs(v) == 65536.0
        assert runs(total) == 0.0 + 1.0 + 10.0 + 2.0  # four turns
        assert runs(w) == 2.0


def test_a_loop_in_a_branch_reads_a_reference_variable_before_it_changes_it(graph: tf.Graph) -> None:
    """The reference comes into the branch, the loop and the branch in it after the value did: the graph stays in order, and can be sent."""
    v = tf.Variable([0.0, 0.0], use_resource=False)

    def body(i: Any, total: Any) -> Any:
        def changed() -> Any:
            before = tf.reduce_sum(v)
            with tf.control_dependencies([before]), tf.control_dependencies([tf.scatter_add(v, [0], [1.0])]):
                return before + 10.0 * tf.reduce_sum(v)

        return i + 1, total + tf.reduce_sum(tf.identity(v)) * 100.0 + tf.cond(i < 2, changed, lambda: 0.0)

    def loop() -> Any:
        return tf.while_loop(lambda i, total: i < 3, body, [0, 0.0])[1]

    total = tf.cond(tf.placeholder_with_default(True, []), loop, lambda: 0.0)
    copy = tf.Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    assert str(copy) == str(graph)
    for runs in (Interpreter(graph, check=True).run, tf.Session().run):
        runs(v.initializer)
        assert runs(total) == 0 + 0 + 10 + 100 + 1 + 20 + 200


def test_a_loop_that_waits_for_updates_leaves_their_variables_on_their_devices() -> None:
    """References come into the loop, for its nodes wait for updates outside, whatever these nodes are colocated with."""
    with tf.device("/cpu:1"):
        v = tf.Variable(0.0, use_resource=False)
    with tf.device("/cpu:2"):
        u = tf.Variable(0.0, use_resource=False)
    x = tf.constant(2.0)

    def body(i: Any, y: Any) -> Any:
        with tf.control_dependencies([u.assign_add(y)]):
            return i + 1, y * x

    with tf.device("/cpu:0"), tf.control_dependencies([v.assign_add(1.0)]):
        _, y = tf.while_loop(lambda i, y: i < 3, body, [0, x])
        (dy,) = tf.gradients(y, x, colocate_gradients_with_ops=True)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 3})) as session:
        session.run([v.initializer, u.initializer])
        assert session.run([y, dy]) == [16.0, 4 * 2.0**3]
        assert session.run([v, u]) == [1.0, 2.0 + 4.0 + 8.0]


@pytest.mark.parametrize("reads_first, total", [(False, 0 + 2), (True, 2 + 4)])
def test_one_branch_of_a_loop_reads_a_variable_of_another_device_that_the_other_changes(
    graph: tf.Graph, reads_first: bool, total: float
) -> None:
    with tf.device("/cpu:1"):
        v = tf.Variable(0.0, use_resource=False)

    def changed() -> Any:
        with tf.control_dependencies([v.assign_add(1.0)]):
            return tf.constant(0.0)

    def body(i: Any, x: Any) -> Any:
        branches = (lambda: v * 2.0, changed) if reads_first else (changed, lambda: v * 2.0)
        return i + 1, x + tf.cond(i % 2 > 0, *branches)

    with tf.device("/cpu:0"):
        loop = tf.while_loop(lambda i, x: i < 4, body, [0, 0.0])
    for runs in (Interpreter(graph, check=True).run, tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})).run):
        runs(v.initializer)
        assert runs(loop)[1] == total


def test_training_in_a_loop_uses_what_each_turn_has_learnt() -> None:
    w = tf.get_variable("w", initializer=[[0.5], [0.25]])
    with tf.device("/cpu:1"):
        u = tf.get_variable("u", initializer=[[2.0]])

    def train() -> Any:
        return tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square([[1.0, 2.0]] @ w @ u - 1.0)))

    def body(i: Any) -> Any:
        with tf.control_dependencies([train()]):
            return i + 1

    loop, step = tf.while_loop(lambda i: i < 3, body, [0]), train()
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run([w.initializer, u.initializer])
        for _ in range(3):
            session.run(step)
        one_by_one = session.run([w, u])
        session.run([w.initializer, u.initializer])
        session.run(loop)
        for mine, theirs in zip(session.run([w, u]), one_by_one, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_branch_may_be_an_operation(graph: tf.Graph) -> None:
    v = tf.Variable(0.0, name="v")
    p = tf.placeholder(tf.bool, [])
    done = tf.cond(p, lambda: tf.assign_add(v, 1.0).op, tf.no_op)
    interpreter = Interpreter(graph)
    interpreter.run(v.initializer)
    assert not interpreter.run(done, {p: False})
    assert interpreter.run(v) == 0.0
    assert interpreter.run(done, {p: True})
    assert interpreter.run(v) == 1.0


Pair = namedtuple("Pair", ["a", "b"])


def test_structures_come_back_as_they_were() -> None:
    first = {"p": Pair(tf.constant(1), (tf.constant(2.0),)), "l": [tf.constant(3)]}

    def body(i: Any, s: Any) -> Any:
        return i + 1, {"p": Pair(s["p"].a + 1, (s["p"].b[0] * 2.0,)), "l": [s["l"][0] - 1]}

    _, last = tf.while_loop(lambda i, s: i < 3, body, (0, first))
    assert isinstance(last["p"], Pair)
    assert run([last["p"].a, last["p"].b[0], last["l"][0]]) == [4, 16.0, 0]
    chosen = tf.cond(tf.constant(False), lambda: first, lambda: last)
    assert run([chosen["p"].a, chosen["l"][0]]) == [4, 0]


def test_a_cond_gives_rows_as_rows() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0]]), tf.constant([2]), tf.constant([4, 1]))
    more = tf.IndexedSlices(tf.constant([[5.0]]), tf.constant([0]), tf.constant([4, 1]))
    chosen = tf.cond(tf.constant(True), lambda: rows, lambda: more)
    assert isinstance(chosen, tf.IndexedSlices)
    assert run(tf.convert_to_tensor(chosen)).tolist() == [[0.0], [0.0], [1.0], [0.0]]


@pytest.mark.parametrize(("x", "expected"), [(-3.0, -1.0), (2.0, 1.0), (0.0, 0.0)])
def test_case_takes_the_first_that_is_true(x: float, expected: float) -> None:
    t = tf.placeholder(tf.float32, [])
    pairs = [(t < 0.0, lambda: -1.0), (t > 0.0, lambda: 1.0)]
    assert run(tf.case(pairs, default=lambda: 0.0, exclusive=True), {t: x}) == expected


def test_case_asserts_what_it_was_promised() -> None:
    t = tf.placeholder(tf.float32, [])
    one = tf.case([(t < 0.0, lambda: -1.0), (t > 0.0, lambda: 1.0)])
    with pytest.raises(InvalidArgumentError, match="None of the conditions"):
        run(one, {t: 0.0})
    both = tf.case([(t < 5.0, lambda: -1.0), (t > 0.0, lambda: 1.0)], default=lambda: 0.0, exclusive=True)
    with pytest.raises(InvalidArgumentError, match="More than one condition"):
        run(both, {t: 1.0})
