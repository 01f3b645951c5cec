"""The update ops: what they refuse, and that dense, sparse, reference and resource forms agree.

That the rules are the right ones is tested with the optimizers, against formulas written apart.
"""

import threading

import numpy as np
import pytest
from optimizer_scalars import SCALARS
from reference_interpreter import Interpreter

from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.ops.state.training import RULES, apply_update
from dovetail.graph.variables.store import global_variables_initializer
from dovetail.graph.variables.variable import Variable


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def variables(rule, use_resource, dtype="float32", rows=4):
    shape = (rows, 2)
    start = [
        np.linspace(-1, 1, 2 * rows).reshape(shape),
        *(np.full(shape, 0.5 + i) for i in range(len(rule.slots))),
    ]
    return [Variable(x.astype(dtypes.as_dtype(dtype).np), use_resource=use_resource) for x in start]


def scalars(rule):
    return {name: SCALARS[name] for name in (*rule.before, *rule.after)}


def updated(graph, rule, gradient, use_resource=False, dtype="float32", indices=None, flags=None):
    held = variables(rule, use_resource, dtype)
    op = apply_update(rule.name, held, gradient, scalars(rule), indices=indices, flags=flags)
    run = Interpreter(graph, check=True)
    run.run(global_variables_initializer())
    run.run(op)
    return run.run(held)


every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
GRAD = np.float32([[1, -2], [0, 0], [3, 0.5], [0, 0]])


@every_rule
def test_reference_and_resource_forms_agree(graph, rule):
    for a, b in zip(updated(graph, rule, GRAD), updated(graph, rule, GRAD, use_resource=True), strict=True):
        np.testing.assert_array_equal(a, b)


@every_rule
@pytest.mark.parametrize("use_resource", [False, True])
def test_rows_that_are_named_change_as_in_the_dense_form(graph, rule, use_resource):
    dense = updated(graph, rule, GRAD)
    # Row 2 twice: what counts is the sum.
    rows = np.float32([[2, 0.5], [1, -2], [1, 0]])
    sparse = updated(graph, rule, rows, use_resource, indices=[2, 0, 2])
    untouched = updated(graph, rule, np.zeros((0, 2), "f4"), indices=np.zeros(0, np.int32))
    for d, s, u in zip(dense, sparse, untouched, strict=True):
        np.testing.assert_allclose(s[[0, 2]], d[[0, 2]], rtol=1e-6)
        np.testing.assert_allclose(s[[1, 3]], (d if rule.decays else u)[[1, 3]], rtol=1e-6)


@every_rule
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types_are_kept(graph, rule, dtype):
    gradient = GRAD.astype(dtypes.as_dtype(dtype).np)
    exact = updated(graph, rule, GRAD)
    for indices in (None, [0, 1, 2, 3]):
        found = updated(graph, rule, gradient, dtype=dtype, indices=indices)
        for value, want in zip(found, exact, strict=True):
            assert value.dtype == dtypes.as_dtype(dtype).np
            np.testing.assert_allclose(value.astype("f8"), want, atol=0.06, rtol=0.06)


@every_rule
def test_the_node_is_named_like_its_op_and_stands_with_the_variable(graph, rule):
    with graph.device("/job:ps"):
        held = variables(rule, use_resource=False)
    with graph.device("/job:worker"):
        op = apply_update(rule.name, held, GRAD, scalars(rule))
    assert op.name == op.type == f"Apply{rule.name}"
    assert op.device == "/job:ps"
    assert {t.op.device for t in op.inputs[len(held) :]} == {"/job:worker"}
    assert f"Apply{rule.name}/{rule.gradient}" in graph


def test_nothing_is_assigned_in_place(graph):
    v = Variable(np.float32([1, 2]))
    op = apply_update("GradientDescent", [v], [1.0, 1.0], {"alpha": 1.0})
    run = Interpreter(graph)
    run.run(v.initializer)
    before = run.run(v)
    run.run(op)
    np.testing.assert_array_equal(before, [1, 2])
    np.testing.assert_array_equal(run.run(v), [0, 1])


def test_what_does_not_fit_is_refused_when_the_node_is_made(graph):
    v, slot = Variable(np.zeros((4, 2), "f4")), Variable(np.zeros((4, 3), "f4"))
    alpha = {"alpha": 0.1}
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\)"):
        apply_update("GradientDescent", [v], np.zeros(3, "f4"), alpha)
    with pytest.raises(ValueError, match=r"gradient has shape \(1, 3\), where \(1, 2\)"):
        apply_update("GradientDescent", [v], np.zeros((1, 3), "f4"), alpha, indices=[0])
    with pytest.raises(ValueError, match="one dimension"):
        apply_update("GradientDescent", [v], np.zeros((1, 2), "f4"), alpha, indices=[[0]])
    with pytest.raises(TypeError, match="float32"):
        apply_update("GradientDescent", [v], constant(np.zeros((4, 2))), alpha)
    with pytest.raises(ValueError, match="scalar"):
        apply_update("GradientDescent", [v], np.zeros((4, 2), "f4"), {"alpha": [0.1, 0.2]})
    with pytest.raises(ValueError, match="not compatible"):
        apply_update("Adagrad", [v, slot], np.zeros((4, 2), "f4"), {"lr": 0.1})
    with pytest.raises(TypeError, match="floating type"):
        apply_update("GradientDescent", [Variable([1, 2])], [1, 2], {"alpha": 1})
    with pytest.raises(TypeError, match="accum must be a reference variable"):
        apply_update("Adagrad", [v, Variable(np.zeros((4, 2), "f4"), use_resource=True)], GRAD, {"lr": 0.1})
    with pytest.raises(TypeError, match="takes 3 inputs"):
        graph.create("ApplyGradientDescent", (v.op.outputs[0],))
    with pytest.raises(TypeError, match="use_nesterov"):
        apply_update(
            "Momentum",
            [v, v],
            np.zeros((4, 2), "f4"),
            {"lr": 0.1, "momentum": 0.1},
            flags={"use_nesterov": 3},
        )


def test_what_does_not_fit_when_it_arrives_changes_nothing(graph):
    v = Variable(np.zeros((4, 2), "f4"))
    grad, rows = placeholder("float32"), placeholder("int32", [None])
    dense = apply_update("GradientDescent", [v], grad, {"alpha": 1.0})
    sparse = apply_update("GradientDescent", [v], grad, {"alpha": 1.0}, indices=rows)
    run = Interpreter(graph)
    run.run(v.initializer)
    with pytest.raises(InvalidArgumentError, match=r"gradient has shape \(2,\), where \(4, 2\)"):
        run.run(dense, {grad: [1.0, 1.0]})
    with pytest.raises(InvalidArgumentError, match=r"indices\[1\] = 4 is not in \[0, 4\)"):
        run.run(sparse, {grad: np.ones((2, 2)), rows: [0, 4]})
    with pytest.raises(InvalidArgumentError, match=r"where \(2, 2\)"):
        run.run(sparse, {grad: np.ones((1, 2)), rows: [0, 1]})
    assert not run.run(v).any()


def test_updates_from_many_threads_do_not_mix(graph):
    v, slot = Variable(np.zeros(3, "f4")), Variable(np.zeros(3, "f4"))
    # With momentum 1 the slot counts updates: after n of them it is n, the variable minus the sum of 1 to n.
    op = apply_update("Momentum", [v, slot], [1.0, 1.0, 1.0], {"lr": 1.0, "momentum": 1.0})
    run = Interpreter(graph)
    run.run(global_variables_initializer())
    threads = [threading.Thread(target=lambda: [run.run(op) for _ in range(50)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    np.testing.assert_array_equal(run.run(slot), [200] * 3)
    np.testing.assert_array_equal(run.run(v), [-200 * 201 / 2] * 3)
