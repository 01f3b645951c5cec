"""The state of variables: snapshots stay what they were, and what nobody holds is changed where it is."""

import threading

import numpy as np
import pytest

from dovetail.graph.core.dtypes import float32
from dovetail.graph.core.errors import FailedPreconditionError
from dovetail.graph.resources.chunked_snapshot import ChunkedSnapshot
from dovetail.graph.resources.variable import VariableState, changing, read_together_in_chunks, update_together


def variable(value=(1.0, 2.0, 3.0, 4.0), name="v"):
    state = VariableState(name, float32)
    state.assign(np.asarray(value, np.float32))
    return state


def address(state):
    return state.read().__array_interface__["data"][0]


def test_a_value_that_nobody_holds_is_changed_where_it_is():
    state = variable()
    before = address(state)
    with changing([state]) as (value,):
        value += 1
    del value
    assert address(state) == before
    assert state.read().tolist() == [2, 3, 4, 5]
    assert not state.read().flags.writeable


@pytest.mark.parametrize(
    "hold", [lambda x: x, lambda x: x[1:3], lambda x: x.reshape(2, 2).T, memoryview, lambda x: [x[::2]]],
    ids=["the value", "a part", "a view of a view", "its memory", "inside something"],
)  # fmt: skip
def test_what_somebody_holds_stays_as_it_was(hold):
    state = variable()
    before = address(state)
    held = hold(state.read())
    snapshot = np.array(held)
    with changing([state]) as (value,):
        value[:] = 0
    del value
    assert address(state) != before
    np.testing.assert_array_equal(np.array(held), snapshot)
    assert state.read().tolist() == [0, 0, 0, 0]


def test_a_value_in_somebody_elses_memory_is_copied():
    state = variable()
    memory = np.arange(8, dtype=np.float32)
    state._value = memory[:4]
    with changing([state]) as (value,):
        value[:] = 7
    assert memory.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert state.read().tolist() == [7, 7, 7, 7]


def test_values_are_contiguous_while_they_change():
    state = variable()
    state._value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    with changing([state]) as (value,):
        assert value.flags.c_contiguous
        value.reshape(-1)[1] = 9
    assert state.read().tolist() == [[0, 9, 2], [3, 4, 5]]


def test_readers_wait_while_a_value_changes():
    state = variable([0.0] * 1000)
    seen = []
    begun = threading.Event()

    def read():
        begun.set()
        seen.append((state.is_initialized, state.read()))

    with changing([state]) as (value,):
        reader = threading.Thread(target=read)
        reader.start()
        begun.wait()
        for i in range(1000):
            value[i] = 1
    reader.join()
    assert [(known, set(x.tolist())) for known, x in seen] == [(True, {1.0})]


def test_an_error_leaves_values_and_locks_as_they_were():
    a, b = variable(name="a"), VariableState("b", float32)
    with pytest.raises(FailedPreconditionError, match="uninitialized value b"), changing([a, b]):
        pytest.fail("there is nothing to change")
    with pytest.raises(ZeroDivisionError), changing([a]):
        raise ZeroDivisionError
    assert a.read().tolist() == [1, 2, 3, 4]
    assert not b.is_initialized
    with pytest.raises(FailedPreconditionError, match="uninitialized value b"):
        b.update(lambda x: x)
    with pytest.raises(FailedPreconditionError, match="uninitialized value b"):
        update_together([a, b], lambda x, y: (x, y))
    a.update(lambda x: x + 1)  # it is not locked
    assert a.read().tolist() == [2, 3, 4, 5]


@pytest.mark.slow
def test_snapshots_are_whole_under_many_writers():
    state = variable([0.0] * 512)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            with changing([state]) as (value,):
                value += 1

    writers = [threading.Thread(target=write) for _ in range(3)]
    for w in writers:
        w.start()
    try:
        held = []
        for _ in range(3000):
            snapshot = state.read()
            held.append((snapshot, float(snapshot[0])))
            assert (snapshot == snapshot[0]).all()
            if len(held) > 5:
                old, was = held.pop(0)
                assert (old == was).all()
    finally:
        stop.set()
        for w in writers:
            w.join()


def add_to(state, rows):
    with changing([state], rows) as (value,):
        value[np.unique(rows[(rows >= 0) & (rows < len(value))])] += 1


def overwrite(state):
    with changing([state]) as (value,):
        value[:] = -1


@pytest.mark.parametrize(
    "shape", [(1 << 13, 128), (1 << 20,), (3, 1 << 19)], ids=["rows", "numbers", "rows larger than a chunk"]
)
@pytest.mark.parametrize(
    "change", [lambda state: None, overwrite, lambda state: state.assign(np.zeros(state.read().shape)),
               lambda state: state.update(lambda x: x * 2), lambda state: state.publish(lambda value: None)],
    ids=["rows only", "all in place", "assigned", "updated", "published"],
)  # fmt: skip
def test_a_snapshot_in_chunks_is_of_one_moment_whatever_changes_meanwhile(change, shape, monkeypatch):
    copied = []
    monkeypatch.setattr(
        "dovetail.graph.resources.variable.kept_copy", lambda value: copied.append(1) or np.array(value)
    )
    random = np.random.default_rng(1)
    before = random.random(shape, np.float32)
    state, small = variable(before), variable(name="small")
    copied.clear()
    snapshots = read_together_in_chunks(state, small)
    at = address(state)
    assert isinstance(snapshots[0], ChunkedSnapshot) and snapshots[1].tolist() == [1, 2, 3, 4]
    other, found = state.read_in_chunks(), []
    for number, chunk in enumerate(snapshots[0].chunks()):
        found.append(chunk.copy())
        del chunk
        if number == 2:
            assert address(state) == at and not copied  # changed where it is
            change(state)
        add_to(state, random.integers(-5, shape[0] + 5, (4, 4)))
        add_to(state, np.array([0, shape[0] - 1]))
    np.testing.assert_array_equal(np.concatenate(found), before)
    np.testing.assert_array_equal(np.concatenate([c.copy() for c in other.chunks()]), before)
    assert not np.array_equal(state.read(), before)


def test_a_dropped_snapshot_keeps_nothing():
    state = variable(np.zeros((1 << 12, 512), np.float32))
    snapshot = state.read_in_chunks()
    state.read_in_chunks().chunks()
    add_to(state, np.array([7]))
    assert snapshot._count == 1
    del snapshot
    assert [s() for s in state._snapshots] == [None, None]
    held = state.read_in_chunks()
    assert isinstance(held, ChunkedSnapshot) and len(state._snapshots) == 1
