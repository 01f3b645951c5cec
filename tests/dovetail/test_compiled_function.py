"""`dt.compile`: traces, variables, effects, plans; in this process and on a cluster."""

from __future__ import annotations

import collections
import dataclasses
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Pair = collections.namedtuple("Pair", "first second")


def layer(x: Any) -> Any:
    w = dt.get_variable("w", [3, 2], initializer=dt.ones_initializer())
    return dt.matmul(x, w) + dt.Variable(np.float32(1.0), name="b")


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


def test_traces_share_variables_and_slots():
    @dt.compile
    def step(x):
        y = layer(x)
        loss = dt.reduce_mean(dt.square(y))
        dt.train.AdamOptimizer(0.1).minimize(loss)  # not returned, and run all the same
        return loss

    with step:
        first = step(X)
        names = [v.name for v in step.variables]
        assert step(X) < first
        step(X[:2])
        assert [v.name for v in step.variables] == names and len(names) == 8  # w, b, two slots each, two powers
        assert step.session.run(step.variables[0]).shape == (3, 2)


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


def test_functions_share_variables():
    @dt.compile
    def train(x):
        dt.train.GradientDescentOptimizer(0.01).minimize(dt.reduce_sum(layer(x)))

    @dt.compile(share_with=train)
    def predict(x):
        return layer(x)

    with train:
        np.testing.assert_allclose(predict(X), X @ np.ones((3, 2)) + 1)
        assert train(X) is None
        np.testing.assert_allclose(
            predict(X), X @ (1 - 0.01 * X.sum(0)[:, None] * np.ones((1, 2))) + 1 - 0.08, rtol=1e-5
        )
        assert predict.session is train.session and len(train.variables) == 2
    with pytest.raises(TypeError, match="share_with"):
        dt.compile(predict, share_with=train, cluster={"worker": 1})


def test_the_owner_of_shared_variables_is_told_what_another_functions_trace_took_from_it():
    @dt.compile(cluster={"ps": 1, "worker": 1})
    def train(x):
        with dt.device("/job:ps"):
            w = dt.get_variable("w", [3, 2], initializer=dt.ones_initializer())
            b = dt.get_variable("b", [2], initializer=dt.ones_initializer())
        return dt.matmul(x, w) + b

    @dt.compile(share_with=train)
    def predict(x):
        with dt.device("/job:worker"):
            b = dt.get_variable("b", [2], initializer=dt.ones_initializer())
        return dt.matmul(x, dt.get_variable("w", [3, 2])) + b

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predict.plan(X), train.plan(X), train.plan(X[:2])  # noqa: B018
    assert [Path(w.filename) for w in caught] == [Path(__file__)]  # of w, once; b is where its maker asked for it
    text = str(caught[0].message)
    assert "'train/w' was made by 'predict' at" in text and "without a device and with the default initializer" in text
    assert "device block '/job:ps'" in text and "Call `train` or `train.plan` before `predict`" in text

    @dt.compile(share_with=train)
    def read(x):
        with dt.device("/job:worker"):
            return dt.matmul(x, dt.get_variable("w", [3, 2]))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read.plan(X)  # reads it on another device


def test_a_call_leaves_the_default_session_as_it_was() -> None:
    @dt.compile
    def step(x: Any) -> Any:
        return x * 2

    with step:
        step(X)
        assert dt.get_default_session() is None


def test_traces_share_the_weights_of_keras_layers_that_they_make() -> None:
    outside = dt.keras.layers.Dense(2)

    @dt.compile
    def step(x: Any) -> Any:
        hidden = dt.keras.Sequential([dt.keras.layers.Dense(5), dt.keras.layers.Dense(4)])(x)
        return dt.keras.layers.Dense(2, name="logits")(outside(dt.keras.layers.Dense(4)(hidden)))

    with step:
        np.testing.assert_allclose(step(X)[:1], step(X[:1]), rtol=1e-5)
        assert [v.op.name for v in step.variables if v.op.name.endswith("kernel")] == [
            "step/dense/kernel", "step/dense_1/kernel", "step/dense_2/kernel", "dense/kernel", "logits/kernel",
        ]  # fmt: skip

        @dt.compile(share_with=step)
        def other(x: Any) -> Any:
            return dt.keras.layers.Dense(7)(x)

        with pytest.raises(ValueError, match=r"needs weights 'kernel' of shape \(3, 7\).*shape \(3, 5\).*name="):
            other(X)


def test_a_layer_without_a_name_that_makes_new_variables_is_noticed() -> None:
    @dt.compile
    def train(x: Any) -> Any:
        return dt.layers.dense(x, 2, name="logits")

    @dt.compile(share_with=train)
    def predict(x: Any) -> Any:
        return dt.layers.dense(x, 2)

    @dt.compile(share_with=train)
    def score(x: Any) -> Any:
        return dt.layers.dense(dt.layers.dense(x, 2, name="logits"), 1, name="score")

    train(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score(X)
    with pytest.warns(
        UserWarning, match="'predict' makes a new variable 'train/dense/kernel'.*'train' has 'train/logits/kernel'"
    ) as found:
        predict(X)
        predict(X[:1])
    assert len(found) == 1 and found[0].filename == __file__


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


def test_another_functions_checkpoint_is_refused_and_its_function_named(tmp_path: Path):
    @dt.compile
    def train(x):
        return layer(x)

    @dt.compile
    def predict(x):
        return layer(x)

    with train, predict:
        train(X), predict(X)  # noqa: B018
        path = train.save(str(tmp_path / "model"))
        with pytest.raises(
            dt.errors.NotFoundError, match=r"(?s)predict/w not.*function 'train'.*share_with=train.*`def train`"
        ):
            predict.restore(path)
        dt.compile(lambda: dt.get_variable("more", initializer=1.0), share_with=predict)()
        with pytest.raises(dt.errors.NotFoundError) as e:
            predict.restore(path)
        assert "share_with" not in str(e.value)  # it lacks a variable, whatever its function is called


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


def test_variables_outlive_a_session_in_a_checkpoint(tmp_path: Path):
    @dt.compile
    def add(x):
        return dt.get_variable("v", initializer=1.0).assign_add(x)

    with add:
        assert (add(2.0), add(3.0)) == (3.0, 6.0)
        path = add.save(str(tmp_path / "model"))
    assert add(1.0) == 2.0  # a new session: first values
    add.restore(path)
    assert add(1.0) == 7.0
    add.close()


def test_saves_keep_all_checkpoints_and_do_not_grow_the_graph(tmp_path: Path):
    @dt.compile
    def count():
        return dt.get_variable("n", [], initializer=dt.zeros_initializer()).assign_add(1.0)

    with count:
        count()
        paths = [count.save(str(tmp_path / "0"))]
        nodes = len(count._home.graph.nodes)
        for n in range(1, 8):
            assert count() == n + 1
            paths.append(count.save(str(tmp_path / str(n))))
        assert len(count._home.graph.nodes) == nodes
        for n, path in enumerate(paths):
            count.restore(path)
            assert count() == n + 2


def test_a_plan_starts_nothing():
    @dt.compile(cluster={"ps": 1, "worker": 2})
    def step(x):
        with dt.device("/job:ps/task:0"):
            w = dt.get_variable("w", [3, 2])
        with dt.device("/job:worker/task:1"):
            return dt.matmul(x, w)

    plan = step.plan(X)
    assert plan.explain("step/MatMul").startswith("step/MatMul -> /job:worker/replica:0/task:1/device:CPU:0")
    assert step._home.opened is None


def test_a_wrong_name_of_a_node_is_answered_with_a_scopes_nodes_or_whole_names():
    plan = dt.compile(lambda x: dt.layers.dense(dt.layers.dense(x, 3, name="hidden"), 2)).plan(X)
    for name, said in (
        ("hidden", r"A scope has that name. Its nodes: lambda/hidden/kernel, .*\(16 in all\)"),
        ("lambda/dense", "A scope has that name. Its nodes: lambda/dense/kernel,"),
        ("MatMul", "Close names: lambda/hidden/MatMul, lambda/dense/MatMul"),
        ("lambda/dense/MatMull", "Close names: lambda/dense/MatMul,"),
        ("qqq", "names of Python's variables are not known"),
    ):
        with pytest.raises(KeyError, match=said):
            plan.explain(name)


def test_comparing_a_tensor_by_identity_is_warned_of_at_the_users_line():
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Holder) and self.held == other.held

        __hash__ = None

    def quiet(x, y):
        assert y in [x, y] and [x, y].index(y) == 1 and y not in {x: 1} and x is not y
        assert Holder(x) != Holder(y) and x != None and x != "text"  # noqa: E711
        ours, theirs = [x], (x, y)
        assert (
            [x] != [y]
            and ours != [y]
            and theirs == (x, y)
            and theirs
            != (
                y,
                x,
            )
        )
        return x

    def loud(x, y):
        w = dt.get_variable("w", [3])
        found = [x == y]
        found += [y != np.ones(3)]
        found += [np.ones(3) == y]
        found += [w == 0]
        assert found == [False, True, False, False]  # as in TensorFlow 1
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        dt.compile(quiet).plan(X, X)
        assert not caught
        step = dt.compile(loud)
        step.plan(X, X), step.plan(X[:2], X[:2])  # noqa: B018  (the second trace says nothing new)
        outside = dt.constant(X)
        assert outside != X  # no function is being traced: TensorFlow's programs may mean it
    first = loud.__code__.co_firstlineno
    assert [w.lineno - first for w in caught] == [2, 3, 4, 5] and caught[0].filename == __file__
    assert "dt.equal(a, b)" in str(caught[0].message)


def test_settings_and_names_of_other_libraries_are_told_where_they_belong():
    step = dt.compile(lambda x: x)
    with pytest.raises(TypeError, match=r"give `strategy` to dt.compile: @dt.compile\(strategy=...\)"):
        step.plan(X, strategy="auto")
    with pytest.raises(AttributeError, match="use variables"):
        step.parameters  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"dovetail.keras.layers' has no attribute 'Linear': use dt.keras.layers.Dense\(units\)"
    ):
        dt.keras.layers.Linear  # noqa: B018
    with pytest.raises(TypeError, match=r"dropout\(\) has no argument 'p': use rate"):
        dt.nn.dropout(dt.ones([2]), p=0.5)


def test_what_cannot_be_compiled_is_refused():
    def generator():
        yield 1

    for wrong in (3, generator):
        with pytest.raises(TypeError, match=r"dt.compile takes a function"):
            dt.compile(wrong)  # type: ignore[call-overload]
    module = type("Module", (), {"__module__": "torch.nn.modules.module", "__call__": lambda self, x: x})
    net = type("Net", (module,), {})()  # what PyTorch's are seen as; PyTorch itself need not be there
    with pytest.raises(
        TypeError, match=r"not a PyTorch module \(Net\): export it with torch.onnx.export.*dt.onnx.load"
    ):
        dt.compile(net)
    step = dt.compile(lambda x: x)
    with pytest.raises(TypeError, match="missing a required argument"):
        step()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="Variables to save|no variables|variable"):
        dt.compile(lambda x: x).save("nowhere")


def test_too_many_traces_are_warned_of():
    step = dt.compile(lambda x: x + 1)
    with step, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(1, 10):
            step(np.zeros(n, np.float32))
    told = [w for w in seen if "traced" in str(w.message)]
    assert [(str(w.message)[:43], w.filename) for w in told] == [
        ("lambda was traced 8 times for different sha", __file__)
    ]


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


def test_a_save_needs_variables_and_a_restore_a_checkpoint(tmp_path: Path):
    step = dt.compile(lambda x: x + dt.get_variable("v", initializer=1.0))
    with step:
        with pytest.raises(ValueError, match="has no variables yet: the first call, or `plan`, creates them"):
            step.save(str(tmp_path / "m"))
        with pytest.raises(ValueError, match="not a valid checkpoint"):
            step.restore(str(tmp_path / "m"))
        assert step(1.0) == 2.0  # nothing was kept of that


def test_a_restore_before_the_first_call_is_done_when_the_variables_are_made(tmp_path: Path):
    def functions() -> Any:
        def train(x):
            y = layer(x)
            dt.train.MomentumOptimizer(0.01, 0.9).minimize(dt.reduce_sum(y))
            return y

        owner = dt.compile(train)
        return owner, dt.compile(layer, share_with=owner)

    train, predict = functions()
    with train:
        train(X)
        expected, path = predict(X), train.save(str(tmp_path / "m"))
        trained = [train(X), train(X)]
    train, predict = functions()
    train.restore(path)
    with train:
        np.testing.assert_array_equal(predict(X), expected)  # w and b
        # And the momentum, which a later trace makes.
        np.testing.assert_allclose([train(X), train(X)], trained, rtol=1e-6)
    with train:
        assert not np.array_equal(predict(X), expected)  # after `close`, variables have first values

    @dt.compile
    def other(x):
        return layer(x)

    with other:
        other.restore(path)
        for _ in range(2):
            with pytest.raises(dt.errors.NotFoundError, match="function 'train'"):
                other(X)


def test_a_clash_with_the_variables_of_the_first_call_names_the_arguments():
    @dt.compile
    def net(x, n):
        return dt.layers.dense(dt.layers.dense(x, 2, name="dense"), 2), n  # warned of once

    with pytest.warns(UserWarning, match=r"'dense' makes float64 weights.*x\.astype\(np\.float32\)") as caught:
        net.plan(X.astype(np.float64), 1.0)
    assert [w.lineno for w in caught] == [net.__wrapped__.__code__.co_firstlineno + 2] and caught[
        0
    ].filename == __file__
    with pytest.raises(ValueError, match="found dtype float64") as error:
        net.plan(X, 1.0)
    assert error.value.__notes__[0] == "Argument `x` is float32 (4, 3); in the first call it was float64 (4, 3)"


def test_a_float64_argument_beside_a_float32_variable_is_named_in_the_error():
    step = dt.compile(lambda batch: batch["x"] @ dt.get_variable("w", [3, 2]))
    with pytest.raises(TypeError, match="not float64 and float32") as error:
        step.plan({"x": X.astype(np.float64)})
    assert error.value.__notes__[:1] == [
        "Argument `batch_x` is float64, as NumPy makes arrays unless told otherwise: pass it .astype(np.float32)"
    ]
    assert step.plan({"x": X}).fetches
    with pytest.raises(TypeError, match="bool") as error:  # its text lists the types that there could be
        dt.compile(lambda x: dt.mean(x > 0)).plan(X.astype(np.float64))
    assert not any("NumPy makes" in note for note in error.value.__notes__)


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


def test_gradients_by_a_dict_of_parameters_say_how():
    step = dt.compile(lambda params: dt.gradients(params["w"] * 2.0, params))
    with pytest.raises(TypeError, match="xs is a dict: pass a list"):
        step.plan({"w": X})

    @dt.compile
    def packed(params):
        return dt.nest.pack_sequence_as(params, dt.gradients(params["l"]["w"] * params["b"], dt.nest.flatten(params)))

    with packed:
        assert packed({"l": {"w": 2.0}, "b": 3.0}) == {"l": {"w": 3.0}, "b": 2.0}


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: {x}, "returns a set: return a list"),
        (lambda x: iter([x]), "returns a list_iterator: return a list"),
        (lambda x: dt.TensorArray(dt.float32, 1).write(0, x), r"returns a TensorArray: return its tensor, stack\(\)"),
    ],
)
def test_results_that_no_step_can_return_are_refused(make, message):
    step = dt.compile(lambda x: make(x))
    with pytest.raises(TypeError, match=message):
        step.plan(X)


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
        (Loader(), "type Loader, which is no array.*once for each batch"),
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


def test_a_cluster_is_checked_when_the_function_is_compiled(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("jobs: {worker: 2}\ndevices: {worker: [cpu:0, cpu:1]}\n")
    for cluster, devices in [
        ("worker=2", 2),
        (path, 4),
        (dt.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]}), 2),
    ]:
        plan = dt.compile(lambda x: x + 1, cluster=cluster).plan(1.0)
        assert len(plan.cluster.devices) == devices
    for wrong, message in [
        (3, r"numbers of tasks \(.*'ps=1,worker=2'\), the path of a cluster file.*not 3"),
        (["worker"], "`cluster` must be None, numbers"),
        ({"worker": "two"}, "a whole number of tasks from 0 on, or a list of addresses, not 'two'"),
        (str(tmp_path / "none.yaml"), "none.yaml"),
    ]:
        with pytest.raises((TypeError, ValueError, OSError), match=message):
            dt.compile(lambda x: x, cluster=wrong)


@pytest.mark.slow
def test_a_process_that_ended_is_named_at_once_and_close_starts_anew(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("jobs: {worker: 2}\n")

    @dt.compile(cluster=path)
    def count(x):
        with dt.device("/job:worker/task:1"):
            return dt.get_variable("n", initializer=0.0).assign_add(x)

    with count:
        assert count(2.0) == 2.0
        saved = count.save(str(tmp_path / "model"))
        count._home._started.kill("worker", 1)
        with pytest.raises(
            dt.errors.UnavailableError,
            match=r"task:1 was ended by signal 9\. `count` started it.*count\.restore\(path\)",
        ):
            count(1.0)
        count.close()
        count.restore(saved)
        assert count(1.0) == 3.0


def test_a_lost_task_of_ones_own_cluster_is_named_with_the_way_on(tmp_path: Path):
    with dt.LocalCluster({"ps": 1, "worker": 1}) as cluster:

        @dt.compile(cluster=cluster)
        def count(x):
            with dt.device("/job:ps"):
                return dt.get_variable("n", initializer=0.0).assign_add(x)

        with count:
            assert count(2.0) == 2.0
            saved = count.save(str(tmp_path / "model"))
            cluster.kill("ps", 0)
            with pytest.raises(
                dt.errors.UnavailableError,
                match=r"/job:ps/task:0 was ended.*start\(job, task\).*count\.restore\(path\)",
            ):
                count(1.0)
            cluster.start("ps", 0)
            count.close()
            count.restore(saved)
            assert count(1.0) == 3.0


def test_float_indices_are_answered_with_the_integer_type():
    @dt.compile
    def rows(ids):
        return dt.nn.embedding_lookup(dt.get_variable("table", [10, 4]), ids)

    with pytest.raises(TypeError, match="indices must be int32 or int64") as e:
        rows(np.array([3.0, 1.0]))
    assert "Argument `ids` is float64" in e.value.__notes__[0] and ".astype(np.int64)" in e.value.__notes__[0]


def test_variables_of_another_graph_and_of_another_shape_say_where_they_were_made():
    with dt.Graph().as_default():
        w = dt.get_variable("w", [3, 2])
    with pytest.raises(ValueError, match="of another graph.*make a variable inside the function, with dt.get_variable"):
        dt.compile(lambda x: dt.matmul(x, w)).plan(X)
    sizes = iter([4, 5])

    @dt.compile
    def step(x):
        return dt.get_variable("w", [next(sizes)]), x

    step.plan(X)
    with pytest.raises(
        ValueError, match=r"specified shape \(5,\) and found shape \(4,\)\. It was first created at .*test_"
    ):
        step.plan(X[:1])


@pytest.mark.parametrize("shown", ["user", "full"])
def test_errors_show_the_users_frames_alone(shown, monkeypatch):
    monkeypatch.setenv("DOVETAIL_TRACEBACK", shown)

    @dt.compile
    def step(x):
        return dt.matmul(x, x)

    def frames(call):
        with pytest.raises((TypeError, ValueError)) as e:
            call()
        text = "".join(traceback.format_exception(e.value))
        return [f.name for f in traceback.extract_tb(e.value.__traceback__)], text.count("DOVETAIL_TRACEBACK=full")

    for call in (lambda: step(X), lambda: step.plan(X), lambda: step.trace(X)):
        names, notes = frames(call)
        assert ("step" in names and len(names) > 4) if shown == "full" else names == ["frames", "<lambda>", "step"]
        assert notes == (shown == "user")
    assert (frames(lambda: step())[0] == ["frames", "<lambda>"]) == (shown == "user")


def test_names_of_other_libraries_are_answered():
    @dt.compile
    def step(x, scale=1.0):
        return x * scale

    with pytest.raises(AttributeError, match=r"no attribute 'lower': use plan\("):
        step.lower(X)
    with pytest.raises(TypeError, match="has no argument 'static_argnums': leave it out.*functools.partial"):
        dt.compile(step, static_argnums=1)
    with pytest.raises(TypeError, match="has no argument 'dynamic': use symbolic_batch"):
        dt.compile(dynamic=True)
    step.plan(X)
    assert repr(step) == "<dt.compile step(x, scale=1.0): 1 trace, 0 variables>"
    assert (
        repr(dt.compile(lambda: 1, cluster={"ps": 1})) == "<dt.compile lambda(): 0 traces, 0 variables, on {'ps': 1}>"
    )
