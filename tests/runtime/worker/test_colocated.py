"""Sessions whose servers are in their own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.ir.program import Program, Send
from dovetail.runtime.rpc import pending_call
from dovetail.runtime.session.local_backend import LocalBackend
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.worker import step_scheduler
from dovetail.runtime.worker.executor import Executor
from dovetail.runtime.worker.step import ChannelKey
from dovetail.runtime.worker.step_scheduler import (
    SHORT_S,
    RegisteredProgram,
    Segment,
    StepRunner,
)
from dovetail.runtime.worker.worker import Worker, servers as registry


@pytest.fixture
def servers() -> Iterator[list[dt.train.Server]]:
    """Three tasks of one cluster, all in this process."""
    ports = [dt.train.Server.create_local_server() for _ in range(3)]
    addresses = [s.target.removeprefix("zmq://") for s in ports]
    for s in ports:
        s.stop()
    spec = dt.train.ClusterSpec({"ps": addresses[:2], "worker": addresses[2:]})
    made = [dt.train.Server(spec, "ps", 0), dt.train.Server(spec, "ps", 1), dt.train.Server(spec, "worker", 0)]
    yield made
    for s in made:
        s.stop()


@pytest.mark.parametrize("limit_ms", [0, 20_000])
def test_a_step_may_take_several_servers_of_one_process(servers: list[dt.train.Server], limit_ms: int) -> None:
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            v = dt.get_variable("v", [], initializer=dt.ones_initializer())
        with dt.device("/job:ps/task:1"):
            w = dt.get_variable("w", [], initializer=dt.ones_initializer())
        with dt.device("/job:worker"):
            x = dt.placeholder(dt.float32, [])
            y = v * 10.0 + w + x
        up = dt.group(dt.assign_add(v, y), dt.assign_add(w, 1.0))
        options = dt.RunOptions(timeout_in_ms=limit_ms)
        with dt.Session(servers[2].target) as session:
            session.run(dt.global_variables_initializer())
            assert session.run(y, {x: 2.0}, options=options) == 13.0
            session.run(up, {x: 2.0}, options=options)
            assert session.run([v, w], options=options) == [14.0, 2.0]
            assert [session.run(y, {x: float(i)}, options=options) for i in range(5)] == [142.0 + i for i in range(5)]


def test_an_error_in_one_of_them_ends_the_step_in_all(servers: list[dt.train.Server]) -> None:
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            x = dt.placeholder(dt.int32, [None])
            bad = dt.gather(dt.constant([1, 2, 3]), x)
        with dt.device("/job:worker"):
            y = dt.reduce_sum(bad)
        with dt.Session(servers[2].target) as session:
            assert session.run(y, {x: np.array([0, 2], np.int32)}) == 4
            with pytest.raises(dt.errors.InvalidArgumentError):
                session.run(y, {x: np.array([7], np.int32)})
            assert session.run(y, {x: np.array([1], np.int32)}) == 2
    assert not any(s._worker._steps for s in servers)


def test_a_step_that_takes_too_long_names_what_servers_of_this_process_wait_for(servers: list[dt.train.Server]) -> None:
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            taken = dt.FIFOQueue(1, dt.float32, [[]], name="q").dequeue()
        with dt.device("/job:worker"):
            y = taken * 2.0
        with dt.Session(servers[2].target) as session, pytest.raises(dt.errors.DeadlineExceededError) as e:
            session.run(y, options=dt.RunOptions(timeout_in_ms=100))
    ps, worker = servers[0], servers[2]
    assert f"{ps.task} at {ps.address}: CPU:0 waits for 1 element of FIFOQueue 'q'" in str(e.value)
    assert f"{worker.task} at {worker.address}: CPU:0 waits for 'q_Dequeue:0' from {ps.task}/device:CPU:0" in str(
        e.value
    )


@pytest.mark.parametrize("brief_s", [1000.0, -1.0])
def test_the_client_runs_itself_what_takes_long_but_not_too_long(
    servers: list[dt.train.Server], monkeypatch: pytest.MonkeyPatch, brief_s: float
) -> None:
    monkeypatch.setattr(step_scheduler, "SHORT_S", -1.0)
    monkeypatch.setattr(step_scheduler, "BRIEF_S", brief_s)
    threads: list[int] = []
    run = StepRunner.run

    def noted(self: StepRunner, executor: Executor, segment: Segment) -> None:
        threads.append(threading.get_ident())
        run(self, executor, segment)

    monkeypatch.setattr(StepRunner, "run", noted)
    with dt.Graph().as_default():
        with dt.device("/job:worker"):
            x = dt.placeholder(dt.float32, [])
            y = x + 1.0
        with dt.Session(servers[2].target) as session:
            for i in range(4):
                assert session.run(y, {x: float(i)}) == i + 1.0
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [
        False,
        *[brief_s > 0] * 3,
    ]  # how long it takes is not known at first


def test_how_long_stretches_take_is_learned_from_more_than_one_run() -> None:
    first = second = Segment()
    assert not first.is_short  # not known yet
    first = first.measured(SHORT_S / 2)
    second = second.measured(SHORT_S * 50)
    assert first.is_short and not second.is_short
    for _ in range(3):
        first = first.measured(SHORT_S / 2)
    for _ in range(10):  # in every third run another process had the core
        first = first.measured(SHORT_S / 2)
        first = first.measured(SHORT_S * 100)
        first = first.measured(SHORT_S / 2)
        assert first.is_short
    for _ in range(4):
        first = first.measured(SHORT_S * 2)
    assert not first.is_short
    for _ in range(3):
        first = first.measured(SHORT_S / 2)
    assert first.is_short


def test_segments_of_which_the_same_is_known_are_one_object() -> None:
    with dt.Graph().as_default():
        y = x = dt.placeholder(dt.float32, [])
        for i in range(40):
            with dt.device(f"/cpu:{i % 2}"):
                y = y + y
        with dt.Session(config=dt.ConfigProto(device_count={"CPU": 2})) as session:
            for _ in range(12):
                session.run(y, {x: 1.0})
            backend = session._backend
            assert isinstance(backend, LocalBackend)
            (registered,) = backend._worker._registered.values()
    assert len(registered.segments) == 40
    assert len(set(map(id, registered.segments.values()))) < 10


def test_a_gap_is_long_when_it_is_so_again_and_again() -> None:
    loaded = RegisteredProgram("session", ())
    loaded.continued(3, 1.0)
    assert loaded.gaps[3] < SHORT_S
    for _ in range(5):
        loaded.continued(3, 1.0)
    assert loaded.gaps[3] > SHORT_S
    for _ in range(20):
        loaded.continued(3, 0.0)
    assert loaded.gaps[3] < SHORT_S


def test_time_in_which_nobody_listened_makes_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pending_call.time, "monotonic", lambda: now[0])

    class Silent:
        def poll(self, limit: float, only: str | None = None) -> list[None]:
            now[0] += 3.0
            return []

        def send(self, address: str, message: object) -> None: ...
        def forget(self, address: str) -> None: ...
        def awaits_admission(self, address: str) -> bool:
            return False

        def why_silent(self, address: str) -> None: ...
        def lives(self, address: str, since: float) -> bool:
            return False

        def moved(self, address: str) -> tuple[int, int]:
            return 0, 0

    def meanwhile() -> None:
        now[0] = 110.0

    asked: dict[str, tuple[str, Message]] = {"ps:1": ("/job:ps", Message("status"))}
    with pytest.raises(dt.errors.UnavailableError, match=r"/job:ps at ps:1 has not answered for 6\.0 s"):
        pending_call.call_all(Silent(), asked, 5.0, None, meanwhile=meanwhile)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "by_client"), [(4, True), (5000, False)])
def test_small_tensors_for_the_clients_task_come_to_the_client(
    servers: list[dt.train.Server], monkeypatch: pytest.MonkeyPatch, size: int, by_client: bool
) -> None:
    worker = servers[2]._worker
    monkeypatch.delitem(registry, servers[0].address)  # as if it were in another process
    came: list[str] = []
    take, handle = worker.on_tensors, servers[2]._handlers["tensors"]
    monkeypatch.setattr(worker, "on_tensors", lambda *given: (came.append("client"), take(*given)))
    monkeypatch.setitem(servers[2]._handlers, "tensors", lambda *given: (came.append("server"), handle(*given)))
    with dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            x = dt.placeholder(dt.float32, [None])
            y, late = dt.square(x), dt.reduce_sum(x) < 0.0
        with dt.device("/job:worker"):
            z = y + 1.0
            with dt.control_dependencies([dt.Assert(late, ["negative"])]):
                bad = dt.identity(z)
        with dt.Session(servers[2].target) as session:
            for k in range(3):
                np.testing.assert_array_equal(session.run(z, {x: np.full(size, k, "f")}), np.full(size, k * k + 1.0))
            assert came == ["client" if by_client else "server"] * 3
            with pytest.raises(dt.errors.InvalidArgumentError, match="negative"):
                session.run(bad, {x: np.ones(size, "f")})
            np.testing.assert_array_equal(session.run(z, {x: np.zeros(size, "f")}), np.ones(size))


class Putting:
    """An execution that puts tensors out, and may run another one meanwhile."""

    def __init__(self, worker: Worker, number: int, inner: Putting | None = None) -> None:
        self.number, self.inner = number, inner
        self.program, self.counter = Program("/job:a/task:0/device:CPU:0", (), (), (), ()), 0
        self.step = SimpleNamespace(is_over=True)
        self.running = StepRunner(worker, number, RegisteredProgram("session", ()), lambda outcome: None, None)

    def go(self) -> None:
        """Have it run."""
        self.running.run(self, Segment())  # type: ignore[arg-type]

    def run(self) -> None:
        """Put two tensors out, and have the other one run between them."""
        for channel in (1, 2):
            self.running.push("/job:b/task:0/device:CPU:0", channel, self.number, channel == 1)
            if self.inner is not None and channel == 1:
                self.inner.go()


def test_a_tensor_that_cannot_be_sent_ends_the_step() -> None:
    def refuse(task: str, step: int, values: object) -> None:
        raise ValueError("out of paper")

    ends: list[dt.errors.OpError] = []
    worker = Worker("/job:a/task:0", (), push=refuse)
    running = StepRunner(worker, 7, RegisteredProgram("session", ()), lambda outcome: None, None)
    step: Any = SimpleNamespace(is_over=False, cancellation=None, give=running.push, fail=ends.append)
    program = Program("/job:a/task:0/device:CPU:0", (Send(1, 0, "/job:b/task:0/device:CPU:0", ()),), (1.0,), (), ())
    running.run(Executor(step, program), Segment())
    assert "ValueError: out of paper" in ends[0].message and "/job:a/task:0/device:CPU:0" in ends[0].message


def test_a_tensor_waits_only_for_one_that_soon_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(step_scheduler, "perf_counter", lambda: now[0])
    sent: list[list[ChannelKey]] = []
    worker = Worker("/job:a/task:0", (), push=lambda task, step, values: sent.append(list(values)))
    running = StepRunner(worker, 7, RegisteredProgram("session", ()), lambda outcome: None, None)

    def put(channel: int, more: bool, seconds: float) -> None:
        running.push("/job:b/task:0/device:CPU:0", channel, 1.0, more)
        now[0] += seconds

    put(1, False, 0.0)
    assert sent == [[1]]
    for channel, more in ((2, True), (3, True), (4, False)):
        put(channel, more, 0.0)
    assert sent[1:] == [[2, 3, 4]]
    for _ in range(5):
        put(5, True, 0.1)
        put(6, False, 0.0)
    assert sent[2] == [5, 6] and sent[-2:] == [[5], [6]]


def test_a_stretch_inside_another_one_leaves_what_that_has_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_scheduler, "perf_counter", lambda: 0.0)  # all tensors are put out at once
    sent: list[tuple[str, int, dict[ChannelKey, Any]]] = []
    worker = Worker("/job:a/task:0", (), push=lambda task, step, values: sent.append((task, step, dict(values))))
    inner = Putting(worker, 8)
    for _ in range(2):
        Putting(worker, 7, inner).go()
    inner.go()
    ours, others = ("/job:b/task:0", 7, {1: 7, 2: 7}), ("/job:b/task:0", 8, {1: 8, 2: 8})
    assert sent == [others, ours, others, ours, others]
