"""Bad input and bad luck: each gives an error of the right class that names the thing and the remedy, in bounded time."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoing import Connection

import dovetail as tf
from dovetail.runtime.rpc import pending_call
from dovetail.runtime.wire.messages import Message

BOUND_S = 8.0  # the peer timeout is 5 s; the rest is for slow machines


class Timed:
    """Fails when what is inside takes longer than the bound."""

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        assert time.monotonic() - self.began < BOUND_S


# --- servers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster_def", "job", "task", "error", "says"),
    [
        ({"ps": ["localhost:0"], "worker": ["localhost:0"]}, None, None, ValueError, "job_name"),
        ({"ps": ["localhost:0", "localhost:0"]}, "ps", None, ValueError, "task_index"),
        ({"ps": ["localhost:0"]}, "worker", 0, tf.errors.InvalidArgumentError, "no job 'worker'"),
        ({"ps": ["localhost:0"]}, "ps", 3, tf.errors.InvalidArgumentError, "no task 3"),
        ({"ps": ["localhost:0"]}, "ps", "0", TypeError, "`task_index` must be a whole number, not '0'"),
        ({"ps": ["localhost"]}, "ps", 0, tf.errors.InvalidArgumentError, "no port"),
        ({"ps": "localhost:0"}, "ps", 0, TypeError, "localhost:0"),
    ],
)
def test_a_server_that_cannot_be(cluster_def: Any, job: Any, task: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        tf.train.Server(cluster_def, job, task)


def test_an_unknown_protocol() -> None:
    with pytest.raises(tf.errors.NotFoundError, match="carrier-pigeon"):
        tf.train.Server({"a": ["localhost:0"]}, protocol="carrier-pigeon")


def test_a_port_in_use_names_it_and_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(tf.errors.UnknownError, match=f"{port}.*choose another port"):
            tf.train.Server({"a": [f"localhost:{port}"]})


def test_an_address_that_others_can_reach_needs_to_be_asked_for() -> None:
    with pytest.raises(PermissionError, match="insecure"):
        tf.train.Server({"a": ["0.0.0.0:0"]})


def test_a_stopped_server_cannot_be_started_again() -> None:
    server = tf.train.Server.create_local_server()
    server.stop()
    server.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        server.start()


def test_stopping_a_server_ends_join() -> None:
    server = tf.train.Server.create_local_server()
    waiting = threading.Thread(target=server.join)
    waiting.start()
    server.stop()
    waiting.join(5)
    assert not waiting.is_alive()


# --- bad luck ----------------------------------------------------------------------------------------------------------


def test_nobody_at_the_target() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"localhost:{reserved.getsockname()[1]}"
        with Timed(), pytest.raises(tf.errors.UnavailableError, match=address):
            tf.Session(f"zmq://{address}")


def test_nobody_at_the_target_is_no_matter_of_filters_alone() -> None:
    config = tf.ConfigProto(peer_timeout_s=0.5)
    says = r"while this request for a session waited.*make a session on another task, with device_filters"
    with pytest.raises(tf.errors.UnavailableError, match=says):
        tf.Session("grpc://localhost:1", config=config)


@pytest.mark.slow
def test_a_dead_task_whose_variable_is_needed_is_named_with_the_variable_and_how_it_ended() -> None:
    """It takes no part in the step but that its variable is read."""
    with tf.device("/job:a"):
        v = tf.Variable(1.0, name="v")
    with tf.device("/job:b"):
        twice = v * 2.0
    config = tf.ConfigProto(peer_timeout_s=1.0)
    with tf.LocalCluster({"a": 1, "b": 1}) as pair, tf.Session(pair.target("b"), config=config) as session:
        session.run(v.initializer)
        assert session.run(twice) == 2
        pair.kill("a", 0)
        with Timed(), pytest.raises(tf.errors.UnavailableError) as e:
            session.run(twice)
        at = pair.cluster_spec.task_address("a", 0)
        for part in (
            "s for 'v/read:0' from /job:a/replica:0/task:0/device:CPU:0. ",
            f"/job:a/replica:0/task:0 at {at} does not answer",
            "start it again, and restore or initialise its variables. Then run the step again.",
            f" The process at {at} was ended by signal 9.",
        ):
            assert part in e.value.message
        with Timed(), pytest.raises(tf.errors.UnavailableError, match="while this preparation of a step") as e:
            session.run(v + 1.0)
        assert f" The process at {at} was ended by signal 9." in e.value.message


def test_tasks_that_run_and_do_not_answer_in_time_are_told_from_those_that_ended(tmp_path: Path) -> None:
    idle = {"a": [sys.executable, "-c", "import sys; sys.stdin.read()"]}
    with pytest.raises(
        tf.errors.UnavailableError, match=r"No answer within 0 s from /job:a/task:0 .*\. They run: .*start_timeout_s"
    ):
        tf.LocalCluster({"a": 1}, programs=idle, start_timeout_s=0.2)


def test_output_that_others_hold_delays_the_end_once_only() -> None:
    """Each task has started a process that holds its output."""
    program = "import subprocess, sys; subprocess.Popen(['sleep', '20'], stdin=subprocess.DEVNULL); sys.stdin.read()"
    said: list[str] = []
    cluster = tf.LocalCluster(
        {"a": 4},
        programs={"a": [sys.executable, "-c", program]},
        start_timeout_s=None,
        output=lambda job, i, line: said.append(line),
    )
    with Timed():
        cluster.close()


def test_a_missing_task_is_named_and_can_be_filtered_out() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        missing = f"localhost:{reserved.getsockname()[1]}"
        with tf.train.Server({"worker": ["localhost:0"], "ps": [missing]}, "worker", 0) as server:
            with (
                Timed(),
                pytest.raises(
                    tf.errors.UnavailableError, match=f"/job:ps/replica:0/task:0 at {missing}.*device_filters"
                ),
            ):
                tf.Session(server.target, wait_for_cluster=0.5)
            config = tf.ConfigProto(device_filters=["/job:worker"])
            with Timed(), tf.Session(server.target, config=config) as session:
                assert session.run(tf.constant(1.0) + 1.0) == 2


def test_a_task_that_was_started_with_another_cluster_says_which_task_it_does_not_know() -> None:
    with tf.train.Server({"ps": ["localhost:0"]}, "ps", 0) as ps:
        address = ps.target.removeprefix("zmq://")
        with tf.train.Server({"ps": [address], "worker": ["localhost:0"]}, "worker", 0) as server:
            with tf.device("/job:worker"):
                x = tf.constant([1.0]) + 1.0
            with tf.device("/job:ps"):
                y = tf.gather(x, 0)
            with tf.Session(server.target) as session, pytest.raises(tf.errors.InvalidArgumentError) as e:
                session.run(y)
    for part in (
        "/job:ps/replica:0/task:0 is to exchange",
        "no such task",
        "/job:worker/replica:0/task:0",
        "same cluster",
    ):
        assert part in str(e.value)


def test_a_server_that_is_stopped_waits_for_nobody() -> None:
    found: list[BaseException] = []

    def wait(server: tf.train.Server) -> None:
        try:
            server._workers.devices(tf.ConfigProto(wait_for_cluster_s=3600))
        except BaseException as e:
            found.append(e)

    with tf.train.Server({"worker": ["localhost:0"], "ps": ["localhost:9"]}, "worker", 0) as server:
        waiting = threading.Thread(target=wait, args=(server,))
        waiting.start()
    waiting.join(60)
    assert not waiting.is_alive()
    assert isinstance(found[0], tf.errors.CancelledError)


@pytest.mark.parametrize("silent", [False, True])
def test_a_server_waits_for_its_cluster_no_longer_than_its_client(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has closed its connection, or says nothing though that is open."""
    monkeypatch.setattr("dovetail.runtime.rpc.dispatch.SILENT_S", 1.0 if silent else 3600.0)
    config = tf.ConfigProto(wait_for_cluster_s=3600).to_fields()
    with tf.train.Server({"worker": ["localhost:0"], "ps": ["localhost:9"]}, "worker", 0) as server:
        told, ended, devices = threading.Event(), threading.Event(), server._workers.devices

        def watched(*given: Any) -> Any:
            told.set()
            try:
                return devices(*given)
            except tf.errors.CancelledError as e:
                assert "The client that asked for a session has gone" in e.message
                assert "/job:ps/replica:0/task:0 at localhost:9" in e.message
                ended.set()
                raise

        monkeypatch.setattr(server._workers, "devices", watched)
        connection = Connection(server.address)
        connection.send(Message("create_session", {"request": 1, "config": config}))
        assert told.wait(60)
        if not silent:
            connection.close()
        assert ended.wait(60)
        connection.close()


@pytest.mark.slow
def test_ctrl_c_ends_a_program_whose_server_waits_for_its_cluster() -> None:
    program = """
import dovetail as tf
server = tf.train.Server({"worker": ["localhost:0"], "ps": ["localhost:9"]}, "worker", 0)
tf.Session(server.target, wait_for_cluster=3600)
"""
    waiting = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    try:
        assert waiting.stderr is not None
        assert "/job:ps/replica:0/task:0 at localhost:9" in waiting.stderr.readline()  # it waits
        waiting.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in waiting.communicate(timeout=60)[1]
    finally:
        waiting.kill()
        waiting.wait()


def test_a_task_that_starts_late_is_waited_for() -> None:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        cluster = {"worker": ["localhost:0"], "ps": [f"localhost:{reserved.getsockname()[1]}"]}
        with tf.train.Server(cluster, "worker", 0) as server:
            late: list[tf.train.Server] = []
            timer = threading.Timer(1.0, lambda: late.append(tf.train.Server(cluster, "ps", 0)))
            timer.start()
            with tf.Session(server.target) as session:
                assert len(session.list_devices()) == 2
            timer.join()
            late[0].stop()


def test_a_target_that_starts_late_is_waited_for_if_asked() -> None:
    with socket.socket() as reserved, contextlib.ExitStack() as started:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        address = f"localhost:{reserved.getsockname()[1]}"

        class Starter(logging.Handler):
            """Starts the server when the client has said that it waits for it."""

            def emit(self, record: logging.LogRecord) -> None:
                if address in record.getMessage() and not said:
                    said.append(record.getMessage())
                    started.enter_context(tf.train.Server({"worker": [address]}, "worker", 0))

        said: list[str] = []
        starter = Starter()
        logger = logging.getLogger("dovetail.runtime.session.cluster_backend")
        logger.addHandler(starter)
        started.callback(logger.removeHandler, starter)
        config = tf.ConfigProto(peer_timeout_s=0.5)
        with tf.Session(f"zmq://{address}", config=config, wait_for_cluster=120) as session:
            assert session.run(tf.constant(1.0) + 1.0) == 2
        assert said and "not started" in said[0]


@pytest.mark.parametrize("jobs", [{}, {"ps": 0}, {"ps": 1, "worker": -1}])
def test_a_local_cluster_needs_tasks(jobs: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has 0 or more tasks, and at least one job has a task"):
        tf.LocalCluster(jobs)


@pytest.fixture
def three() -> Any:
    with tf.LocalCluster({"a": 1, "b": 1, "c": 1}) as running:
        yield running


def across(*jobs: str) -> tf.Tensor:
    """A chain that visits the jobs in turn."""
    with tf.device("/job:a"):
        x = tf.placeholder_with_default(1.0, [])
    for job in jobs:
        with tf.device(f"/job:{job}"):
            x = x + 1.0
    return x


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_task_ends_the_step_with_its_name_and_spares_the_others(three: tf.LocalCluster, how: int) -> None:
    all_three, spared = across("b", "c", "a"), across("b")
    with tf.Session(three.target("a")) as session:
        assert session.run(all_three) == 4
        assert session.run(spared) == 2
        three.kill("c", 0, how)
        with Timed(), pytest.raises(tf.errors.UnavailableError, match="/job:c/replica:0/task:0 at localhost"):
            session.run(all_three)
        assert session.run(spared) == 2
        if how == signal.SIGSTOP:
            three.kill("c", 0, signal.SIGCONT)
            try:
                assert session.run(all_three) == 4
            except tf.errors.UnavailableError as e:  # the tensor was sent on a connection that was given up meanwhile
                assert "Run the step again" in str(e)
                assert session.run(all_three) == 4
        else:
            three.start("c", 0)
            three.wait_until_up()
            with Timed(), pytest.raises(tf.errors.AbortedError, match="restarted"):
                session.run(all_three)
            assert session.run(all_three) == 4


@pytest.mark.slow
def test_a_dead_master_is_named(three: tf.LocalCluster) -> None:
    x = across("b")
    with tf.Session(three.target("a")) as session:
        session.run(x)
        three.kill("a", 0)
        y = x + 1.0  # a new signature needs the master
        with Timed(), pytest.raises(tf.errors.UnavailableError, match="localhost"):
            session.run(y)
        with Timed():
            session.close()


@pytest.mark.slow
def test_a_state_lost_with_its_task_is_noticed(three: tf.LocalCluster) -> None:
    with tf.device("/job:b"):
        v = tf.Variable(3.0, name="v")
        double, triple = v * 2.0, v * 3.0

    def again() -> None:
        three.kill("b", 0)
        three.start("b", 0)
        three.wait_until_up()

    with tf.Session(three.target("a")) as session:
        session.run(v.initializer)
        assert session.run(v) == 3
        again()
        with pytest.raises(tf.errors.AbortedError, match="restarted"):
            session.run(v)
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(v)
        session.run(v.initializer)
        assert session.run(v) == 3
        again()
        with pytest.raises(tf.errors.AbortedError, match="restarted since this session used it last"):
            session.run(double)  # which was never registered with the process that is gone
        session.run(v.initializer)
        assert session.run([v, double]) == [3, 6]
        three.kill("b", 0)
        with pytest.raises(tf.errors.UnavailableError, match="/job:b"):
            session.run(v)
        three.start("b", 0)
        three.wait_until_up()
        with pytest.raises(tf.errors.FailedPreconditionError):  # the session has told of the loss already
            session.run(triple)
        session.run(v.initializer)
        assert session.run([v, double]) == [3, 6]


def sleeping(seconds: float) -> tf.Tensor:
    """A tensor that takes its time."""

    def sleep() -> np.float32:
        time.sleep(seconds)
        return np.float32(1)

    return tf.py_func(sleep, [], tf.float32)


def test_a_step_that_takes_too_long_is_given_up() -> None:
    with tf.train.Server.create_local_server() as server, tf.Session(server.target) as session:
        slow, quick = sleeping(3.0), tf.constant(1.0) + 1.0
        began = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError, match="timed out"):
            session.run(slow, options=tf.RunOptions(timeout_in_ms=200))
        assert time.monotonic() - began < 2.5
        assert session.run(quick) == 2


def test_a_step_that_takes_too_long_names_what_other_processes_wait_for(
    cluster: tf.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_call, "REASONS_TIMEOUT_S", 60.0)  # however busy the machine is, they answer
    with tf.device("/job:ps/task:0"):
        taken = tf.FIFOQueue(1, tf.float32, [[]], name="q").dequeue()
    with tf.Session(cluster.target("ps")) as session, pytest.raises(tf.errors.DeadlineExceededError) as e:
        session.run(taken, options=tf.RunOptions(timeout_in_ms=100))
    address = cluster.target("ps").removeprefix("zmq://")
    assert f"/job:ps/replica:0/task:0 at {address}: CPU:0 waits for 1 element of FIFOQueue 'q'" in str(e.value)


def test_closing_a_session_cancels_its_running_steps() -> None:
    with tf.train.Server.create_local_server() as server:
        session = tf.Session(server.target)
        slow = sleeping(2.0) + 1.0
        caught: list[BaseException] = []

        def run() -> None:
            try:
                session.run(slow)
            except BaseException as e:
                caught.append(e)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.5)
        session.close()
        thread.join(BOUND_S)
        assert not thread.is_alive() and isinstance(caught[0], tf.errors.CancelledError)


@pytest.mark.slow
def test_a_step_whose_client_died_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.runtime.rpc.dispatch.SILENT_S", 1.0)
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        cluster = {"a": ["localhost:0"], "b": [f"localhost:{reserved.getsockname()[1]}"]}
        with tf.train.Server(cluster, "a", 0) as here, tf.train.Server(cluster, "b", 0):
            with tf.device("/job:b"):
                there = tf.constant(1.0) + 1.0
            with tf.device("/job:a"):
                waits = there + 1.0
            session = tf.Session(here.target)
            parts = session._steps.prepare(((waits.name,), (), ()))
            part = next(p for p in parts if p.task.startswith("/job:a"))
            with Connection(here.address) as client:  # a client that starts its step at one task only, and is gone
                client.send(Message("run", {"request": 1, "step": 1, "program": part.program, "feeds": []}))
                deadline = time.monotonic() + BOUND_S
                while 1 not in here._worker._steps:
                    assert time.monotonic() < deadline
                while 1 in here._worker._steps:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            session.close()


SCRIPT = """
    import sys, dovetail as tf
    cluster = tf.LocalCluster({"a": 2})
    print(*[cluster.process("a", i).pid for i in range(2)], flush=True)
    sys.stdin.read()
"""


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("end", [lambda p: p.kill(), lambda p: p.send_signal(signal.SIGINT), lambda p: p.stdin.close()])
def test_no_task_outlives_the_process_that_started_it(end: Callable[[Any], None]) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    with parent:
        assert parent.stdout is not None
        pids = [int(p) for p in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(running, pids))
        end(parent)
        deadline = time.monotonic() + 10
        while any(map(running, pids)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(running, pids))


def test_a_task_that_cannot_start_takes_the_cluster_down(tmp_path: Path) -> None:
    with Timed(), pytest.raises(tf.errors.UnavailableError, match="/job:worker/task:0 ended with status 3"):
        tf.LocalCluster({"ps": 1, "worker": 1}, programs={"worker": [sys.executable, "-c", "raise SystemExit(3)"]})


def test_what_a_task_printed_last_is_passed_on_before_a_cluster_is_closed() -> None:
    said: list[str] = []

    def slow(job: str, index: int, line: str) -> None:
        time.sleep(0.3)
        said.append(line)

    programs = {"worker": [sys.executable, "-c", "print('one'); print('two'); print('last')"]}
    with tf.LocalCluster({"worker": 1}, programs=programs, output=slow, start_timeout_s=None) as cluster:
        assert cluster.wait("worker", 60.0) == [0]
    assert said == ["one", "two", "last"]


def test_programs_for_an_unknown_job_are_refused() -> None:
    with pytest.raises(ValueError, match="wrker"):
        tf.LocalCluster({"worker": 1}, programs={"wrker": ["true"]})


def test_a_part_that_only_sends_fails_as_ever(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("sent", [3], initializer=tf.ones_initializer())
        bad = tf.get_variable("never_initialised", [3], initializer=tf.ones_initializer())
        squares = tf.square(v), tf.square(bad)  # the variables themselves would be read where they lie
    with tf.device("/job:worker/task:1"):
        total, never = map(tf.reduce_sum, squares)
    with tf.Session(cluster.target("worker", 0)) as session:
        session.run(v.initializer)
        for _ in range(20):
            assert session.run(total) == 3.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="never_initialised"):
            session.run(never)
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        assert session.run(total, options=options, run_metadata=metadata) == 3
        assert {e.device for e in metadata.trace.kernels} >= {"/job:ps/replica:0/task:0/device:CPU:0"}
