"""`dt.compile`: traces, variables, effects, plans; in this process and on a cluster."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np
import pytest

import dovetail as dt

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Pair = collections.namedtuple("Pair", "first second")


def test_arguments_and_results_are_structures():
    @dt.compile
    def step(pair, *rest, scale=2.0, names=None):
        assert names == ["a"]  # texts are constants of the trace
        return {"sum": pair.first + pair.second["y"], "rest": [r * scale for r in rest], "none": None, "op": dt.no_op()}

    with step:
        found = step(Pair(X, {"y": 1.0}), X, scale=3.0, names=["a"])
        np.testing.assert_array_equal(found["sum"], X + 1)
        np.testing.assert_array_equal(found["rest"][0], X * 3)
        assert found["none"] is None and found["op"] is None
        assert step(Pair(1, {"y": 2}), names=["a"])["sum"] == 3


class Scale:
    """A function that prints like others of its kind, and is not hashable."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x * self.by

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return "Scale"


def test_each_function_among_the_arguments_has_a_trace_of_its_own():
    @dt.compile
    def step(x, apply):
        return apply(x) if callable(apply) else x(apply)

    with step:
        # A lambda that is gone leaves its address, which is all that its text tells, to the next one.
        assert [step(1.0, lambda x: x * 2), step(1.0, lambda x: x * 3), step(lambda x: x * 4, 1.0)] == [2, 3, 4]
        scales = [Scale(5.0), Scale(6.0)]
        assert [step(1.0, s) for s in scales * 2] == [5, 6, 5, 6]
        assert [step(1.0, scales[0].__call__) for _ in range(2)] == [5, 5]
        assert "5 traces" in repr(step)


def test_a_text_that_names_what_an_array_is_in_the_key_of_a_trace_is_not_taken_for_one():
    @dt.compile
    def which(a, b):
        return 1 if isinstance(a, str) else 2 + a[0] * 0

    with which:
        assert [which((1.0,), "array"), which("array", (1.0,)), which((1.0,), "function")] == [2, 1, 2]


def test_numbers_and_arrays_of_numpy_keep_their_type():
    @dt.compile
    def third(x):
        return x / 3

    with third:
        assert third(np.float64(0.1)) == np.float64(0.1) / 3  # as float32 it would have lost digits
        for kind in (">f4", ">f8", ">i4", "<i4"):
            np.testing.assert_array_equal(third(np.arange(4).astype(kind)), np.arange(4).astype("=" + kind[1:]) / 3)


class TorchLike:
    """A tensor of another library, as far as this project uses one: NumPy reads it by `__array__`."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.value if dtype is None else self.value.astype(dtype)


class Loader:
    """An iterable of batches, as `torch.utils.data.DataLoader` is one: pairs of tensors in lists, the last batch smaller."""

    def __iter__(self) -> Any:
        for at in (0, 4, 8):
            rows = np.arange(at, min(at + 4, 10))
            yield [TorchLike(np.stack([rows] * 3, 1).astype(np.float32)), TorchLike(rows.astype(np.int64))]


def test_a_loader_of_another_library_feeds_steps():
    traced = []

    @dt.compile(symbolic_batch=True)
    def step(x, labels):
        traced.append((x.shape.as_list(), labels.dtype.name))
        return {"loss": dt.reduce_sum(x), "labels": labels}

    with step:
        found = [step(*batch) for batch in Loader()]
    assert [f["loss"] for f in found] == [18.0, 66.0, 51.0] and found[2]["labels"].tolist() == [8, 9]
    assert traced == [([None, 3], "int64")]


def test_a_function_is_traced_once_for_each_signature():
    traced = []

    @dt.compile
    def step(x, double=False):
        traced.append((x.dtype.name, x.shape.as_list(), double))
        return x * 2 if double else x

    with step:
        for _ in range(2):
            step(X), step(X[:2]), step(X, double=True), step(X.astype(np.float64)), step(X, False)  # noqa: B018
    assert traced == [
        ("float32", [4, 3], False), ("float32", [2, 3], False), ("float32", [4, 3], True), ("float64", [4, 3], False)
    ]  # fmt: skip


def test_with_a_symbolic_batch_all_batches_share_one_trace():
    traced = []

    @dt.compile(symbolic_batch=True)
    def total(x):
        traced.append(x.shape.as_list())
        return dt.reduce_sum(x)

    with total:
        assert [total(X[:n]) for n in (1, 2, 4)] == [X[:n].sum() for n in (1, 2, 4)]
        assert traced == [[None, 3]]
        small, large = (total.plan(np.ones((n, 3), np.float32)) for n in (1, 1000))
        assert dt.simulate(small).makespan < dt.simulate(large).makespan


def test_losses_updates_and_summaries_belong_to_their_trace():
    @dt.compile
    def step(x):
        y = dt.layers.dense(
            x, 1, use_bias=False, name="d", kernel_initializer=dt.ones_initializer(),
            kernel_regularizer=lambda w: dt.reduce_sum(w), activity_regularizer=dt.reduce_sum,
        )  # fmt: skip
        dt.losses.mean_squared_error(dt.zeros_like(y), y)
        dt.layers.batch_normalization(x, training=True, momentum=0.5, name="b")
        dt.add_to_collection("mine", dt.reduce_max(x))
        with dt.control_dependencies(dt.get_collection(dt.GraphKeys.UPDATE_OPS)):
            return dt.losses.get_total_loss(), dt.add_n(dt.get_collection("mine"))

    mean = np.zeros(3)
    with step:
        for rows in (4, 2, 3, 2):
            x = X[:rows] + rows
            total, largest = step(x)
            y = x.sum(1)
            np.testing.assert_allclose(total, np.mean(y * y) + y.mean() + 3, rtol=1e-6)
            assert largest == x.max()
            mean = (mean + x.mean(0)) / 2
            moving = next(v for v in step.variables if "moving_mean" in v.op.name)
            np.testing.assert_allclose(step.session.run(moving), mean, rtol=1e-6)


def test_a_call_leaves_the_default_session_as_it_was() -> None:
    @dt.compile
    def step(x: Any) -> Any:
        return x * 2

    with step:
        step(X)
        assert dt.get_default_session() is None


def test_placeholders_are_named_after_the_parameters():
    @dt.compile
    def step(batch, *rest, w=None, **more):
        v = dt.get_variable("w", [3, 2], initializer=dt.ones_initializer())  # as a parameter is called
        tensors = [batch["x"], batch["y z"][1].second, *rest, w, more["other"]]
        return [t.name for t in tensors], [dt.matmul(batch["x"], v)], [v.name]

    with step:
        names, _, variable = step({"x": X, "y z": [1, Pair(2, 3)]}, 4, 5, w=6, other=7)
        assert names == [
            f"step/arguments/{n}:0" for n in ("batch_x", "batch_y_z_1_second", "rest_0", "rest_1", "w", "other")
        ]
        assert variable == ["step/w:0"]


def test_every_effect_runs_once_in_each_call():
    @dt.compile
    def count(n):
        total = dt.get_variable("total", initializer=0.0)
        turns = dt.get_variable("turns", initializer=0, dtype=dt.int32)
        dt.while_loop(lambda i: i < n, lambda i: [turns.assign_add(1) * 0 + i + 1], [0])
        total.assign_add(1.0)

    with count:
        count(3), count(4)  # noqa: B018
        assert count.session.run(count.variables) == [2.0, 7]


def test_a_plan_starts_nothing():
    @dt.compile(cluster={"ps": 1, "worker": 2})
    def step(x):
        with dt.device("/job:ps/task:0"):
            w = dt.get_variable("w", [3, 2])
        with dt.device("/job:worker/task:1"):
            return dt.matmul(x, w)

    plan = step.plan(X)
    assert plan.explain("step/MatMul").startswith("step/MatMul -> /job:worker/replica:0/task:1/device:CPU:0")
    assert step._shared.opened is None


@pytest.mark.slow
def test_a_function_runs_on_a_cluster():
    @dt.compile(cluster={"ps": 1, "worker": 1})
    def step(x, y):
        with dt.device("/job:ps/task:0"):
            w = dt.get_variable("w", [3, 1], initializer=dt.zeros_initializer())
        with dt.device("/job:worker/task:0"):
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) - y))
        dt.train.GradientDescentOptimizer(0.001).minimize(loss)
        return loss

    planned = step.plan(X, X[:, :1])
    with step:
        losses = [step(X, X[:, :1]) for _ in range(20)]
        assert losses[-1] < losses[0]
        runs = step.plan(X, X[:, :1])  # of the session that is open now
        assert all(runs.decisions.device_of(n) == planned.decisions.device_of(n) for n in planned.decisions)
        assert "kernel" in str(step.trace(X, X[:, :1]))


@dataclasses.dataclass
class State:
    loss: Any
    name: str


@pytest.mark.parametrize("kind", ["reference", "resource", "partitioned"])
def test_a_variable_that_is_returned_comes_back_as_its_value_after_all_changes(kind):
    more = (
        {"partitioner": dt.fixed_size_partitioner(2)} if kind == "partitioned" else {"use_resource": kind == "resource"}
    )

    @dt.compile
    def step(x):
        w = dt.get_variable("w", [4], initializer=dt.ones_initializer(), **more)
        for part in w if kind == "partitioned" else [w]:
            part.assign_add(dt.ones(part.shape))
        return {"w": w, "state": State(w, "name"), "x": x}

    with step:
        for n in (2.0, 3.0):
            found = step(1.0)
            np.testing.assert_array_equal(found["w"], [n] * 4)
            assert isinstance(found["w"], np.ndarray) and found["state"].name == "name"
            np.testing.assert_array_equal(found["state"].loss, [n] * 4)
        assert "step/w" in str(step.plan(1.0).placement)


def test_gradients_of_rows_and_sparse_tensors_come_back_as_values():
    @dt.compile
    def step(ids):
        table = dt.get_variable("table", [5, 2], initializer=dt.ones_initializer())
        rows = dt.gradients(dt.reduce_sum(dt.gather(table, ids)), [table])
        return rows, dt.SparseTensor([[0, 1]], [3.0], [2, 2]), dt.no_op()

    with step:
        (rows,), sparse, nothing = step(np.array([1, 3]))
        assert rows.indices.tolist() == [1, 3] and rows.values.shape == (2, 2)
        assert sparse.values.tolist() == [3.0] and nothing is None
        step.plan(np.array([1, 3]))


def test_arguments_that_cannot_be_fed_are_refused_before_anything_is_traced():
    traced = []

    @dt.compile
    def f(batch, more=None):
        traced.append(batch)
        return batch

    with dt.Graph().as_default():
        of_a_graph = [dt.get_variable("outside", [2]), dt.constant(1.0)]
    for wrong, message in [
        (iter([X]), r"argument `batch` of f is of the type list_iterator.*for batch in batches: f\(batch\)"),
        (Loader(), "type Loader, which is neither an array.*once for each batch"),
        ({1, 2}, "type set"),
        (State(1.0, "a"), "type State.*a dict or a named tuple of its fields"),
        (object(), "type object.*pass arrays, numbers"),
        (of_a_graph[0], "part of a graph.*make it inside f, with dt.get_variable"),
        (of_a_graph[1], "part of a graph.*with ops, or pass an array"),
        (np.array(["2026-01-01"], "datetime64[D]"), r"holds datetime64\[D\]"),
    ]:
        with pytest.raises(TypeError, match=message):
            f(wrong)
        with pytest.raises(TypeError, match="argument `more_key_1` of f"):
            f(X, {"key": [X, wrong]})
    assert not traced
    with f:
        assert f(np.array(["text", b"bytes"], object)).tolist() == [b"text", b"bytes"]


def test_batch_sizes_of_parameters_and_names_of_arguments():
    @dt.compile(symbolic_batch=True)
    def f(x, params):
        return dt.matmul(x, params["w"])

    plan = f.plan(X, {"w": np.ones((3, 2), np.float32)})
    with pytest.raises(
        ValueError, match=r"batch=5 does not fit.*first size of 'f/arguments/x:0'.*'f/arguments/params_w:0'.*shapes="
    ):
        plan.scale(batch=[5])
    assert plan.at(shapes={"x": (64, 3)}).sizes.given["f/arguments/x:0"] == (64, 3)
    with pytest.raises(KeyError, match=r"No node is named 'MatMu'"):
        plan.at(shapes={"MatMu": (64, 3)})
    with pytest.raises(KeyError, match=r"No node is named 'matmul'\. Close names: f/MatMul\."):
        plan.explain("matmul")
