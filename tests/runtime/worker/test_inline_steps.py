"""Parts of steps that meet nobody, run where they were asked for."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import dovetail.graph.ops.all  # noqa: F401
from dovetail.codegen.ir.partition import PartitionGraph, RecvTensor, SendTensor
from dovetail.graph.core.build import placeholder
from dovetail.graph.core.errors import CancelledError, FailedPreconditionError, InternalError, OpError
from dovetail.graph.core.graph import Graph
from dovetail.graph.variables.variable import Variable
from dovetail.placer.cluster.spec import local_devices
from dovetail.runtime.config import RunOptions
from dovetail.runtime.rpc.dispatch import Responder
from dovetail.runtime.session.local_backend import LocalBackend
from dovetail.runtime.session.session import Session
from dovetail.runtime.timeouts import SILENT_S
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.worker.handlers import StepHandlers
from dovetail.runtime.worker.registration import Registration
from dovetail.runtime.worker.step_scheduler import SHORT_S, RegisteredProgram, Segment
from dovetail.runtime.worker.worker import Worker

TASK = "/job:a/replica:0/task:0"
HERE, THERE = f"{TASK}/device:CPU:0", "/job:b/replica:0/task:0/device:CPU:0"


class Letters(Responder):
    """Keeps what is answered."""

    def __init__(self) -> None:
        super().__init__(TASK)
        self.kept: list[Message] = []
        keep = SimpleNamespace(owner=lambda peer: "", reply=lambda peer, message: self.kept.append(message))
        self.endpoint = cast(Endpoint, keep)


def partition(sends: bool = False) -> PartitionGraph:
    """x from the client; gives x + v."""
    with Graph().as_default():
        x = placeholder("float32", [None], name="x")
        v = Variable([1.0, 2.0], name="v")
        z = v + x
    steps = (v.op, v.initial_value.op, v.initializer, v.value().op, z.op)
    return PartitionGraph(
        HERE, steps + ((SendTensor(1, None, THERE),) if sends else ()), (("x:0", x),), (("add:0", z),)
    )


def made(*partitions: PartitionGraph) -> tuple[Worker, RegisteredProgram]:
    """A worker that knows program `p`, and how quick that is."""
    worker = Worker(TASK, local_devices(TASK), push=lambda *_: None)
    worker.register(Registration("p", "s", partitions, seed=1))
    loaded = worker._registered["p"]
    if loaded.inline_segment is not None:
        measure(loaded, 1e-6)
    return worker, loaded


def measure(loaded: RegisteredProgram, seconds: float) -> None:
    """Let the program have run for so long."""
    assert loaded.inline_segment is not None
    loaded.segments[loaded.inline_segment] = loaded.segments[loaded.inline_segment].measured(seconds)


def asked(number: int, size: int = 2) -> Message:
    fields = {"request": number, "step": number, "program": "p", "feeds": ["x:0"]}
    return Message("run", fields, (np.arange(size, dtype=np.float32),))


def test_it_is_run_at_once_and_its_end_is_remembered() -> None:
    worker, _ = made(partition())
    assert worker.run_inline(9, "q", {}) is None
    letters = Letters()
    steps = StepHandlers(worker, letters)
    for number in range(1, 4):
        steps.on_run(b"me", asked(number))
        assert letters.kept[-1].kind == "done" and letters.kept[-1].fields["request"] == number
        assert letters.kept[-1].tensors[0].tolist() == [1.0, 3.0]
        assert not worker.is_new(number) and not worker.running() and not steps.running
    steps.on_run(b"me", asked(3))  # heard twice
    assert len(letters.kept) == 3 and worker.resources.steps_started == 3 and not worker.failed


def test_silent_clients_are_forgotten() -> None:
    worker, _ = made(partition())
    responder = Letters()
    steps = StepHandlers(worker, responder)
    for peer in (b"idle", b"alive"):
        steps.on_run(peer, asked(1))
    later = time.monotonic() + 2 * SILENT_S
    responder.heard[b"alive"] = later
    assert responder.is_silent(b"idle", later) and responder.is_silent(b"nobody", later)
    responder.tidy(later)
    assert list(responder.heard) == [b"alive"] and not responder.is_silent(b"alive", later)


def test_its_errors_are_told() -> None:
    worker, loaded = made(partition())
    letters = Letters()
    steps = StepHandlers(worker, letters)
    steps.on_run(b"me", asked(1, 3))
    assert letters.kept[0].kind == "error" and letters.kept[0].fields["request"] == 1
    assert "node 'add'" in letters.kept[0].fields["message"] and HERE in letters.kept[0].fields["message"]
    measure(loaded, 1e-6)  # an error may have taken long
    outcome = worker.run_inline(2, "p", {})
    assert isinstance(outcome, InternalError) and "'x:0' of step 2" in outcome.message
    assert worker.failed == 2 and not worker.is_new(2)


@pytest.mark.parametrize("is_inline", [True, False])
def test_what_ended_it_before_it_began_is_told(is_inline: bool) -> None:
    """A tensor of another task that cannot be taken may arrive before the client's message."""
    worker, _ = made(partition(sends=not is_inline))
    letters = Letters()
    steps = StepHandlers(worker, letters)
    steps.on_abort(b"peer", Message("abort", {"step": 1, "code": "RESOURCE_EXHAUSTED", "reason": "too large"}))
    steps.on_run(b"me", asked(1))
    told = letters.kept[-1].fields
    assert (told["request"], told["code"], told["message"]) == (1, "RESOURCE_EXHAUSTED", "too large")
    assert not worker.running() and not steps.running


def test_an_abort_that_comes_while_the_step_starts_ends_it() -> None:
    worker, _ = made(PartitionGraph(HERE, (RecvTensor(1, None, THERE),), (), ()))
    lock, ends = worker._lock, []

    class Meanwhile:
        """The worker's lock; when it is released first, another thread starts the step."""

        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *exc: object) -> None:
            lock.release()
            worker._lock = lock
            worker.start(1, "p", {}, ends.append)

    worker._lock = Meanwhile()  # type: ignore[assignment]
    worker.abort(1, "the client has gone")
    assert isinstance(ends[0], CancelledError) and not worker.running()


def test_a_step_whose_answer_cannot_be_sent_runs_no_longer() -> None:
    """Its client waits as long as pongs say that it runs."""
    worker, _ = made(partition())
    letters = Letters()
    letters.endpoint.reply = lambda peer, message: 1 // 0  # type: ignore[method-assign,assignment,return-value]
    steps = StepHandlers(worker, letters)
    steps.running[1] = b"me", b"me", 0
    with pytest.raises(ZeroDivisionError):
        steps._finish(b"me", 1, 1, None, {})
    assert not steps.runs(b"me", 1)


def test_it_is_refused_to_a_client_that_has_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_CLIENT_STEPS", "1")
    worker, _ = made(partition())
    letters = Letters()
    steps = StepHandlers(worker, letters)
    steps.running[9] = b"me", b"me", 0
    steps.on_run(b"me", asked(1))
    steps.on_run(b"another", asked(2))
    assert [m.fields.get("code") for m in letters.kept] == ["RESOURCE_EXHAUSTED", None]
    assert worker.is_new(1)


def test_others_are_not_run_so() -> None:
    assert made(partition(sends=True))[1].inline_segment is None
    assert made(partition(), partition())[1].inline_segment is None
    worker, loaded = made(partition())
    measure(loaded, 2 * SHORT_S)  # it is not quick any more
    assert worker.run_inline(9, "p", {}) is None
    outcomes: list[object] = []
    worker.start(1, "p", {"x:0": np.zeros(2, np.float32)}, outcomes.append)
    assert len(outcomes) == 1 and not isinstance(outcomes[0], OpError)


def test_short_steps_of_a_session_in_this_process_are_run_so() -> None:
    with Graph().as_default() as graph:
        x = placeholder("float32", [None], name="x")
        z = Variable([1.0, 2.0], name="v").assign_add(x)
    with Session(graph=graph) as session:
        target = session._backend
        assert isinstance(target, LocalBackend)
        with pytest.raises(FailedPreconditionError, match="uninitialized value v"):
            session.run(z, {x: np.ones(2)})
        session.run(graph.get_operation_by_name("v/Assign"))
        (loaded,) = [p for p in target._worker._registered.values() if p.programs[0].feeds]
        assert loaded.inline_segment is not None
        loaded.segments[loaded.inline_segment] = Segment(slow=0)
        assert session.run(z, {x: np.ones(2)}).tolist() == [2.0, 3.0]
        assert (
            list(target._worker._ended)[-1:] == [target._worker.resources.steps_started]
            and not target._worker.running()
        )
        loaded.segments[loaded.inline_segment] = Segment(slow=0)
        with pytest.raises(OpError, match="created at"):
            session.run(z, {x: np.ones(3)})
        assert session.run(z, {x: np.ones(2)}, options=RunOptions(timeout_in_ms=60_000)).tolist() == [3.0, 4.0]
    with pytest.raises(RuntimeError, match="closed Session"):
        session.run(z, {x: np.ones(2)})
