"""Rewriting inside sessions: nothing that a user can see changes, and it can be turned off."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_programs import Program, programs

import dovetail as dt
from dovetail.codegen.options import KernelOptions


def session(**options: Any) -> dt.Session:
    return dt.Session(config=dt.ConfigProto(kernel_backend="numpy", **options))


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(programs())
def test_random_graphs_give_the_same_with_and_without(program: Program) -> None:
    for node in program.graph.nodes:
        if node.device:
            node._set_device("/device:CPU:0")
    config = [dt.ConfigProto(isolate_session_state=True, graph_rewrite=on) for on in (0, 1)]
    with dt.Session(graph=program.graph, config=config[0]) as a, dt.Session(graph=program.graph, config=config[1]) as b:
        for s in (a, b):
            s._backend._session.seed = 11  # the same random numbers in both
            s.run(program.init)
        for fetches, feeds in program.steps:
            for x, y in zip(a.run(fetches, feeds), b.run(fetches, feeds), strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_a_fed_constant_is_not_taken_for_its_own_value(backend: str) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None])
        two, axis = dt.constant(2.0), dt.constant(0)
        y = dt.reduce_sum((x * two + 1.0) * x, axis)
        for rewrite in (0, 1):
            with dt.Session(config=dt.ConfigProto(kernel_backend=backend, graph_rewrite=rewrite)) as s:
                assert s.run(y, {x: np.ones(3), two: 5.0}) == 18.0
                assert s.run([two, y], {x: np.ones(3)}) == [2.0, 9.0]


def test_fed_and_fetched_tensors_inside_a_function_stay() -> None:
    with dt.Graph().as_default(), session() as s:
        x = dt.placeholder(dt.float32, [2])
        inner = dt.exp(-x)
        y = 1.0 / (1.0 + inner)
        np.testing.assert_allclose(s.run(y, {x: [0.0, 1.0]}), [0.5, 0.7310586], rtol=1e-6)
        np.testing.assert_array_equal(s.run([y, inner], {x: [0.0, 0.0]})[1], [1.0, 1.0])
        np.testing.assert_array_equal(s.run(y, {inner: [1.0, 3.0]}), [0.5, 0.25])


def test_equal_fetches_are_not_one_array() -> None:
    with dt.Graph().as_default(), session() as s:
        x = dt.placeholder(dt.float32, [2])
        a, b = s.run([dt.exp(x), dt.exp(x)], {x: [0.0, 0.0]})
        a[0] = 7.0
        assert b[0] == 1.0


def test_reads_before_and_after_an_update_are_two() -> None:
    for use_resource in (False, True):
        with dt.Graph().as_default(), session() as s:
            v = dt.Variable(1.0, use_resource=use_resource)
            before = v + 1.0 if not use_resource else v.read_value() + 1.0
            with dt.control_dependencies([before]):
                update = dt.assign_add(v, 5.0)
            with dt.control_dependencies([update if not use_resource else update.op]):
                after = v.read_value() + 1.0
            s.run(v.initializer)
            assert s.run([before, after]) == [2.0, 7.0]


def test_random_numbers_and_prints_are_never_merged(capfd: pytest.CaptureFixture[str]) -> None:
    with dt.Graph().as_default(), session() as s:
        a, b = dt.random_uniform([4], seed=1), dt.random_uniform([4])
        one, other = s.run([a, b])
        assert not np.array_equal(one, other)
        x = dt.constant(1.0)
        s.run([dt.Print(x, [x], "said "), dt.Print(x, [x], "said ")])
    assert capfd.readouterr().err.count("said ") == 2


def test_a_target_runs_though_nobody_takes_its_value() -> None:
    with dt.Graph().as_default(), session() as s:
        x = dt.placeholder(dt.float32)
        check = dt.ensure_shape(x, [2])
        y = x * 1.0
        with pytest.raises(dt.errors.InvalidArgumentError, match="EnsureShape"):
            s.run([y, check.op], {x: [1.0, 2.0, 3.0]})


def test_an_error_names_the_user_s_node_and_line() -> None:
    with dt.Graph().as_default(), session() as s:
        a, b = dt.placeholder(dt.float32), dt.placeholder(dt.float32)
        product = dt.matmul(
            dt.transpose(dt.placeholder_with_default(np.ones((2, 3), "f"), [None, None]), [1, 0]), b * 1.0, name="mine"
        )
        with pytest.raises(dt.errors.InvalidArgumentError, match=r"'mine' .*test_rewrite\.py") as error:
            s.run(product, {a: 1.0, b: np.ones((5, 5))})
        assert error.value.op is product.op


def test_a_fold_that_fails_is_left_to_the_step() -> None:
    with dt.Graph().as_default(), session() as s:
        wrong = dt.reshape(dt.constant([1.0, 2.0, 3.0]), dt.placeholder_with_default([2, 2], [2]))
        with pytest.raises(dt.errors.InvalidArgumentError, match="Reshape"):
            s.run(wrong)


def test_inside_loops_and_branches() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [])

        def body(i: Any, y: Any) -> Any:
            a = dt.exp(y * 1.0) - dt.exp(dt.identity(y)) + y  # zero, by merging
            more = dt.cond(a > 2.0, lambda: a * dt.constant(0.5) * 1.0, lambda: dt.identity(dt.negative(-a)) + 1.0)
            return i + dt.constant(1) * 1, more

        i, y = dt.while_loop(lambda i, y: dt.identity(i) < 3 + 2, body, [0 * dt.constant(3), x * 1.0])
        z = 1.0 / (1.0 + dt.exp(-y))
        fetches = [i, y, z, *dt.gradients(z, x)]
        results = []
        for on in (0, 1):
            with session(graph_rewrite=on) as s:
                results.append(s.run(fetches, {x: 1.5}))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


@pytest.mark.parametrize("turns", [0, 2])
def test_what_a_loop_computes_is_not_taken_behind_it(turns: int) -> None:
    """Zeros that are too large to be folded are equal wherever they are made, but a loop may not have made them."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [])

        def inner(j: Any, z: Any) -> Any:
            return j + 1, z + dt.zeros([300, 100]) + x

        def outer(i: Any, y: Any) -> Any:
            _, z = dt.while_loop(lambda j, z: j < i, inner, [0, dt.zeros([300, 100]) + y])
            return i + 1, dt.zeros([300, 100]) + z + 10.0

        before = dt.fill([300, 100], 2.0) * x
        _, y = dt.while_loop(lambda i, y: i < turns, outer, [0, before])
        behind = dt.zeros([300, 100]) - x
        fetches = [y, behind, y + behind, dt.fill([300, 100], 2.0) + y]
        expected = {0: [2.0, -1.0, 1.0, 4.0], 2: [23.0, -1.0, 22.0, 25.0]}[turns]
        for on in (0, 1):
            with session(graph_rewrite=on) as s:
                for value, number in zip(s.run(fetches, {x: 1.0}), expected, strict=True):
                    np.testing.assert_array_equal(value, np.full([300, 100], number, np.float32))


def test_across_devices() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [2])
        with dt.device("/cpu:0"):
            a = dt.exp(dt.identity(x)) + dt.exp(x)
        with dt.device("/cpu:1"):
            b = dt.identity(a) * 1.0
            with dt.control_dependencies([a]):
                c = dt.constant(2.0) * dt.constant(3.0)
        for on in (0, 1):
            with session(graph_rewrite=on, device_count={"CPU": 2}) as s:
                np.testing.assert_array_equal(s.run([b, c], {x: [0.0, 0.0]})[0], [2.0, 2.0])


def test_functions_of_many_ops_are_one_kernel() -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(0)
    rows, gain, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 33), (33,), (33,)))
    with dt.Graph().as_default():
        x, g, b = (
            dt.placeholder(dt.float32, [None, 33]),
            dt.placeholder(dt.float32, [33]),
            dt.placeholder(dt.float32, [33]),
        )
        y = dt.nn.gelu(dt.nn.layer_norm(x, g, b) * 2.0) + dt.nn.silu(dt.nn.layer_norm(x))
        feeds = {x: rows, g: gain, b: bias}
        # kernel_check compares each kernel with the references
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as s:
            mine = s.run(y, feeds)
            (program,) = next(iter(s._backend._worker._registered.values())).programs
        with session(graph_rewrite=0) as s:
            np.testing.assert_allclose(mine, s.run(y, feeds), rtol=2e-5, atol=2e-5)
    assert [i.op for i in program.instructions] == ["Fused"]


# --- choosing --------------------------------------------------------------------------------------------------------


def options(**fields: Any) -> KernelOptions:
    return dt.ConfigProto(**fields).kernel_options()


def test_levels_are_tensorflow_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_REWRITE", raising=False)
    assert (options().fold, options().merge, options().rewrite, options().fast_math) == (True, True, True, False)
    lowest = dt.OptimizerOptions(opt_level=dt.OptimizerOptions.L0, do_constant_folding=True)
    chosen = options(graph_options=dt.GraphOptions(optimizer_options=lowest))
    assert (chosen.fold, chosen.merge, chosen.rewrite) == (True, False, False)
    off = options(graph_rewrite=0, fast_math=True)
    assert (off.fold, off.merge, off.rewrite, off.fast_math) == (False, False, False, True)
    monkeypatch.setenv("DOVETAIL_REWRITE", "0")
    assert not options().rewrite
    assert dt.ConfigProto().settled().graph_rewrite == 0
    assert options(graph_rewrite=1).rewrite
    assert KernelOptions.from_fields(off.to_fields()) == off
    with pytest.raises(TypeError, match="fast_math must be of type bool"):
        KernelOptions.from_fields({**off.to_fields(), "fast_math": 1})


def test_fast_math_acts_only_when_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DOVETAIL_LOG_REWRITES", "2")
    with dt.Graph().as_default(), caplog.at_level(logging.WARNING):
        x = dt.placeholder(dt.float32, [])
        y = dt.pow(x, 0.5, name="root")
        with session() as s:
            s.run(y, {x: 4.0})
        assert "power" not in caplog.text
        with session(fast_math=True) as s:
            np.testing.assert_allclose(s.run(y, {x: 4.0}), 2.0, rtol=1e-6)
    assert "rewrites on /job:localhost/replica:0/task:0/device:CPU:0: 1 x to the power a half" in caplog.text
    assert "to the power a half: 'root' (Pow), created at" in caplog.text
    assert "test_rewrite.py" in caplog.text


def test_passes_say_what_they_make(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DOVETAIL_PASSES", "1")
    with dt.Graph().as_default(), caplog.at_level(logging.WARNING), session() as s:
        s.run(dt.exp(dt.zeros([2]), name="e") + 1.0)
    assert "CPU:0: after rewriting:\n" in caplog.text
    assert "CPU:0: after last sends:\nprogram for " in caplog.text
