"""The usual trainer of a cluster, in real processes: synchronous, asynchronous, and when a parameter server is killed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

SCRIPT = Path(__file__).parent / "scripts" / "trainer.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def data(tmp_path: Path, digits: Any) -> str:
    np.savez(tmp_path / "digits.npz", x=digits.train_x, y=digits.train_y)
    return str(tmp_path / "digits.npz")


def trainer(data: str, folder: Path, **flags: Any) -> list[str]:
    given = {"data": data, "checkpoint_dir": folder / "checkpoints", "report": folder, **flags}
    return [sys.executable, str(SCRIPT), *(f"--{name}={value}" for name, value in given.items())]


def reports(folder: Path, workers: int) -> list[tuple[int, list[np.ndarray[Any, Any]]]]:
    found = []
    for i in range(workers):
        with np.load(folder / f"worker{i}.npz") as loaded:
            found.append((int(loaded["step"]), [loaded[f"arr_{k}"] for k in range(4)]))
    return found


def accuracy(weights: list[np.ndarray[Any, Any]], digits: Any) -> float:
    w1, b1, w2, b2 = weights
    logits = np.tanh(digits.test_x @ w1 + b1) @ w2 + b2
    return float(np.mean(np.argmax(logits, 1) == digits.test_y))


def momentum_by_hand(
    weights: list[np.ndarray[Any, Any]], batches: list[tuple[Any, Any]], rate: float
) -> list[np.ndarray[Any, Any]]:
    """The same training in one process, with plain NumPy in double precision."""
    w1, b1, w2, b2 = (w.astype(np.float64) for w in weights)
    velocity = [np.zeros_like(w) for w in (w1, b1, w2, b2)]
    for x, y in batches:
        hidden = np.tanh(x @ w1 + b1)  # smooth: rounding can't switch a unit off
        scores = hidden @ w2 + b2
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        p /= len(y)
        back = (p @ w2.T) * (1 - hidden**2)
        for k, g in enumerate((x.T @ back, back.sum(0), hidden.T @ p, p.sum(0))):
            velocity[k] = 0.9 * velocity[k] + g
        w1, b1, w2, b2 = (w - rate * v for w, v in zip((w1, b1, w2, b2), velocity, strict=True))
    return [w1, b1, w2, b2]


def test_synchronous_workers_train_as_one_process_with_their_batches_together(
    tmp_path: Path, data: str, digits: Any
) -> None:
    workers, rows, steps = 3, 32, 30
    command = trainer(data, tmp_path, sync=True, steps=steps, batch_size=rows, learning_rate=0.1)
    with tf.LocalCluster({"ps": 2, "worker": workers}, programs={"worker": command, "ps": command}) as cluster:
        assert cluster.wait("worker", 90) == [0] * workers
    start = [
        tf.train.load_variable(str(tmp_path / "checkpoints" / "model.ckpt-0"), n) for n in ("w1", "b1", "w2", "b2")
    ]
    batches = []
    for batch in range(steps):
        firsts = [(batch * workers + i) * rows % (len(digits.train_y) - rows + 1) for i in range(workers)]
        picked = np.concatenate([np.arange(f, f + rows) for f in firsts])
        batches.append((digits.train_x[picked].astype(np.float64), digits.train_y[picked]))
    expected = momentum_by_hand(start, batches, 0.1)
    for step, weights in reports(tmp_path, workers):
        assert step == steps
        for found, wanted in zip(weights, expected, strict=True):
            np.testing.assert_allclose(found, wanted, atol=2e-5)
    moved = max(np.abs(w - s).max() for w, s in zip(expected, start, strict=True))
    assert moved > 0.05  # or the comparison would say nothing


def test_asynchronous_workers_reach_the_accuracy_with_flags_for_hosts(
    tmp_path: Path, data: str, digits: Any, start: Any, addresses: Callable[[int], list[str]]
) -> None:
    ps, first, second = addresses(3)
    common = [
        f"--ps_hosts={ps}",
        f"--worker_hosts={first},{second}",
        *trainer(data, tmp_path, steps=600, learning_rate=0.05)[2:],
    ]
    start("trainer.py", *common, "--job_name=ps")
    running = [start("trainer.py", *common, "--job_name=worker", f"--task_index={i}") for i in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
    for step, weights in reports(tmp_path, 2):
        assert step >= 600
        assert accuracy(weights, digits) >= 0.93  # the workers are not in step
    assert tf.train.load_variable(str(tmp_path / "checkpoints"), "global_step") >= 600
    assert list((tmp_path / "checkpoints").glob("events.out.tfevents.*"))


def wait_for(what: Callable[[], Any], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize(("victim", "sync"), [(0, True), (1, True), (1, False)])
def test_a_killed_parameter_server_costs_only_the_steps_since_the_last_checkpoint(
    tmp_path: Path, data: str, digits: Any, victim: int, sync: bool
) -> None:
    steps = 1500  # enough for the kill to come in the middle
    command = trainer(data, tmp_path, sync=sync, steps=steps, save_steps=25, learning_rate=0.05)
    saved = tmp_path / "checkpoints"

    def step() -> int:
        latest = tf.train.latest_checkpoint(str(saved)) if saved.exists() else None
        return int(latest.rpartition("-")[2]) if latest else -1

    with tf.LocalCluster({"ps": 2, "worker": 2}, programs={"worker": command}) as cluster:
        wait_for(lambda: step() >= 50)
        process = cluster.process("ps", victim)
        process.kill()
        process.wait()
        assert step() < steps, "training had ended before the kill"
        cluster.start("ps", victim)
        assert cluster.wait("worker", 80) == [0, 0]
    for at, weights in reports(tmp_path, 2):
        assert at >= steps
        assert accuracy(weights, digits) >= 0.93
    assert step() >= steps
