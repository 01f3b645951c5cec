"""The reference evaluator: what it runs, in which order, and what it says when it cannot."""

from __future__ import annotations

import numpy as np
import pytest
from reference_interpreter import Interpreter, execution_order

from dovetail.graph.core import opdef
from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.core.dtypes import float32
from dovetail.graph.core.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.opdef import Trait, define
from dovetail.graph.ops.array.concat_stack import unstack
from dovetail.graph.ops.array.identity_and_placeholders import identity
from dovetail.graph.ops.math import arithmetic as a
from dovetail.graph.ops.state import collectives
from dovetail.graph.variables.variable import Variable


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


@pytest.fixture
def calls():
    """An op that writes down when it runs, registered for one test."""
    seen = []

    def record(context, *inputs):
        seen.append(context.node_name)
        return np.float32(len(seen))

    define("Recording", infer=lambda inputs, attrs: [(float32, ())], reference=record, traits=Trait.STATEFUL)
    yield seen
    del opdef._REGISTRY["Recording"]


def test_fetches_of_every_kind(graph):
    x = constant(2.0, name="x")
    y = x * 3.0
    run = Interpreter(graph).run
    assert run(y) == 6
    assert run([y, "x:0", y.op, x.op]) == [6, 2, None, None]
    assert run([]) == []


def test_feeds_of_any_tensor(graph):
    x = placeholder("float32", [None], name="x")
    y = x * 2.0
    z = y + 1.0
    run = Interpreter(graph).run
    np.testing.assert_array_equal(run(z, {x: [1, 2]}), [3, 5])
    np.testing.assert_array_equal(run(z, {"x:0": [1, 2]}), [3, 5])
    np.testing.assert_array_equal(run(z, {y: [1, 2]}), [2, 3])  # x is not needed then
    np.testing.assert_array_equal(run(y, {y: [7]}), [7])


def test_one_fed_output_of_several(graph):
    first, second = unstack(constant([1.0, 2.0]))
    assert Interpreter(graph).run([first + 0.0, second + 0.0], {first: 10.0}) == [10, 2]


def test_a_missing_feed(graph):
    p = placeholder("float32", [2], name="p")
    with pytest.raises(InvalidArgumentError) as caught:
        Interpreter(graph).run(p * 2.0)
    assert "You must feed a value for placeholder tensor 'p' with dtype float32 and shape (2,)" in str(caught.value)
    assert "test_interpreter.py" in str(caught.value)
    assert caught.value.node_def is p.op


def test_a_feed_of_the_wrong_shape(graph):
    p = placeholder("float32", [2, None], name="p")
    with pytest.raises(
        InvalidArgumentError,
        match=r"Cannot feed value of shape \(3,\) for Tensor 'p:0', which has shape \(2, \?\)",
    ):
        Interpreter(graph).run(p, {p: [1, 2, 3]})


def test_a_failing_kernel_names_node_operands_and_line(graph):
    x = placeholder("int32", None, name="x")
    y = a.add(x, placeholder("int32", None, name="y"), name="total")
    with pytest.raises(
        InvalidArgumentError,
        match=r"(?s)AddV2 'total' failed on \(x:0: \(2,\), y:0: \(3,\)\).*test_interpreter.py",
    ) as caught:
        Interpreter(graph).run(y, {"x:0": [1, 2], "y:0": [1, 2, 3]})
    assert caught.value.node_def is y.op


def test_integer_division_by_zero_names_its_node(graph):
    y = a.floordiv(constant([1, 2]), [1, 0])
    with pytest.raises(InvalidArgumentError, match="Integer division by zero") as caught:
        Interpreter(graph).run(y)
    assert caught.value.node_def is y.op


def test_only_what_is_needed_runs_and_once(graph, calls):
    used = apply("Recording", name="used")
    apply("Recording", name="unused")
    Interpreter(graph).run([used + used, used])
    assert calls == ["used"]


def test_control_inputs_run_first(graph, calls):
    apply("Recording", name="elsewhere")
    first = apply("Recording", name="first")
    with graph.control_dependencies([first]):
        second = apply("Recording", name="second")
    Interpreter(graph).run(second)
    assert calls == ["first", "second"]


def test_control_edges_against_the_order_of_creation(graph, calls):
    early = apply("Recording", name="early")
    late = apply("Recording", name="late")
    early.op._add_control_input(late.op)
    Interpreter(graph).run(early)
    assert calls == ["late", "early"]


def test_execution_order_reports_a_cycle(graph):
    x = constant(1.0, name="x")
    y = identity(x)
    x.op.control_inputs = (y.op,)  # the graph itself refuses this
    with pytest.raises(InvalidArgumentError, match="has a cycle through"):
        execution_order([y.op])


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_keep_their_values_between_runs(graph, use_resource):
    v = Variable(1.0, use_resource=use_resource)
    interpreter = Interpreter(graph, check=True)
    with pytest.raises(FailedPreconditionError):
        interpreter.run(v)
    interpreter.run(v.initializer)
    add_five = v.assign_add(5.0)
    assert interpreter.run(v) == 1
    interpreter.run(add_five)
    assert interpreter.run([v, v * 2.0]) == [6, 12]
    with pytest.raises(FailedPreconditionError):
        Interpreter(graph).run(v)  # another evaluator has state of its own
    assert Interpreter(graph, interpreter.resources).run(v) == 6


@pytest.mark.parametrize(
    ("rule", "result", "complaint"),
    [
        ([(float32, ())], np.float64(1), "gave float64, its rule says float32"),
        ([(float32, (2,))], np.zeros(3, np.float32), r"gave shape \(3,\), its rule says \(2,\)"),
        ([(float32, ())], 1.0, "gave a float, not an array"),
        ([(float32, ()), (float32, ())], (np.float32(1),), "gave 1 results, its rule says 2"),
    ],
)
def test_checking_finds_kernels_that_break_their_rule(graph, rule, result, complaint):
    define("Broken", infer=lambda inputs, attrs: rule, reference=lambda: result)
    try:
        broken = graph.create("Broken")
        with pytest.raises(InternalError, match=f"Broken {complaint}"):
            Interpreter(graph, check=True).run(broken.outputs[0])
    finally:
        del opdef._REGISTRY["Broken"]


def test_collectives_of_one_member_give_what_it_brings(graph):
    one, run = ["/cpu:0"], Interpreter(graph).run
    x, y = constant([1.0, 2.0]), constant(3.0)
    first, second = run(collectives.all_reduce([x, y], one, 0, "mean"))
    assert first.tolist() == [1.0, 2.0] and second == 3.0
    for made in (collectives.all_gather, collectives.reduce_scatter, collectives.broadcast):
        assert run(made(x, one, 0)).tolist() == [1.0, 2.0]
    assert run(collectives.all_reduce(x, ["/gpu:0"], 0)).tolist() == [1.0, 2.0]
    assert run(collectives.barrier(one, 0)) is None
    with pytest.raises(InvalidArgumentError, match="has 2 members: run it in a session"):
        run(collectives.all_reduce(x, ["/cpu:0", "/cpu:1"], 0))
