"""What tasks say about themselves: figures, metrics, steps without progress, logs."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import dovetail as tf
from dovetail.runtime.logs import JsonLines, set_up_log
from dovetail.runtime.observability.metrics import MOST_STEPS, MetricsServer, Traffic, Watchdog
from dovetail.runtime.server.running_cluster import ClusterMonitor, TaskStatus
from dovetail.tools.cli.watch import rates

WAIT_S = 20.0


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


class TestWatchdog:
    def test_a_step_that_waits_too_long_is_reported_once(self) -> None:
        dog = Watchdog(10.0)
        waits = {1: ["a queue"], 2: []}
        assert dog.look(0.0, [1, 2], waits.__getitem__) == []
        assert dog.look(1.0, [1, 2], waits.__getitem__) == []
        assert dog.look(10.9, [1, 2], waits.__getitem__) == []
        assert dog.look(11.0, [1, 2], waits.__getitem__) == [(1, 10.0, ("a queue",))]
        assert dog.look(60.0, [1, 2], waits.__getitem__) == []

    def test_waiting_for_something_else_is_progress(self) -> None:
        dog = Watchdog(10.0)
        for second in range(100):
            assert dog.look(float(second), [1], lambda step, s=second: [f"channel {s // 9}"]) == []

    def test_a_step_that_waits_for_nothing_works(self) -> None:
        dog = Watchdog(1.0)
        assert [dog.look(float(s), [1], lambda step: []) for s in range(9)] == [[]] * 9

    def test_it_can_be_told_to_be_silent(self) -> None:
        dog = Watchdog(0.0)
        assert [dog.look(1e3 * s, [1], lambda step: ["x"]) for s in range(9)] == [[]] * 9

    def test_a_step_that_has_ended_is_forgotten(self) -> None:
        dog = Watchdog(10.0)
        dog.look(0.0, [1], lambda step: ["x"])
        dog.look(1.0, [1], lambda step: ["x"])
        dog.look(2.0, [], lambda step: ["x"])
        dog.look(3.0, [1], lambda step: ["x"])  # another one of the same number
        assert dog.look(12.0, [1], lambda step: ["x"]) == []
        assert dog.figures(13.0) == [{"step": 1, "age_s": 10.0, "waits": ["x"], "waiting_s": 1.0}]

    def test_the_oldest_are_listed(self) -> None:
        dog = Watchdog(10.0)
        for now in range(MOST_STEPS + 20):
            dog.look(float(now), range(now + 1), lambda step: ["x"])
        listed = dog.figures(100.0)
        assert [f["step"] for f in listed] == list(range(MOST_STEPS))


def figures() -> dict[str, object]:
    traffic = Traffic()
    traffic.sent("/job:b/replica:0/task:0", 100)
    traffic.sent("/job:b/replica:0/task:0", 50)
    traffic.received(7)
    return {"job": "a", "task_index": 3, "steps_started": 12, "memory": 1 << 20, **traffic.figures()}


def test_metrics_are_served_in_the_format_that_prometheus_reads() -> None:
    server = MetricsServer("0", figures)
    try:
        assert server.address.startswith("127.0.0.1:")
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=WAIT_S) as reply:
            text = reply.read().decode()
    finally:
        server.close()
    families = {f.name: f for f in text_string_to_metric_families(text)}
    samples = {(s.name, *s.labels.values()): s.value for f in families.values() for s in f.samples}
    assert samples == {
        ("dovetail_memory_bytes", "a", "3"): 1 << 20,
        ("dovetail_steps_started_total", "a", "3"): 12,
        ("dovetail_received_bytes_total", "a", "3"): 7,
        ("dovetail_received_messages_total", "a", "3"): 1,
        ("dovetail_sent_bytes_total", "a", "3", "/job:b/replica:0/task:0"): 150,
        ("dovetail_sent_messages_total", "a", "3", "/job:b/replica:0/task:0"): 2,
    }
    assert families["dovetail_memory_bytes"].type == "gauge" and families["dovetail_steps_started"].type == "counter"
    with pytest.raises(ValueError, match="no address for metrics"):
        MetricsServer("here", figures)


def test_a_server_tells_metrics_where_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOVETAIL_METRICS", "localhost:0")
    with tf.train.Server.create_local_server() as server:
        assert server._metrics is not None
        with urllib.request.urlopen(f"http://{server._metrics.address}/metrics", timeout=WAIT_S) as reply:
            assert 'dovetail_sessions{job="local",task="0"} 0.0' in reply.read().decode()
        monkeypatch.setenv("DOVETAIL_METRICS", server._metrics.address)
        with tf.train.Server.create_local_server() as other:  # the port is taken: it works without
            assert other._metrics is None
    assert "no metrics at" in caplog.text


def health(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=WAIT_S) as reply:
            return reply.status, reply.read().decode().strip()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode().strip()


def test_health_says_what_is_wrong() -> None:
    wrong = {"/live": "", "/ready": "it is stopping"}
    server = MetricsServer("0", figures, {path: lambda path=path: wrong[path] for path in wrong})
    try:
        assert health(server.address, "/live") == (200, "ok")
        assert health(server.address, "/ready") == (503, "it is stopping")
        assert health(server.address, "/metrics")[0] == 200
    finally:
        server.close()


def test_a_server_is_ready_while_its_io_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_METRICS", "localhost:0")
    monkeypatch.setattr("dovetail.runtime.server.server.DEAD_S", 2.0)
    held, let_go = threading.Event(), threading.Event()
    with tf.train.Server.create_local_server() as server:
        assert server._metrics is not None
        at = server._metrics.address
        assert health(at, "/live") == health(at, "/ready") == (200, "ok")

        def hold() -> None:
            held.set()
            let_go.wait(WAIT_S)

        server._responder.endpoint.call_soon(hold)
        assert held.wait(WAIT_S)
        until(lambda: health(at, "/live")[0] == 503, "the thread was missed")
        assert health(at, "/ready")[1].startswith("the I/O thread has not run for")
        let_go.set()
        until(lambda: health(at, "/live")[0] == 200, "it ran again")


class TestLogs:
    def test_a_line_is_one_object(self) -> None:
        try:
            raise ValueError("first\nsecond")
        except ValueError:
            record = logging.LogRecord("x", logging.ERROR, "f", 1, "said %r", ("a\nb",), sys.exc_info())
        line = JsonLines("ps", 2).format(record)
        assert "\n" not in line
        found = json.loads(line)
        assert (found["level"], found["job"], found["task"], found["logger"]) == ("ERROR", "ps", 2, "x")
        assert found["message"] == "said 'a\\nb'"
        assert "ValueError: first" in found["traceback"]
        assert found["time"].endswith("Z")

    def test_formats_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOVETAIL_LOG_FORMAT", "xml")
        with pytest.raises(ValueError, match="must be one of text, json"):
            set_up_log("a", 0)

    def test_levels_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DOVETAIL_LOG_LEVEL", "LOUD")
        with pytest.raises(ValueError, match="DOVETAIL_LOG_LEVEL='LOUD': it must be one of .*WARNING"):
            set_up_log("a", 0)


class TestObserver:
    def test_rates(self) -> None:
        def view(at: float, steps: int, sent: int, incarnation: int = 1) -> TaskStatus:
            said = {"incarnation": incarnation, "steps_started": steps, "links": [{"to": "b", "bytes": sent}]}
            return TaskStatus("a", "h:1", said, at)

        found = rates(view(1.0, 10, 100), view(3.0, 30, 500))
        assert found is not None and (found.steps, found.bytes_to) == (10.0, {"b": 200.0})
        assert rates(view(1.0, 10, 100), view(3.0, 30, 500, incarnation=2)) is None  # restarted
        assert rates(None, view(3.0, 30, 500)) is None
        assert rates(TaskStatus("a", "h:1", None, 0.0), view(3.0, 30, 500)) is None

    @pytest.mark.slow
    def test_a_cluster_at_work(self) -> None:
        with tf.device("/job:ps"):
            v = tf.Variable(np.zeros(100_000, np.float32), name="v")
            queue = tf.FIFOQueue(2, [tf.float32], [[]])
            taken = queue.dequeue()
        with tf.device("/job:worker"):
            total = tf.reduce_sum(v * 2.0)
        quick = {"DOVETAIL_STALL_S": "0.5", "DOVETAIL_ONE_SIDED_READS": "0"}  # so that the variable is sent
        with (
            tf.LocalCluster({"ps": 1, "worker": 2}, environment=quick) as cluster,
            tf.Session(cluster.target("worker")) as session,
            ClusterMonitor(cluster.target("ps").removeprefix("zmq://")) as observer,
        ):
            session.run(v.initializer)
            for _ in range(5):
                session.run(total)

            def wait() -> None:
                with pytest.raises(tf.errors.CancelledError):
                    session.run(taken)

            waiter = threading.Thread(target=wait)
            waiter.start()

            def ps() -> TaskStatus:
                return {view.task: view for view in observer.look()}["/job:ps/replica:0/task:0"]

            def is_stalled() -> bool:
                found = ps().figures
                return found is not None and found["steps_stalled"] == 1

            until(is_stalled, "the step is reported")
            found = ps().figures
            assert found is not None
            (step,) = found["steps"]
            assert "waits for 1 element of FIFOQueue" in step["waits"][0]
            (link,) = found["links"]
            assert link == {"to": "/job:worker/replica:0/task:0", "messages": 5, "bytes": 5 * 400_000}
            assert (found["steps_started"], found["steps_failed"], found["steps_running"]) == (7, 0, 1)
            cluster.kill("worker", 1)
            silent = [view.task for view in observer.look() if view.figures is None]
            assert silent == ["/job:worker/replica:0/task:1"]
            session.close()
            waiter.join()
