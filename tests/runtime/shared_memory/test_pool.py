"""Shared memory: blocks are lent, read in place and come back, whoever dies; what is not ours to read is refused."""

import gc
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from echoing import Connection
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.graph.resources import shared_storage
from dovetail.graph.resources.variable import VariableState, changing
from dovetail.runtime.server.local_cluster import LocalCluster
from dovetail.runtime.shared_memory import pool as memory_pool
from dovetail.runtime.shared_memory.pool import Pool
from dovetail.runtime.shared_memory.segment import Mapper, MappingError, Reference, is_available
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.wire.tensors import SHARE_BYTES

pytestmark = pytest.mark.skipif(not is_available(), reason="this system has no memory files")

ME = os.getpid()
LARGE = np.arange(SHARE_BYTES, dtype=np.uint8)


@pytest.fixture
def pool():
    made = Pool(64 << 20)
    yield made
    made.close()


def read(borrower, reference, like):
    return np.ndarray(like.shape, like.dtype, borrower.borrow(reference, like.nbytes))


@given(
    st.sampled_from([np.float32, np.int8, np.complex128, np.bool_]),
    st.lists(st.integers(1, 60), min_size=1, max_size=3),
)
def test_what_is_lent_is_read(dtype, shape):
    pool, borrower = Pool(64 << 20), Mapper()
    value = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    for array in (value, value.T, value[::-1]):
        reference = pool.lend(array, ME)
        assert reference is not None
        np.testing.assert_array_equal(read(borrower, reference, array), array)
    pool.close()


def test_a_block_comes_back_with_the_last_array_over_it(pool):
    borrower = Mapper()
    reference = pool.lend(LARGE, ME)
    array = read(borrower, reference, LARGE)
    view = array[10:].reshape(-1, 2)[::3]
    slices = borrower.borrow(reference, 100)[3:7]
    del array
    gc.collect()
    assert pool.lent() == 1
    assert view[0, 0] == 10
    del view, slices
    gc.collect()
    assert pool.lent() == 0
    assert pool.lend(LARGE, ME) == reference


def test_blocks_are_used_again_and_the_pool_stays_as_small_as_it_can(pool):
    borrower = Mapper()
    for i in range(200):
        value = np.full(1 << 20, i, np.uint8)
        reference = pool.lend(value, ME)
        assert read(borrower, reference, value)[-1] == i % 256
    assert pool.bytes < 6 << 20


def test_a_full_pool_says_so_and_drops_idle_segments_of_other_sizes():
    pool, borrower = Pool(20 << 20), Mapper()
    held = read(borrower, pool.lend(LARGE, ME), LARGE)
    big = np.zeros(15 << 20, np.uint8)
    first = pool.lend(big, ME)
    assert first is not None
    assert pool.lend(big, ME) is None
    del held
    borrower.borrow(first, 1)  # and gives it back
    other = pool.lend(np.zeros(18 << 20, np.uint8), ME)
    assert other is not None
    assert pool.bytes <= 20 << 20
    pool.close()


def test_what_a_dead_process_held_is_taken_back(pool):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    references = [pool.lend(LARGE, child.pid) for _ in range(3)]
    assert all(references)
    pool.tidy()
    assert pool.lent() == 3
    child.send_signal(signal.SIGKILL)
    child.wait()
    pool.tidy()
    assert pool.lent() == 0
    child.stdin.close()


def test_threads_get_blocks_of_their_own(pool):
    borrower, wrong = Mapper(), []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            value = rng.integers(0, 255, rng.integers(SHARE_BYTES, 4 * SHARE_BYTES), np.uint8)
            reference = pool.lend(value, ME)
            if not np.array_equal(read(borrower, reference, value), value):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert pool.lent() == 0


def test_a_retired_segment_is_forgotten_but_not_under_who_reads_it():
    pool, borrower = Pool(64 << 20), Mapper()
    array = read(borrower, pool.lend(LARGE, ME), LARGE)
    pool.close()
    np.testing.assert_array_equal(array, LARGE)
    again = Pool(64 << 20)
    borrower.borrow(again.lend(LARGE, ME), 1)
    assert len(borrower._mappings) == 1
    again.close()


# --- made to be lent -------------------------------------------------------------------------------------------------


def made(pool, fill=1.0):
    array = pool.empty((64, 1024), np.dtype(np.float32))
    array[...] = fill
    return array


def test_what_was_made_in_a_block_is_lent_without_a_copy(pool):
    borrower, array = Mapper(), made(pool)
    whole = read(borrower, pool.lend(array, ME), array)
    part = read(borrower, pool.lend(array[32:], ME), array[32:])
    turned = read(borrower, pool.lend(array.T, ME), array.T)
    array[40, 3] = 7.0
    assert whole[40, 3] == part[8, 3] == 7.0
    assert turned[3, 40] == 1.0
    assert pool.lent() == 3


def test_a_block_is_free_when_its_maker_and_all_who_borrowed_it_have_let_go(pool):
    borrower = Mapper()
    array = made(pool, 5.0)
    mine, loans = array[1:], [read(borrower, pool.lend(array, ME), array) for _ in range(2)]
    size = pool.bytes
    del array
    for _ in range(3):
        others = [made(pool, 9.0) for _ in range(12)]
        assert mine[0, 0] == 5.0
        assert all(one[0, 0] == 5.0 for one in loans)
        del others
        mine = loans.pop() if loans else mine
    del mine
    gc.collect()
    assert pool.lent() == 0
    kept = [made(pool) for _ in range(12)]
    assert pool.bytes == size
    del kept


def test_a_tensor_that_is_given_away_is_a_copy(pool):
    borrower, array = Mapper(), made(pool)
    given = read(borrower, pool.lend(array, ME, alone=True), array)
    given[...] = 3.0
    assert array[0, 0] == 1.0


def test_what_is_made_leaves_half_of_the_pool_for_other_tensors():
    pool, dtype = Pool(16 << 20), np.dtype(np.uint8)
    held = []
    while (one := pool.empty((1 << 20,), dtype)) is not None:
        held.append(one)
    assert pool.bytes <= 8 << 20
    assert pool.lend(np.zeros(4 << 20, np.uint8), ME) is not None
    assert pool.empty((SHARE_BYTES - 1,), dtype) is None
    pool.close()
    assert pool.lend(held[0], ME) is not None, "a copy in a new segment"
    pool.close()


def test_a_block_takes_as_many_loans_as_its_segment_has_words(pool):
    array = made(pool)
    references = []
    while (one := pool.lend(array, ME)) is not None:
        references.append(one)
    assert len(references) == len({r.loan for r in references}) == 1020
    Mapper().borrow(references[17], 1)  # and gives it back
    assert pool.lend(array, ME).loan == references[17].loan


@pytest.fixture
def variable(pool, monkeypatch):
    monkeypatch.setattr(shared_storage, "_used", [pool])
    state = VariableState("v", dt.float32)
    state.assign(np.ones((64, 1024), np.float32))
    return state


def test_a_variable_is_read_in_place_and_a_snapshot_stays_what_it_was(pool, variable):
    borrower = Mapper()
    like = variable.read()
    place = like.ctypes.data
    snapshot = read(borrower, pool.lend(like, ME), like)
    del like
    with changing([variable]) as (value,):
        value += 1.0
    assert snapshot[0, 0] == 1.0
    assert variable.read()[0, 0] == 2.0
    assert variable.read().ctypes.data != place, "it was lent: so it is the variable that moved"


def test_a_variable_that_nobody_reads_changes_in_place_also_after_it_was_read(pool, variable):
    borrower = Mapper()
    place = variable.read().ctypes.data
    for _ in range(3):
        borrower.borrow(pool.lend(variable.read(), ME), 1)  # and gives it back
        with changing([variable]) as (value,):
            value += 1.0
    assert variable.read().ctypes.data == place
    part = variable.read()[3:]
    with changing([variable]) as (value,):
        value += 1.0
    assert part[0, 0] == 4.0
    assert variable.read()[0, 0] == 5.0


def test_after_a_fork_a_block_is_not_the_childs_to_change(pool, variable, monkeypatch):
    monkeypatch.setattr("dovetail.graph.core.interpreter_state._pid", ME + 1)
    place = variable.read().ctypes.data
    with changing([variable]) as (value,):
        value += 1.0
    assert variable.read().ctypes.data != place


# --- what must not be read -------------------------------------------------------------------------------------------


def refused(reference, size, says):
    with pytest.raises(MappingError, match=says):
        Mapper().borrow(reference, size)


def test_only_sealed_memory_files_with_the_right_number_are_read(pool, tmp_path):
    good = pool.lend(LARGE, ME)
    refused(Reference(ME, good.fd, good.number + 1, 0, 4096), 1, "another segment")
    refused(Reference(ME, 9_999, good.number, 0, 4096), 1, "No such file")
    refused(Reference(1 << 40, good.fd, good.number, 0, 4096), 1, "No such file")
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, 8192)
    refused(Reference(ME, loose, 0, 0, 4096), 1, "cut short")
    short = os.memfd_create("short", os.MFD_ALLOW_SEALING)
    refused(Reference(ME, short, 0, 0, 4096), 1, "no memory")
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 8192)
    refused(Reference(ME, file, 0, 0, 4096), 1, "fd")
    read_end, write_end = os.pipe()
    refused(Reference(ME, read_end, 0, 0, 4096), 1, "no memory")
    for fd in (loose, short, file, read_end, write_end):
        os.close(fd)


def test_nothing_beyond_a_segment_is_read(pool):
    good = pool.lend(LARGE, ME)
    for offset, size in ((0, 1), (4095, 1), (good.offset, 1 << 30), (1 << 62, 1)):
        refused(Reference(ME, good.fd, good.number, 0, offset), size, "beyond")
    refused(Reference(ME, good.fd, good.number, 1 << 20, 4096), 1, "beyond")


# --- over the transport ----------------------------------------------------------------------------------------------


def echo_server():
    return Endpoint("localhost:0", lambda peer, m: server[0].reply(peer, Message("done", m.fields, m.tensors)))


server: list[Endpoint] = []


def lies_in_shared_memory(array):
    while isinstance(array, np.ndarray):
        if type(array) is not np.ndarray:
            return isinstance(array.base, mmap.mmap)
        array = array.base
    return False


def exchange(connection, value, times=3):
    """The last of some echoes: the first message may leave before the two know each other."""
    for _ in range(times):
        connection.send(Message("done", {"request": 1, "fetches": ["x"]}, (value,)))
        answer = connection.recv(5.0)
        assert answer is not None
        (array,) = answer.tensors
        np.testing.assert_array_equal(array, value)
        assert not array.flags.writeable
    return array


def test_large_tensors_are_lent_between_processes_that_can_read_each_other():
    server[:] = [echo_server()]
    with server[0], Connection(server[0].address) as connection:
        assert lies_in_shared_memory(exchange(connection, np.arange(100_000.0)))
        assert not lies_in_shared_memory(exchange(connection, np.arange(100.0)))
        gc.collect()
    assert memory_pool.pool_of_process().lent() == 0


def test_nothing_is_lent_when_a_setting_says_so(monkeypatch):
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", "0")
    monkeypatch.setattr(memory_pool, "_pools", {})
    server[:] = [echo_server()]
    with server[0], Connection(server[0].address) as connection:
        assert not lies_in_shared_memory(exchange(connection, np.arange(100_000.0)))


def test_a_peer_that_cannot_read_gets_messages(monkeypatch):
    """As on another machine, where the same numbers name other files, or none."""

    def unreadable(*_):
        raise MappingError("not here")

    monkeypatch.setattr(memory_pool.mapper, "borrow", unreadable)
    server[:] = [echo_server()]
    with server[0], Connection(server[0].address) as connection:
        assert not lies_in_shared_memory(exchange(connection, np.arange(100_000.0)))


def test_a_peer_that_stops_being_able_to_read_is_sent_messages_again(monkeypatch):
    server[:] = [echo_server()]
    with server[0], Connection(server[0].address) as connection:
        exchange(connection, np.arange(100_000.0))
        with monkeypatch.context() as patch:
            patch.setattr(memory_pool.mapper, "borrow", lambda *_: (_ for _ in ()).throw(MappingError("not here")))
            connection.send(Message("done", {"request": 7, "fetches": ["x"]}, (np.arange(100_000.0),)))
            refusal = connection.recv(5.0)
        assert refusal.kind == "error"
        assert refusal.fields["request"] == 7
        assert "shared memory" in refusal.fields["message"]
        exchange(connection, np.arange(100_000.0))


@pytest.mark.slow
def test_a_fetched_array_is_the_users_own_and_lies_where_the_task_wrote_it():
    with LocalCluster({"worker": 1}) as cluster, dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None])
        double = x * 2.0
        with dt.Session(cluster.target("worker")) as session:
            value = np.ones(100_000, np.float32)
            for _ in range(3):
                fetched = session.run(double, {x: value})
            assert lies_in_shared_memory(fetched)
            fetched += 1.0
            assert (fetched == 3.0).all()
            assert (session.run(double, {x: value}) == 2.0).all()
            assert (fetched == 3.0).all()


@pytest.mark.slow
def test_kill_leaves_no_memory_behind():
    """Memory files have no names: they go with their processes."""
    text = (
        "import os, sys, numpy as np\n"
        "from dovetail.runtime.shared_memory.pool import Pool\n"
        "pool = Pool(1 << 30)\n"
        "reference = pool.lend(np.zeros(64 << 20, np.uint8), int(sys.argv[1]))\n"
        "print(reference.fd, reference.number, flush=True)\n"
        "input()\n"
    )

    def shared():
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))

    before = shared()
    child = subprocess.Popen(
        [sys.executable, "-c", text, str(ME)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    fd, number = map(int, child.stdout.readline().split())
    array = Mapper().borrow(Reference(child.pid, fd, number, 0, 4096), 64 << 20)
    child.kill()
    child.wait()
    assert array[-1] == 0
    del array
    gc.collect()
    assert shared() - before < 32 << 20
    child.stdin.close()
    child.stdout.close()


def test_the_memory_of_a_process_that_was_killed_does_not_stay_mapped() -> None:
    borrower = Mapper()
    program = (
        "import sys; from dovetail.runtime.shared_memory.pool import Pool; pool = Pool(1 << 20); "
        "print(*pool.page(), flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        ) as other:
            assert other.stdout is not None
            fields = [int(f) for f in other.stdout.readline().split()]
            borrower.borrow(fields, 1)
            other.kill()
    assert len(borrower) == 1
    borrower.let_go()  # as servers do all the time, and whoever closes a session
    assert len(borrower) == 0
