"""Branches and loops: the shapes that are known before they run, what is refused, and how they survive the wire and a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter, interpret as run

import dovetail as tf
from dovetail.graph.core.constant_value import static_value
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.frames import Frames, Loop, Predicates
from dovetail.graph.core.verify import verify
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g
    verify(g)


# --- shapes and values that are known before ----------------------------------------------------------------


def test_a_shape_may_vary_where_an_invariant_lets_it() -> None:
    start = tf.constant([1.0])

    def body(i: Any, x: Any) -> Any:
        return i + 1, tf.concat([x, x], 0)

    _, x = tf.while_loop(lambda i, x: i < 3, body, [0, start], shape_invariants=[tf.TensorShape([]), [None]])
    assert x.shape.as_list() == [None]
    assert run(x).tolist() == [1.0] * 8


def test_a_sparse_tensor_may_grow_in_a_loop() -> None:
    def grow(i: Any, x: Any) -> Any:
        one = tf.SparseTensor(tf.cast([[i, i]], tf.int64), [1.0], [4, 4])
        return i + 1, tf.sparse_add(x, one)

    first = tf.SparseTensor([[0, 3]], [5.0], [4, 4])
    _, x = tf.while_loop(lambda i, _: i < 3, grow, [0, first])
    assert run(tf.sparse_tensor_to_dense(x)).tolist() == (np.diag([1, 1, 1, 0]) + 5 * np.eye(4, k=3)).tolist()

    def widen(i: Any, x: Any) -> Any:
        return i + 1, tf.SparseTensor(tf.concat([x.indices, [[0]]], 1), x.values, tf.concat([x.dense_shape, [1]], 0))

    _, x = tf.while_loop(lambda i, _: i < 2, widen, [0, first], [tf.TensorShape([]), tf.TensorShape([None])])
    assert run(x.dense_shape).tolist() == [4, 4, 1, 1]
    with pytest.raises(ValueError, match="shape"):
        tf.while_loop(lambda i, _: i < 2, widen, [0, first])
    with pytest.raises(ValueError, match="is not compatible with"):
        tf.while_loop(lambda i, _: i < 2, grow, [0, first], [tf.TensorShape([]), tf.TensorShape([5])])


def test_slices_in_a_loop_keep_what_is_told_of_them() -> None:
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([3]), tf.constant([5, 2]))

    def double(i: Any, x: Any) -> Any:
        parts = [tf.concat([t, t], 0) for t in (x.values, x.indices)]
        return i + 1, tf.IndexedSlices(*parts, x.dense_shape)

    invariants = [tf.TensorShape([]), tf.TensorShape([None, 2])]
    _, x = tf.while_loop(lambda i, _: i < 2, double, [0, rows], invariants)
    assert (x.values.shape.as_list(), x.dense_shape.shape.as_list()) == ([None, 2], [2])
    assert run(tf.convert_to_tensor(x))[3].tolist() == [4.0, 8.0]


def test_what_branches_have_in_common_is_known() -> None:
    a, b = tf.zeros([2, 3]), tf.zeros([2, 4])
    assert tf.cond(tf.constant(True), lambda: a, lambda: b).shape.as_list() == [2, None]


def test_constants_from_outside_are_known_inside() -> None:
    sizes = tf.constant([3, 2])
    seen: list[Any] = []

    def branch() -> Any:
        seen.append(tf.reshape(tf.range(6), sizes))
        return seen[0]

    tf.cond(tf.constant(True), branch, lambda: tf.zeros([3, 2], tf.int32))
    assert seen[0].shape.as_list() == [3, 2]
    i = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
    assert static_value(i) is None


# --- what is refused ----------------------------------------------------------------------------------------


def _leak(build: Callable[[list[Any]], Any]) -> Any:
    kept: list[Any] = []
    build(kept)
    return kept[0]


def test_refusals_name_what_is_wrong() -> None:
    t, p = tf.constant(1.0), tf.constant(True)
    with pytest.raises(TypeError, match="must not be a Python bool"):
        tf.cond(True, lambda: t, lambda: t)
    with pytest.raises(TypeError, match="must be functions"):
        tf.cond(p, t, t)
    with pytest.raises(ValueError, match="true_fn must have a return value"):
        tf.cond(p, lambda: None, lambda: t)
    with pytest.raises(ValueError, match="float32 .* and int32"):
        tf.cond(p, lambda: t, lambda: 1)
    with pytest.raises(
        (TypeError, ValueError), match=r"the result of true_fn is \[\., \.\], the result of false_fn is \."
    ):
        tf.cond(p, lambda: [t, t], lambda: t)
    with pytest.raises(TypeError, match="must be a bool, not float32"):
        tf.cond(t, lambda: t, lambda: t)
    with pytest.raises(ValueError, match="at least one variable"):
        tf.while_loop(lambda: True, lambda: (), [])
    with pytest.raises(ValueError, match="there are 2 loop variables, body returns 1 values"):
        tf.while_loop(lambda i, x: i < 1, lambda i, x: i + 1, [0, t])
    with pytest.raises(TypeError, match=r"Loop variable 0 .* has type int32, but body returns .* of type float32"):
        tf.while_loop(lambda i: i < 1, lambda i: t, [0])
    with pytest.raises(ValueError, match=r"enters the loop with shape \(1,\), but has shape \(2,\) after one"):
        tf.while_loop(lambda x: p, lambda x: tf.concat([x, x], 0), [tf.zeros([1])])
    with pytest.raises(TypeError, match="positive integer"):
        tf.while_loop(lambda i: i < 1, lambda i: i, [0], parallel_iterations=0)


def test_what_one_iteration_makes_stays_inside() -> None:
    def loop(kept: list[Any]) -> Any:
        def body(i: Any) -> Any:
            kept.append(tf.add(i, 1, name="inner"))
            return kept[0]

        return tf.while_loop(lambda i: i < 3, body, [0], name="w")

    inner = _leak(loop)
    with pytest.raises(ValueError, match=r"outside the loop 'w/while_context' but takes 'w/inner'"):
        tf.negative(inner)
    with pytest.raises(ValueError, match="only its results can be used outside"):
        tf.while_loop(lambda j: j < inner, lambda j: j + 1, [0])


def test_a_graph_cannot_be_sent_in_the_middle_of_a_loop(graph: tf.Graph) -> None:
    def body(i: Any) -> Any:
        with pytest.raises(InvalidArgumentError, match="in the middle of building a while_loop"):
            graph_to_bytes(graph)
        return i + 1

    tf.while_loop(lambda i: i < 3, body, [0])
    assert graph_to_bytes(graph)


@pytest.mark.parametrize(("number", "expected"), [(0, 1.0), (1, 2.0), (2, 3.0), (-1, 9.0), (3, 9.0)])
def test_switch_case_takes_the_one_with_the_number(graph: tf.Graph, number: int, expected: float) -> None:
    n, ran = tf.placeholder(tf.int32, []), tf.Variable(0.0)

    def branch(value: float) -> Callable[[], Any]:
        return lambda: tf.assign_add(ran, value) * 1.0

    functions = {2: branch(3.0), 0: branch(1.0), 1: branch(2.0)}
    chosen, last = tf.switch_case(n, functions, default=branch(9.0)), tf.switch_case(n, [lambda: 1.0, lambda: 9.0])
    interpreter = Interpreter(graph)
    interpreter.run(ran.initializer)
    assert interpreter.run(chosen, {n: number}) == expected
    assert interpreter.run(ran) == expected  # one of them
    assert interpreter.run(last, {n: number}) == (1.0 if number == 0 else 9.0)


@pytest.mark.parametrize(
    ("functions", "error", "words"),
    [
        ([], ValueError, "at least one"),
        (3, TypeError, "list, tuple, or dict"),
        ([(0, 1)], TypeError, "and a function"),
        ([(0.0, bool)], TypeError, "must be a Python `int`"),
        ({0: bool, 2: bool}, ValueError, "contiguous range"),
        ([(0, bool), (0, bool)], ValueError, "contiguous range"),
    ],
)
def test_wrong_functions_of_switch_case(functions: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tf.switch_case(tf.constant(0), functions)
    with pytest.raises(TypeError, match="branch_index must be a Tensor"):
        tf.switch_case(0, [bool])


def test_one_result_need_not_be_in_a_list_in_both_branches() -> None:
    p = tf.placeholder(tf.bool, [])
    y = tf.cond(p, lambda: tf.constant(1.0), lambda: [tf.constant(2.0)])
    assert [run(y, {p: v}) for v in (True, False)] == [1.0, 2.0]
    with pytest.raises(ValueError, match="same nested structure"):
        tf.cond(p, lambda: tf.constant(1.0), lambda: [tf.constant(2.0)], strict=True)


def test_an_empty_list_beside_one_variable() -> None:
    assert run(tf.while_loop(lambda i, _: i < 3, lambda i, e: (i + 1, e), [0, []])) == 3


# --- as bytes, and as a schedule ----------------------------------------------------------------------------


def test_loops_survive_the_wire(graph: tf.Graph) -> None:
    x = tf.placeholder(tf.float32, [], name="x")
    y = tf.while_loop(lambda v: v < 50.0, lambda v: tf.cond(v > x, lambda: v + x, lambda: v * 2.0), [x])
    copy = tf.Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    verify(copy)
    assert str(copy) == str(graph)
    assert Interpreter(copy).run(y.name, {"x:0": 3.0}) == run(y, {x: 3.0})


def test_a_schedule_has_loops_in_one_piece(graph: tf.Graph) -> None:
    with tf.name_scope("o"):
        tf.while_loop(
            lambda i: i < 3,
            lambda i: tf.while_loop(lambda j: j < i, lambda j: j + 1, [i], name="in") + 1,
            [0],
            name="out",
        )
    late = tf.constant(5)
    graph.get_operation_by_name("o/out/Enter")._add_control_input(late.op)
    frames = Frames(graph.nodes)
    schedule = frames.schedule()
    loops = [i for i in schedule if isinstance(i, Loop)]
    assert [loop.name for loop in frames.loops] == ["o/out/while_context", "o/out/in/while_context"]
    assert loops == [frames.loops[0]]
    assert schedule.index(late.op) < schedule.index(loops[0])
    assert frames.loops[1] in loops[0].body
    assert loops[0].head[-1] is loops[0].condition
    assert sorted(n.index for n in loops[0].nodes()) == sorted(
        n.index for n in graph.nodes if frames.runs_in[n] is not None
    )


def test_only_what_lies_under_a_switch_may_be_dead(graph: tf.Graph) -> None:
    p = tf.placeholder(tf.bool, [], name="p")
    x = tf.placeholder(tf.float32, [], name="x")
    inner = tf.cond(p, lambda: tf.cond(x > 0.0, lambda: x, lambda: -x, name="in"), lambda: x * 2.0, name="k")
    tf.add(inner, 1.0, name="after")
    tf.while_loop(lambda v: v < 3.0, lambda v: v + 1.0, [x], name="free")
    predicates = Predicates(Frames(graph.nodes).schedule())
    names = {n.name for n in predicates.of}
    assert {"k/in/Neg", "k/in/Merge", "k/mul", "k/in/Neg/Switch", "k/switch_t"} <= names
    assert not names & {"k/Merge", "after", "k/Switch", "k/pred_id"}
    assert not any(name.startswith("free/") for name in names)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda g: None, None),
        (lambda g: _retype(g, "w/LoopCond", "Identity"), "one LoopCond and has 0"),
        (lambda g: _rename(g, "w/Enter_1", "other"), "takes|one LoopCond"),
    ],
)
def test_malformed_loops_are_refused(spoil: Callable[[tf.Graph], None], message: str | None) -> None:
    with tf.Graph().as_default() as g:
        x = tf.constant(1.0)
        tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v + x), [0, x], name="w")
    spoil(g)
    if message is None:
        assert Frames(g.nodes).schedule()
        return
    with pytest.raises(InvalidArgumentError, match=message):
        Frames(g.nodes).schedule()


def _retype(graph: tf.Graph, name: str, op: str) -> None:
    from dovetail.graph.core.opdef import opdef

    graph.get_operation_by_name(name).opdef = opdef(op)


def _rename(graph: tf.Graph, name: str, frame: str) -> None:
    node = graph.get_operation_by_name(name)
    node.attrs = {**node.attrs, "frame_name": frame}


def test_old_names_of_arguments() -> None:
    x = tf.placeholder(tf.float32, [])
    y = tf.cond(x < 0.0, fn1=lambda: -x, fn2=lambda: x)
    assert tf.convert_to_tensor(1, preferred_dtype=tf.float32).dtype is tf.float32
    assert tf.convert_to_tensor(1.5, dtype_hint=tf.int32).dtype is tf.float32
    with tf.Session(graph=y.graph) as session:
        assert session.run(y, {x: -2.0}) == 2.0
