"""GPU memory that processes lend each other, on stand-ins for the driver: which calls, that loans come back, and what if not."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_backends import RecordedDriver, gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.gpu.driver.ipc import GRANULE, Incoming, closed, handle_of, opened, outgoing
from dovetail.codegen.target import GPU_SMALLEST_LEASE
from dovetail.runtime.shared_memory import cuda_ipc
from dovetail.runtime.shared_memory.cuda_ipc import CudaIpc, ExportTable
from dovetail.runtime.wire.messages import Message, encode
from dovetail.runtime.wire.schema import WireError

FOLDERS = [str(Path(__file__).resolve().parents[2] / folder) for folder in ("gpu", "codegen")]
WAIT_S = 60.0
COUNT = GPU_SMALLEST_LEASE // 4 + 3
HERE, THERE = "/job:w/replica:0/task:0", "/job:w/replica:0/task:1"


def lent() -> int:
    """The number of lent tensors on this process's GPUs."""
    table = cuda_ipc.exports_of_process()
    return 0 if table is None else table.lent()


@pytest.fixture
def fake() -> Iterator[RecordedDriver]:
    with gpus_for_tests(1) as made:
        made.strict.open_own_handles()  # many of these tests have both sides in one process
        yield made
        cuda_ipc._tables.clear()


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# --- one block, two sides --------------------------------------------------------------------------------------------


class Pair:
    """A lender and a borrower, whose messages are delivered at once."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, dict[str, Any]]] = []
        self.otherwise: list[tuple[str, int, Any]] = []
        self.reader = os.getppid()  # the borrower stands for another process
        self.lender = CudaIpc(
            HERE, [0], lambda task: self.reader, self.deliver, lambda *what: self.otherwise.append(what)
        )
        self.borrower = CudaIpc(THERE, [0], lambda task: 0, self.deliver, lambda *what: None)

    def deliver(self, task: str, kind: str, fields: dict[str, Any]) -> None:
        self.sent.append((task, kind, fields))
        to = self.lender if task == HERE else self.borrower
        getattr(to, f"on_{kind}")(task.encode(), Message(kind, fields))

    def send(self, value: np.ndarray[Any, Any]) -> Incoming | None:
        """Lend what a value is on the GPU; what arrives."""
        assert self.lender.lends(f"{THERE}/device:GPU:0")
        tensor = outgoing(device(0).from_host(value), f"{THERE}/device:GPU:0")
        assert tensor is not None
        loan = self.lender.lend(7, tensor.wait())
        assert loan is not None
        return self.borrower.take({"step": 3, "task": HERE, "loans": [loan]}).get(7)


@pytest.fixture
def pair(fake: RecordedDriver) -> Pair:
    return Pair()


def test_a_tensor_goes_from_gpu_to_gpu_and_its_loan_comes_back(fake: RecordedDriver, pair: Pair) -> None:
    value = np.arange(COUNT, dtype=np.float32)
    for n in range(3):
        arrived = pair.send(value + n)
        assert arrived is not None and lent() == 1
        fake.log.clear()
        taken = arrived.taken("x")
        del arrived
        assert [x[0] for x in fake.log if x[0] in ("copy", "to host", "to device")] == ["copy"]
        assert lent() == 1  # the copy is queued, and has not run
        np.testing.assert_array_equal(np.asarray(taken), value + n)
        pair.borrower.tick()
        assert lent() == 0
        del taken
    assert len(pair.borrower._opened) <= 2  # the pool gives the same blocks again: each is opened once


def test_a_tensor_that_nobody_takes_comes_back(pair: Pair) -> None:
    arrived = pair.send(np.zeros(COUNT, np.float32))
    assert lent() == 1
    del arrived
    assert lent() == 0


def test_views_and_types(pair: Pair) -> None:
    whole = device(0).from_host(np.arange(GRANULE // 2, dtype=np.int16))
    part = type(whole)(device(0), (2, COUNT), whole.dtype, whole.pointer + 64, whole._owner)
    tensor = outgoing(part, f"{THERE}/device:GPU:0")
    assert tensor is not None and tensor.offset == 64
    loan = pair.lender.lend(1, tensor.wait())
    arrived = pair.borrower.take({"step": 3, "task": HERE, "loans": [loan]})[1]
    wanted = np.arange(GRANULE // 2, dtype=np.int16)[32:][: 2 * COUNT].reshape(2, COUNT)
    np.testing.assert_array_equal(np.asarray(arrived.taken()), wanted)


def test_only_blocks_of_the_pool_that_are_large_are_lent(pair: Pair) -> None:
    gpu = device(0)
    assert outgoing(gpu.from_host(np.zeros(10)), "") is None
    x = gpu.from_host(np.zeros(COUNT, np.float32))
    assert outgoing(type(x)(gpu, x.shape, x.dtype, x.pointer, object()), "") is None


def test_the_driver_gets_no_block_back_that_somebody_has_open(fake: RecordedDriver, pair: Pair) -> None:
    arrived = pair.send(np.zeros(COUNT, np.float32))
    assert arrived is not None
    block = arrived.taken()
    np.asarray(block)
    del arrived, block
    pair.borrower.tick()
    assert lent() == 0
    pool = device(0).pool
    before = pool.reserved
    freed = pool.trim()
    assert pool.reserved == before - freed > 0  # one block is left, though nobody uses it
    assert len(pair.borrower._opened) == 1
    pair.borrower.tick()  # it hears that the block is not wanted any more
    assert len(pair.borrower._opened) == 0 and ("close" in [x[0] for x in fake.log])
    pool.trim()
    assert pool.reserved == 0


def test_a_block_is_lent_again_while_it_was_to_be_closed(fake: RecordedDriver, pair: Pair) -> None:
    one = pair.send(np.zeros(COUNT, np.float32))
    del one
    assert lent() == 0
    device(0).pool.trim()
    two = pair.send(np.ones(COUNT, np.float32))
    assert two is not None and len(pair.borrower._opened) == 2  # it is another loan of the same block, opened anew
    np.testing.assert_array_equal(np.asarray(two.taken()), np.ones(COUNT))
    del two
    pair.borrower.tick()
    assert len(pair.borrower._opened) == 1


def test_what_cannot_be_opened_is_sent_otherwise(
    fake: RecordedDriver, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "cuIpcOpenMemHandle", lambda handle, Flags: (fake.CUresult(201), None), raising=False)
    assert pair.send(np.full(COUNT, 3.0, np.float32)) is None
    ((task, step, tensors),) = pair.otherwise
    assert (task, step) == (THERE, 3)
    np.testing.assert_array_equal(tensors[7].on_host(), np.full(COUNT, 3.0))
    assert lent() == 0
    assert not pair.lender.lends(f"{THERE}/device:GPU:0")  # never again


def test_memory_without_a_handle_is_not_lent(fake: RecordedDriver, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "cuIpcGetMemHandle", lambda dptr: (fake.CUresult(801), None), raising=False)
    tensor = outgoing(device(0).from_host(np.zeros(COUNT, np.float32)), f"{THERE}/device:GPU:0")
    assert tensor is not None and pair.lender.lend(1, tensor) is None
    assert not pair.lender.lends(f"{THERE}/device:GPU:0")


@pytest.mark.parametrize("why", ["setting", "elsewhere", "the same process"])
def test_who_cannot_read_is_lent_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "setting":
        monkeypatch.setenv("DOVETAIL_CUDA_IPC", "0")
    else:
        pair.reader = 0 if why == "elsewhere" else os.getpid()
    assert not pair.lender.lends(f"{THERE}/device:GPU:0")


def test_who_has_no_gpu_refuses_the_first_loan_and_is_lent_nothing_more(pair: Pair) -> None:
    pair.borrower.gpus = frozenset()
    assert pair.send(np.full(COUNT, 3.0, np.float32)) is None
    np.testing.assert_array_equal(pair.otherwise[0][2][7].on_host(), np.full(COUNT, 3.0))
    assert not pair.lender.lends(f"{THERE}/device:GPU:0")


def test_loans_of_the_dead_come_back(fake: RecordedDriver) -> None:
    table = ExportTable()
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    tensor = outgoing(device(0).from_host(np.zeros(COUNT, np.float32)), "x")
    assert tensor is not None and table.lend(tensor, dead.pid, THERE, 0) is not None
    dead.wait()
    table.tidy()
    assert table.lent() == 0
    pointer = tensor.block.pointer
    del tensor
    assert table.may_free(0, pointer)


@pytest.mark.parametrize(
    "change",
    [
        {1: 5}, {1: -1}, {2: "string"}, {2: "nothing"}, {3: [1 << 40]}, {3: [-1]}, {3: [2.5]}, {4: -8}, {4: 1 << 40},
        {5: b"short"}, {6: 1 << 50}, {7: None}, {8: [1, 2, 3]}, {9: None},
    ],
)  # fmt: skip
def test_malformed_loans_are_refused(pair: Pair, change: dict[int, Any]) -> None:
    pair.send(np.zeros(COUNT, np.float32))
    tensor = outgoing(device(0).from_host(np.zeros(COUNT, np.float32)), f"{THERE}/device:GPU:0")
    assert tensor is not None
    loan = pair.lender.lend(1, tensor)
    assert loan is not None
    ((at, value),) = change.items()
    loan[at] = value
    fields = {"step": 3, "task": HERE, "loans": [loan]}
    try:
        encode(Message("gpu_loans", fields))
    except WireError:
        return  # the protocol's table refuses it
    assert pair.borrower.take(fields) == {}


def test_a_handle_of_less_memory_than_said_is_not_used(fake: RecordedDriver) -> None:
    gpu = device(0)
    x = gpu.from_host(np.zeros(GRANULE, np.uint8))
    handle = handle_of(gpu, x._owner.pointer)
    with pytest.raises(ValueError, match="is said to lie in"):
        opened(gpu, handle, x._owner.size + 1)
    assert not fake.strict.allocations(opened=True)
    pointer = opened(gpu, handle, x._owner.size)
    closed(gpu, pointer)
    assert not fake.strict.allocations(opened=True)


# --- servers ---------------------------------------------------------------------------------------------------------


def ports() -> list[int]:
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    found = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return found


def program(sender: int) -> tuple[Any, Any]:
    """A tensor that is fed to a GPU of one task, and goes on to that of the other: both."""
    with dt.device(f"/job:w/task:{sender}/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        y = dt.identity(x)
    with dt.device(f"/job:w/task:{1 - sender}/gpu:0"):
        return x, dt.identity(y)


def test_servers_of_one_process_lend_each_other_nothing(fake: RecordedDriver) -> None:
    """A driver refuses to open memory of its own process."""
    spec = {"w": [f"localhost:{p}" for p in ports()]}
    with dt.train.Server(spec, "w", 0) as one, dt.train.Server(spec, "w", 1), dt.Graph().as_default():
        x, y = program(0)
        with dt.Session(one.target) as session:
            value = np.arange(COUNT, dtype=np.float32)
            np.testing.assert_array_equal(session.run(y, {x: value}), value)
            until(lambda: one._responder.reader_of(THERE) == os.getpid())
            for n in range(3):
                np.testing.assert_array_equal(session.run(y, {x: value + n}), value + n)
            assert not any(x[0] in ("handle", "open") for x in fake.log)


def test_a_tensor_that_shares_its_memory_with_others_is_copied_before_it_is_lent(pair: Pair) -> None:
    gpu = device(0)
    small, whole = (gpu.from_host(np.arange(n, dtype=np.float32)) for n in (COUNT, GRANULE // 4))
    one, other = outgoing(small, "x"), outgoing(whole, "x")
    assert one is not None and one.block is not small._owner and one.block.size == GRANULE
    assert other is not None and other.block is whole._owner
    np.testing.assert_array_equal(one.wait().on_host(), np.arange(COUNT))
