"""A model of layers under every strategy: the same program on one process and on a cluster, told apart by TF_CONFIG."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail import keras
from dovetail.tools.demo.data import load_digits

SCRIPT = Path(__file__).parent / "scripts" / "keras_model.py"
pytestmark = pytest.mark.timeout(240)  # several processes at once, on a machine that may be busy
EPOCHS = 8
STEPS = EPOCHS * 22  # 1,347 rows in batches of 64


def alone(kind: str) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), kind, str(EPOCHS), "64"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return _result(done.stdout.splitlines())


def together(kind: str, workers: int, ps: int = 0, epochs: int = EPOCHS) -> list[dict[str, Any]]:
    """What each worker of a cluster says in the end."""
    jobs = {"worker": workers} | ({"ps": ps} if ps else {})
    command = [sys.executable, str(SCRIPT), kind, str(epochs), "64"]
    with tf.LocalCluster(jobs, programs=dict.fromkeys(jobs, command), piped=jobs) as cluster:
        return [_result(_lines(cluster, i)) for i in range(workers)]


def _lines(cluster: tf.LocalCluster, worker: int) -> Any:
    for line in cluster.process("worker", worker).stdout:
        yield line.decode()


def _result(lines: Any) -> dict[str, Any]:
    seen = []
    for line in lines:
        if line.startswith("RESULT "):
            found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return found
        seen.append(line)
    raise AssertionError("no result; the process said:\n" + "".join(seen))


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """One process, one replica, the whole batch."""
    return alone("one")


def check(found: dict[str, Any], reference: dict[str, Any]) -> None:
    assert found["accuracy"] >= 0.95
    assert found["own"] == pytest.approx(found["accuracy"])
    assert found["steps"] == STEPS
    for mine, theirs in zip(found["some"], reference["some"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4)  # rounding, grown over the steps
    for label in ("loss", "accuracy"):
        np.testing.assert_allclose(found["history"][label], reference["history"][label], rtol=1e-2, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_replicas_of_one_process(kind: str, reference: dict[str, Any]) -> None:
    check(alone(kind), reference)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("multiworker", 2), ("ring", 3)])
def test_workers_in_step_are_one_process_with_the_whole_batch(
    kind: str, workers: int, reference: dict[str, Any]
) -> None:
    results = together(kind, workers)
    for found in results:
        check(found, reference)
        assert found["exactly"] == results[0]["exactly"]  # all workers have the same bits, moving averages included
        assert found["history"] == results[0]["history"]


@pytest.mark.slow
def test_parameter_servers() -> None:
    results = together("ps", workers=2, ps=2, epochs=2 * EPOCHS)  # the rate falls by the steps of both
    assert all(r["accuracy"] >= 0.93 for r in results), results  # the workers are not in step
    assert max(r["steps"] for r in results) == 4 * STEPS


@pytest.mark.slow
@pytest.mark.timeout(290)
def test_a_small_convolutional_net_reads_digits() -> None:
    digits = load_digits()
    images, tests = (x.reshape(-1, 8, 8, 1) for x in (digits.train_images, digits.test_images))
    tf.set_random_seed(1)
    layers = keras.layers
    model = keras.models.Sequential(
        [
            layers.Conv2D(16, 3, padding="same", activation="relu", input_shape=(8, 8, 1)),
            layers.BatchNormalization(momentum=0.9),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.25),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, 14 * 43)
    model.compile(keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(images, digits.train_labels, batch_size=32, epochs=14, verbose=0)
    _, accuracy = model.evaluate(tests, digits.test_labels, verbose=0)
    assert accuracy >= 0.98


@pytest.mark.slow
def test_workers_go_on_after_one_was_killed(tmp_path: Path) -> None:
    def cluster(folder: Path) -> tf.LocalCluster:
        command = [sys.executable, str(SCRIPT.with_name("keras_backup.py")), str(folder), "5"]
        # NumPy's kernels alone: when compiled ones take over, which round otherwise, is a matter of time.
        exact = {"DOVETAIL_BACKEND": "numpy"}
        return tf.LocalCluster({"worker": 2}, programs={"worker": command}, piped=["worker"], environment=exact)

    def go_on(running: tf.LocalCluster, worker: int, epochs: int) -> None:
        pipe = running.process("worker", worker).stdin
        assert pipe is not None
        pipe.write(b"\n" * epochs)
        pipe.flush()

    def to_the_end(folder: Path) -> list[list[str]]:
        with cluster(folder) as running:
            for i in range(2):
                go_on(running, i, 5)
            said = [[line.strip() for line in _lines(running, i)] for i in range(2)]
        assert not list(folder.glob("*/*"))  # only the chief has written, and has deleted what is no longer needed
        return [[line for line in lines if line.startswith(("EPOCH", "RESULT"))] for lines in said]

    whole = to_the_end(tmp_path)
    assert whole[0] == whole[1] and whole[0][:-1] == [f"EPOCH {i}" for i in range(5)]
    with cluster(tmp_path) as running:
        for i in range(2):
            go_on(running, i, 2)
        assert any(line.startswith("EPOCH 2") for line in _lines(running, 0))  # three epochs are kept
        running.kill("worker", 1)
        go_on(running, 0, 1)
        rest = list(_lines(running, 0))
        assert running.process("worker", 0).wait(60) != 0 and "/task:1" in "".join(rest), "".join(rest)
    assert to_the_end(tmp_path) == [["EPOCH 3", "EPOCH 4", whole[0][-1]]] * 2
