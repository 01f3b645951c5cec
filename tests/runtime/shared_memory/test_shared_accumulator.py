"""Sums that several processes add to: nothing is lost, whoever ends where, and who waits hears of what is full."""

import gc
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dovetail.graph.core.dtypes import as_dtype, float32
from dovetail.graph.core.errors import AbortedError, InvalidArgumentError, UnavailableError
from dovetail.graph.resources import shared_storage
from dovetail.graph.resources.accumulator import AccumulatorKind, DenseAccumulator, TakeGradient
from dovetail.graph.resources.async_request import RequestState
from dovetail.graph.resources.resource_manager import Resources
from dovetail.runtime.shared_memory import shared_variable as module
from dovetail.runtime.shared_memory.remote_variables import VariablePublisher
from dovetail.runtime.shared_memory.segment import Mapper, is_available
from dovetail.runtime.shared_memory.shared_variable import can_publish
from dovetail.runtime.shared_memory.variable_reader import RemoteVariable

pytestmark = [
    pytest.mark.usefixtures("pool"),
    pytest.mark.skipif(not (is_available() and can_publish()), reason="no memory files, or another kind of machine"),
]

SESSION, CONTAINER, TASK = "session", "here", "/job:ps/task:0"
SIZE = 3000

ADDER = """
import os, signal, sys
import numpy as np
from dovetail.graph.resources.accumulator import AccumulatorKind
from dovetail.graph.core.dtypes import float32
from dovetail.runtime.shared_memory import shared_variable
from dovetail.runtime.shared_memory.segment import Mapper
from dovetail.runtime.shared_memory.variable_reader import RemoteVariable
from dovetail.runtime.shared_memory.shared_variable import RecordAddress

kind = AccumulatorKind(False, float32, (int(sys.argv[2]),), "SUM")
sums = RemoteVariable(RecordAddress(*map(int, sys.argv[1].split())), kind, "a", "/job:ps/task:0", Mapper()).read()
one = np.ones(int(sys.argv[2]), np.float32)
print("up", flush=True)
for line in sys.stdin:
    what, *numbers = line.split()
    if what == "add":
        for _ in range(int(numbers[0])):
            sums.apply(one, 0)
    else:  # "die" or "stop" at a call of the next addition
        name, after = numbers[0], numbers[1] == "after"
        held = getattr(shared_variable.SharedVariable, name)

        def hooked(self, *given):
            if not after:
                os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGSTOP)
            result = held(self, *given)
            if after:
                os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGSTOP)
            return result

        setattr(shared_variable.SharedVariable, name, hooked)
        sums.apply(one, 0)
        setattr(shared_variable.SharedVariable, name, held)
    print("done", flush=True)
"""


class Task:
    """A task with an opened accumulator."""

    def __init__(self, shape=(3,), reduction="SUM", dtype=float32):
        self.kind = AccumulatorKind(False, dtype, shape, reduction)
        self.resources, self.publisher = Resources(), VariablePublisher()
        self.rung = 0
        self.place = self.open()
        assert self.place is not None
        self.mine = self.resources.find(CONTAINER, "a")

    def open(self):
        return self.publisher.open(SESSION, self.resources, CONTAINER, "a", self.kind)

    def reach(self):
        return RemoteVariable(self.place, self.kind, "a", TASK, Mapper(), self.ring)

    def ring(self) -> None:
        self.rung += 1

    def was_rung(self) -> bool:
        found, self.rung = bool(self.rung), 0
        return found


@pytest.fixture
def adders(other_process):
    """What starts processes that add ones to a task's accumulator."""
    return lambda task: other_process(ADDER, " ".join(map(str, task.place)), str(task.kind.shape[0]))


# --- one process -----------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "take", "step", "withdraw", "close", "open"]),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=80, deadline=None)
@given(ACTIONS, st.sampled_from(["MEAN", "SUM"]), st.sampled_from(["float32", "float64", "bfloat16"]))
def test_it_is_as_if_nobody_else_reached_it(actions, reduction, name):
    dtype = as_dtype(name)
    task = Task((2, 3), reduction, dtype)
    alone = DenseAccumulator("a", task.kind)
    reached, waiting = task.reach(), []
    for k, (what, is_mine, number) in enumerate(actions):
        if what == "add":
            gradient = np.full((2, 3), 1 + k / 3).astype(dtype.np)
            state = None if is_mine else reached.read()
            (state or task.mine).apply(gradient, number)
            alone.apply(gradient, number)
            task.publisher.look()
        elif what == "take":
            waiting.append((task.mine.take(number + 1), alone.take(number + 1)))
        elif what == "step":
            task.mine.set_global_step(number)
            alone.set_global_step(number)
        elif what == "withdraw" and waiting:
            for take in waiting.pop():
                if isinstance(take, TakeGradient):
                    take.cancel()
        elif what == "close":
            task.publisher.close_session(SESSION)
            assert reached.read() is None
        elif what == "open":
            task.place = task.open()
            reached = task.reach()
        assert task.mine.counted() == alone.counted()
        for pair in list(waiting):
            is_request = [isinstance(x, TakeGradient) for x in pair]
            if is_request[0] and pair[0].state is not RequestState.WAITING:
                assert is_request[1] and pair[1].state is RequestState.ANSWERED
                np.testing.assert_array_equal(pair[0].result(), pair[1].result())
                waiting.remove(pair)
            elif not is_request[0]:
                np.testing.assert_array_equal(*pair)
                waiting.remove(pair)
            else:
                assert pair[1].state is RequestState.WAITING
    for mine, _ in waiting:
        mine.cancel()


def test_the_task_is_woken_for_what_it_waits_for_alone():
    task = Task()
    theirs = task.reach().read()
    theirs.apply(np.ones(3, "f"), 0)
    assert not task.was_rung()
    take = task.mine.take(3)
    theirs.apply(np.ones(3, "f"), 0)
    assert not task.was_rung() and take.state is RequestState.WAITING
    theirs.apply(np.ones(3, "f"), 0)
    assert task.was_rung()
    task.publisher.look()
    np.testing.assert_array_equal(take.result(), [3, 3, 3])
    theirs.apply(np.ones(3, "f"), 1)
    assert not task.was_rung()


def test_what_was_taken_is_never_changed():
    task = Task()
    theirs, held = task.reach().read(), []
    for k in range(6):
        for _ in range(2):
            theirs.apply(np.full(3, k, "f"), k)
        held.append(task.mine.take(2))
        if k == 3:
            held[2] = None  # its memory may be written again
    for k, value in enumerate(held):
        if value is not None:
            np.testing.assert_array_equal(value, np.full(3, 2 * k))


@pytest.mark.parametrize("how", ["session", "container", "publisher"])
def test_an_owner_takes_it_back(how):
    task = Task()
    reached = task.reach()
    theirs = reached.read()
    theirs.apply(np.ones(3, "f"), 0)
    if how == "session":
        task.publisher.close_session(SESSION)
    elif how == "container":
        task.resources.clear(CONTAINER)
    else:
        task.publisher.close()
    assert reached.read() is None
    with pytest.raises(AbortedError, match="The accumulator 'a' of /job:ps/task:0 is not any more where"):
        theirs.apply(np.ones(3, "f"), 0)
    task.mine.apply(np.ones(3, "f"), 0)
    np.testing.assert_array_equal(task.mine.take(2), [2, 2, 2])


def test_what_is_not_opened():
    def opened(kind):
        return VariablePublisher().open(SESSION, Resources(), CONTAINER, "a", kind)

    assert opened(AccumulatorKind(False, float32, (3,), "SUM")) is not None
    assert opened(AccumulatorKind(False, float32, None, "SUM")) is None
    assert opened(AccumulatorKind(False, float32, (0,), "SUM")) is None
    assert opened(AccumulatorKind(False, float32, (1 << 18,), "SUM")) is None
    shared_storage._used.clear()
    assert opened(AccumulatorKind(False, float32, (3,), "SUM")) is None


def test_shapes_and_kinds_are_checked():
    task = Task()
    with pytest.raises(InvalidArgumentError, match="Shape mismatch at accumulator 'a'"):
        task.reach().read().apply(np.ones(4, "f"), 0)
    other = RemoteVariable(task.place, AccumulatorKind(False, float32, (4,), "SUM"), "a", TASK, Mapper())
    assert other.read() is None
    with pytest.raises(InvalidArgumentError, match="has reduction SUM"):
        task.publisher.open(SESSION, task.resources, CONTAINER, "a", AccumulatorKind(False, float32, (3,), "MEAN"))


def test_accumulators_leave_no_descriptors():
    def count():
        gc.collect()
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    first = Task()  # what is opened once and for all
    first.publisher.close()
    del first
    before = count()
    tasks = [Task() for _ in range(3)]
    for task in tasks:
        take = task.mine.take(1)
        task.reach().read().apply(np.ones(3, "f"), 0)
        task.publisher.look()
        take.result()
        task.publisher.close()
    del task, tasks, take
    shared_storage._used[0].close()
    assert count() <= before


# --- several processes -----------------------------------------------------------------------------------------------


def test_nothing_is_lost(adders):
    task = Task((SIZE,))
    others = [adders(task) for _ in range(2)]
    for other in others:
        other.begin("add", 300)
    for _ in range(100):
        task.mine.apply(np.ones(SIZE, "f"), 0)
    for other in others:
        other.end()
    assert task.mine.counted() == 700
    np.testing.assert_array_equal(task.mine.take(1), np.full(SIZE, 700, "f"))


POINTS = [(name, when) for name in ("acquire", "end", "release", "wake") for when in ("before", "after")]


@pytest.mark.slow
def test_a_process_that_is_killed_has_added_or_has_not(adders):
    task = Task((SIZE,))
    other = adders(task)
    done = 0
    for point in POINTS:
        take = task.mine.take(1_000_000)
        task.mine._shared.opened.wanted = 1  # so that it rings
        dying = adders(task)
        dying.begin("die", *point)
        dying.process.wait(60)
        other.begin("add", 2)  # and nobody waits for the dead
        other.end()
        done += 2
        count = task.mine.counted()
        assert count - done in (0, 1)
        assert (count - done == 1) == (point[0] in ("release", "wake") or point == ("end", "after"))
        done = count
        take.cancel()
    value = task.mine.take(1)
    np.testing.assert_array_equal(value, np.full(SIZE, done, "f"))


@pytest.mark.parametrize("point", [("acquire", "after"), ("end", "before"), ("end", "after")])
def test_a_process_that_is_stopped_holds_up_nobody_for_long(adders, monkeypatch, point):
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.3)
    task = Task((SIZE,))
    one = np.ones(SIZE, "f")
    task.mine.apply(one, 0)
    take = task.mine.take(2)
    stopped = adders(task)
    stopped.begin("stop", *point)
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    said = rf"is being changed by process {stopped.process.pid}"
    with pytest.raises(UnavailableError, match="accumulator 'a' of this task " + said):
        task.mine.apply(one, 0)
    with pytest.raises(UnavailableError, match="accumulator 'a' of /job:ps/task:0 " + said):
        task.reach().read().apply(one, 0)
    with pytest.raises(UnavailableError, match=said):
        task.mine.take(1)
    with pytest.raises(UnavailableError, match=said):
        task.mine.counted()
    task.publisher.look()
    if point == ("end", "after"):  # it is full, and cannot be taken: who waits hears why
        with pytest.raises(UnavailableError, match=said):
            take.result()
    else:
        assert take.state is RequestState.WAITING
    os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.end()
    task.publisher.look()
    if point != ("end", "after"):
        np.testing.assert_array_equal(take.result(), np.full(SIZE, 2, "f"))
    else:
        np.testing.assert_array_equal(task.mine.take(2), np.full(SIZE, 2, "f"))


def test_a_wait_ends_while_a_process_is_stopped(adders, monkeypatch):
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.3)
    task = Task((SIZE,))
    first, second = task.mine.take(5), task.mine.take(1)
    stopped = adders(task)
    stopped.begin("stop", "acquire", "after")
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    first.cancel()  # which raises nothing
    assert first.state is RequestState.CANCELLED and second.state is RequestState.WAITING
    os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.end()
    task.publisher.look()
    np.testing.assert_array_equal(second.result(), np.ones(SIZE))
