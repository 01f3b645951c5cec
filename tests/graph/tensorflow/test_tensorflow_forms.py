"""Ops that differ from TensorFlow's: written in its form, they come back and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.build import make
from dovetail.graph.tensorflow.export_graph_def import OTHERWISE, OWN
from dovetail.graph.tensorflow.signatures import signatures

pytest.importorskip("google.protobuf")

X = np.array([[1.5, -2.5, 0.25], [-0.75, 3.0, 1.0]], np.float32)


def ops_of(found: Any) -> set[str]:
    return {node.op for node in found.node}


def again(outputs: list[Any], start: list[Any] | None = None) -> tuple[Any, list[Any], list[Any]]:
    """The graph as TensorFlow gets it, and the values here and of the graph that is read again."""
    graph = outputs[0].graph
    found = graph.as_graph_def()
    results = []
    for scope in ("", "again/"):
        if scope:
            with tf.Graph().as_default() as graph:
                tf.import_graph_def(found, name="again")
        with tf.Session(graph=graph) as session:
            for node in start or []:
                session.run(f"{scope}{node.name}")
            results.append(session.run([f"{scope}{t.name}" for t in outputs]))
    return found, *results


def checked() -> Any:
    with tf.control_dependencies([tf.Assert(tf.constant(True), ["no"])]):
        return tf.identity(X)


CASES: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "patches": (
        lambda: tf.image.extract_image_patches(
            np.arange(32.0, dtype=np.float32).reshape(1, 4, 4, 2), [1, 2, 2, 1], [1, 1, 2, 1], [1, 2, 1, 1], "VALID"
        ),
        {"ExtractImagePatches"},
    ),
    "reduce_join": (lambda: tf.reduce_join([["a", "b"], ["c", "d"]], separator="-"), {"ReduceJoin"}),
    "reduce_join, axes": (
        lambda: tf.reduce_join([["a", "b"], ["c", "d"]], [1, 0], keep_dims=True),
        {"ReduceJoin"},
    ),
    "string_split": (lambda: tf.string_split(["a b  c", "d"], skip_empty=False).values, {"StringSplit"}),
    "string_split, v2": (
        lambda: tf.strings.split(["a::b::c", "d"], "::", 1, result_type="SparseTensor").values,
        {"StringSplitV2"},
    ),
    "truncated": (lambda: make("Trunc", [tf.constant(X)]).outputs[0], {"Sign", "Floor", "Abs", "Mul"}),
    "texts added": (lambda: tf.constant([["a"], ["b"]]) + tf.constant(["c", "d"]), {"Add"}),
    "texts joined": (lambda: tf.string_join([["a", "b"], "c", ["d", "e"]], "-"), {"StringJoin"}),
    "assert": (checked, {"Assert"}),
    "tensor_array": (
        lambda: tf.TensorArray(tf.float32, 2, infer_shape=False).split(X.ravel(), [2, 4]).concat(),
        {"TensorArraySplitV3", "TensorArrayConcatV3"},
    ),
    "softmax": (
        lambda: tf.nn.softmax_cross_entropy_with_logits(
            labels=np.full((2, 1, 3), 1 / 3, np.float32), logits=X[:, None]
        ),
        {"SoftmaxCrossEntropyWithLogits", "Reshape", "IdentityN"},
    ),
    "sparse softmax": (
        lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=2, logits=X[0]),
        {"SparseSoftmaxCrossEntropyWithLogits", "Reshape", "IdentityN"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_op_that_differs_is_written_as_tensorflows(name: str) -> None:
    build, ops = CASES[name]
    with tf.Graph().as_default():
        output = build()
    found, wanted, got = again([output])
    assert ops <= ops_of(found) and not any(op.startswith(OWN) for op in ops_of(found))
    for node in found.node:  # each has the inputs of TensorFlow's
        signature = signatures()[node.op]
        if not any(a.number or a.is_list for a in signature.inputs):
            assert sum(not i.startswith("^") for i in node.input) == len(signature.inputs), node
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_softmax_of_unknown_sizes_is_written_with_rows() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None, None, None], name="x")
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.ones([2, 1], tf.int32), logits=x)
        (slope,) = tf.gradients(loss, x)
        found = x.graph.as_graph_def()
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = tf.import_graph_def(found, {"x": X[:, None]}, [loss.name, slope.name])
        got, got_slope = session.run(outputs)
    chances = np.exp(X) / np.exp(X).sum(1, keepdims=True)
    np.testing.assert_allclose(got, -np.log(chances[:, 1:2]), 1e-5)
    np.testing.assert_allclose(got_slope[:, 0], chances - np.eye(3)[[1, 1]], 1e-5, 1e-6)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("rule", ["GradientDescent", "Momentum", "Adagrad", "RMSProp", "Ftrl", "Ftrl with a power"])
def test_rows_that_are_named_twice_are_summed_before_tensorflow_steps(rule: str, use_resource: bool) -> None:
    optimizers: dict[str, Any] = {
        "GradientDescent": lambda: tf.train.GradientDescentOptimizer(0.5),
        "Momentum": lambda: tf.train.MomentumOptimizer(0.5, 0.9),
        "Adagrad": lambda: tf.train.AdagradOptimizer(0.5),
        "RMSProp": lambda: tf.train.RMSPropOptimizer(0.5),
        "Ftrl": lambda: tf.train.FtrlOptimizer(0.5),
        "Ftrl with a power": lambda: tf.train.FtrlOptimizer(0.5, -0.25),
    }
    with tf.Graph().as_default():
        v = tf.get_variable("v", initializer=X, use_resource=use_resource)
        rows = tf.gather(v, [1, 0, 1]) if use_resource else tf.nn.embedding_lookup(v, [1, 0, 1])
        step = optimizers[rule]().minimize(tf.reduce_sum(rows * rows))
        start = tf.global_variables_initializer()
        found, wanted, got = again([v.value()], [start, step, step])
    np.testing.assert_allclose(got[0], wanted[0], 1e-6)
    assert not any(op.startswith(OWN) for op in ops_of(found))
    if rule == "GradientDescent":
        assert ("ResourceScatterSub" if use_resource else "ScatterSub") in ops_of(found)
        return
    (update,) = [n for n in found.node if "SparseApply" in n.op]
    parts = {n.name: n.op for n in found.node}
    taken = [parts.get(i.partition(":")[0]) for i in update.input]
    assert taken.count("Unique") == 1 and taken.count("UnsortedSegmentSum") == 1
    assert sum(not i.startswith("^") for i in update.input) == len(signatures()[update.op].inputs)


def test_the_gradient_of_a_loop_is_written() -> None:
    with tf.Graph().as_default():
        x = tf.constant([1.5, -0.5])
        _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y + x), [0, x])
        found, wanted, got = again(tf.gradients(y, x))
    np.testing.assert_array_equal(got[0], wanted[0])
    stacks = [n for n in found.node if n.op == "StackV2"]
    assert stacks and all(len(n.input) == 1 for n in stacks)
    assert not any(op.startswith(OWN) for op in ops_of(found))


def test_iterations_that_change_state_are_written_in_order() -> None:
    """TensorFlow runs iterations side by side: what one pushes must be there before the next one pushes."""
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.5)

        def outer(i: Any, y: Any) -> Any:
            return i + 1, tf.while_loop(lambda j, y: j < 2, lambda j, y: (j + 1, y * y + x), [0, y])[1]

        tf.gradients(tf.while_loop(lambda i, y: i < 3, outer, [0, x])[1], x)
        tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])
        found = graph.as_graph_def()
    by_name = {node.name: node for node in found.node}
    orders = {node.name: node for node in found.node if node.name.endswith("/order")}
    pushed = {i[1:] for node in orders.values() for i in node.input if by_name[i[1:]].op.startswith("Stack")}
    assert pushed >= {n.name for n in found.node if n.op in ("StackPushV2", "StackPopV2")}
    assert any(
        by_name[i[1:]].op == "Exit" for node in orders.values() for i in node.input
    )  # the outer waits for the inner
    waiting = [n for n in found.node if n.op == "NextIteration" and any(i[1:] in orders for i in n.input)]
    assert len(waiting) == len(orders) == 4  # one variable of each loop that keeps state
    for node in found.node:
        if node.op in ("StackPushV2", "StackPopV2"):
            assert [i for i in node.input if i.startswith("^") and by_name[i[1:]].op == "Merge"]


def test_gradients_are_taken_again_through_a_loop_that_was_written_with_its_gradient() -> None:
    def loop() -> Any:
        x = tf.placeholder(tf.float32, [], name="x")
        return x, tf.identity(tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y + x), [0, x])[1], name="y")

    with tf.Graph().as_default(), tf.Session() as session:
        x, y = loop()
        wanted = session.run(tf.gradients(y, x), {x: 1.5})
        found = y.graph.as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(found, name="")
        x, y = (graph.get_tensor_by_name(f"{name}:0") for name in "xy")
        assert session.run(tf.gradients(y, x), {x: 1.5}) == wanted


@pytest.mark.parametrize("order", ["NextIteration last", "backwards"])
def test_gradients_of_loops_do_not_depend_on_the_order_of_a_graphs_nodes(order: str) -> None:
    def body(i: Any, a: Any) -> Any:
        inner = tf.while_loop(lambda j, b: j < 2, lambda j, b: (j + 1, b * x), [0, a])[1]
        return i + 1, tf.cond(i < 1, lambda: inner * w, lambda: tf.sin(inner) + x)

    with tf.Graph().as_default() as graph:
        x, w = (tf.placeholder(tf.float64, [], name=n) for n in "xw")
        out = tf.while_loop(lambda i, a: i < 3, body, [0, x])[1]
        tf.cond(w > 0.0, lambda: out * out * w, lambda: out + x, name="y")
        y = tf.identity(tf.get_default_graph().get_tensor_by_name("y/Merge:0"), name="end")
        found = graph.as_graph_def()

    def value(at: Any) -> float:
        a = at[0]
        for i in range(3):
            a = a * at[0] ** 2
            a = a * at[1] if i < 1 else np.sin(a) + at[0]
        return a * a * at[1]

    nodes = list(found.node)
    keys = [n.op == "NextIteration" for n in nodes] if order == "NextIteration last" else range(len(nodes), 0, -1)
    moved = [
        type(n).FromString(n.SerializeToString()) for _, n in sorted(zip(keys, nodes, strict=True), key=lambda p: p[0])
    ]
    del found.node[:]
    found.node.extend(moved)
    at, step = np.array([0.7, 1.3]), 1e-6
    wanted = [(value(at + d) - value(at - d)) / (2 * step) for d in np.eye(2) * step]
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(found, name="")
        x, w, y = (graph.get_tensor_by_name(f"{name}:0") for name in ("x", "w", "end"))
        got = session.run([y, *tf.gradients(y, [x, w])], {x: at[0], w: at[1]})
    np.testing.assert_allclose(got, [value(at), *wanted], rtol=1e-6)


def waits_for(found: Any, name: str) -> set[str]:
    """All nodes that a node of a graph needs."""
    by_name = {node.name: node for node in found.node}
    todo, seen = [name], set()
    while todo:
        for i in by_name[todo.pop()].input:
            source = i.removeprefix("^").partition(":")[0]
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return seen


@pytest.mark.parametrize("use_resource", [False, True])
def test_gradients_that_read_a_variable_come_before_its_update(use_resource: bool) -> None:
    """What reads `u` for the gradient of `w` would see the new `u` in TensorFlow, where a reference is its memory."""
    with tf.Graph().as_default() as graph:
        w = tf.get_variable("w", initializer=[[0.5], [0.25]], use_resource=use_resource)
        u = tf.get_variable("u", initializer=[[2.0]], use_resource=use_resource)
        tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum([[1.0, 2.0]] @ w @ u), name="step")
        other = tf.multiply(u, 3.0, name="other")
        found = graph.as_graph_def()
    if use_resource:  # whose values stay as they were read
        assert not any(i.startswith("^") for n in found.node if "ResourceApply" in n.op for i in n.input)
        return
    assert "gradients/MatMul_1_grad/MatMul" in waits_for(found, "step/update_u/ApplyGradientDescent")
    assert other.op.name not in waits_for(found, "step")  # only what the step needs


def test_a_part_of_a_node_in_a_branch_runs_there() -> None:
    """A constant without inputs would be outside the branch, and in a loop outside its frame."""
    with tf.Graph().as_default():
        p = tf.placeholder(tf.bool, [], name="p")
        y = tf.cond(p, lambda: tf.reduce_join([["a", "b"]], 1), lambda: tf.constant(["c"]))
        found = y.graph.as_graph_def()
    (axes,) = [n for n in found.node if n.op == "Const" and n.name.endswith("reduction_indices") or "axes" in n.name]
    assert [i for i in axes.input if i.startswith("^")]


def test_what_tensorflow_computes_otherwise_keeps_a_name_of_its_own() -> None:
    with tf.Graph().as_default() as graph:
        x, f = tf.ones([1, 5, 5, 2]), tf.ones([2, 2, 2, 1])
        attrs = {"strides": (1, 1, 1, 1), "padding": "VALID", "explicit_paddings": (), "data_format": "NHWC"}
        y = make("DepthwiseConv2dNative", [x, f], attrs | {"dilations": (1, 2, 2, 1)}).outputs[0]
        tf.gradients(y, [x, f])
        ops = ops_of(graph.as_graph_def())
    assert {f"{OWN}DepthwiseConv2dNativeBackprop{what}" for what in ("Input", "Filter")} <= ops
    assert (
        "ResourceSparseApplyKerasMomentum" in OTHERWISE
    )  # TensorFlow's leaves the rows that are not named as they are


def test_frozen_statistics_come_as_mean_and_variance_into_the_gradient() -> None:
    """As in TensorFlow's graphs: the gradient takes what the normalization was given, not its standard deviations."""
    x = np.random.default_rng(0).normal(size=(2, 2, 2, 3)).astype(np.float32)
    scale, mean, variance = (np.array(v, np.float32) for v in ([1.0, 2.0, 3.0], [0.1, 0.2, 0.3], [0.5, 1.5, 4.0]))
    with tf.Graph().as_default(), tf.Session() as session:
        given = [tf.constant(v) for v in (x, scale, np.zeros(3, np.float32), mean, variance)]
        y = tf.nn.fused_batch_norm(*given, epsilon=0.01, is_training=False)[0]
        slopes = tf.gradients(y, given[:2], [tf.constant(x)])
        (node,) = [n for n in y.graph.get_operations() if n.type == "FusedBatchNormGradV3"]
        assert list(node.inputs)[3:5] == given[3:5]
        for_x, for_scale = session.run(slopes)
    inverse = 1 / np.sqrt(variance + 0.01)
    np.testing.assert_allclose(for_x, x * scale * inverse, 1e-5)
    np.testing.assert_allclose(for_scale, (x * (x - mean) * inverse).sum((0, 1, 2)), 1e-4)
