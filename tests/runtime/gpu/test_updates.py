"""Updates of many variables as one launch on a GPU (a stand-in): when they are, when not, and that the numbers are the CPU's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_programs import ops

import dovetail as dt
from dovetail.codegen.gpu import horizontal_fusion

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("launch_by_launch")]


def variables(*shapes: tuple[int, ...], resource: bool = True) -> list[Any]:
    return [
        dt.get_variable(
            f"v{i}",
            initializer=dt.constant(np.linspace(-1, 1, int(np.prod(s)), dtype=np.float32).reshape(s)),
            use_resource=resource,
        )
        for i, s in enumerate(shapes)
    ]


def loss_of(parameters: list[Any]) -> Any:
    return dt.add_n([dt.reduce_sum(dt.sin(v) * v) for v in parameters])


def trained(build: Callable[[], tuple[list[Any], Any]], steps: int = 2) -> tuple[list[str], list[list[Any]]]:
    """The updates in the GPU's program, and the variables after some steps, on a GPU and a CPU. `build` gives variables and an op."""
    values: list[list[Any]] = []
    ops: list[str] = []
    for where in ("/gpu:0", "/cpu:0"):
        with dt.Graph().as_default() as graph, dt.device(where):
            parameters, step = build()
            init = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(init)
            for _ in range(steps):
                session.run(step)
            values.append(session.run([v.read_value() if hasattr(v, "handle") else v for v in parameters]))
            ops = ops or updates(session)
    for mine, theirs in zip(*values, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
    return ops, values


def updates(session: dt.Session) -> list[str]:
    """The updates among the instructions of the GPU's programs."""
    return [op for op in ops(session) if "Apply" in op or "AssignAdd" in op]


SHAPES = ((5, 3), (3,), (1,), (70, 30), (16,))


@pytest.mark.parametrize("resource", [True, False])
@pytest.mark.parametrize(
    "optimizer",
    [lambda: dt.train.AdamOptimizer(0.01), lambda: dt.train.MomentumOptimizer(0.05, 0.9)],
    ids=["adam", "momentum"],
)
def test_all_variables_of_a_step_are_updated_by_one_launch(fake, optimizer, resource):
    def build():
        parameters = variables(*SHAPES, resource=resource)
        return parameters, optimizer().minimize(loss_of(parameters))

    ops, _ = trained(build)
    assert len(ops) == 1 and ops[0].startswith("5 x ")


def test_they_are_updated_in_place(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        parameters = variables(*SHAPES)
        step = dt.train.GradientDescentOptimizer(0.1).minimize(loss_of(parameters))
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        session.run(step)
        (arguments,) = [x[4] for x in fake.launches() if len(x[4]) > 3 * len(SHAPES)]
        # of each set the variable, the rate, its gradient and its new value, and at the end the lengths
        assert sum(arguments.count(p) == 2 for p in set(arguments) if p > 1 << 16) == len(SHAPES)


def test_no_more_than_fit_into_one_launch(fake, monkeypatch):
    monkeypatch.setattr(horizontal_fusion, "MOST", 3)

    def build():
        parameters = variables(*SHAPES)
        return parameters, dt.train.GradientDescentOptimizer(0.1).minimize(loss_of(parameters))

    ops, _ = trained(build)
    assert ops == ["3 x ResourceApplyGradientDescent", "2 x ResourceApplyGradientDescent"]


def test_large_variables_keep_launches_of_their_own(fake, monkeypatch):
    monkeypatch.setattr(horizontal_fusion, "GPU_LARGE_UPDATE", 1000)

    def build():
        parameters = variables(*SHAPES)
        return parameters, dt.train.GradientDescentOptimizer(0.1).minimize(loss_of(parameters))

    ops, _ = trained(build)
    assert sorted(ops) == ["4 x ResourceApplyGradientDescent", "ResourceApplyGradientDescent"]


def test_other_rules_are_other_launches_and_rates_may_differ(fake):
    def build():
        parameters = variables(*SHAPES)
        one = dt.train.GradientDescentOptimizer(0.1).minimize(loss_of(parameters[:2]))
        with dt.control_dependencies([one]):
            other = dt.train.GradientDescentOptimizer(0.2).minimize(loss_of(parameters[2:4]))
        with dt.control_dependencies([other]):
            return parameters, dt.train.AdagradOptimizer(0.2).minimize(loss_of(parameters[4:]))

    ops, _ = trained(build)
    assert ops == ["4 x ResourceApplyGradientDescent", "ResourceApplyAdagrad"]


def test_a_read_between_two_updates_sees_the_first(fake):
    def build():
        a, b = variables((4,), (4,))
        first = dt.assign_add(a, dt.ones([4]))
        with dt.control_dependencies([first]):
            second = dt.assign_add(b, a.read_value() * 2.0)
        return [a, b], second.op if hasattr(second, "op") else second

    ops, _ = trained(build)
    assert len(ops) == 2 and not any(" x " in op for op in ops)


def test_two_updates_of_one_variable_stay_in_order(fake):
    def build():
        (a,) = variables((4,))
        first = dt.assign_add(a, dt.ones([4]))
        with dt.control_dependencies([first]):
            return [a], dt.assign_add(a, 3.0 * dt.ones([4])).op

    ops, _ = trained(build)
    assert ops == ["AssignAddVariableOp"] * 2


def test_nodes_that_share_a_variable_are_told_apart_by_what_they_name(fake):
    from dovetail.graph.ops.state.variables import var_handle_op

    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        a, b = variables((4,), (4,))
        same = var_handle_op([4], dt.float32, shared_name=a.handle.op.attrs["shared_name"] or a.handle.op.name)
        one = dt.assign_add(a, dt.ones([4]))
        with dt.control_dependencies([one]):
            between = graph.create("ReadVariableOp", [same], {}, "between").outputs[0]
            with dt.control_dependencies([between]):
                two = dt.assign_add(b, dt.ones([4]))
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        value, _ = session.run([between, two])
        np.testing.assert_allclose(value, np.linspace(-1, 1, 4) + 1, rtol=1e-6)


def test_a_value_that_somebody_holds_is_not_changed(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        parameters = variables(*SHAPES)
        before = [v.read_value() for v in parameters]
        with dt.control_dependencies(before):
            step = dt.train.GradientDescentOptimizer(0.1).minimize(loss_of(parameters))
        init = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(init)
        *values, _ = session.run([*before, step])
        for value, shape in zip(values, SHAPES, strict=True):
            expected = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
            np.testing.assert_array_equal(value, expected)


def test_a_variable_without_a_value_is_named(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        parameters = variables(*SHAPES[:3])
        gradients = [dt.ones(s) for s in SHAPES[:3]]
        step = dt.train.GradientDescentOptimizer(0.1).apply_gradients(list(zip(gradients, parameters, strict=True)))
    with dt.Session(graph=graph) as session:
        session.run([parameters[0].initializer, parameters[2].initializer])
        with pytest.raises(dt.errors.FailedPreconditionError, match="v1"):
            session.run(step)


def test_a_plan_lists_updates_that_are_one_launch(fake):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        parameters = variables(*SHAPES)
        step = dt.train.MomentumOptimizer(0.05, 0.9).minimize(loss_of(parameters))
        with dt.Session(graph=graph) as session:
            kernels = session.plan(step).kernels("gpu:0")
    (names,) = kernels.updates
    assert len(names) == len(SHAPES) and all("ApplyMomentum" in name for name in names)
    assert not any(n.name in names for n in kernels.calls)
    assert "one launch for 5 updates:" in str(kernels)
    assert "is one launch with 4 other updates" in kernels.why_not_fused(names[0], names[1])
