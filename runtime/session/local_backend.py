"""The backend of a session in this process: one task, without sockets or threads.

A step runs in the thread that called `run`. A step with a deadline runs in a new thread, and the caller waits for it. Most steps are
one short program and are run inline (`worker/step_scheduler.py`). When a step must wait for another one (an empty queue), its thread
sleeps. The thread that settles the request passes the rest of the step back to it.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext
from functools import partial
from typing import Any

from ...codegen.gpu.driver.api import present_gpus
from ...graph.core.errors import DeadlineExceededError, InternalError, OpError
from ...graph.core.graph import Graph
from ...graph.core.settings import setting
from ...graph.resources.cancellation import active_cancellation
from ...graph.resources.resource_manager import Resources, SessionState
from ...placer.cluster.spec import local_devices
from ...placer.plan import Plan
from ...placer.search.from_graph import IN_PROCESS
from ..config import ConfigProto
from ..master.master import Master, Signature, TaskPart
from ..master.workers import Workers
from ..observability.step_notes import Gathered, Recorder
from ..worker.executor import Outcome
from ..worker.worker import Worker
from .prepared_steps import Backend


def make_local_backend(graph: Graph, config: ConfigProto) -> LocalBackend:
    """The backend of a session without a target."""
    emulated = setting("DOVETAIL_EMULATE_GPUS")
    devices = local_devices(IN_PROCESS, config.device_count, emulated, gpus=present_gpus())
    return LocalBackend(Worker(IN_PROCESS, devices, default_container="localhost", data_folders=None), graph, config)


def make_backend_within_task(
    graph: Graph, resources: Resources, make_state: Callable[[int], SessionState]
) -> LocalBackend:
    """The backend of a session that a task's own kernels run: on the CPU, with the task's state."""
    config = ConfigProto()
    devices = local_devices(IN_PROCESS, config.device_count)
    worker = Worker(
        IN_PROCESS, devices, default_container=resources.default_container, resources=resources, make_state=make_state
    )
    found = LocalBackend(worker, graph, config)
    resources.inner.add(found)
    return found


class LocalBackend(Backend):
    """One task, `/job:localhost`, whose worker runs in the caller's thread."""

    is_local = True
    is_replicated = False

    def __init__(self, worker: Worker, graph: Graph, config: ConfigProto) -> None:
        self._master = Master(IN_PROCESS, Workers(worker))
        self._worker = worker
        self._session = self._master.create_session(config, graph)
        self._numbers = itertools.count(1)
        self._limit_s = config.operation_timeout_in_ms / 1e3  # time limit of each step; 0: none
        self.devices = self._session.cluster.devices

    def extend(self, graph: Graph) -> None:
        """Nothing to do: the master uses the user's graph itself."""

    def prepare(self, signature: Signature, warm: bool = False, deterministic: bool = False) -> list[TaskPart]:
        return self._master.prepare(self._session.handle, signature, warm, deterministic)

    def plan(self, graph: Graph, signature: Signature, program: str) -> Plan:
        return self._master.plan(self._session.handle, signature, program)

    def run(
        self, parts: Sequence[TaskPart], feeds: Mapping[str, Any], timeout_s: float | None,
        gathered: Gathered | None = None,
    ) -> Mapping[str, Any]:  # fmt: skip
        (part,) = parts
        recorder = None if gathered is None else Recorder()
        result = self._step(part, feeds, timeout_s, recorder)
        if gathered is not None and recorder is not None:
            gathered.add(part.task, recorder.finished())
        if isinstance(result, OpError):
            raise result
        return result

    def _step(
        self, part: TaskPart, feeds: Mapping[str, Any], timeout_s: float | None, recorder: Recorder | None
    ) -> Outcome:
        """Run a step. The worker has no pool: when `start` returns, the step has ended or waits for a step of another thread."""
        worker, number = self._worker, next(self._numbers)
        limits = [t for t in (timeout_s, self._limit_s) if t and t > 0]
        if not limits and recorder is None:
            found = worker.run_inline(number, part.program, feeds)
            if found is not None:
                return found
        outcome: list[Outcome] = []
        # Work for this thread: the rest of a resumed step, or nothing if the step has ended in another thread.
        completions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

        def finish(result: Outcome) -> None:
            outcome.append(result)
            completions.put(lambda: None)

        active = active_cancellation()  # of the step whose kernel calls a function, which is this step

        def drive() -> None:
            worker.start(number, part.program, feeds, finish, completions.put, recorder=recorder)
            while not outcome:
                if not worker.may_go_on(number) and completions.empty():
                    waits = "; ".join(worker.waits_for(number))
                    worker.abort(number, "The step cannot go on")
                    raise InternalError.of(f"The step cannot go on: {waits}")
                completions.get()()

        end = partial(worker.abort, number, "The step around it has ended")
        try:
            with nullcontext() if active is None else active.calling(end):
                if limits:
                    self._drive_within(min(limits), number, drive)
                else:
                    drive()
        except BaseException as e:  # also Ctrl-C
            worker.abort(number, f"{type(e).__name__} in the thread that ran the step")
            raise
        return outcome.pop()  # removed, since the step refers to the list through `finish`

    def _drive_within(self, limit_s: float, number: int, drive: Callable[[], None]) -> None:
        """Run a step in a new thread, so that this one returns at the deadline even if a kernel is still running.

        That kernel runs to its end, and its result is dropped; no other kernel of the step starts.
        """
        done: Future[None] = Future()

        def run() -> None:
            try:
                drive()
                done.set_result(None)
            except BaseException as e:  # for the thread that waits
                done.set_exception(e)

        threading.Thread(target=run, name=f"dovetail-step-{number}", daemon=True).start()
        if not wait([done], limit_s).done:
            last = "; ".join(self._worker.waits_for(number))
            why = f"waited {limit_s:.1f} s, last because {last}" if last else f"ran for {limit_s:.1f} s"
            raise DeadlineExceededError.of(f"Timed out: this step {why}")
        done.result()

    def cancel(self, resources: Resources) -> None:
        """End all steps, without closing state that others use."""
        self._worker.close_session(self._session.handle)

    def close(self) -> None:
        self._master.close_session(self._session.handle)
        self._worker.close()
