"""Every strategy trains the digits: the same program in each process, told apart by TF_CONFIG."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

SCRIPT = Path(__file__).parent / "scripts" / "train_with_strategy.py"


def alone(kind: str, steps: int = 200, batch: int = 64) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), kind, str(steps), str(batch)]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return _result(done.stdout.splitlines())


def together(kind: str, workers: int, ps: int = 0, steps: int = 200, batch: int = 64) -> list[dict[str, Any]]:
    """What each worker of a cluster says in the end."""
    jobs = {"worker": workers} | ({"ps": ps} if ps else {})
    command = [sys.executable, str(SCRIPT), kind, str(steps), str(batch)]
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mirrored", "central"])
def test_replicas_of_one_process(kind: str, reference: dict[str, Any]) -> None:
    found = alone(kind)
    assert found["accuracy"] >= 0.95
    assert found["steps"] == 200
    np.testing.assert_allclose(found["some"], reference["some"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_convolutional_net() -> None:
    command = [sys.executable, str(SCRIPT.with_name("convnet.py")), "1000", "0.98"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert _result(done.stdout.splitlines())["accuracy"] >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "workers"), [("ring", 2), ("multiworker", 4)])
def test_workers_in_step_are_one_process_with_the_whole_batch(
    kind: str, workers: int, reference: dict[str, Any]
) -> None:
    results = together(kind, workers)
    for found in results:
        assert found["accuracy"] >= 0.95
        assert found["steps"] == 200
        assert found["exactly"] == results[0]["exactly"]  # all workers have the same bits
        # Rounding differs from that of one process, and 200 steps of momentum let it grow.
        np.testing.assert_allclose(found["some"], reference["some"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_parameter_servers() -> None:
    results = together("ps", workers=2, ps=2, steps=400)
    assert all(r["accuracy"] >= 0.93 for r in results), results  # the workers are not in step: 0.95 to 0.98
    assert all(400 <= r["steps"] <= 402 for r in results)


@pytest.mark.slow
def test_a_killed_worker_ends_the_training_of_all_with_an_error_that_names_it() -> None:
    command = [sys.executable, str(SCRIPT), "multiworker", "1000000", "64"]
    with tf.LocalCluster({"worker": 3}, programs={"worker": command}, piped=["worker"]) as cluster:
        with tf.Session(
            cluster.target("worker", 0), config=tf.ConfigProto(device_filters=["/job:worker/task:0"])
        ) as session:
            step = tf.Variable(0, dtype=tf.int64, name="global_step", use_resource=True)
            with tf.device("/job:worker/task:0"):
                initialized = tf.is_variable_initialized(step)
            while not session.run(initialized) or session.run(step) < 20:
                pass
        cluster.process("worker", 1).send_signal(signal.SIGKILL)
        for i in (0, 2):
            text = cluster.process("worker", i).communicate(timeout=60)[0].decode()
            assert "/job:worker/replica:0/task:1" in text
            assert "Error" in text
            assert cluster.process("worker", i).returncode == 1


@pytest.mark.slow
def test_workers_hold_the_same_bits_after_every_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))  # the kernels that the first step compiles
    command = [sys.executable, str(SCRIPT.with_name("mirrored_bits.py")), "120"]
    with tf.LocalCluster({"worker": 2}, programs={"worker": command}, piped=["worker"]) as cluster:
        first, second = (_result(_lines(cluster, i)) for i in range(2))
    assert len(first) == 120
    assert first == second
