"""Variables of compiled functions: shared by traces and functions, saved and restored, and kept by a cluster."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def layer(x: Any) -> Any:
    w = dt.get_variable("w", [3, 2], initializer=dt.ones_initializer())
    return dt.matmul(x, w) + dt.Variable(np.float32(1.0), name="b")


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
        nodes = len(count._shared.graph.nodes)
        for n in range(1, 8):
            assert count() == n + 1
            paths.append(count.save(str(tmp_path / str(n))))
        assert len(count._shared.graph.nodes) == nodes
        for n, path in enumerate(paths):
            count.restore(path)
            assert count() == n + 2


def test_a_save_needs_variables_and_a_restore_a_checkpoint(tmp_path: Path):
    step = dt.compile(lambda x: x + dt.get_variable("v", initializer=1.0))
    with step:
        with pytest.raises(
            ValueError, match="has no variables yet. Call lambda or lambda.plan first, which creates them"
        ):
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
        count._shared._started.kill("worker", 1)
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
