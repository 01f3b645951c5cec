"""The worker service: keeps programs and state, runs this task's part of steps.

Every server has one. It knows no sockets: the server around it hands it messages' contents and gives it `push` to send tensors
to other tasks. Tensors may come before the step that they belong to has been announced here (their producer was told first);
they wait in `_early`, which is bounded. Tensors that come after their step has ended are dropped.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ..codegen.lower import lower
from ..codegen.options import KernelOptions
from ..codegen.program import Program
from ..codegen.unit import Unit
from ..graph.errors import AbortedError, CancelledError, OpError, ResourceExhaustedError
from ..graph.node import Node
from ..graph.state import Context, Resources, SessionState
from ..placer.cluster import DeviceInfo
from .step import ChannelKey, Execution, TaskStep

SMALL_S = (
    300e-6  # a program that runs no longer than this is run where its message came in: a hand-over costs about as much
)
MAX_EARLY_STEPS = 1_000  # steps that tensors may wait for without the step having been announced
MAX_EARLY_MESSAGES = 4_000  # for each
LARGE_BYTES = 64 << 10  # a tensor from this size on is sent as soon as it exists
MAX_TOGETHER = 64  # small tensors in one message: a loop may send without ever pausing, and others wait for it
REMEMBER_STEPS = 4_000  # ended steps whose late tensors are recognised


@dataclass(slots=True)
class Loaded:
    """A registered program set: this task's part of one run signature, and how long its programs take."""

    session: str
    programs: tuple[Program, ...]
    seconds: dict[str, float] = field(default_factory=dict)  # device -> longest recent stretch without a pause

    def is_small(self, device: str) -> bool:
        """Whether a stretch of this device's program is known to be short."""
        return self.seconds.get(device, 1.0) <= SMALL_S

    def measured(self, device: str, seconds: float) -> None:
        """A stretch took so long; the memory fades, so that one hiccup is forgotten."""
        self.seconds[device] = max(seconds, 0.9 * self.seconds.get(device, 0.0))


@dataclass(slots=True)
class WorkerSession:
    """What this task keeps for one session."""

    resources: Resources
    state: SessionState


class Worker:
    """Programs, state and running steps of one task.

    Args:
        task: `/job:ps/replica:0/task:0`.
        devices: the devices of the task.
        push: (task, step, values by channel): send tensors to another task.
        threads: size of the pool that runs programs which are not small; 0: everything runs in the caller's thread.
    """

    def __init__(
        self,
        task: str,
        devices: Sequence[DeviceInfo],
        *,
        push: Callable[[str, int, Mapping[ChannelKey, Any]], None] | None = None,
        threads: int = 0,
        default_container: str = "",
    ) -> None:
        self.task = task
        self.devices = tuple(devices)
        self.resources = Resources()
        self.default_container = default_container
        self._push = push or _nowhere
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dovetail-step") if threads else None
        self._lock = threading.Lock()
        self._sessions: dict[str, WorkerSession] = {}
        self._loaded: dict[str, Loaded] = {}
        self._steps: dict[int, TaskStep] = {}
        self._early: OrderedDict[int, list[Mapping[ChannelKey, Any]]] = OrderedDict()
        self._ended: deque[int] = deque(maxlen=REMEMBER_STEPS)
        self._ended_set: set[int] = set()
        self._turn = threading.local()

    # --- sessions and programs -------------------------------------------------------------------------------------

    def open_session(self, handle: str, seed: int, isolated: bool) -> WorkerSession:
        """What this task keeps for the session; made at its first mention."""
        with self._lock:
            session = self._sessions.get(handle)
            if session is None:
                session = self._sessions[handle] = WorkerSession(
                    Resources() if isolated else self.resources, SessionState(seed)
                )
            return session

    def register(
        self,
        handle: str,
        session: str,
        units: Iterable[Unit],
        *,
        seed: int,
        isolated: bool,
        kernels: KernelOptions | None = None,
    ) -> None:
        """Lower units to programs and keep them under `handle`. Nothing is kept when one of them fails.

        `kernels` says how; None: NumPy, node by node.
        """
        state = self.open_session(session, seed, isolated)

        def context_of(node: Node) -> Context:
            return Context(
                node.name,
                node.container or self.default_container,
                state.resources,
                state.state,
                tuple(t.dims for t in node.outputs),
            )

        # Emulated GPUs run the CPU's kernels, too.
        backend = (kernels or KernelOptions()).make_backend()
        programs = tuple(lower(unit, backend, context_of) for unit in units)
        with self._lock:
            self._loaded[handle] = Loaded(session, programs)

    def release(self, handles: Iterable[str]) -> None:
        """Forget programs."""
        with self._lock:
            for handle in handles:
                self._loaded.pop(handle, None)

    def close_session(self, handle: str) -> None:
        """Forget a session: its programs, and its running steps, which end with CancelledError."""
        with self._lock:
            self._sessions.pop(handle, None)
            for key in [k for k, v in self._loaded.items() if v.session == handle]:
                del self._loaded[key]
            steps = [s for s in self._steps.values() if s.session == handle]
        for step in steps:
            step.fail(CancelledError(None, None, "Step was cancelled by an explicit call to `Session.close()`."))

    def reset(self, containers: Iterable[str]) -> None:
        """Clear containers (none named: the task's default one)."""
        for container in list(containers) or [self.default_container]:
            self.resources.clear(container)

    # --- steps -----------------------------------------------------------------------------------------------------

    def start(
        self, number: int, handle: str, feeds: Mapping[str, Any], finish: Callable[[Mapping[str, Any] | OpError], None]
    ) -> None:
        """Run one step of registered programs; `finish` is told the fetched values or the error, from whichever thread ends it."""
        loaded = self._loaded.get(handle)
        if loaded is None:
            finish(
                AbortedError(
                    None, None,
                    f"{self.task} does not know program {handle}: the task was restarted, or the session was closed or reset. "
                    "What it held is lost; initialise or restore its variables and run again.",
                )
            )  # fmt: skip
            return

        def ended(step: TaskStep, outcome: Mapping[str, Any] | OpError) -> None:
            self._forget(step.number)
            finish(outcome)

        try:
            step = TaskStep(
                number, loaded.session, loaded.programs, feeds,
                push=lambda destination, channel, value: self._put_out(number, destination, channel, value),
                schedule=lambda execution: self._schedule(execution, loaded),
                finish=ended,
            )  # fmt: skip
        except OpError as e:
            finish(e)
            return
        with self._lock:
            self._steps[number] = step
            early = self._early.pop(number, ())
        if len(early) >= MAX_EARLY_MESSAGES:  # more may have come, and have been dropped
            step.fail(
                ResourceExhaustedError(
                    None, None,
                    f"{len(early)} messages of step {number} came to {self.task} before the step was announced there: another "
                    "task's loop ran too far ahead. Let the loop take something back from this task in each iteration.",
                )
            )  # fmt: skip
            return
        for values in early:
            _deliver(step, values)
        self._take_turn(step.start)

    def deliver(self, number: int, values: Mapping[ChannelKey, Any]) -> None:
        """Tensors have come from another task."""
        with self._lock:
            step = self._steps.get(number)
            if step is None:
                if number in self._ended_set:
                    return
                waiting = self._early.setdefault(number, [])
                if len(waiting) < MAX_EARLY_MESSAGES:
                    waiting.append(values)
                if len(self._early) > MAX_EARLY_STEPS:
                    self._early.popitem(last=False)
                return
        self._take_turn(lambda: _deliver(step, values))

    # --- sending -----------------------------------------------------------------------------------------------------

    def _put_out(self, number: int, destination: str, channel: ChannelKey, value: Any) -> None:
        """Send a tensor to another task: a large one at once, small ones together when the program pauses.

        A message costs as much as some tens of KiB, mostly for waking the other side, so what a stretch of a program makes for one task
        travels in one; of a stretch that turns out to be long, each tensor travels as soon as it exists.
        """
        outbox: dict[tuple[str, int], dict[ChannelKey, Any]] = self._turn.outbox
        key = destination[: destination.index("/device:")], number
        together = outbox.setdefault(key, {})
        together[channel] = value
        late = time.perf_counter() - self._turn.began > SMALL_S
        if late or len(together) >= MAX_TOGETHER or getattr(value, "nbytes", 0) >= LARGE_BYTES:
            self._push(*key, outbox.pop(key))

    def _run(self, execution: Execution, loaded: Loaded) -> None:
        """Run an execution until it pauses or ends, then send what it has put out."""
        outbox = self._turn.outbox = {}
        began = self._turn.began = time.perf_counter()
        execution.run()
        loaded.measured(execution.program.device, time.perf_counter() - began)
        try:
            for (task, number), values in outbox.items():
                self._push(task, number, values)
        except OpError as e:
            execution.step.fail(e)

    def abort(self, number: int, reason: str) -> None:
        """End a step, if it runs here; refuse its late tensors in any case."""
        with self._lock:
            step = self._steps.get(number)
        if step is not None:
            step.abort(reason)
        else:
            self._forget(number)

    def waits_for(self, number: int) -> list[str]:
        """What a running step waits for here."""
        step = self._steps.get(number)
        return step.waits_for() if step is not None else []

    def _forget(self, number: int) -> None:
        with self._lock:
            self._steps.pop(number, None)
            self._early.pop(number, None)
            if number not in self._ended_set:
                if len(self._ended) == REMEMBER_STEPS:
                    self._ended_set.discard(self._ended[0])
                self._ended.append(number)
                self._ended_set.add(number)

    # --- threads ---------------------------------------------------------------------------------------------------

    def _schedule(self, execution: Execution, loaded: Loaded) -> None:
        """Run an execution in this thread's turn if it is small, in the pool otherwise."""
        ready: deque[tuple[Execution, Loaded]] | None = getattr(self._turn, "ready", None)
        if ready is not None and (self._pool is None or loaded.is_small(execution.program.device)):
            ready.append((execution, loaded))
        elif self._pool is not None:
            self._pool.submit(self._take_turn, lambda: self._run(execution, loaded))
        else:
            self._take_turn(lambda: self._run(execution, loaded))

    def _take_turn(self, first: Callable[[], None]) -> None:
        """Do `first`, then run whatever small executions it made ready, in order, until none is left.

        Executions are not run where they become ready, inside one another, so the stack stays flat however long a chain
        between two devices is.
        """
        if getattr(self._turn, "ready", None) is not None:  # already inside a turn of this thread
            first()
            return
        ready = self._turn.ready = deque()
        try:
            first()
            while ready:
                self._run(*ready.popleft())
        finally:
            self._turn.ready = None

    def close(self) -> None:
        """End all steps and stop the pool."""
        with self._lock:
            steps = list(self._steps.values())
        for step in steps:
            step.abort(f"The server of {self.task} was stopped")
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _deliver(step: TaskStep, values: Mapping[ChannelKey, Any]) -> None:
    for channel, value in values.items():
        step.deliver(channel, value)


def _nowhere(task: str, step: int, values: Mapping[ChannelKey, Any]) -> None:
    raise AbortedError(None, None, f"{task} is not this process, and it has no connection to other tasks")
