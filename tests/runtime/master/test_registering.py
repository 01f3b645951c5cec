"""A master registers the parts of a signature with all tasks at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer.cluster.spec import ClusterSpec, addresses_of
from dovetail.runtime.master.workers import Workers
from dovetail.runtime.rpc.dispatch import Responder
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.worker.registration import Registration

TASKS = 64
OWN = "/job:worker/replica:0/task:0"


class Tasks:
    """Tasks that answer a registration when all of them have got theirs, the master's own included."""

    def __init__(self, stack: contextlib.ExitStack, count: int, fails: int = -1) -> None:
        self.missing = count
        self._lock = threading.Lock()
        self._asked: list[tuple[Endpoint, bytes, int, int]] = []
        self._fails = fails
        addresses = ["localhost:1"]
        for index in range(1, count):
            addresses.append(stack.enter_context(self._task(index)).address)
        worker: Any = SimpleNamespace(task=OWN, register=self._own_came)
        self.workers = Workers(worker, Responder(OWN, addresses_of(ClusterSpec({"worker": addresses}))))
        stack.callback(self.workers.close)
        self.registrations = {
            f"/job:worker/replica:0/task:{index}": Registration("p", "s", (), seed=1) for index in range(count)
        }

    def _task(self, index: int) -> Endpoint:
        def take(peer: bytes, message: Message) -> None:
            if message.kind == "register":
                with self._lock:
                    self._asked.append((endpoint, peer, message.fields["request"], index))
                self._came()
            else:  # a ping
                endpoint.reply(peer, Message("pong", {"seq": message.fields["seq"], "incarnation": index}))

        endpoint = Endpoint("localhost:0", take)
        return endpoint

    def _own_came(self, new: Registration) -> dict[str, Any]:
        self._came()
        return {"incarnation": 1}

    def _came(self) -> None:
        with self._lock:
            self.missing -= 1
            if self.missing:
                return
        for endpoint, peer, request, index in self._asked:
            if index == self._fails:
                fields = {"request": request, "code": "INVALID_ARGUMENT", "message": "no such kernel"}
                endpoint.reply(peer, Message("error", fields))
            else:
                endpoint.reply(peer, Message("registered", {"request": request, "incarnation": index}))


@pytest.mark.parametrize("count", [1, 2, TASKS])
def test_all_tasks_work_at_the_same_time(count: int) -> None:
    """None would answer if it were waited for before the next one is asked."""
    with contextlib.ExitStack() as stack:
        tasks = Tasks(stack, count)
        found = tasks.workers.register(tasks.registrations, 5.0)
    assert found == {task: max(1, index) for index, task in enumerate(tasks.registrations)}


def test_the_error_of_one_task_is_the_error_of_all() -> None:
    with contextlib.ExitStack() as stack:
        tasks = Tasks(stack, 4, fails=2)
        with pytest.raises(InvalidArgumentError, match="no such kernel"):
            tasks.workers.register(tasks.registrations, 5.0)


LOADED_AT_START = """
import sys
import dovetail as dt

server = dt.train.Server.create_local_server()
server._executor.worker.submit(lambda: None).result()  # two threads: each has done what came before
server._executor.worker.shutdown()
loaded = set(sys.modules)
with dt.Graph().as_default(), dt.Session(server.target) as session:
    assert session._backend._handle
x = dt.constant([1.0]) + 2.0
from dovetail.codegen.pipeline import cpu_backend, passes_of
passes_of(cpu_backend(dt.ConfigProto().kernel_options()))
print(sorted(set(sys.modules) - loaded))
"""


@pytest.mark.slow
def test_a_server_loads_the_compiler_before_the_first_step() -> None:
    """Otherwise all tasks would load it at once, in the first step."""
    found = subprocess.run([sys.executable, "-c", LOADED_AT_START], capture_output=True, text=True, check=True)
    assert "dovetail.codegen" not in found.stdout, found.stdout


def test_tasks_forget_what_is_prepared_for_a_session_that_is_closed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dt.train.Server.create_local_server()
    session = dt.Session(server.target, graph=dt.Graph())
    with session.graph.as_default():
        x = dt.constant(1.0) + 1.0
    register = server._worker.register

    def slow(new: Registration) -> dict[str, Any]:
        session.close()
        assert server._worker._sessions == {}
        return register(new)

    monkeypatch.setattr(server._worker, "register", slow)
    with pytest.raises((dt.errors.OpError, RuntimeError), match="closed"):
        session.run(x)
    assert server._worker._sessions == {} and server._worker._registered == {}
    server.stop()


def test_two_threads_with_one_new_step_register_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dt.train.Server.create_local_server()
    with dt.Graph().as_default():
        x = dt.constant(1.0) + 1.0
        session = dt.Session(server.target)
    register, both = server._worker.register, threading.Barrier(2)

    def first(new: Registration) -> dict[str, Any]:
        if not server._worker._registered:
            both.wait()  # the other thread prepares the same step now, and waits for this one
        return register(new)

    def second() -> None:
        both.wait()
        session._steps.prepare((("add:0",), (), ()))

    monkeypatch.setattr(server._worker, "register", first)
    threads = [threading.Thread(target=session.run, args=(x,)), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server._worker._registered) == 1
    session.close()
    server.stop()
