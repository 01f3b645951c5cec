"""`train_and_evaluate`, the same program in every process, told apart by TF_CONFIG: chief, workers, parameter servers, evaluator."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dovetail as tf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]
LIMIT_S = 270  # for what ends on an event

Tasks = dict[tuple[str, int], "subprocess.Popen[str]"]


@pytest.fixture
def tasks(start: Any, addresses: Callable[[int], list[str]], tmp_path: Path) -> Callable[..., Any]:
    """`tasks({"worker": 2}, "ps", steps)` gives a function that starts a task of such a cluster."""

    def cluster(jobs: dict[str, int], strategy: str, steps: int) -> Callable[[str, int], subprocess.Popen[str]]:
        spec = {job: addresses(count) for job, count in jobs.items()}

        def begin(job: str, index: int = 0, **environment: str) -> subprocess.Popen[str]:
            place = json.dumps({"cluster": spec, "task": {"type": job, "index": index}})
            found: subprocess.Popen[str] = start(
                "estimator.py", str(tmp_path / "model"), str(steps), strategy, TF_CONFIG=place, **environment
            )
            return found

        return begin

    return cluster


def results(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What a task says until it ends, which it must do well."""
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return [json.loads(line.removeprefix("RESULT ")) for line in output.splitlines() if line.startswith("RESULT ")]


def line_with(process: subprocess.Popen[str], what: str) -> str:
    """The next line on a task's error output that contains a text."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if what in line:
            return line
        seen.append(line)
    raise AssertionError(f"the task ended without saying {what!r}:\n" + "".join(seen))


def events(folder: Path) -> list[Path]:
    return list(folder.glob("events.out.tfevents.*"))


@pytest.mark.parametrize("strategy", ["none", "ps", "ready"])
def test_chief_workers_servers_and_evaluator(strategy: str, tasks: Any, tmp_path: Path) -> None:
    begin = tasks({"chief": 1, "worker": 1, "ps": 2}, strategy, 400)
    servers = [begin("ps", 0), begin("ps", 1)]
    evaluator = begin("evaluator")
    trainers = [begin("worker"), begin("chief")]
    for process in trainers:
        (found,) = results(process)
        assert found["step"] >= 400
    evaluations = results(evaluator)
    assert [e["step"] for e in evaluations] == sorted({e["step"] for e in evaluations})
    assert evaluations[-1]["step"] >= 400
    assert evaluations[-1]["mean"] >= 0.93
    assert all(s.poll() is None for s in servers)
    model = tmp_path / "model"
    assert len(events(model)) == 1  # the chief's alone
    assert len(events(model / "eval")) == 1
    latest = tf.train.latest_checkpoint(str(model))
    assert latest is not None
    # The workers are not in step: the chief may find another's step at its end, after a checkpoint that the evaluator took as the last.
    assert tf.train.load_variable(latest, "global_step") >= evaluations[-1]["step"]


def test_workers_in_step_wait_for_the_last_and_end_alike(tasks: Any, tmp_path: Path) -> None:
    begin = tasks({"worker": 2}, "multiworker", 400)
    first = begin("worker", 0)
    assert "/job:worker/replica:0/task:1" in line_with(first, "Waiting for")
    assert not list((tmp_path / "model").glob("model.ckpt*"))
    second, evaluator = begin("worker", 1), begin("evaluator")
    (one,), (other,) = results(first), results(second)
    assert one["step"] == other["step"] == 400
    assert one["exactly"] == other["exactly"]
    assert results(evaluator)[-1]["mean"] >= 0.95
    assert len(events(tmp_path / "model")) == 1  # the first worker is chief where none is named


@pytest.mark.parametrize("victim", [0, 1])
def test_workers_in_step_go_on_from_the_checkpoint_when_one_was_killed(victim: int, tasks: Any, tmp_path: Path) -> None:
    begin = tasks({"worker": 2}, "multiworker", 200)
    go = tmp_path / "go"
    # The other worker stops at step 100, so the victim waits for it in a collective when it is killed.
    running = [begin("worker", i, **({} if i == victim else {"HOLD": str(go)})) for i in range(2)]
    while not tf.train.checkpoint_exists(str(tmp_path / "model" / "model.ckpt-50")):
        assert all(p.poll() is None for p in running)
        time.sleep(0.02)
    running[victim].kill()
    running[victim].wait()
    running[victim] = begin("worker", victim)
    go.touch()
    (one,), (other,) = (results(p) for p in running)
    assert one["step"] == other["step"] == 200
    assert one["exactly"] == other["exactly"]
