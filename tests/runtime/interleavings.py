"""A cluster without processes, whose events happen in every order: a small model checker for the protocol of a step.

Theory. A `World` has workers, a master that prepares signatures for them, a client, and links between them. A link is a queue of
messages in order, as a connection is. An *event* is one thing that can happen next: a link delivers its first message, or a fault that the
scenario allows strikes (a task dies, a message is lost, the client gives up). Each event is played to its end, as a thread of a worker
would. `explore` plays a scenario again and again, each time with other choices, until all orders have been played (depth first: the
choices of the last play are taken back one by one). Orders that differ only in events of different tasks are played once: what
was tried first at some point sleeps in the other branches until something wakes it that it does not commute with (sleep sets:
Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996). When nothing can happen any more, time passes,
and those who wait look about, as `runtime/rpc/pending_call.py` and `runtime/rpc/failure_detection.py` say. Then the promises are checked:

- the client has the right values, or, if something has struck, perhaps an error;
- nobody was told what tensors tell him, unless time had to pass;
- no worker holds anything of any step.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import dovetail as tf
from dovetail.codegen.options import KernelOptions
from dovetail.graph.core.errors import AbortedError, CancelledError, OpError, UnavailableError
from dovetail.placer.cluster.spec import Cluster, local_devices
from dovetail.runtime.collectives.coordinator import Coordinator
from dovetail.runtime.config import ConfigProto
from dovetail.runtime.master.master import Master, TaskPart
from dovetail.runtime.rpc.failure_detection import LossDetector
from dovetail.runtime.worker.registration import Registration
from dovetail.runtime.worker.worker import Worker

CLIENT = "client"
GIVE_UP_S = 60


class Pruned(Exception):  # noqa: N818  (it is none)
    """This play need not go on."""


class Event(NamedTuple):
    """Something that can happen: the `number`th message of a link is delivered, or lost, or a fault strikes."""

    what: str
    source: str
    target: str
    number: int

    def commutes(self, other: Event) -> bool:
        """Whether it makes no difference which of the two comes first: they change different tasks."""
        return self.what == other.what == "deliver" and self.target != other.target


class Choices:
    """The choices of one play: first those that are given, then always the first one; remembers how many there were."""

    def __init__(self, given: Sequence[int]) -> None:
        self._given = given
        self.taken: list[tuple[int, int]] = []

    @property
    def is_new(self) -> bool:
        """Whether the choices that are given have been taken."""
        return len(self.taken) >= len(self._given)

    def choose(self, count: int) -> int:
        """One of 0 .. count - 1."""
        at = len(self.taken)
        which = self._given[at] if at < len(self._given) else 0
        self.taken.append((which, count))
        return which


def explore(play: Callable[[Choices], None], limit: int = 100_000) -> int:
    """Play with all possible choices; how many plays that were. AssertionErrors tell the choices."""
    given: list[int] = []
    pruned = 0
    for number in itertools.count(1):
        assert number <= limit, f"more than {limit} orders"
        choices = Choices(given)
        try:
            play(choices)
        except Pruned:
            pruned += 1
        except Exception as e:
            e.add_note(f"in play {number}, with the choices {[which for which, _ in choices.taken]}")
            raise
        taken = choices.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return number - pruned
        given = [which for which, _ in taken]
        given[-1] += 1
    raise AssertionError


class Turns:
    """Threads of which one runs at a time, from one access of shared memory to the next."""

    def __init__(self, choices: Choices, known: set[Hashable] | None = None) -> None:
        self._choices = choices
        self._known = known
        self._mine = threading.local()
        self._is_over = False
        self._paused = threading.Semaphore(0)
        self._threads: list[SimpleNamespace] = []

    def add(self, work: Callable[[], None]) -> None:
        """Have a thread do some work."""
        me = SimpleNamespace(go=threading.Semaphore(0), ended=False, error=None, may=lambda: True, seen=0, turns=0)

        def run() -> None:
            self._mine.me = me
            me.go.acquire()
            try:
                if not self._is_over:
                    work()
            except BaseException as e:  # reported by `play`
                me.error = e
            me.ended = True
            self._paused.release()

        threading.Thread(target=run, daemon=True).start()
        self._threads.append(me)

    def point(self, may: Callable[[], bool] = lambda: True) -> None:
        """Another thread may run now; this one goes on when it may."""
        me = getattr(self._mine, "me", None)
        if me is not None:
            me.may = may
            self._paused.release()
            me.go.acquire()
            if self._is_over:
                raise Pruned

    def saw(self, what: Hashable) -> None:
        """This thread has read that."""
        me = getattr(self._mine, "me", None)
        if me is not None:
            me.seen = hash((me.seen, what))

    def play(self, state: Callable[[], Hashable] = lambda: None) -> None:
        """Let the threads run to their ends.

        With `known`, an order that comes to a known state is not played on: what may follow has been played. `state` is that of the
        shared memory; a thread's is what it has read (`saw`), and how many turns it has had.
        """
        while left := [t for t in self._threads if not t.ended and t.may()]:
            if self._known is not None and self._choices.is_new:
                now = hash((state(), tuple((t.seen, t.turns) for t in self._threads)))
                if now in self._known:
                    self._abandon()
                self._known.add(now)
            chosen = left[self._choices.choose(len(left))]
            chosen.turns += 1
            chosen.go.release()
            self._paused.acquire()
        assert all(t.ended for t in self._threads), "a thread waits forever"
        for t in self._threads:
            if t.error is not None:
                raise t.error

    def _abandon(self) -> None:
        """End the threads."""
        self._is_over = True
        for thread in self._threads:
            while not thread.ended:
                thread.go.release()
                self._paused.acquire()
        raise Pruned


class _Peers:
    def __init__(self, world: World) -> None:
        self._world = world

    def devices(self, config: ConfigProto, *more: Any) -> Cluster:
        devices = [d for w in self._world.workers.values() for d in w.devices]
        return Cluster(tuple(devices), self._world.tasks[0])

    def register(self, registrations: Mapping[str, Registration], patience_s: float) -> dict[str, int]:
        for task, registration in registrations.items():
            self._world.workers[task].register(replace(registration, kernels=KernelOptions()))  # NumPy, node by node
        return {task: self._world.workers[task].devices[0].incarnation for task in registrations}

    def call(self, task: str, kind: str, patience_s: float, **fields: Any) -> dict[str, Any]:
        assert kind == "expose_memory"
        return {"page": None}

    def close_session(self, task: str, session: str) -> None:
        self._world.workers[task].close_session(session)


@dataclass
class Step:
    """A step as its client sees it."""

    number: int
    parts: dict[str, TaskPart]
    owing: set[str]
    client: str
    values: dict[str, Any] = field(default_factory=dict)
    error: OpError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the client waits no more."""
        return self.error is not None or not self.owing


class World:
    """Workers, a master, a client and the links between them."""

    def __init__(self, jobs: Sequence[str], graph: tf.Graph) -> None:
        self.tasks = [f"/job:{job}/replica:0/task:0" for job in jobs]
        self.coordinators = {task: Coordinator(task, self._collective_from(task)) for task in self.tasks}
        self.workers = {
            task: Worker(
                task, local_devices(task, {"CPU": 1}), push=self._push_from(task),
                collectives=self.coordinators[task],
            )
            for task in self.tasks
        }  # fmt: skip
        self.overdue = {task: LossDetector() for task in self.tasks}
        self.links: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self._delivered: dict[tuple[str, str], int] = {}
        self.dead: set[str] = set()
        self.cut: set[tuple[str, str]] = set()  # links that a task opens to another one, on which nothing gets through
        self.steps: list[Step] = []
        self._numbers = itertools.count(1)
        self._master = Master(self.tasks[0], _Peers(self))
        self._session = self._master.create_session(ConfigProto(peer_timeout_s=3.0), graph)

    def prepare(self, fetches: Sequence[str], targets: Sequence[str] = ()) -> dict[str, TaskPart]:
        """The parts of a signature, by task."""
        return {p.task: p for p in self._master.prepare(self._session.handle, (tuple(fetches), tuple(targets), ()))}

    def run_now(self, fetches: Sequence[str], targets: Sequence[str] = ()) -> Step:
        """Run a step to its end, in one order."""
        step = self.start(self.prepare(fetches, targets))
        self.drain(Choices(()))
        return step

    # --- messages ----------------------------------------------------------------------------------------------------

    def _say(self, source: str, target: str, message: Callable[[], None]) -> None:
        if source not in self.dead and target not in self.dead and (source, target) not in self.cut:
            self.links.setdefault((source, target), deque()).append(message)

    def _push_from(self, source: str) -> Callable[[str, int, Mapping[Any, Any]], None]:
        def push(task: str, number: int, values: Mapping[Any, Any]) -> None:
            self._say(source, task, lambda: self.workers[task].deliver(number, values))

        return push

    def _collective_from(self, source: str) -> Callable[[str, dict[str, Any], Sequence[Any]], None]:
        def send(task: str, fields: dict[str, Any], tensors: Sequence[Any]) -> None:
            self._say(source, task, lambda: self.coordinators[task].message(fields, tensors))

        return send

    # --- the client, as `runtime/session/cluster_backend.py` does it -------------------------------------------------------------------

    def start(self, parts: Mapping[str, TaskPart], client: str = CLIENT) -> Step:
        """Begin a step: say so to all tasks that take part."""
        step = Step(next(self._numbers), dict(parts), set(parts), client)
        self.steps.append(step)
        for task in parts:
            self._say(client, task, lambda task=task: self._run_at(task, step))  # type: ignore[misc]
        return step

    def _run_at(self, task: str, step: Step) -> None:
        def finish(outcome: Mapping[str, Any] | OpError) -> None:
            self._say(task, step.client, lambda: self._answered(step, task, outcome))

        if self.workers[task].is_new(step.number):
            self.workers[task].start(step.number, step.parts[task].program, {}, finish)

    def _answered(self, step: Step, task: str, outcome: Mapping[str, Any] | OpError) -> None:
        if step.is_over:
            return
        step.owing.discard(task)
        if isinstance(outcome, OpError):
            step.error = outcome
            self._abort(step)
        else:
            step.values.update(outcome)

    def give_up(self, step: Step, error: OpError) -> None:
        """The client's wait ends; the others are told."""
        if step.is_over:
            return
        step.error = error
        self._abort(step)

    def _abort(self, step: Step) -> None:
        for task in step.owing:
            self._say(step.client, task, lambda task=task: self.workers[task].abort(step.number, "told to"))  # type: ignore[misc]

    # --- faults ------------------------------------------------------------------------------------------------------

    def kill(self, task: str) -> None:
        """A task dies, with all that it has not sent."""
        self.dead.add(task)
        for (source, target), link in self.links.items():
            if task in (source, target):
                link.clear()

    def cut_way(self, source: str, target: str) -> None:
        """Nothing gets through any more on the connection that a task has opened to another one; the other way works."""
        self.cut.add((source, target))
        self.links.pop((source, target), None)

    # --- playing -----------------------------------------------------------------------------------------------------

    def drain(self, choices: Choices, faults: Sequence[tuple[str, Callable[[], None]]] = (), losses: int = 0) -> None:
        """Let events happen until none is left; each fault may strike once, at any time, or not; so may so many losses.

        Raises:
            Pruned: a play before this one was the same but for the order of events that do not meet.
        """
        left = dict(faults)
        asleep: set[Event] = set()
        while True:
            ready = sorted(link for link, messages in self.links.items() if messages)
            if not ready:
                return
            events = [Event("deliver", *link, self._delivered.get(link, 0)) for link in ready]
            if losses:
                events += [Event("lose", *link, 0) for link in ready]
            events += [Event("fault", name, name, 0) for name in left]
            awake = [e for e in events if e not in asleep]
            if not awake:
                raise Pruned
            which = choices.choose(len(awake))
            event = awake[which]
            asleep = {e for e in (*asleep, *awake[:which]) if e.commutes(event)}
            if event.what == "fault":
                left.pop(event.source)()
                continue
            link = event.source, event.target
            message = self.links[link].popleft()
            self._delivered[link] = self._delivered.get(link, 0) + 1
            if event.what == "lose":
                losses -= 1
            else:
                message()

    def settle(self) -> None:
        """Time passes: whoever waits asks for signs of life, until all is over."""
        for second in range(GIVE_UP_S):
            if all(step.is_over for step in self.steps) and not any(w._steps for w in self._alive()):
                return
            if not second:
                self.drain(Choices(()))
            for step in self.steps:  # `runtime/rpc/pending_call.py`: who is dead, and who works on something else
                for task in sorted(step.owing):
                    if step.is_over:
                        break
                    if task in self.dead:
                        self.give_up(step, UnavailableError(None, None, f"{task} is dead"))
                    elif step.number not in self.workers[task]._steps:
                        self.give_up(step, UnavailableError(None, None, f"{task} does not work on it"))
            self._look_for_overdue(float(second))
            self.drain(Choices(()))
        raise AssertionError(f"it hangs: {[(s.number, s.owing) for s in self.steps if not s.is_over]}")

    def _look_for_overdue(self, now: float) -> None:
        for worker in self._alive():
            overdue = self.overdue[worker.task]
            asks, lost = overdue.look(now, worker.waiting())
            for ask in asks:
                if ask.task in self.dead or (worker.task, ask.task) in self.cut:
                    continue
                known, sent = self.workers[ask.task].account(ask.step, ask.channels)
                answers = [overdue.coming(now, ask.step, ask.task, known, sent, 0, worker.waiting().get(ask.step))]
                if (ask.task, worker.task) not in self.cut:
                    answers += [overdue.accounted(now, ask.step, ask.task, sent, worker.waiting().get(ask.step))]
                lost += [found for found in answers if found is not None]
            for one in lost:
                worker.fail(one.step, UnavailableError(None, None, f"{one.task}: overdue"))

    def _alive(self) -> Iterator[Worker]:
        return (w for task, w in self.workers.items() if task not in self.dead)

    def check_nothing_is_left(self) -> None:
        """No worker that lives holds anything of a step."""
        for worker in self._alive():
            assert not worker._steps, f"{worker.task} still runs {list(worker._steps)}"
            assert set(worker._early) <= {s.number for s in self.steps if s.error is not None}, (
                f"{worker.task} keeps tensors"
            )


def is_expected(error: OpError | None) -> bool:
    """Whether it is one of the errors that a fault may cause."""
    return isinstance(error, UnavailableError | AbortedError | CancelledError)
