"""What `gradients` promises beyond the single rules: paths, sums, stops, rows, names, devices, depth."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, strategies as st
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, convert, placeholder
from dovetail.graph.core.graph import Graph, Tensor
from dovetail.graph.gradients.reverse import UnconnectedGradients, gradients
from dovetail.graph.ops.array.gather import gather
from dovetail.graph.ops.array.identity_and_placeholders import identity, stop_gradient
from dovetail.graph.ops.array.padding import tile
from dovetail.graph.ops.array.segments import segment_prod, unsorted_segment_prod
from dovetail.graph.ops.math import arithmetic as a, elementwise as m
from dovetail.graph.ops.math.cast import cast
from dovetail.graph.ops.math.reduce import reduce_mean, reduce_prod, reduce_sum
from dovetail.graph.ops.math.scan import argmax
from dovetail.graph.ops.math.special_functions import xdivy, xlogy
from dovetail.graph.ops.nn.activations import crelu, leaky_relu, relu, relu6
from dovetail.graph.ops.nn.pooling import max_pool
from dovetail.graph.tensors.indexed_slices import IndexedSlices
from dovetail.graph.variables.variable import Variable


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def value(tensor, feeds=None):
    return Interpreter(tensor.graph, check=True).run(tensor, feeds)


def initialized(graph, *variables):
    interpreter = Interpreter(graph, check=True)
    for v in variables:
        interpreter.run(v.initializer)
    return interpreter


def test_one_gradient_per_x_in_order(graph):
    x, y = constant(2.0), constant(5.0)
    gx, gy = gradients(x * x * y, [x, y])
    assert value(gx) == 20
    assert value(gy) == 4


def test_a_single_x_and_a_single_y_need_no_lists(graph):
    x = constant(3.0)
    (g,) = gradients(x * x, x)
    assert value(g) == 6


def test_several_ys_add_up(graph):
    x = constant(3.0)
    (g,) = gradients([x * x, 5.0 * x], x)
    assert value(g) == 11


def test_a_y_that_is_an_x(graph):
    x = constant(3.0)
    y = x * x
    gx, gy = gradients([y, x], [x, y])
    assert value(gx) == 7
    assert value(gy) == 1


def test_an_x_on_the_way_to_another_x(graph):
    x = constant(3.0)
    y = x * x
    z = y * y
    gx, gy = gradients(z, [x, y])
    assert value(gx) == 4 * 27
    assert value(gy) == 18


def test_no_path_gives_none_or_zeros(graph):
    x, y = constant([1.0, 2.0]), constant(1.0)
    assert gradients(y * 2.0, [x]) == [None]
    (zero,) = gradients(y * 2.0, [x], unconnected_gradients="zero")
    np.testing.assert_array_equal(value(zero), [0, 0])
    with pytest.raises(ValueError, match="'none' or 'zero'"):
        gradients(y, y, unconnected_gradients="nil")


def test_nothing_flows_through_integers_and_choices(graph):
    x = constant([1.0, 2.0])
    through_int = cast(cast(x, "int32"), "float32")
    through_position = cast(argmax(x), "float32")
    assert gradients(through_int * 2.0, x) == [None]
    assert gradients(through_position * 2.0, x) == [None]


@pytest.mark.parametrize(
    "piecewise",
    [relu, relu6, leaky_relu, crelu, lambda t: max_pool(t, 2, 2, "VALID")],
    ids=["relu", "relu6", "leaky_relu", "crelu", "max_pool"],
)
def test_second_derivatives_of_what_is_linear_in_pieces_are_zeros(graph, piecewise):
    x, other = constant(np.linspace(-3, 9, 16, dtype=np.float32).reshape(1, 4, 4, 1)), constant(1.0)
    (first,) = gradients(piecewise(x * 0.5), x)
    second, not_there = gradients(first * first, [x, other])
    assert not_there is None
    np.testing.assert_array_equal(value(second), np.zeros((1, 4, 4, 1)))
    ((more,), (once,)) = gradients(first * x, x), gradients(first * stop_gradient(x), x)
    np.testing.assert_array_equal(value(more), value(first))
    np.testing.assert_array_equal(value(once), np.zeros((1, 4, 4, 1)))
    assert gradients(first, x, stop_gradients=[first.op.inputs[0]]) == [None]


def test_no_ys(graph):
    assert gradients([], [constant(1.0)]) == [None]


def test_grad_ys_weigh_the_ys(graph):
    x = constant([1.0, 2.0])
    (g,) = gradients([x * 3.0, x * x], x, grad_ys=[[1.0, 10.0], None])
    np.testing.assert_array_equal(value(g), [3 + 2, 30 + 4])


def test_stop_gradients_are_constants(graph):
    x = constant(3.0)
    y = x * x
    assert [value(g) for g in gradients(y * x, [x, y], stop_gradients=[y])] == [9, 3]
    gx, gy = gradients(x + y, [x, y], stop_gradients=[x, y])
    assert value(gx) == 1
    assert value(gy) == 1


def test_stop_gradient_is_a_constant(graph):
    x = constant(3.0)
    (g,) = gradients(stop_gradient(x) * x, x)
    assert value(g) == 3


def test_second_and_third_derivatives(graph):
    x = constant(2.0, dtype="float64")
    y = x**4.0
    for expected in (32.0, 48.0, 48.0):
        (y,) = gradients(y, x)
        assert value(y) == pytest.approx(expected)


def test_second_derivatives_of_powers_of_zero(graph):
    x, y = constant([2.0, 4.0], dtype="float64"), constant([0.0, 2.0], dtype="float64")
    slope, _ = gradients(x**y, [x, y])  # y * x ** (y - 1)
    _, mixed = gradients(slope, [x, y])
    np.testing.assert_allclose(value(mixed), [1 / 2, 4 * (1 + 2 * np.log(4))])
    x = constant([0.0, np.inf], dtype="float64")
    assert value(gradients(x**0.0, x)[0]).tolist() == [0, 0]


_STEPS = {
    "tanh": lambda p, q: m.tanh(p),
    "square": lambda p, q: a.square(p * 0.5),
    "mul": lambda p, q: m.tanh(p * q),
    "add": lambda p, q: p + q,
    "sin": lambda p, q: m.sin(p),
}


@given(st.lists(st.sampled_from(sorted(_STEPS)), min_size=1, max_size=12), st.integers(0, 2**16))
def test_random_expressions_agree_with_differences(steps, seed):
    rng = np.random.default_rng(seed)
    with Graph().as_default():
        x = placeholder("float64", [3])
        pool = [x, constant(rng.uniform(-1, 1, 3))]
        for step in steps:
            p, q = (pool[i] for i in rng.integers(0, len(pool), 2))
            pool.append(_STEPS[step](p, q))
        y = reduce_sum(pool[-1]) + reduce_sum(x)
        (g,) = gradients(y, x)
        run = Interpreter(x.graph).run
        at = rng.uniform(-1, 1, 3)
        found = run(g, {x: at})
        for i in range(3):
            step = np.eye(3)[i] * 1e-6
            difference = (run(y, {x: at + step}) - run(y, {x: at - step})) / 2e-6
            assert found[i] == pytest.approx(difference, rel=1e-5, abs=1e-6)


# --- variables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_resource", [False, True])
def test_all_reads_of_a_variable_count(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    y = reduce_sum(v * v) + reduce_sum(3.0 * v.read_value()) + reduce_sum(identity(v))
    (g,) = gradients(y, v)
    np.testing.assert_array_equal(initialized(graph, v).run(g), [2 + 3 + 1, 4 + 3 + 1])


def test_the_read_tensor_itself_may_be_an_x(graph):
    v = Variable(3.0)
    (g,) = gradients(v * v, v.value())
    assert initialized(graph, v).run(g) == 6


@pytest.mark.parametrize("use_resource", [False, True])
def test_gathered_rows_come_back_as_rows(graph, use_resource):
    v = Variable(np.arange(8, dtype=np.float32).reshape(4, 2), use_resource=use_resource)
    rows = gather(v, [2, 0, 2])
    (g,) = gradients(reduce_sum(rows * [[1.0], [10.0], [100.0]]), v)
    assert isinstance(g, IndexedSlices)
    interpreter = initialized(graph, v)
    np.testing.assert_array_equal(interpreter.run(g.indices), [2, 0, 2])
    np.testing.assert_array_equal(interpreter.run(g.values), [[1, 1], [10, 10], [100, 100]])
    np.testing.assert_array_equal(interpreter.run(convert(g)), [[10, 10], [0, 0], [101, 101], [0, 0]])


def test_rows_from_several_lookups_are_put_together(graph):
    v = Variable(np.ones((4, 2), np.float32))
    (g,) = gradients(reduce_sum(gather(v, [1])) + reduce_sum(gather(v, [3, 1])), v)
    assert isinstance(g, IndexedSlices)
    np.testing.assert_array_equal(initialized(graph, v).run(convert(g)), [[0, 0], [2, 2], [0, 0], [1, 1]])


def test_rows_and_a_whole_gradient_become_a_whole_one(graph):
    v = Variable(np.ones((3, 2), np.float32))
    (g,) = gradients(reduce_sum(gather(v, [1])) + reduce_sum(v * 5.0), v)
    assert isinstance(g, Tensor)
    np.testing.assert_array_equal(initialized(graph, v).run(g), [[5, 5], [6, 6], [5, 5]])


def test_rows_become_whole_where_a_rule_needs_that(graph):
    x = constant(np.ones((3, 2), np.float32))
    (g,) = gradients(reduce_sum(gather(x * 2.0, [1, 1])), x)
    np.testing.assert_array_equal(value(g), [[0, 0], [4, 4], [0, 0]])


# --- names, scopes, devices ---------------------------------------------------------------------------------


def test_names_follow_tensorflow(graph):
    x = constant(2.0, name="x")
    with graph.name_scope("layer"):
        y = a.multiply(x, 3.0, name="scaled")
    gradients(y, x)
    names = {n.name for n in graph.nodes}
    assert {
        "gradients/Shape",
        "gradients/grad_ys_0",
        "gradients/grad_ys_0/Const",
        "gradients/layer/scaled_grad/Mul",
    } <= names
    gradients(y, x)
    assert "gradients_1/layer/scaled_grad/Mul" in {n.name for n in graph.nodes}
    gradients(y, x, name="mine")
    assert "mine/layer/scaled_grad/Mul" in {n.name for n in graph.nodes}


def test_contributions_are_added_once(graph):
    x = constant(2.0, name="x")
    gradients(x * x + m.sin(x), x)
    assert [n.name for n in graph.nodes if n.type == "AddN"] == ["gradients/AddN"]


def test_device_blocks_around_the_call_apply(graph):
    with graph.device("/job:ps"):
        x = constant(2.0)
        y = x * x
    before = len(graph)
    with graph.device("/job:worker/gpu:0"):
        gradients(y, x)
    assert {n.device for n in graph.nodes[before:]} == {"/job:worker/device:GPU:0"}


def test_colocated_gradients_follow_their_nodes(graph):
    with graph.device("/cpu:0"):
        x = constant(2.0, name="x")
    with graph.device("/gpu:0"):
        y = m.sin(x, name="sine")
    with graph.device("/gpu:1"):
        z = m.exp(y, name="power")
    gradients(z, x, colocate_gradients_with_ops=True)
    of = {n.name: n for n in graph.nodes}
    assert of["gradients/sine_grad/Mul"].device == "/device:GPU:0"
    assert of["gradients/sine_grad/Mul"].colocation_groups() == [b"loc:@sine"]
    assert of["gradients/power_grad/Mul"].device == "/device:GPU:1"


def test_works_on_a_graph_that_is_not_the_default_one():
    with Graph().as_default():
        x = constant(3.0)
        y = x * x
    (g,) = gradients(y, x)
    assert g.graph is x.graph
    assert value(g) == 6


def test_the_gradient_knows_the_shape(graph):
    x = placeholder("float32", [None, 3])
    (g,) = gradients(reduce_sum(x * x), x)
    assert g.dims == (None, 3)


# --- errors -------------------------------------------------------------------------------------------------


def test_nothing_flows_back_from_whole_numbers(graph):
    x, n = constant(3.0), constant(2)
    assert gradients(n * n, [x, n]) == [None, None]
    (g,) = gradients([n * n, x * x], x)
    assert Interpreter(graph, check=True).run([g]) == [6.0]
    (g,) = gradients(n, n)
    assert Interpreter(graph, check=True).run([g]) == [1]


def test_text_is_refused(graph):
    x = constant(2.0)
    with pytest.raises(TypeError, match="Cannot differentiate .*string.*only numeric tensors"):
        gradients(constant("a"), x)
    assert len(graph) == 2


@pytest.mark.parametrize("use_resource", [False, True])
def test_what_is_not_connected_may_get_zeros(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    (g,) = gradients(constant(1.0), v, unconnected_gradients=UnconnectedGradients.ZERO)
    assert Interpreter(graph, check=True).run([g])[0].tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="Unknown value for unconnected_gradients: 'one'"):
        gradients(constant(1.0), v, unconnected_gradients="one")


def test_products_of_factors_that_are_zero(graph):
    x, ids = constant([2.0, 3.0, 0.0, 0.0, 4.0, 0.0, 5.0]), [0, 0, 0, 1, 1, 2, 2]
    wanted = [0.0, 0.0, 6.0, 4.0, 0.0, 5.0, 0.0]
    (unsorted,) = gradients(unsorted_segment_prod(x, ids, 3), x)
    (in_order,) = gradients(segment_prod(x, ids), x)
    (left_out,) = gradients(unsorted_segment_prod(x[:2], [0, -1], 1), x)
    found = Interpreter(graph, check=True).run([unsorted, in_order, left_out])
    assert [f.tolist() for f in found] == [wanted, wanted, [1.0, *[0.0] * 6]]


def test_where_nothing_is_multiplied_with_something_infinite(graph):
    x, y = constant([0.0, 3.0]), constant([2.0, 2.0])
    quotient, product = gradients(xdivy(x, y), [x, y]), gradients(xlogy(x, y), [x, y])
    wanted = [[0.0, 0.5], [0.0, -0.75], [0.0, np.log(2.0)], [0.0, 1.5]]
    np.testing.assert_allclose(Interpreter(graph, check=True).run([*quotient, *product]), wanted, rtol=1e-6)
    narrow = constant([6.0], "float16")  # 6 ** 6 * log(6) is more than it can hold
    power = gradients(narrow**narrow, narrow, grad_ys=constant([0.0], "float16"))
    assert Interpreter(graph, check=True).run(power) == [0.0]


def test_wrong_weights_are_refused(graph):
    x = constant([1.0, 2.0])
    with pytest.raises(ValueError, match="2 ys need as many grad_ys, not 1"):
        gradients([x, x], x, grad_ys=[x])
    with pytest.raises(ValueError, match=r"grad_ys\[0\] has shape \(3,\)"):
        gradients(x, x, grad_ys=[[1.0, 2.0, 3.0]])
    with pytest.raises(TypeError, match=r"grad_ys\[0\] has type int32"):
        gradients(x, x, grad_ys=constant([1, 2]))


def test_another_graphs_x_is_refused(graph):
    x = constant(1.0)
    with Graph().as_default():
        other = constant(1.0)
    with pytest.raises(ValueError, match="belongs to another graph"):
        gradients(x, other)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, axis: reduce_prod(x),
        lambda x, axis: reduce_prod(x, axis),
        lambda x, axis: reduce_prod(x, [-1, 0], keepdims=True),
        lambda x, axis: tile(x, [2, 1, 3]),
        lambda x, axis: gather(x, [[1, 0], [1, 1]], axis=axis),
        lambda x, axis: gather(x, 1, axis=-1),
    ],
)
@pytest.mark.parametrize("axis", [-1, 1])
def test_gradients_of_unknown_rank_are_those_of_a_known_one(graph, build, axis):
    at = np.random.default_rng(1).normal(size=(2, 3, 4))
    at[0, 1, 2] = 0
    known, unknown, late = placeholder("float64", at.shape), placeholder("float64"), placeholder("int32", [])
    weights = np.random.default_rng(2).normal(size=np.shape(value(build(constant(at), axis))))
    found = [gradients(build(x, n) * weights, x)[0] for x, n in ((known, axis), (unknown, axis), (unknown, late))]
    wanted, *others = Interpreter(graph).run(found, {known: at, unknown: at, late: axis})
    for other in others:
        np.testing.assert_allclose(other, wanted)


# --- size ---------------------------------------------------------------------------------------------------


def test_a_deep_graph(graph):
    x = y = constant(1.0)
    for _ in range(20_000):
        y = a.negative(y)
    started = time.perf_counter()
    (g,) = gradients(y, x)
    assert time.perf_counter() - started < 20
    assert value(g) == 1


def test_wide_sharing_costs_no_more_than_the_nodes(graph):
    x = y = constant(1.0)
    for _ in range(40):
        y = y + y  # 2 ** 40 paths
    (g,) = gradients(y, x)
    assert value(g) == 2.0**40
    assert sum(n.type == "AddN" for n in graph.nodes) == 40


def test_only_nodes_between_xs_and_ys_are_visited(graph):
    x = constant(1.0)
    aside = x
    for _ in range(50):
        aside = m.exp(aside)
    before = len(graph)
    gradients(reduce_mean(x * 2.0), x)
    assert len(graph) - before < 20
