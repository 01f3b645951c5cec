"""Compiled updates of variables: the same numbers as the rules, in place where nobody holds the value, a copy where somebody does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from optimizer_scalars import SCALARS
from region_calls import kernel_of

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels.optimizer import UpdateKernel
from dovetail.codegen.fusion.optimizer_loops import update
from dovetail.codegen.reference import reference_of
from dovetail.codegen.target import SMALLEST_UPDATE
from dovetail.graph.core.dtypes import as_dtype, float32
from dovetail.graph.core.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from dovetail.graph.ops.state.training import RULES, apply_update
from dovetail.graph.resources.resource_manager import Context, Resources, SessionState
from dovetail.graph.resources.variable import VariableState

pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.module import source_of  # noqa: E402
from dovetail.codegen.cpu.schedule import schedule_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")

FLAGS = [(r.name, {f: on}) for r in RULES.values() for f in r.flags for on in (True, False)]
PLAIN = [(r.name, {}) for r in RULES.values() if not r.flags]


class Update:
    """One update op with its variables, outside a session."""

    def __init__(
        self, rule: str, flags: dict[str, bool], dtype: str, shape: tuple[int, ...], check: bool = False
    ) -> None:
        found = RULES[rule]
        self.dtype = as_dtype(dtype)
        with dt.Graph().as_default():
            places = [
                dt.Variable(dt.zeros(shape, self.dtype), name=name, use_resource=True) for name in ("var", *found.slots)
            ]
            gradient = dt.placeholder(self.dtype, shape)
            names = (*found.before, *found.after)
            self.node = apply_update(rule, places, gradient, {n: SCALARS[n] for n in names}, flags=flags)
        self.scalars = [np.asarray(SCALARS[n], self.dtype.np) for n in names]
        self.before = len(found.before)
        context = Context("update", "", Resources(), SessionState(0))
        self.reference = reference_of(self.node, lambda node: context)
        backend = NumbaBackend(compile_first=True, threads=2, check=check)
        self.kernel: Any = kernel_of(backend, self.node, context)
        rng = np.random.default_rng(5)
        low = [0.3 if i < 2 else 0.9 for i in range(1 + len(found.slots))]  # a mean square is above the squared mean
        self.start = [rng.uniform(x, x + 0.6, shape).astype(self.dtype.np) for x in low]
        self.gradient = rng.standard_normal(shape).astype(self.dtype.np)

    def states(self) -> list[VariableState]:
        made = [VariableState(f"v{i}", self.dtype) for i in range(len(self.start))]
        for state, value in zip(made, self.start, strict=True):
            state.assign(value)
        return made

    def run(self, kernel: Any, states: list[VariableState], gradient: Any = None) -> Any:
        grad = self.gradient if gradient is None else gradient
        return kernel(*states, *self.scalars[: self.before], grad, *self.scalars[self.before :])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rule", "flags"), PLAIN + FLAGS, ids=str)
def test_the_rule_of_an_optimizer(rule: str, flags: dict[str, bool], dtype: str) -> None:
    case = Update(rule, flags, dtype, (31, 67), check=True)
    if (rule, dtype) == ("FtrlV2", "float64"):  # powers of float64 stay with NumPy
        assert not isinstance(case.kernel, UpdateKernel)
        return
    assert isinstance(case.kernel, UpdateKernel)
    mine, theirs = case.states(), case.states()
    places = [s.read().__array_interface__["data"][0] for s in mine]
    for _ in range(3):
        assert case.run(case.kernel, mine) == ()
        case.run(case.reference, theirs)
    for a, b in zip(mine, theirs, strict=True):
        # A difference of two powers loses digits that the powers have.
        rtol = (500 if rule == "FtrlV2" else 20) * np.finfo(dtype).eps
        np.testing.assert_allclose(a.read(), b.read(), rtol=rtol, atol=rtol / 20 if rule == "FtrlV2" else 0)
    assert [s.read().__array_interface__["data"][0] for s in mine] == places


def test_who_holds_the_old_value_keeps_it() -> None:
    case = Update("Momentum", {"use_nesterov": False}, "float32", (1000, 7))
    states = case.states()
    var, part = states[0].read(), states[1].read()[3]
    case.run(case.kernel, states)
    np.testing.assert_array_equal(var, case.start[0])
    np.testing.assert_array_equal(part, case.start[1][3])
    assert not np.array_equal(states[0].read(), var)


def test_a_large_update_does_not_depend_on_the_number_of_threads() -> None:
    case = Update("Adam", {"use_nesterov": False}, "float32", (1 << 20,))
    mine, theirs = case.states(), case.states()
    case.run(case.kernel, mine)
    case.kernel._threads = 1
    case.run(case.kernel, theirs)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a.read(), b.read())


def test_a_strided_gradient() -> None:
    case = Update("GradientDescent", {}, "float32", (40, 50))
    states = case.states()
    wide = np.repeat(case.gradient.T, 2, axis=0)[::2].T
    assert not wide.flags.c_contiguous
    case.run(case.kernel, states, wide)
    np.testing.assert_allclose(states[0].read(), case.start[0] - np.float32(0.5) * case.gradient, rtol=1e-6)


def test_what_does_not_fit_is_refused_as_by_the_reference_and_changes_nothing() -> None:
    case = Update("GradientDescent", {}, "float32", (40, 50))
    states = case.states()
    with pytest.raises(InvalidArgumentError, match="the gradient has shape"):
        case.run(case.kernel, states, case.gradient[:3])
    np.testing.assert_array_equal(states[0].read(), case.start[0])
    with pytest.raises(FailedPreconditionError, match="uninitialized value new"):
        case.run(case.kernel, [VariableState("new", float32)])


def test_checking_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Update("GradientDescent", {}, "float32", (40, 50), check=True)
    right = case.kernel.plans.run
    monkeypatch.setattr(case.kernel.plans, "run", lambda given, *how: right((given[0], given[1] * 2, *given[2:]), *how))
    with pytest.raises(InternalError, match=r"compiled update of 'v0' .*differs from the reference"):
        case.run(case.kernel, case.states())


def test_small_variables_stay_with_numpy() -> None:
    assert not isinstance(Update("GradientDescent", {}, "float32", (SMALLEST_UPDATE - 1,)).kernel, UpdateKernel)
    assert isinstance(Update("GradientDescent", {}, "float32", (SMALLEST_UPDATE,)).kernel, UpdateKernel)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(dtype: str) -> None:
    case = Update("Momentum", {"use_nesterov": True}, dtype, (40, 50), check=True)
    assert isinstance(case.kernel, UpdateKernel)
    states = case.states()
    case.run(case.kernel, states)
    accum, grad = (x.astype(np.float32) for x in (case.start[1], case.gradient))
    momentum = case.scalars[1].astype(np.float32)
    np.testing.assert_array_equal(states[1].read(), (accum * momentum + grad).astype(case.dtype.np))


@pytest.mark.parametrize("use_resource", [False, True])
def test_sums_into_a_variable(use_resource: bool) -> None:
    with dt.Graph().as_default():
        v = dt.Variable(np.arange(2000), dtype=dt.int64, use_resource=use_resource)
        steps = [v.assign_add(np.full(2000, 5)), v.assign_sub(np.full(2000, 2))]
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            session.run(v.initializer)
            first = session.run(steps[0])
            session.run(steps[1])
            np.testing.assert_array_equal(session.run(v), np.arange(2000) + 3)
            np.testing.assert_array_equal(first, np.arange(2000) + 5)


def test_the_source_reads_and_writes_one_array() -> None:
    loops = update("GradientDescent", float32, ())
    body = source_of(loops, schedule_of(loops), 1).text.split("def kernel")[1].splitlines()
    assert body == [
        "(words, lo, hi):",
        *[
            f"    {name} = m.vector(words, {at}, np.float32)"
            for name, at in (("in0", 0), ("in1", 2), ("in2", 4), ("out0", 6))
        ],
        "    n0 = m.word(words, 8)",
        "    m.wide_vectors()",
        "    for i0 in range(lo, hi):",
        "        v0 = m.load(out0, 3, i0)",
        "        v1 = m.load(in1, 1, 0)",
        "        v2 = m.load(in2, 2, i0)",
        "        v3 = v1 * v2",
        "        v4 = v0 - v3",
        "        m.store(out0, 3, i0, v4)",
    ]


def test_training_is_the_same_on_all_backends() -> None:
    def trained(backend: str) -> list[Any]:
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((32, 40), dtype=np.float32), rng.standard_normal((32, 50), dtype=np.float32)
        with dt.Graph().as_default():
            w = dt.Variable(rng.standard_normal((40, 50), dtype=np.float32) / 6, use_resource=True)
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) - y))
            step = dt.train.AdamOptimizer(0.01).minimize(loss)
            with dt.Session(config=dt.ConfigProto(kernel_backend=backend)) as session:
                session.run(dt.global_variables_initializer())
                held = session.run(w)
                copy = held.copy()
                for _ in range(5):
                    session.run(step)
                np.testing.assert_array_equal(held, copy)
                return [session.run(w), session.run(loss)]

    for a, b in zip(trained("numba"), trained("numpy"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def layer(optimizer: Any) -> tuple[Any, Any, Any, Any]:
    """A dense layer of 300 x 400 and its training step: (fetches, feed, the variable, what initializes)."""
    rng = np.random.default_rng(5)
    x = dt.placeholder(dt.float32, [None, 300])
    w = dt.Variable(rng.standard_normal((300, 400)).astype(np.float32) / 20)
    loss = dt.reduce_mean(dt.square(dt.matmul(x, w)))
    return (
        [loss, optimizer().minimize(loss)],
        {x: rng.standard_normal((50, 300)).astype(np.float32)},
        w,
        dt.global_variables_initializer(),
    )


def test_a_value_that_somebody_holds_stays_what_it_was() -> None:
    with dt.Graph().as_default():
        fetches, feed, w, init = layer(lambda: dt.train.GradientDescentOptimizer(0.5))
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            session.run(init)
            held = session.run(w)
            copy = held.copy()
            session.run(fetches, feed)
            np.testing.assert_array_equal(held, copy)
            assert not np.array_equal(session.run(w), copy)
