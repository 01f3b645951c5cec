"""`dovetail cluster`: real processes, started from a file, kept up, stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import dovetail as tf
from dovetail.distribute.launchers.supervisor import FIRST_PAUSE_S, MOST_PAUSE_S, LocalSupervisor
from dovetail.tools.cli.lock_file import UpFile, read_up, restart, stop, up_path

ROOT = Path(__file__).resolve().parents[4]
WAIT_S = 30.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


class Process:
    """A process that does as it is told."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.pid = 1

    def poll(self) -> int | None:
        return self.code


class Cluster:
    """A cluster of one such process."""

    tasks = [("ps", 0)]

    def __init__(self) -> None:
        self.one = Process()
        self.started = 0

    def process(self, job: str, i: int) -> Process:
        return self.one

    def start(self, job: str, i: int) -> None:
        self.started += 1
        self.one.code = None


class TestSupervisor:
    def test_what_ends_is_started_again_later_each_time(self) -> None:
        cluster, said, now = Cluster(), list[str](), [0.0]
        supervisor = LocalSupervisor(cluster, said.append, clock=lambda: now[0])  # type: ignore[arg-type]
        assert not supervisor.poll()
        pauses = []
        for _ in range(8):
            cluster.one.code = -9
            ended = now[0]
            before = cluster.started
            while cluster.started == before:
                supervisor.poll()
                now[0] += 0.25
            pauses.append(now[0] - 0.25 - ended)
        assert pauses == [min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**k) for k in range(8)]
        assert said[:2] == [
            "/job:ps/task:0 was ended by signal 9; it restarts in 1 s",
            "/job:ps/task:0 was restarted",
        ]
        now[0] += 1000.0  # it has been steady for long
        supervisor.poll()
        cluster.one.code = 3
        supervisor.poll()
        assert said[-1] == "/job:ps/task:0 ended with status 3; it restarts in 1 s"

    def test_it_can_be_told_to_leave_them(self) -> None:
        cluster, said = Cluster(), list[str]()
        supervisor = LocalSupervisor(cluster, said.append, restart=False)  # type: ignore[arg-type]
        assert not supervisor.all_ended
        cluster.one.code = 1
        assert supervisor.poll()
        assert not supervisor.poll()
        assert supervisor.all_ended
        assert said == ["/job:ps/task:0 ended with status 1"]


class TestUpFile:
    def test_there_is_one_supervisor(self, tmp_path: Path) -> None:
        file = tmp_path / "c.yaml"
        with UpFile(file) as held:
            held.write({"a": "zmq://x"}, {"a": 1})
            held.write({}, {"/job:b/task:0": 2})
            assert read_up(file)["processes"] == {"/job:b/task:0": 2}
            with pytest.raises(FileExistsError, match="up already"):
                UpFile(file)
            with pytest.raises(LookupError, match="no task 'c:0'. Its tasks: /job:b/task:0"):
                restart(file, "c:0")
        assert not up_path(file).exists()
        with pytest.raises(FileNotFoundError, match="is not up"):
            stop(file)

    def test_what_was_left_behind_is_no_cluster(self, tmp_path: Path) -> None:
        up_path(tmp_path / "c.yaml").write_text('{"keeper": 1, "processes": {}}')
        with pytest.raises(FileNotFoundError, match="is not up"):
            read_up(tmp_path / "c.yaml")


@pytest.mark.slow
def test_up_restart_stop(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("jobs: {ps: 1, worker: 1}\n")

    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "dovetail", "cluster", *words]

    with subprocess.Popen(command("up", str(file)), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[0].startswith("/job:ps/task:0  zmq://localhost:")
            assert lines[2].startswith("Up. Stop it with Ctrl-C or: ")
            until(lambda: up_path(file).stat().st_size > 0, "the supervisor has written")
            found = read_up(file)
            with tf.Graph().as_default(), tf.Session(found["targets"]["/job:worker/task:0"]) as session:
                assert session.run(tf.constant(1) + 1) == 2
            subprocess.run(command("restart", str(file), "ps:0"), cwd=ROOT, check=True)
            assert "/job:ps/task:0 " in process.stdout.readline()
            assert "was restarted" in process.stdout.readline()
            until(
                lambda: read_up(file)["processes"]["/job:ps/task:0"] != found["processes"]["/job:ps/task:0"],
                "it is new",
            )
            subprocess.run(command("down", str(file)), cwd=ROOT, check=True)
            assert process.wait(WAIT_S) == 0
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
    for pid in read_pids(found):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_cluster_in_the_background_is_found_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("jobs: {ps: 1, worker: 1}\n")
    (tmp_path / "program.py").write_text(
        "import dovetail as dt\ndef build():\n    with dt.device('/job:ps'):\n        v = dt.Variable([1.0, 2.0])\n    return v * 2.0\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dovetail", *words]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )

    up = run("up", "-d", "cluster.yaml")
    try:
        assert up.returncode == 0, up.stderr
        pids = read_pids(read_up(tmp_path / "cluster.yaml"))
        assert up.stdout.splitlines()[-1] == "Up. Stop it with: dovetail down cluster.yaml"
        again = run("up", "-d", "cluster.yaml")
        assert again.returncode == 1 and "is up already" in again.stderr
        assert len(run("devices", "--target", "cluster.yaml").stdout.splitlines()) == 2
        traced = run("trace", "program.py:build", "--cluster", "cluster.yaml", "--trace", "step.json")
        assert traced.returncode == 0 and "/job:worker/task:0/CPU:0" in traced.stdout, traced.stderr
        assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]
        status = run("status", "cluster.yaml")
        assert status.returncode == 0 and "p99" in status.stdout and "/job:ps/task:0" in status.stdout
        assert run("top", "cluster.yaml", "--count", "1").returncode == 0
    finally:
        down = run("down", "cluster.yaml")
    assert (down.returncode, down.stdout) == (0, "Stopped.\n")
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert run("down", "cluster.yaml").returncode == 1
    lost = run("status", "cluster.yaml")
    assert lost.returncode == 2 and "has numbers of tasks instead of addresses, and is not up" in lost.stderr
    (tmp_path / "bad.yaml").write_text("jobs: {ps: [elsewhere:1]}\n")
    bad = run("up", "-d", "bad.yaml")
    assert bad.returncode == 1 and "is not an address of this machine" in bad.stderr


def read_pids(found: dict[str, dict[str, int]]) -> list[int]:
    return list(found["processes"].values())
