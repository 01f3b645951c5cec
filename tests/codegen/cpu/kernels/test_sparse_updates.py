"""Compiled updates of the rows that a gradient names, against the references."""

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.fusion.optimizer_loops import sparse_update_of
from dovetail.codegen.fusion.table_loops import added

pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.module import source_of  # noqa: E402
from dovetail.codegen.cpu.schedule import schedule_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")

CHECKED = dt.ConfigProto(kernel_backend="numba", kernel_check=2)
OPTIMIZERS = {
    "descent": lambda: dt.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: dt.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: dt.train.AdagradOptimizer(0.1),
    "adam": lambda: dt.train.AdamOptimizer(0.1),
}


def step_of(optimizer: str, shape: tuple[int, ...], dtype: str, *, use_resource: bool) -> tuple[Any, Any, Any]:
    """A table, numbers of its rows, and a step of training that they have a part in."""
    start = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    table = dt.get_variable("table", initializer=start, use_resource=use_resource)
    ids = dt.placeholder(dt.int64, [None])
    loss = dt.reduce_sum(dt.square(dt.gather(table, ids)))
    return table, ids, OPTIMIZERS[optimizer]().minimize(loss)


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_rows_that_are_named_once_or_often(optimizer: str, use_resource: bool) -> None:
    for shape, dtype in ([(50, 7), "float32"], [(30, 3, 2), "float64"]):
        with dt.Graph().as_default():
            table, ids, train = step_of(optimizer, shape, dtype, use_resource=use_resource)
            with dt.Session(config=CHECKED) as session:
                session.run(dt.global_variables_initializer())
                (own,) = session.plan(train, {ids: [1]}).kernels("cpu:0").own
                assert "SparseApply" in own.step.type
                held = session.run(table)
                before = held.copy()
                for rows in ([1, 2, 3], [4, 4, 0, 4], [*range(20), *range(20)], []):
                    session.run(train, {ids: rows})  # and each is compared with the reference
                np.testing.assert_array_equal(held, before)
                changed = (session.run(table) != before).reshape(len(before), -1).any(1)
                assert changed[:20].all() and not changed[20:].any()


def test_rows_of_a_large_gradient_are_summed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.codegen.cpu.kernels.optimizer.LONE_UPDATE_BYTES", 0)
    test_rows_that_are_named_once_or_often("descent", use_resource=True)


def test_a_row_that_is_not_there_changes_nothing() -> None:
    with dt.Graph().as_default():
        table, ids, _ = step_of("descent", (5, 2), "float32", use_resource=True)
        rate, rows = dt.constant(0.5), dt.ones([2, 2])
        change = dt.get_default_graph().create(
            "ResourceSparseApplyGradientDescent", (table.handle, rate, rows, ids), {"use_locking": False}
        )
        with dt.Session(config=CHECKED) as session:
            session.run(dt.global_variables_initializer())
            before = session.run(table)
            for wrong in ([0, 5], [-1, 0]):
                with pytest.raises(dt.errors.InvalidArgumentError, match="ResourceSparseApplyGradientDescent"):
                    session.run(change, {ids: wrong})
            np.testing.assert_array_equal(session.run(table), before)


def test_text_of_an_update() -> None:
    with dt.Graph().as_default():
        *_, train = step_of("descent", (5, 2), "float32", use_resource=True)
        node = next(n for n in train.graph.nodes if "SparseApply" in n.type)
        found = sparse_update_of(node)
    assert found is not None
    sums = added(found.dtype, found.index)
    assert str(found.sparse()).splitlines()[-1] == "  store out0[v0, d1] = v5"
    assert str(sums).splitlines()[-1] == "  add out0[v1, d1] += v0"
    assert "if lo <= v1 < hi:" in source_of(sums, schedule_of(sums)).text
