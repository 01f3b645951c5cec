"""The worker service of a task: it keeps programs and state, and runs the task's part of steps.

Every server has one. It uses no sockets: the server passes it the contents of messages, and `push` to send tensors to other tasks.
Tensors may arrive before their step is started here, because their producer was started first: a bounded number of them is kept.
Tensors that arrive after their step has ended are dropped.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ...codegen.cpu import backend as _numba  # noqa: F401  (the compiler is loaded with the worker, not in a first step)
from ...codegen.ir.partition import PartitionGraph, RecvTensor
from ...codegen.options import KernelOptions
from ...codegen.pipeline import compile_partition, cpu_backend, gpu_backend
from ...graph.core.errors import AbortedError, CancelledError, OpError, ResourceExhaustedError, from_code
from ...graph.core.graph import Node
from ...graph.core.interpreter_state import collector_paused
from ...graph.resources.collective_context import CollectiveContext
from ...graph.resources.resource_manager import Context, Resources, SessionState
from ...placer.cluster.spec import DeviceInfo
from ...placer.partition.partitioned_graph import task_of
from ..collectives.coordinator import Coordinator
from ..observability.metrics import LAST_STEPS
from ..observability.step_notes import Recorder
from ..rpc.failure_detection import AwaitedTensors
from ..shared_memory.remote_variables import RemoteVariables, VariableName, Want, denied_error, unknown_error, wants_of
from ..wire.messages import ChannelKey, Message
from .executor import Executor, Finish, Outcome, ignore_numpy_warnings
from .registration import Registration
from .replication import Replicator
from .step import TaskStep, TracedStep
from .step_scheduler import InlineStep, RegisteredProgram, RunQueues, StepRunner, only_segment

MAX_EARLY_STEPS = 1_000  # steps not yet started here for which tensors are kept
MAX_EARLY_MESSAGES = 4_000  # messages of tensors that are kept for each such step
REMEMBER_STEPS = 4_000  # ended steps whose late tensors are recognised and dropped


@dataclass(slots=True)
class WorkerSession:
    """The state that this task keeps for one session."""

    resources: Resources
    state: SessionState
    peer_timeout_s: float = 5.0  # seconds of silence after which a task counts as dead


def closed() -> OpError:
    """The error of the running steps of a session that its client closes."""
    return CancelledError.of("Step was cancelled by an explicit call to `Session.close()`.")


def cleared() -> OpError:
    """The error of the running steps of a session that `Session.reset` closes."""
    return AbortedError.of(
        "The session was closed by `Session.reset`, which has cleared containers: open another one, and initialise or restore its "
        "variables."
    )


def _nowhere(task: str, step: int, values: Mapping[ChannelKey, Any]) -> None:
    raise AbortedError.of(f"{task} is not this process, and it has no connection to other tasks")


class Worker:
    """Programs, state and running steps of one task.

    Args:
        task: `/job:ps/replica:0/task:0`.
        push: (task, step, values by channel, and the connection of a client in its process): sends tensors to another task.
        reader_of: the process of a task if it reads this one's memory, so that sending it a large tensor costs no more than a small one;
            else 0.
        collectives: runs its collective ops with those of other tasks. None: there are no other tasks.
        ask: (task, its incarnation, step, session, wants): ask another task for variables: see `remote_variables.py`.
        wake: tells a task that it has gradients for which it waits: see `shared_accumulator.py`.
        lends: which GPUs of other tasks read this one's GPU memory: see `cuda_ipc.py`; None: none.
        resources: the state of the task; None: a new one. make_state: makes a session's state between steps, from its seed.
        data_folders: folders whose files the data sets of other processes may read; None: any.
        threads: size of the pool; 0: there is none.

    Attributes:
        pool: runs segments that are not short; None: the thread that starts a step runs everything.
        run_queues: the run queue of each thread.
        replicator: keeps the variables at a second task; None: nothing does.
        on_tensors: takes a message of tensors that has come to a client in this process.
    """

    def __init__(
        self, task: str, devices: Sequence[DeviceInfo], *, threads: int = 0, default_container: str = "",
        push: Callable[..., None] = _nowhere,
        reader_of: Callable[[str], int] = lambda task: 0, wake: Callable[[str], None] = lambda task: None,
        ask: Callable[[str, int, int, str, Sequence[Want]], None] | None = None, lends: Callable[[str], bool] | None = None,
        collectives: CollectiveContext | None = None, resources: Resources | None = None,
        make_state: Callable[[int], SessionState] = SessionState, data_folders: tuple[str, ...] | None = (),
    ) -> None:  # fmt: skip
        self.task = task
        self.devices = tuple(devices)
        self._gpus = frozenset(str(d.name) for d in devices if d.name.device_type == "GPU" and not d.emulated)
        self._has_own_state = resources is None
        if resources is None:
            resources = Resources(collectives or Coordinator(), default_container)
            resources.data_folders = data_folders
        self.resources = resources
        self.default_container = default_container
        self._make_state = make_state
        self._out = push
        self.on_tensors: Callable[[bytes, Message], None] = lambda peer, message: None
        self.reader_of = reader_of
        self._ask = ask
        self._lends = lends
        self.direct = RemoteVariables(task, default_container, opens=not self._gpus, wake=wake)
        self.pool: ThreadPoolExecutor | None = None
        if threads:
            self.pool = ThreadPoolExecutor(threads, "dovetail-step", ignore_numpy_warnings)
        self.run_queues = RunQueues()
        self._lock = threading.Lock()
        self._sessions: dict[str, WorkerSession] = {}
        self._registered: dict[str, RegisteredProgram] = {}
        self._steps: dict[int, TaskStep] = {}
        self.replicator: Replicator | None = None
        self.failed = 0  # steps, since the worker was made
        self.times: deque[float] = deque(maxlen=LAST_STEPS)  # seconds of the last steps
        self._early: OrderedDict[int, list[Mapping[ChannelKey, Any]]] = OrderedDict()
        self._ended: OrderedDict[int, OpError | None] = OrderedDict()  # the error if the step had not begun here

    @property
    def incarnation(self) -> int:
        """That of the task's process."""
        return self.devices[0].incarnation

    # --- sessions and programs -------------------------------------------------------------------------------------

    def open_session(self, handle: str, seed: int, isolated: bool) -> WorkerSession:
        """The state that this task keeps for a session; created at its first use."""
        with self._lock:
            session = self._sessions.get(handle)
            if session is None:
                resources = self.resources
                if isolated:
                    resources = Resources(self.resources.collectives, self.default_container)
                    resources.data_folders = self.resources.data_folders
                session = self._sessions[handle] = WorkerSession(resources, self._make_state(seed))
            return session

    def register(self, new: Registration) -> dict[str, Any]:
        """Compile the partitions of a registration to programs, and store them. Nothing is stored if one of them fails."""
        if self.replicator is not None:
            self.replicator.check_ready()
        state = self.open_session(new.session, new.seed, new.isolated)
        state.peer_timeout_s = new.peer_timeout_s

        def context_of(node: Node) -> Context:
            container, dims = node.container or self.default_container, tuple(t.dims for t in node.outputs)
            return Context(node.name, container, state.resources, state.state, dims)

        on_cpu = cpu_backend(new.kernels)  # emulated GPUs run the CPU's kernels, too
        programs = []
        with collector_paused():
            for partition in new.partitions:
                gpu = gpu_backend(new.kernels, partition.device, self._gpus, self._lends)
                backend = on_cpu if gpu is None else gpu
                programs.append(compile_partition(partition, backend, context_of, self.direct.reader))
        registered = RegisteredProgram(new.session, tuple(programs), new.client)
        registered.inline_segment = only_segment(registered)
        with self._lock:
            self._registered[new.program] = registered
        return {"incarnation": self.incarnation}

    def warm_up(self, options: KernelOptions) -> None:
        """Compile an empty program: this loads the compiler's passes and parses its rules, once in a process."""
        nothing, backend = PartitionGraph(str(self.devices[0].name), (), (), ()), cpu_backend(options)
        compile_partition(nothing, backend, lambda node: Context(node.name, "", self.resources, self._make_state(0)))

    def close_session(self, handle: str, why: Callable[[], OpError] = closed) -> None:
        """Forget a session: its programs, and its running steps, which end with that error."""
        with self._lock:
            session = self._sessions.pop(handle, None)
            for key in [k for k, v in self._registered.items() if v.session == handle]:
                del self._registered[key]
            self.direct.publisher.close_session(handle)
            steps = [s for s in self._steps.values() if s.session == handle]
        for step in steps:
            step.fail(why())
        if session is not None and session.resources is not self.resources:
            _end(session.resources)

    # --- what else masters ask for: a method for each kind of message, from its fields to those of the reply -----------

    def reset_containers(self, containers: Iterable[str], sessions: Iterable[str]) -> dict[str, Any]:
        """Close sessions, and clear containers (if none is named, the task's default one)."""
        for handle in sessions:  # first: their steps must not fail because of missing variables
            self.close_session(handle, cleared)
        for container in list(containers) or [self.default_container]:
            self.resources.clear(container)
        return {}

    def expose_memory(self) -> dict[str, Any]:
        """The address at which others can try to read this process's memory."""
        return {"page": self.direct.page()}

    def map_memory(self, page: Sequence[int]) -> dict[str, Any]:
        """Try to read the memory of another process."""
        return {"readable": self.direct.sees(page)}

    def publish(
        self, session: str, seed: int, isolated: bool, names: Sequence[VariableName], changed: bool
    ) -> dict[str, Any]:
        """Publish variables of a session for others to read, or also to update if `changed`."""
        resources = self.open_session(session, seed, isolated).resources
        places = self.direct.publish(session, resources, names, changed, keeps=self.replicator is not None)
        return {"incarnation": self.incarnation, "places": [place and list(place) for place in places]}

    # --- steps -----------------------------------------------------------------------------------------------------

    def start(
        self, number: int, handle: str, feeds: Mapping[str, Any], finish: Finish,
        resume: Callable[[Callable[[], None]], None] | None = None, *, recorder: Recorder | None = None, waiter: int = 0,
        client: tuple[str | None, bytes] = (None, b""),
    ) -> None:  # fmt: skip
        """Run this task's part of a step.

        Args:
            number: of the step. handle: of the registered program. feeds: name -> value.
            finish: called with the fetched values or the error, in the thread that ends the part.
            resume: takes calls that continue the part when another step resumes it; None: that step's thread or the pool does it.
            recorder: records the events of the step; None: it is not traced.
            waiter, client: see `StepRunner`.
        """
        registered = self._registered.get(handle)
        if self.replicator is not None:
            finish = self.replicator.after(finish)
        if registered is None:
            finish(unknown_error(self.task, f"program {handle}"))
            return
        waiter = waiter if len(registered.programs) == 1 else 0
        running = StepRunner(self, number, registered, finish, resume, waiter, client)
        try:
            if recorder is None:
                step = TaskStep(number, registered.session, registered.programs, feeds, running)
            else:
                step = TracedStep(recorder, number, registered.session, registered.programs, feeds, running)
        except OpError as e:
            finish(e)
            return
        with self._lock:
            self._steps[number] = step
            self.resources.steps_started += 1
            early = self._early.pop(number, ()) if self._early else ()
            aborted, was_closed = self._ended.get(number), registered.session not in self._sessions
        if was_closed:
            step.fail(closed())
        elif aborted is not None:
            step.fail(aborted)
        if len(early) >= MAX_EARLY_MESSAGES:  # more may have arrived and been dropped
            error = ResourceExhaustedError.of(
                f"{len(early)} messages of step {number} came to {self.task} before the step was started there: another task's "
                "loop ran too far ahead. Let the loop take something back from this task in each iteration."
            )
            step.fail(error)
            return
        for values in early:
            step.deliver(values)
        self.run_queues.current.take(step.start)

    def run_inline(self, number: int, handle: str, feeds: Mapping[str, Any]) -> Outcome | None:
        """Run a part of a step inline (`step_scheduler.py`): the fetched values, or the error. None: it must be started."""
        registered = self._registered.get(handle)
        if registered is None or self.replicator is not None or number in self._ended:
            return None
        key = registered.inline_segment
        if key is None or not (segment := registered.segments[key]).is_short:
            return None
        began = perf_counter()
        try:
            step = InlineStep()
            executor = Executor(step, registered.programs[0])  # type: ignore[arg-type]  # calls neither send nor wait
            executor.feed(number, feeds)
            self.run_queues.current.take(executor.run)
            outcome = step.outcome
        except OpError as e:
            outcome = e
        seconds = perf_counter() - began
        registered.segments[key] = segment.measured(seconds)
        self.times.append(seconds)
        with self._lock:
            self.resources.steps_started += 1
            self.failed += isinstance(outcome, OpError)
            self._note_end(number)
        return outcome

    def is_new(self, number: int) -> bool:
        """Whether a step has not begun here. It may have been aborted before: by its client, or by a tensor that could not be taken."""
        return number not in self._steps and self._ended.get(number, True) is not None

    def client_of(self, handle: str) -> str:
        """The name of the client process that opened the program's session; empty if that is not known."""
        registered = self._registered.get(handle)
        return registered.client if registered is not None else ""

    def deliver(self, number: int, values: Mapping[ChannelKey, Any]) -> None:
        step = self._steps.get(number)
        if step is None:
            with self._lock:
                step = self._steps.get(number)
                if step is None:
                    self._keep_early(number, values)
                    return
        self.run_queues.current.take(step.deliver, values)

    def _keep_early(self, number: int, values: Mapping[ChannelKey, Any]) -> None:
        """Keep tensors of a step that may be started later. The caller holds the lock."""
        if number in self._ended:
            return
        waiting = self._early.setdefault(number, [])
        if len(waiting) < MAX_EARLY_MESSAGES:
            waiting.append(values)
        if len(self._early) > MAX_EARLY_STEPS:
            self._early.popitem(last=False)

    # --- one-sided access to variables -------------------------------------------------------------------------------

    def look(self) -> None:
        """Check for gradients that other tasks have added to accumulators here: one has said so, or was killed before it."""
        self.run_queues.current.take(self.direct.publisher.look)

    def want(self, number: int, session: str, receives: Iterable[RecvTensor]) -> None:
        """Request variables of other tasks that could not be read. UnavailableError and others: the request cannot be sent."""
        assert self._ask is not None
        for (task, incarnation), wants in wants_of(receives).items():
            self._ask(task, incarnation, number, session, wants)

    def want_again(self, number: int, channels: Iterable[ChannelKey]) -> None:
        """Repeat the requests for those overdue tensors that are variables."""
        step = self._steps.get(number)
        if step is not None:
            self.want(number, step.session, [step.wanted[c] for c in channels if c in step.wanted])

    def denied(self, number: int, channels: Iterable[ChannelKey], code: str, message: str) -> None:
        """End a step whose request for variables was denied."""
        step = self._steps.get(number)
        denied = next((c for c in channels if c in step.wanted), None) if step is not None else None
        if step is not None and denied is not None:
            step.fail(denied_error(step.wanted[denied], code, message))

    def values(self, handle: str, wants: Iterable[Want]) -> dict[ChannelKey, Any]:
        """The values of variables that another task has requested, by channel. Errors are those of `RemoteVariables.values`."""
        session = self._sessions.get(handle)
        return self.direct.values(None if session is None else session.resources, wants)

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, task: str, number: int, values: Mapping[ChannelKey, Any], *client: bytes) -> None:
        """Send tensors of a step, and remember that they were sent. The arguments are those of `push`."""
        self._out(task, number, values, *client)
        step = self._steps.get(number)
        if step is not None:  # else it has ended
            for channel in values:
                step.sent[channel if type(channel) is int else int(str(channel).partition("@")[0])] = channel

    def not_sent(self, number: int, channels: Iterable[ChannelKey]) -> None:
        """The receiver could not read the tensors of these channels: they will be sent again."""
        step = self._steps.get(number)
        if step is not None:
            for channel in channels:
                step.sent.pop(_moment(channel)[0], None)

    def account(self, number: int, channels: Iterable[ChannelKey]) -> tuple[bool, list[ChannelKey]]:
        """Whether this task knows a step, and which of these tensors it has sent or will never send."""
        with self._lock:
            if number in self._ended:
                return True, list(channels)
            step = self._steps.get(number)
            if step is None:
                return False, []
            return True, [c for c in channels if _moment(c) <= _moment(step.sent.get(_moment(c)[0], -1))]

    def waiting(self) -> dict[int, AwaitedTensors]:
        """The tensors of other tasks that running steps wait for."""
        found = {}
        for number, step in list(self._steps.items()):
            by_task: dict[str, list[ChannelKey]] = {}
            for device, channel in step.waits_for_tensors():
                task = task_of(device)
                if task != self.task:
                    by_task.setdefault(task, []).append(channel)
            session = self._sessions.get(step.session)
            if by_task and session is not None:
                found[number] = AwaitedTensors(
                    session.peer_timeout_s, by_task, self.direct.ended(list(step.wanted.values()))
                )
        return found

    def fail(self, number: int, error: OpError) -> None:
        """End a step with an error, if it runs here."""
        step = self._steps.get(number)
        if step is not None:
            step.fail(error)

    def abort(self, number: int, reason: str, code: str = "CANCELLED") -> None:
        """End a step, if it runs here; refuse its late tensors in any case."""
        with self._lock:
            step = self._steps.get(number)
            if step is None:  # under the same lock: it may be about to start
                self._early.pop(number, None)
                self._note_end(number, from_code(code, reason))
        if step is not None:
            step.fail(from_code(code, reason))

    def running(self) -> list[int]:
        return list(self._steps)

    def waits_for(self, number: int) -> list[str]:
        step = self._steps.get(number)
        return step.waits_for() if step is not None else []

    def may_go_on(self, number: int) -> bool:
        """Whether an event may still resume a step with no running program: it is ending, or waits for another step."""
        step = self._steps.get(number)
        return step is None or step.may_go_on

    def step_ended(self, number: int, outcome: Outcome) -> None:
        step = self._steps.get(number)
        if step is not None:
            self.times.append(perf_counter() - step.began)
        with self._lock:
            self.failed += isinstance(outcome, OpError)
            self._steps.pop(number, None)
            if self._early:
                self._early.pop(number, None)
            self._note_end(number)

    def _note_end(self, number: int, aborted: OpError | None = None) -> None:
        """Remember that a step has ended, or was aborted before it began. The caller holds the lock."""
        self._ended[number] = aborted
        if len(self._ended) > REMEMBER_STEPS:
            self._ended.popitem(last=False)

    def close(self) -> None:
        """End all steps and stop the pool."""
        with self._lock:
            steps = list(self._steps.values())
        for step in steps:
            step.fail(CancelledError.of(f"The server of {self.task} was stopped"))
        if self._has_own_state:
            _end(self.resources)
        self.direct.publisher.close()
        if self.replicator is not None:
            self.replicator.close()
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)


def _end(resources: Resources) -> None:
    """End what works for kernels with this state: it would keep the state, and threads."""
    for work in list(resources.inner):
        work.cancel(resources)


def _moment(channel: ChannelKey) -> tuple[int, ...]:
    """A channel's number and iterations: the order in which one channel sends."""
    return (channel,) if isinstance(channel, int) else tuple(map(int, channel.split("@")))


servers: dict[str, tuple[Any, Worker]] = {}
"""The servers of this process, each a `Server` of a higher layer, and their workers, by the addresses at which they listen.

A session in the same process hands them its steps without a message. Between-graph replication uses it: the client of each worker runs in
the process of the worker's server.
"""
os.register_at_fork(after_in_child=servers.clear)  # a forked child has none of them


def find_colocated(address: str, incarnation: int) -> Worker | None:
    """The worker of the server that listens at `address`, if it belongs to this process and has this incarnation."""
    found = servers.get(address)
    return found[1] if found is not None and found[1].incarnation == incarnation else None
