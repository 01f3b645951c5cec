"""Opened variables: several processes change them, and none of them, however it ends, leaves anything but whole values and free locks."""

import gc
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dovetail.graph.core.dtypes import as_dtype, float32, int64
from dovetail.graph.core.errors import AbortedError, FailedPreconditionError, UnavailableError
from dovetail.graph.resources import shared_storage
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState, changing, update_together
from dovetail.runtime.shared_memory import shared_variable as module
from dovetail.runtime.shared_memory.remote_variables import VariablePublisher
from dovetail.runtime.shared_memory.segment import Mapper, MappingError, is_available
from dovetail.runtime.shared_memory.shared_variable import TURN, VERSION, can_publish
from dovetail.runtime.shared_memory.variable_reader import RemoteVariable, reader_of

pytestmark = [
    pytest.mark.usefixtures("pool"),
    pytest.mark.skipif(not (is_available() and can_publish()), reason="no memory files, or another kind of machine"),
]

SESSION, CONTAINER, TASK = "session", "here", "/job:ps/task:0"
SIZE = 4000

WRITER = """
import os, signal, sys
import numpy as np
from dovetail.graph.core.dtypes import int64
from dovetail.graph.resources.variable import changing, update_together
from dovetail.runtime.shared_memory import shared_variable
from dovetail.runtime.shared_memory.variable_reader import RemoteVariable
from dovetail.runtime.shared_memory.shared_variable import RecordAddress
from dovetail.runtime.shared_memory.segment import Mapper

places = [RecordAddress(*map(int, p.split())) for p in sys.argv[1].split(",")]
reached = [RemoteVariable(p, int64, f"v{i}", "/job:ps/task:0", Mapper()) for i, p in enumerate(places)]
states = [r.read() for r in reached]
print("up", flush=True)

def change(way):
    if way == 0:
        for state in states:
            state.update(lambda old: old + 1)
    elif way == 1:
        with changing(states) as values:
            for value in values:
                value += 1
    else:
        update_together(states, lambda *old: [x + 1 for x in old])

for line in sys.stdin:
    what, *numbers = line.split()
    if what == "add":
        for k in range(int(numbers[0])):
            change(k % 3)
    elif what in ("die", "stop"):  # at that call of that kind of the next change
        way, name, nth, after = int(numbers[0]), numbers[1], int(numbers[2]), numbers[3] == "after"
        held, calls = getattr(shared_variable.SharedVariable, name), []

        def hooked(self, *given):
            calls.append(1)
            if len(calls) == nth and not after:
                os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGSTOP)
            result = held(self, *given)
            if len(calls) == nth and after:
                os.kill(os.getpid(), signal.SIGKILL if what == "die" else signal.SIGSTOP)
            return result

        setattr(shared_variable.SharedVariable, name, hooked)
        change(way)
        setattr(shared_variable.SharedVariable, name, held)
    print("done", flush=True)
"""


class Task:
    """A task with opened variables `v0`, `v1`, ..., each of which has a value."""

    def __init__(self, *values, dtype=int64):
        self.resources, self.publisher, self.borrower = Resources(), VariablePublisher(), Mapper()
        self.dtype = dtype
        self.names = [f"v{i}" for i in range(len(values))]
        self.states = [self.state(name) for name in self.names]
        for state, value in zip(self.states, values, strict=True):
            state.assign(value)
        self.places = self.open()
        assert self.places is not None

    def state(self, name):
        return self.resources.get_or_create(CONTAINER, name, VariableState, lambda: VariableState(name, self.dtype))

    def open(self):
        places = [self.publisher.open(SESSION, self.resources, CONTAINER, name) for name in self.names]
        return None if None in places else places

    def reach(self, i=0):
        return RemoteVariable(self.places[i], self.dtype, self.names[i], TASK, self.borrower)

    def read_directly(self, i=0):
        return reader_of(self.places[i], self.dtype.np, self.borrower).read()


@pytest.fixture
def writers(other_process):
    """What starts processes that change a task's variables."""
    return lambda task: other_process(WRITER, ",".join(" ".join(map(str, p)) for p in task.places))


# --- one process -----------------------------------------------------------------------------------------------------


def test_owner_and_others_change_the_same_value():
    task = Task(np.arange(3.0), dtype=float32)
    (mine,), theirs = task.states, task.reach().read()
    for state in (mine, theirs, mine, theirs):
        state.update(lambda old: old + 1)
        with changing([state]) as (value,):
            value[0] = 7
    for state in (mine, theirs):
        assert state.is_initialized
        np.testing.assert_array_equal(state.read(), [7, 5, 6])
        assert state.read() is state.read() and not state.read().flags.writeable
    np.testing.assert_array_equal(task.read_directly(), [7, 5, 6])
    mine.assign([1, 2, 3])
    np.testing.assert_array_equal(theirs.read(), [1, 2, 3])
    theirs.assign([4, 5, 6])
    np.testing.assert_array_equal(mine.read(), [4, 5, 6])
    assert task.reach().read() is theirs and task.open() == task.places


def test_what_was_read_before_stays():
    held = np.arange(4)
    resources, publisher = Resources(), VariablePublisher()
    state = resources.get_or_create(CONTAINER, "v", VariableState, lambda: VariableState("v", int64))
    state.assign(held)
    before = state.read()
    assert publisher.open(SESSION, resources, CONTAINER, "v") is not None
    state.update(lambda old: old + 1)
    np.testing.assert_array_equal(before, held)
    np.testing.assert_array_equal(state.read(), held + 1)


def test_what_has_no_value_or_is_too_large_or_nowhere_is_not_opened():
    resources, publisher = Resources(), VariablePublisher()
    assert publisher.open(SESSION, resources, CONTAINER, "none") is None
    state = resources.get_or_create(CONTAINER, "v", VariableState, lambda: VariableState("v", float32))
    assert publisher.open(SESSION, resources, CONTAINER, "v") is None
    state.assign(np.zeros((1 << 18) + 1, np.float32))
    assert publisher.open(SESSION, resources, CONTAINER, "v") is None
    state.assign([])
    assert publisher.open(SESSION, resources, CONTAINER, "v") is None
    state.assign([1.0])
    place = publisher.open(SESSION, resources, CONTAINER, "v")
    state.assign([1.0, 2.0])  # which takes it back
    np.testing.assert_array_equal(reader_of(place, np.dtype(np.float32), Mapper()).read(), [1, 2])
    assert publisher.open(SESSION, resources, CONTAINER, "v") == place
    publisher.close()
    assert publisher.open(SESSION, resources, CONTAINER, "v") is None
    np.testing.assert_array_equal(state.read(), [1, 2])


def test_where_there_is_no_shared_memory_nothing_is_opened():
    shared_storage._used.clear()
    resources, publisher = Resources(), VariablePublisher()
    resources.get_or_create(CONTAINER, "v", VariableState, lambda: VariableState("v", float32)).assign([1.0])
    assert publisher.open(SESSION, resources, CONTAINER, "v") is None


@pytest.mark.parametrize("how", ["large", "session", "container", "publisher", "moved"])
def test_an_owner_takes_its_variable_back(how):
    task = Task([1, 2, 3])
    reached = task.reach()
    (mine,), theirs = task.states, reached.read()
    if how == "large":
        mine.assign(np.full((1 << 17) + 1, 5))
    elif how == "session":
        task.publisher.close_session(SESSION)
    elif how == "container":
        task.resources.clear(CONTAINER)
    elif how == "publisher":
        task.publisher.close()
    else:
        with mine.lock:
            mine.move(mine.read() if mine._value is not None else np.array([1, 2, 3]))
    assert reached.read() is None and not theirs.is_initialized
    for change in (lambda: theirs.update(lambda old: old + 1), lambda: theirs.assign([1, 2, 3])):
        with pytest.raises(AbortedError, match="The variable 'v0' of /job:ps/task:0 is not any more where"):
            change()
    with pytest.raises(AbortedError), changing([theirs]):
        pass
    np.testing.assert_array_equal(mine.read(), np.full((1 << 17) + 1, 5) if how == "large" else [1, 2, 3])
    mine.update(lambda old: old + 1)  # and nothing holds its locks
    if how == "large":
        mine.assign([6])
        np.testing.assert_array_equal(task.read_directly(), [6])
        theirs.update(lambda old: old * 2)
        np.testing.assert_array_equal(mine.read(), [12])


def test_nobody_but_the_owner_gives_it_another_shape():
    task = Task([1, 2, 3])
    with pytest.raises(AbortedError, match="another shape"):
        task.reach().read().assign([1])
    task.states[0].update(lambda old: old + 1)


def test_a_failed_change_leaves_the_locks():
    task = Task([1, 2], [3, 4])
    theirs = [task.reach(i).read() for i in range(2)]
    with pytest.raises(ZeroDivisionError), changing(theirs):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        update_together(theirs, lambda *old: 1 / 0)
    update_together(task.states, lambda a, b: [a + 1, b + 1])
    np.testing.assert_array_equal(theirs[0].read(), [2, 3])
    np.testing.assert_array_equal(theirs[1].read(), [4, 5])


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["assign", "update", "change", "hold", "take back", "open", "another"]), st.booleans()),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS, st.sampled_from(["float32", "int8", "complex64", "bool", "bfloat16"]))
def test_all_see_what_was_written_last(operations, name):
    dtype = as_dtype(name)
    task = Task(np.ones((2, 3)).astype(dtype.np), dtype=dtype)
    reached, (mine,) = task.reach(), task.states
    value, snapshots = mine.read().copy(), []
    for k, (what, is_mine) in enumerate(operations):
        state = mine if is_mine else reached.read()
        if what == "take back":
            task.publisher.close_session(SESSION)
            task.places = task.open()
            reached = task.reach()
        elif what == "open":
            assert task.open() == task.places
            reached = task.reach()
        elif what == "another":
            value = np.full((2, k + 4), k).astype(dtype.np)
            mine.assign(value)
            assert task.open() == task.places
        elif what == "hold":
            snapshots.append((state.read(), value.copy()))
        elif what == "assign":
            value = np.full(value.shape, k).astype(dtype.np)
            state.assign(value)
        elif what == "update":
            value = np.full(value.shape, k % 2).astype(dtype.np)
            state.update(lambda old, value=value: value)
        else:
            value = value.copy()
            value[0, 0] = k
            with changing([state]) as (there,):
                there[0, 0] = k
        for seen in (mine.read(), reached.read().read(), task.read_directly()):
            np.testing.assert_array_equal(seen, value)
        for snapshot, then in snapshots:
            np.testing.assert_array_equal(snapshot, then)


def test_variables_leave_no_descriptors():
    def count():
        gc.collect()
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    Task([1]).reach()  # what is opened once and for all
    before = count()
    tasks = [Task([1], [2]) for _ in range(3)]
    for task in tasks:
        task.reach(1).read().update(lambda old: old + 1)
        task.publisher.close()
    del task, tasks
    shared_storage._used[0].close()
    assert count() <= before


def test_a_forked_child_has_no_locks_and_changes_nothing():
    task = Task([1, 2])
    theirs = task.reach().read()
    with changing([theirs]) as (value,):
        value += 1
        pid = os.fork()
        if not pid:  # the child keeps no lock of its parent's, even as long as it lives
            status = 1
            try:
                task.states[0].update(lambda old: old + 1)
            except FailedPreconditionError:
                status = 0
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    task.states[0].update(lambda old: old + 1)
    np.testing.assert_array_equal(theirs.read(), [3, 4])


@given(st.lists(st.tuples(st.integers(0, 21), st.integers(0, 1 << 63 - 1)), min_size=1, max_size=4))
def test_nothing_that_a_record_says_is_believed(changes):
    task = Task([1.0, 2.0], dtype=float32)
    found = task.reach().value
    for i, word in changes:
        found.words[TURN + i] = word
    found.words[VERSION] += 2
    layout = found.layout()
    assert layout is None or all(p.nbytes <= 1 << 20 for p in layout.buffers)
    value = found.read()
    assert value is None or value.nbytes <= 1 << 20


def test_places_are_checked():
    task = Task([1])
    for wrong in (task.places[0]._replace(offset=8), task.places[0]._replace(segment=7)):
        with pytest.raises(MappingError):
            RemoteVariable(wrong, int64, "v", TASK, Mapper())
    with pytest.raises(MappingError, match="another segment"):
        module.LockFile(*task.places[0][:2], 7)
    with pytest.raises(MappingError):
        module.LockFile(os.getpid(), 1 << 20, 7)


# --- several processes -----------------------------------------------------------------------------------------------


def test_nothing_is_lost_and_nothing_is_torn(writers):
    task = Task(np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64))
    others = [writers(task) for _ in range(2)]
    stop, wrong = threading.Event(), []

    def look():
        latest = 0
        while not stop.is_set():
            for i in range(2):
                for seen in (task.states[i].read(), task.read_directly(i)):
                    if seen is not None and seen.min() != seen.max():
                        wrong.append((seen.min(), seen.max()))
            first = task.states[0].read()[0]
            if first < latest:
                wrong.append((first, latest))
            latest = first

    thread = threading.Thread(target=look)
    thread.start()
    for other in others:
        other.begin("add", 300)
    for k in range(100):
        with changing(task.states[:: 1 if k % 2 else -1]) as values:
            for value in values:
                value += 1
    for other in others:
        other.end()
    stop.set()
    thread.join()
    assert not wrong
    for state in task.states:
        np.testing.assert_array_equal(state.read(), np.full(SIZE, 700))


POINTS = [
    (way, name, nth, when)
    for way in range(3)
    for name in ("acquire", "begin", "end", "release")
    for nth in (1, 2)
    for when in ("before", "after")
]


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_a_whole_value(writers):
    task = Task(np.zeros(SIZE, np.int64), np.zeros(SIZE, np.int64))
    expected = 0
    other = writers(task)
    for point in POINTS[::3]:
        dying = writers(task)
        before = [s.read()[0] for s in task.states]
        dying.begin("die", *point)
        dying.process.wait(60)
        for state, old in zip(task.states, before, strict=True):
            value = state.read()
            assert value.min() == value.max() and value[0] in (old, old + 1)
        other.begin("add", 3)  # and nobody waits for the dead
        other.end()
        for state in task.states:
            state.update(lambda old: old + 1)
        expected += 4
    for state in task.states:
        assert expected <= state.read()[0] <= expected + len(POINTS)


@pytest.mark.parametrize("point", [("acquire", "after"), ("begin", "after"), ("end", "after")])
def test_a_process_that_is_stopped_holds_up_nobody_for_long(writers, monkeypatch, point):
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.3)
    task = Task(np.zeros(SIZE, np.int64))
    (mine,) = task.states
    stopped, name = writers(task), point[0]
    stopped.begin("stop", 1, name, 1, point[1])
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert mine.read()[0] == (1 if name == "end" else 0)  # who reads does not wait
    with pytest.raises(UnavailableError, match=rf"'v0' of this task is being changed by process {stopped.process.pid}"):
        mine.update(lambda old: old + 1)
    with pytest.raises(UnavailableError, match="'v0' of /job:ps/task:0"):
        task.reach().read().update(lambda old: old + 1)
    os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.end()
    mine.update(lambda old: old + 1)
    np.testing.assert_array_equal(mine.read(), np.full(SIZE, 2))


def test_a_lock_that_is_held_for_a_moment_costs_no_nap(monkeypatch):
    task = Task(np.zeros(SIZE, np.int64))
    theirs = task.reach().value
    theirs.acquire()
    monkeypatch.setattr(module, "_YIELD_S", 60.0)
    monkeypatch.setattr(module.os, "sched_yield", theirs.release)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("a nap"))
    task.states[0].update(lambda old: old + 1)
    np.testing.assert_array_equal(task.read_directly(), np.ones(SIZE))


def test_memory_is_kept_that_a_stopped_process_could_write(writers, pool):
    task = Task(np.zeros(SIZE, np.int64))
    (mine,) = task.states
    stopped = writers(task)
    stopped.begin("stop", 1, "begin", 1, "after")
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    task.publisher.close_session(SESSION)
    assert len(module._stuck[stopped.process.pid]) == 1
    mine.update(lambda old: old + 5)
    others = [pool.empty((SIZE,), np.dtype(np.int64), True) for _ in range(8)]
    for other in others:
        other[:] = 9
    os.kill(stopped.process.pid, signal.SIGCONT)
    stopped.end()  # it had the lock, so its change was made: of what nobody has any more
    assert all((other == 9).all() for other in others)
    np.testing.assert_array_equal(mine.read(), np.full(SIZE, 5))
    assert task.open() is not None


def test_a_change_is_one_count():
    task = Task([1], [2])
    words = [task.reach(i).value.words for i in range(2)]
    before = [w[TURN] for w in words]
    update_together(task.states, lambda a, b: [a + b, a - b])
    assert [w[TURN] for w in words] == [b + 1 for b in before]


def test_who_has_seen_that_the_owner_has_gone_changes_nothing_any_more():
    task = Task([1])
    reached = task.reach()
    theirs = reached.read()
    reached.forget()
    with pytest.raises(AbortedError, match="'v0'"):
        theirs.update(lambda old: old + 1)
    task.states[0].update(lambda old: old + 1)
    np.testing.assert_array_equal(task.states[0].read(), [2])
