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
from functools import partial
from typing import Any

from ..codegen.gpus import gpu_backend
from ..codegen.lower import lower
from ..codegen.program import Program
from ..codegen.unit import RecvTensor, SendTensor
from ..graph.collectives import Collectives
from ..graph.errors import AbortedError, CancelledError, OpError, ResourceExhaustedError
from ..graph.node import Node
from ..graph.state import Context, Resources, SessionState
from ..placer.cluster import DeviceInfo
from .carried import Carry
from .direct_reads import DirectReads, Want
from .here import Host
from .overdue import Waiting
from .posts import Place
from .recorder import Recorder, TracedStep
from .registration import Registration
from .reports import must_report
from .slowed import slowed
from .step import ChannelKey, Execution, TaskStep, calm_thread

SMALL_S = (
    300e-6  # a program that runs no longer than this is run where its message came in: a hand-over costs about as much
)
AWAY_S = 3e-3  # and one that waits so long by itself (a Python function may sleep) is not, either
HOSTED_S = 0.2  # a client that runs a program itself gives no signs of life meanwhile, so it must not take longer
MOST_SLOW = 6  # how well slow stretches are remembered: see `Loaded`
MAX_EARLY_STEPS = 1_000  # steps that tensors may wait for without the step having been announced
MAX_EARLY_MESSAGES = 4_000  # for each
LARGE_BYTES = 64 << 10  # a tensor from this size on is sent as soon as it exists
MAX_TOGETHER = 64  # small tensors in one message: a loop may send without ever pausing, and others wait for it
REMEMBER_STEPS = 4_000  # ended steps whose late tensors are recognised


@dataclass(slots=True)
class Loaded:
    """A registered program set: this task's part of one run signature, and what is known about how long its programs take.

    A stretch is what a program does without a pause; it is known by the device and by where it begins. A slow one may be slow
    because other processes had the cores. So what counts is the time that the thread was at work, unless it was away for
    very long; it takes more than one slow run to make a stretch slow, and several quick ones to make it quick again.
    To ask for the time at work is a call of the kernel: it is not asked for after a quick run, and the first slow one after
    quick ones says nothing yet.

    Attributes:
        held: channels whose tensors wait for a later one: see `awaited.py`.
        handle: under which it is known.
        carries: as in `Registration`.
        reports: whether the client hears of the end (`reports.py`).
        client: as in `Registration`.
        slow: stretch -> how slow it has been.
        last: stretch -> the seconds that it took last.
        gaps: channel -> how long the program then goes on before it sends or pauses, about.
    """

    session: str
    programs: tuple[Program, ...]
    held: frozenset[int] = frozenset()
    handle: str = ""
    carries: frozenset[str] = frozenset()
    reports: bool = True
    client: str = ""
    slow: dict[tuple[str, int], int] = field(default_factory=dict)
    last: dict[tuple[str, int], float] = field(default_factory=dict)
    gaps: dict[ChannelKey, float] = field(default_factory=dict)

    def is_small(self, execution: Execution) -> bool:
        """Whether the stretch that comes next is known to be short."""
        return self.slow.get((execution.program.device, execution.counter), MOST_SLOW) <= MOST_SLOW // 2

    def seconds(self, execution: Execution) -> float:
        """What the stretch that comes next took last; if it never ran, an hour."""
        return self.last.get((execution.program.device, execution.counter), 3600.0)

    def is_clear(self, stretch: tuple[str, int]) -> bool:
        """Whether the stretch is known to be quick, and was the last time: then nobody needs to know how long it is at work."""
        return self.slow.get(stretch) == 0 and self.last[stretch] <= SMALL_S

    def measured(self, stretch: tuple[str, int], seconds: float, at_work: float | None) -> None:
        """A stretch took so long, and so long of that the thread was at work, if that is known."""
        if at_work is None and seconds <= SMALL_S:
            return  # as ever
        self.last[stretch] = seconds
        slow = self.slow.get(stretch)
        if seconds > AWAY_S or (at_work is not None and at_work > SMALL_S):
            self.slow[stretch] = MOST_SLOW if slow is None else min(MOST_SLOW, slow + 3)
        elif slow != 0:
            self.slow[stretch] = max(0, slow - 1) if slow else 0

    def went_on(self, channel: ChannelKey, seconds: float) -> None:
        """After sending to a channel, the program went on for so long. One hiccup counts little."""
        known = self.gaps.get(channel, 0.0)
        self.gaps[channel] = min((known + seconds) / 2, 2 * known + SMALL_S / 4)


class _Turn(threading.local):
    """What a thread is doing.

    Attributes:
        ready: executions that it is to run next; None while it runs none.
        outbox: (task, step) -> what the execution that it runs has put out, and has not sent yet.
        since: the same -> when the first of that was put out that the receiver may be waiting for.
        sent, sent_at: the channel that was put out last, and when.
    """

    ready: deque[tuple[Execution, Loaded]] | None = None
    sent: ChannelKey | None = None
    sent_at = 0.0

    def __init__(self) -> None:
        self.outbox: dict[tuple[str, int], dict[ChannelKey, Any]] = {}
        self.since: dict[tuple[str, int], float] = {}


@dataclass(slots=True)
class WorkerSession:
    """What this task keeps for one session."""

    resources: Resources
    state: SessionState
    compresses: bool = False  # whether its tensors are compressed on their way to other machines
    peer_timeout_s: float = 5.0  # a task that is silent for so long is taken for dead


class Worker:
    """Programs, state and running steps of one task.

    Args:
        task: `/job:ps/replica:0/task:0`.
        devices: the devices of the task.
        push: (task, step, values by channel, what they start there): send tensors to another task.
        is_near: whether large tensors cost no more than small ones on the way to a task: it reads this one's memory.
        collectives: where its collective ops meet those of other tasks; None: there are no others.
        ask: (task, its incarnation, step, session, wants): ask another task for variables: see `direct_reads.py`.
        lends: which GPUs of other tasks read this one's GPU memory: see `gpu_loans.py`; None: none.
        threads: size of the pool that runs programs which are not small; 0: everything runs in the caller's thread.
    """

    def __init__(
        self,
        task: str,
        devices: Sequence[DeviceInfo],
        *,
        push: Callable[[str, int, Mapping[ChannelKey, Any], Carry | None], None] | None = None,
        is_near: Callable[[str], bool] = lambda task: False,
        ask: Callable[[str, int, int, str, Sequence[Want]], None] | None = None,
        lends: Callable[[str], bool] | None = None,
        threads: int = 0,
        default_container: str = "",
        collectives: Collectives | None = None,
    ) -> None:
        self.task = task
        self.devices = tuple(devices)
        self._gpus = frozenset(str(d.name) for d in devices if d.name.device_type == "GPU" and not d.emulated)
        self.resources = Resources(collectives)
        self.default_container = default_container
        self._out = push or _nowhere
        self._is_near = is_near
        self._ask = ask
        self._lends = lends
        self.direct = DirectReads(task, default_container)
        self._pool = (
            ThreadPoolExecutor(threads, thread_name_prefix="dovetail-step", initializer=calm_thread)
            if threads
            else None
        )
        self._lock = threading.Lock()
        self._sessions: dict[str, WorkerSession] = {}
        self._loaded: dict[str, Loaded] = {}
        self._steps: dict[int, TaskStep] = {}
        self.started = self.failed = 0  # steps, since the worker was made
        self._early: OrderedDict[int, list[Mapping[ChannelKey, Any]]] = OrderedDict()
        self._ended: OrderedDict[int, None] = OrderedDict()
        self._sent: dict[int, dict[int, ChannelKey]] = {}  # step -> channel without iteration -> the last that was sent
        self._turn = _Turn()

    # --- sessions and programs -------------------------------------------------------------------------------------

    def open_session(self, handle: str, seed: int, isolated: bool) -> WorkerSession:
        """What this task keeps for the session; made at its first mention."""
        with self._lock:
            session = self._sessions.get(handle)
            if session is None:
                session = self._sessions[handle] = WorkerSession(
                    Resources(self.resources.collectives) if isolated else self.resources, SessionState(seed)
                )
            return session

    def register(self, new: Registration) -> None:
        """Lower units to programs and keep them. Nothing is kept when one of them fails."""
        state = self.open_session(new.session, new.seed, new.isolated)
        state.peer_timeout_s, state.compresses = new.peer_timeout_s, new.compresses

        def context_of(node: Node) -> Context:
            return Context(
                node.name,
                node.container or self.default_container,
                state.resources,
                state.state,
                tuple(t.dims for t in node.outputs),
            )

        host = new.kernels.make_backend()  # emulated GPUs run the CPU's kernels, too
        programs = []
        held = frozenset(s.channel for unit in new.units for s in unit.steps if isinstance(s, SendTensor) and s.held)
        for unit in new.units:
            gpu = gpu_backend(new.kernels, host, unit.device, self._gpus, self._lends)
            backend = host if gpu is None else gpu
            programs.append(backend.finish(lower(unit, backend, context_of, self.direct.reader)))
        with self._lock:
            self._loaded[new.program] = Loaded(
                new.session, tuple(map(slowed, programs)), held, new.program, frozenset(new.carries), must_report(new.units),
                new.client,
            )  # fmt: skip

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
            self.direct.close_session(handle)
            steps = [s for s in self._steps.values() if s.session == handle]
        for step in steps:
            step.fail(CancelledError(None, None, "Step was cancelled by an explicit call to `Session.close()`."))

    def reset(self, containers: Iterable[str]) -> None:
        """Clear containers (none named: the task's default one)."""
        for container in list(containers) or [self.default_container]:
            self.resources.clear(container)

    # --- steps -----------------------------------------------------------------------------------------------------

    def start(
        self,
        number: int,
        handle: str,
        feeds: Mapping[str, Any],
        finish: Callable[[Mapping[str, Any] | OpError], None],
        resume: Callable[[Callable[[], None]], None] | None = None,
        *,
        host: Host | None = None,
        recorder: Recorder | None = None,
        client: int = 0,
        arrived: Mapping[ChannelKey, Any] | None = None,
    ) -> None:
        """Run one step of registered programs; `finish` is told the fetched values or the error, from whichever thread ends it.

        What another step resumes is run by that step's thread or the pool; with `resume`, by whoever calls what that is given.
        With `host`, a stretch that is neither small nor long is given to it, if it has time.
        A `recorder` takes notes of the step. Its tensors start the parts of other tasks for `client`, if that is given. `arrived`
        are tensors that started this one.
        """
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
            if isinstance(outcome, OpError):
                self.failed += 1
            finish(outcome)

        try:
            step: TaskStep = (TaskStep if recorder is None else partial(TracedStep, recorder))(
                number, loaded.session, loaded.programs, feeds,
                push=lambda destination, channel, value: self._put_out(number, client, loaded, destination, channel, value),
                schedule=lambda execution: self._schedule(execution, loaded, host),
                finish=ended,
                want=lambda receives: self.want(number, loaded.session, receives),
                aside=self._aside,
                resume=None if resume is None else lambda execution: resume(
                    lambda: self._take_turn(self._run, execution, loaded)
                ),
            )  # fmt: skip
        except OpError as e:
            finish(e)
            return
        step.client = client
        with self._lock:
            self._steps[number] = step
            self.started += 1
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
            step.deliver_all(values)
        if arrived:
            step.deliver_all(arrived)
        self._take_turn(step.start)

    def is_new(self, number: int) -> bool:
        """Whether a step has neither begun here nor ended."""
        return number not in self._steps and number not in self._ended

    def reports(self, handle: str) -> bool:
        """Whether a client waits for the end of a program."""
        loaded = self._loaded.get(handle)
        return loaded is None or loaded.reports

    def client_of(self, handle: str) -> str:
        """The process whose program it is, as it calls itself; nothing if that is not known."""
        loaded = self._loaded.get(handle)
        return loaded.client if loaded is not None else ""

    def deliver(self, number: int, values: Mapping[ChannelKey, Any]) -> None:
        """Tensors have come from another task."""
        step = self._steps.get(number)
        if step is None:
            with self._lock:
                step = self._steps.get(number)
                if step is None:
                    self._keep_early(number, values)
                    return
        self._take_turn(step.deliver_all, values)

    def _keep_early(self, number: int, values: Mapping[ChannelKey, Any]) -> None:
        """Keep tensors of a step that may be announced later. For holders of the lock."""
        if number in self._ended:
            return
        waiting = self._early.setdefault(number, [])
        if len(waiting) < MAX_EARLY_MESSAGES:
            waiting.append(values)
        if len(self._early) > MAX_EARLY_STEPS:
            self._early.popitem(last=False)

    # --- variables that are read where they lie ----------------------------------------------------------------------

    def post(self, handle: str, seed: int, isolated: bool, names: Iterable[Sequence[str]]) -> list[Place | None]:
        """Let others read these variables of a session, each named by its container and name."""
        return self.direct.post(handle, self.open_session(handle, seed, isolated), names)

    def want(self, number: int, session: str, receives: Iterable[RecvTensor]) -> None:
        """Ask for variables that could not be read. UnavailableError and others: nobody can be asked."""
        assert self._ask is not None
        for (task, incarnation), wants in self.direct.wants(number, receives).items():
            self._ask(task, incarnation, number, session, wants)

    def want_again(self, number: int, channels: Iterable[ChannelKey]) -> None:
        """Ask again for those of these tensors that are variables: they are overdue."""
        step, overdue = self._steps.get(number), self.direct.overdue(number, channels)
        if step is not None and overdue:
            self.want(number, step.session, overdue)

    def values(self, handle: str, wants: Iterable[Want]) -> dict[ChannelKey, Any]:
        """The values of variables that another task has asked for, by channel. Errors are those of `DirectReads.values`."""
        return self.direct.values(self._sessions.get(handle), wants)

    def send(self, task: str, number: int, values: Mapping[ChannelKey, Any]) -> None:
        """Send what was asked for."""
        self._push(task, number, values)

    def not_sent(self, number: int, channels: Iterable[ChannelKey]) -> None:
        """What was sent on these channels has come back: it will be sent once more."""
        with self._lock:
            sent = self._sent.get(number, {})
            for channel in channels:
                sent.pop(_moment(channel)[0], None)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _put_out(
        self, number: int, client: int, loaded: Loaded, destination: str, channel: ChannelKey, value: Any
    ) -> None:
        """Send a tensor to another task, now or together with later ones.

        A message costs as much as some tens of KiB, mostly for waking the other side. So what a program makes for one task
        travels together, as far as nobody is kept waiting: a tensor that the receiver awaits leaves before the program goes on
        for long, one that it does not await yet leaves with the one that it does, and everything leaves when the program pauses.
        On a network, a large tensor leaves at once, so that it is on its way meanwhile.
        """
        turn = self._turn
        now = time.perf_counter()
        if turn.sent is not None:
            loaded.went_on(turn.sent, now - turn.sent_at)
        turn.sent, turn.sent_at = channel, now
        task = destination[: destination.index("/device:")]
        key = task, number
        together = turn.outbox.get(key)
        if together is None:
            together = turn.outbox[key] = {}
        together[channel] = value
        large = getattr(value, "nbytes", 0) >= LARGE_BYTES and not self._is_near(task)
        if not large and len(together) < MAX_TOGETHER:
            if channel in loaded.held:
                return
            since = turn.since.setdefault(key, now)
            if now - since <= SMALL_S and loaded.gaps.get(channel, 0.0) <= SMALL_S:
                return
        turn.since.pop(key, None)
        self._push(task, number, turn.outbox.pop(key), _carry(client, loaded, task))

    def _run(self, execution: Execution, loaded: Loaded) -> None:
        """Run an execution until it pauses or ends, then send what it has put out."""
        turn = self._turn
        if turn.sent is not None:  # inside another one, of which a kernel runs a session
            around = turn.sent, turn.sent_at, turn.outbox, turn.since
            turn.sent, turn.outbox, turn.since = None, {}, {}
            try:
                self._run(execution, loaded)
            finally:
                turn.sent, turn.sent_at, turn.outbox, turn.since = around
            return
        stretch = execution.program.device, execution.counter
        at_work = None if loaded.is_clear(stretch) else time.thread_time()
        began = time.perf_counter()
        execution.run()
        ended = time.perf_counter()
        if at_work is not None:
            at_work = time.thread_time() - at_work
        loaded.measured(stretch, ended - began, at_work)
        if turn.sent is None:
            return  # it has put out nothing
        loaded.went_on(turn.sent, ended - turn.sent_at)
        outbox = turn.outbox
        turn.sent, turn.outbox, turn.since = None, {}, {}
        try:
            for (task, number), values in outbox.items():
                self._push(task, number, values, _carry(execution.step.client, loaded, task))
        except OpError as e:
            execution.step.fail(e)

    def _push(self, task: str, number: int, values: Mapping[ChannelKey, Any], carry: Carry | None = None) -> None:
        self._out(task, number, values, carry)
        sent = self._sent.get(number)
        if sent is None:
            with self._lock:
                if number not in self._steps:
                    return  # it has ended: nothing more of it is to come
                sent = self._sent.setdefault(number, {})
        for channel in values:
            sent[channel if type(channel) is int else int(str(channel).partition("@")[0])] = channel

    def account(self, number: int, channels: Iterable[ChannelKey]) -> tuple[bool, list[ChannelKey]]:
        """Whether this task knows a step, and which of these tensors it has sent, or will never send any more."""
        with self._lock:
            if number in self._ended:
                return True, list(channels)
            if number not in self._steps:
                return False, []
            sent = self._sent.get(number, {})
            return True, [c for c in channels if _moment(c) <= _moment(sent.get(_moment(c)[0], -1))]

    def waiting(self) -> dict[int, Waiting]:
        """What steps wait for, from other tasks."""
        found = {}
        for number, step in list(self._steps.items()):
            by_task: dict[str, list[ChannelKey]] = {}
            for device, channel in step.waits_for_tensors():
                task = device[: device.index("/device:")]
                if task != self.task:
                    by_task.setdefault(task, []).append(channel)
            session = self._sessions.get(step.session)
            if by_task and session is not None:
                found[number] = Waiting(session.peer_timeout_s, by_task)
        return found

    def fail(self, number: int, error: OpError) -> None:
        """End a step with an error, if it runs here."""
        step = self._steps.get(number)
        if step is not None:
            step.fail(error)

    def abort(self, number: int, reason: str) -> None:
        """End a step, if it runs here; refuse its late tensors in any case."""
        with self._lock:
            step = self._steps.get(number)
        if step is not None:
            step.abort(reason)
        else:
            self._forget(number)

    def compresses(self, number: int) -> bool:
        """Whether a step's tensors are to be compressed on their way to other machines."""
        step = self._steps.get(number)
        session = None if step is None else self._sessions.get(step.session)
        return session is not None and session.compresses

    def running(self) -> list[int]:
        """The steps that run here."""
        return list(self._steps)

    def waits_for(self, number: int) -> list[str]:
        """What a running step waits for here."""
        step = self._steps.get(number)
        return step.waits_for() if step is not None else []

    def may_go_on(self, number: int) -> bool:
        """Whether something will still be heard of a step though nothing of it runs: it is ending, or waits for another one."""
        step = self._steps.get(number)
        return step is None or step.may_go_on

    def _forget(self, number: int) -> None:
        self.direct.forget(number)
        with self._lock:
            self._steps.pop(number, None)
            self._sent.pop(number, None)
            self._early.pop(number, None)
            self._ended[number] = None
            if len(self._ended) > REMEMBER_STEPS:
                self._ended.popitem(last=False)

    # --- threads ---------------------------------------------------------------------------------------------------

    def _schedule(self, execution: Execution, loaded: Loaded, host: Host | None) -> None:
        """Run an execution in this thread's turn if it is small, by its host if that has time, in the pool otherwise."""
        ready = self._turn.ready
        if ready is not None and (self._pool is None or loaded.is_small(execution)):
            ready.append((execution, loaded))
            return

        def run() -> None:
            self._take_turn(self._run, execution, loaded)

        if host is not None and loaded.seconds(execution) <= HOSTED_S and host.take(run):
            return
        if self._pool is not None:
            self._pool.submit(run)
        else:
            run()

    def _aside(self, work: Callable[[], None]) -> None:
        """Do what may run beside a program: in the pool."""
        if self._pool is not None:
            self._pool.submit(self._take_turn, work)
        else:
            work()

    def _take_turn(self, first: Callable[..., None], *arguments: Any) -> None:
        """Do `first(*arguments)`, then run whatever small executions it made ready, in order, until none is left.

        Executions are not run where they become ready, inside one another, so the stack stays flat however long a chain
        between two devices is.
        """
        turn = self._turn
        if turn.ready is not None:  # already inside a turn of this thread
            first(*arguments)
            return
        ready = turn.ready = deque()
        try:
            first(*arguments)
            while ready:
                self._run(*ready.popleft())
        finally:
            turn.ready = None

    def close(self) -> None:
        """End all steps and stop the pool."""
        with self._lock:
            steps = list(self._steps.values())
        for step in steps:
            step.abort(f"The server of {self.task} was stopped")
        self.direct.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _moment(channel: ChannelKey) -> tuple[int, ...]:
    """A channel's number and iterations: what one channel sends comes in this order."""
    return (channel,) if isinstance(channel, int) else tuple(map(int, channel.split("@")))


def _carry(client: int, loaded: Loaded, task: str) -> Carry | None:
    """What a client's tensors start on a task."""
    return Carry(loaded.handle, client) if client and task in loaded.carries else None


def _nowhere(task: str, step: int, values: Mapping[ChannelKey, Any], carry: Carry | None) -> None:
    raise AbortedError(None, None, f"{task} is not this process, and it has no connection to other tasks")
