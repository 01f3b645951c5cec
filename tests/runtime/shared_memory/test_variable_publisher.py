"""Posts: what is read where it lies is a value that the variable had, whatever its owner does meanwhile, and however it ends."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dovetail.graph.core.dtypes import as_dtype, float32, int64, string
from dovetail.graph.core.errors import FailedPreconditionError
from dovetail.graph.resources import shared_storage
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState, changing, update_together
from dovetail.placer.partition.one_sided_access import MOST_BYTES
from dovetail.runtime.shared_memory.remote_variables import RemoteVariables, VariablePublisher
from dovetail.runtime.shared_memory.segment import Mapper, MappingError, is_available
from dovetail.runtime.shared_memory.shared_variable import RecordAddress, can_publish
from dovetail.runtime.shared_memory.variable_reader import ProcessHandle, VariableReaders, reader_of

pytestmark = [
    pytest.mark.usefixtures("pool"),
    pytest.mark.skipif(not (is_available() and can_publish()), reason="no memory files, or another kind of machine"),
]

SESSION, CONTAINER = "session", "here"
OWNER = """
import sys, threading
import numpy as np
from dovetail.graph.resources import shared_storage
from dovetail.graph.core.dtypes import int64
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState, changing
from dovetail.runtime.shared_memory.remote_variables import VariablePublisher
from dovetail.runtime.shared_memory.pool import Pool

shared_storage.use(Pool(64 << 20))
resources, publisher = Resources(), VariablePublisher()
print(*publisher.publish("session", resources, "here", "v"), flush=True)
state = resources.get_or_create("here", "v", VariableState, lambda: VariableState("v", int64))
state.assign(np.zeros(4000, np.int64))
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
k, held = 0, []
while not stop.is_set():
    k += 1
    if k % 50 == 0:
        held = [state.read()]  # so that the next change needs another place
    elif k % 7 == 0:
        state.assign(np.full(4000 + k % 100, k))  # another shape, elsewhere
    elif k % 3 == 0:
        state.update(lambda old: np.full_like(old, k))
    else:
        with changing([state]) as (value,):
            value[: len(value) // 2] = k
            value[len(value) // 2 :] = k
state.assign(np.full(10, -1))
print("done", flush=True)
sys.stdin.readline()
"""


class Task:
    """A task with a publisher, and a reader of its variable `v`."""

    def __init__(self, dtype=float32):
        self.resources, self.publisher, self.borrower = Resources(), VariablePublisher(), Mapper()
        self.dtype = dtype
        place = self.publisher.publish(SESSION, self.resources, CONTAINER, "v")
        assert place is not None
        self.place = place
        self.reader = reader_of(place, dtype.np, self.borrower)

    @property
    def state(self):
        return self.resources.get_or_create(CONTAINER, "v", VariableState, lambda: VariableState("v", self.dtype))


def test_a_post_follows_its_variable():
    task = Task()
    assert task.reader.read() is None
    state = task.state
    assert task.reader.read() is None
    state.assign(np.arange(3, dtype=np.float32))
    first = task.reader.read()
    np.testing.assert_array_equal(first, [0, 1, 2])
    assert task.reader.read() is first and not first.flags.writeable
    state.update(lambda old: old + 1)
    update_together([state], lambda old: [old * 2])
    with changing([state]) as (value,):
        value[0] = 9
    np.testing.assert_array_equal(task.reader.read(), [9, 4, 6])
    np.testing.assert_array_equal(first, [0, 1, 2])
    assert task.resources.clear(CONTAINER)
    assert task.reader.read() is None
    state.assign(np.zeros(3, np.float32))  # a step that still runs
    assert task.reader.read() is None
    task.state.assign(np.float32(5))
    assert task.reader.read() == 5
    task.publisher.close_session(SESSION)
    assert task.reader.read() is None and not len(task.publisher)


def test_a_variable_that_is_there_already_is_posted_for_all_who_ask():
    resources, publisher = Resources(), VariablePublisher()
    state = resources.get_or_create(CONTAINER, "v", VariableState, lambda: VariableState("v", float32))
    state.assign([1, 2])
    held = state.read()
    place = publisher.publish("a", resources, CONTAINER, "v")
    assert place == publisher.publish("b", resources, CONTAINER, "v")
    read = reader_of(place, np.dtype(np.float32), Mapper()).read
    np.testing.assert_array_equal(read(), held)
    publisher.close_session("a")
    np.testing.assert_array_equal(read(), held)
    publisher.close()
    assert read() is None and publisher.publish("a", resources, CONTAINER, "v") is None


def test_a_record_that_is_used_again_is_not_taken_for_the_old_one():
    task = Task()
    task.state.assign([1.0])
    task.publisher.close_session(SESSION)
    again = task.publisher.publish(SESSION, task.resources, CONTAINER, "v")
    assert again is not None and again[:4] == task.place[:4] and again.number != task.place.number
    assert task.reader.read() is None
    assert reader_of(again, np.dtype(np.float32), task.borrower).read() == 1


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(MOST_BYTES // 4 + 1, np.float32),
        np.zeros((1,) * 13, np.float32),
        np.zeros((0, 3), np.float32),
    ],
)
def test_what_cannot_be_shown_is_not_there(value):
    task = Task()
    task.state.assign([1.0])
    task.state.assign(value)
    assert task.reader.read() is None
    task.state.assign([2.0])
    assert task.reader.read() == 2


def test_what_lies_elsewhere_is_not_there():
    task = Task()
    task.state.assign([1.0])
    with task.state.lock:
        task.state.move(object())
    assert task.reader.read() is None
    words = Task(string)
    words.state.assign(np.array([b"x"], object))
    assert words.reader.read() is None
    shared_storage._used.clear()
    elsewhere = Task()
    elsewhere.state.assign([1.0])
    assert elsewhere.reader.read() is None


def test_another_type_than_expected_is_not_read():
    task = Task()
    wrong = reader_of(task.place, np.dtype(np.int32), task.borrower)
    task.state.assign([1.0])
    assert wrong.read() is None and task.reader.read() == 1


def test_places_are_checked():
    task = Task()
    for wrong in (task.place._replace(offset=8), task.place._replace(offset=1 << 40), task.place._replace(segment=7)):
        with pytest.raises(MappingError):
            reader_of(wrong, np.dtype(np.float32), Mapper())
    with pytest.raises(MappingError, match="process"):
        ProcessHandle(1 << 22)  # beyond the largest number of a process


def test_a_change_is_not_seen_before_it_is_complete():
    task = Task()
    task.state.assign([1.0])
    with changing([task.state]) as (value,):
        value[:] = 2
        assert task.reader.read() == 1
    assert task.reader.read() == 2


def test_a_failed_change_leaves_what_is_there():
    task = Task()
    task.state.assign([1.0, 2.0])
    with pytest.raises(ZeroDivisionError), changing([task.state]) as (value,):
        value[0] = 7
        raise ZeroDivisionError
    np.testing.assert_array_equal(task.reader.read(), [7, 2])
    with pytest.raises(ValueError, match="no"):
        task.state.update(lambda old: (_ for _ in ()).throw(ValueError("no")))
    np.testing.assert_array_equal(task.reader.read(), [7, 2])


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["assign", "update", "change", "hold", "let go", "clear", "take down", "transpose", "other"]),
        st.integers(0, 5),
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(OPERATIONS, st.sampled_from(["float32", "int8", "complex64", "bool", "bfloat16"]))
def test_reading_gives_what_the_variable_has(operations, name):
    dtype = as_dtype(name)
    task = Task(dtype)
    snapshots = []
    for what, k in operations:
        state = task.state
        if what == "assign":
            state.assign(np.full((k, 2), k).astype(dtype.np))
        elif what == "other":
            task.resources.get_or_create(CONTAINER, "w", VariableState, lambda: VariableState("w", dtype)).assign(
                state.read() if state.is_initialized else np.ones(2, dtype.np)
            )
        elif what == "clear":
            task.resources.clear(CONTAINER)
        elif what == "take down":
            task.publisher.close_session(SESSION)
            task.place = task.publisher.publish(SESSION, task.resources, CONTAINER, "v")
            task.reader = reader_of(task.place, dtype.np, task.borrower)
        elif what == "let go":
            snapshots.clear()
        elif state.is_initialized:
            if what == "hold":
                snapshots.append((state.read(), state.read().copy()))
            elif what == "update":
                state.update(lambda old: np.full_like(old, 3))
            elif what == "transpose":
                state.update(np.transpose)
            else:
                with changing([state]) as (value,):
                    value[...] = 1
        seen = task.reader.read()
        if task.state.is_initialized and task.state.read().size:
            assert seen is not None and seen.dtype == dtype.np
            np.testing.assert_array_equal(seen, task.state.read())
            snapshots.append((seen, seen.copy()))
        else:
            assert seen is None
        for value, copy in snapshots:
            np.testing.assert_array_equal(value, copy)


def test_posts_leave_no_descriptors():
    def count():
        gc.collect()
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    Task()  # what is opened once and for all
    before = count()
    tasks = [Task() for _ in range(3)]
    for task in tasks:
        task.state.assign([1.0])
        assert task.reader.read() == 1
        task.publisher.close()
    del task, tasks
    shared_storage._used[0].close()
    assert count() <= before


# --- other processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def owner() -> Iterator[tuple["subprocess.Popen[str]", RecordAddress]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    place = RecordAddress(*map(int, process.stdout.readline().split()))
    yield process, place
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_readers_never_see_half_a_change(owner):
    process, place = owner
    watch = reader_of(place, int64.np, Mapper())
    wrong, counts = [], []

    def read():
        latest, seen = 0, 0
        for _ in range(10_000):
            value = watch.read()
            if value is None:
                continue
            seen += 1
            if value.min() != value.max() or value[0] < latest:
                wrong.append((latest, value))
            latest = value[0]
        counts.append(seen)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(counts) == 2
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "done\n"
    np.testing.assert_array_equal(watch.read(), np.full(10, -1))


def test_a_dead_owner_is_noticed_and_a_stopped_one_is_read(owner):
    process, place = owner
    watch = reader_of(place, int64.np, Mapper())
    print(file=process.stdin, flush=True)
    assert process.stdout.readline() == "done\n"
    read = VariableReaders([watch, None])
    os.kill(process.pid, signal.SIGSTOP)
    value, missing = read()
    assert missing is None
    np.testing.assert_array_equal(value, np.full(10, -1))
    process.kill()
    process.wait()
    assert read() == [None, None]
    assert not watch.owner.is_alive()
    assert VariableReaders([reader_of(place, int64.np, Mapper())])() == [None]


def test_a_forked_child_has_no_posts():
    task = Task()
    task.state.assign([1.0])
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(FailedPreconditionError):
                task.state.assign([2.0])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert task.reader.read() == 1


def test_an_accumulator_of_strings_is_not_published() -> None:
    """A peer may name any element type; the server's end must not fail because of it."""
    resources, direct = Resources(), RemoteVariables("/job:a/replica:0/task:0", "c")
    names = [["", "sum", ["float32", [2], "mean"]], ["", "text", ["string", [2], "mean"]], ["", "v", None]]
    places = direct.publish("s", resources, names, True)
    assert places[1:] == [None, None]
    direct.publisher.close()
