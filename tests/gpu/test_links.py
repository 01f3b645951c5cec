"""The ways between GPUs, with the binaries that Triton makes: on the strict driver, and by `make test-gpu` on real GPUs.

Two processes on one GPU lend each other memory. NCCL itself wants two GPUs, nccl4py and NVIDIA's library.
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_backends import IS_REAL, ON_DEVICE, RecordedDriver
from gpu_programs import gpus_with_kernels

import dovetail as dt
from dovetail.codegen.gpu.driver import api, nccl
from dovetail.codegen.gpu.driver.device import device
from dovetail.codegen.target import GPU_SMALLEST_LEASE
from dovetail.graph.ops.state import collectives as ops
from dovetail.runtime.shared_memory import cuda_ipc

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
two_gpus = pytest.mark.skipif(
    not IS_REAL or api.gpu_count() < 2 or not nccl.bindings(),
    reason="NCCL needs two GPUs, nccl4py and NVIDIA's library",
)
WAIT_S = 60.0
COUNT = (4 if ON_DEVICE else 1) * GPU_SMALLEST_LEASE // 4 + 3  # the interpreter is slow
THERE = "/job:w/replica:0/task:1"


# --- memory of another process ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fake(own_cache: None) -> Iterator[RecordedDriver]:
    with gpus_with_kernels(compiled=True) as made:
        yield made
        cuda_ipc._tables.clear()


@pytest.fixture
def servers() -> Iterator[tuple[dt.train.Server, subprocess.Popen[bytes]]]:
    """A server here, and one in another process."""
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    spec = {"w": [f"localhost:{s.getsockname()[1]}" for s in sockets]}
    for s in sockets:
        s.close()
    text = f"""
        import sys
        sys.path[:0] = {[p for p in sys.path if p]!r}
        import dovetail as dt
        from gpu_programs import gpus_with_kernels
        with gpus_with_kernels(compiled=True):
            server = dt.train.Server({spec!r}, "w", 1)
            print("ready", flush=True)
            server.join()
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    try:
        assert other.stdout is not None and other.stdout.readline() == b"ready\n"
        with dt.train.Server(spec, "w", 0) as server:
            yield server, other
    finally:
        other.kill()
        other.wait()
        if other.stdout is not None:
            other.stdout.close()


def program(sender: int) -> tuple[Any, Any]:
    with dt.device(f"/job:w/task:{sender}/gpu:0"):
        x = dt.placeholder(dt.float32, [None])
        y = x + 1.0
    with dt.device(f"/job:w/task:{1 - sender}/gpu:0"):
        return x, y * 2.0


def lent() -> int:
    table = cuda_ipc.exports_of_process()
    return 0 if table is None else table.lent()


def lending(server: dt.train.Server, sender: int) -> bool:
    loans = server._exchange.loans
    ledger = cuda_ipc.exports_of_process()
    return ledger is not None and len(ledger._exports) > 0 if sender == 0 else len(loans._opened) > 0


@pytest.mark.parametrize("sender", [0, 1])
def test_processes_lend_each_other_memory(servers, sender):
    server, _ = servers
    with dt.Graph().as_default():
        x, y = program(sender)
        with dt.Session(server.target) as session:
            value, end = np.arange(COUNT, dtype=np.float32), time.monotonic() + WAIT_S
            while True:
                np.testing.assert_array_equal(session.run(y, {x: value}), 2 * (value + 1))
                if lending(server, sender):
                    break
                assert time.monotonic() < end, "no memory was lent"
            for n in range(20 if ON_DEVICE else 3):
                np.testing.assert_array_equal(session.run(y, {x: value + n}), 2 * (value + n + 1))
    while lent():
        assert time.monotonic() < end + WAIT_S
        server._exchange.loans.tick()
        time.sleep(0.05)


@pytest.mark.parametrize("sender", [0, 1])
def test_nothing_is_left_of_a_process_that_was_killed(fake, servers, sender):
    server, other = servers
    loans, gpu = server._exchange.loans, device(0)
    with dt.Graph().as_default():
        x, y = program(sender)
        value, end = np.arange(COUNT, dtype=np.float32), time.monotonic() + WAIT_S
        with dt.Session(server.target) as session:
            while not lending(server, sender):
                session.run(y, {x: value})
                assert time.monotonic() < end, "no memory was lent"
            os.kill(other.pid, signal.SIGKILL)
            other.wait()
            with pytest.raises(dt.errors.OpError):
                session.run(y, {x: value})
    while lent() + len(loans._opened):
        assert time.monotonic() < end + WAIT_S
        loans.tick()
        time.sleep(0.05)
    gc.collect()
    assert not loans.lends(f"{THERE}/device:GPU:0")
    gpu.synchronize()  # it still works
    gpu.pool.trim()
    assert gpu.pool.reserved == 0 and (ON_DEVICE or not fake.strict.allocations(opened=True))
    np.testing.assert_array_equal(gpu.to_host(gpu.from_host(value)), value)


# --- NCCL ------------------------------------------------------------------------------------------------------------


@two_gpus
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("count", [1000, 5_000_000])
def test_nccl_agrees_with_numpy(dtype, count):
    kind, members = dt.as_dtype(dtype).as_numpy_dtype, ["/gpu:0", "/gpu:1"]
    values = [(np.arange(2 * count) % (7 + i)).astype(kind).reshape(2, count) for i in range(2)]
    with dt.Graph().as_default() as graph:
        made = [
            (ops.all_reduce(v, members, i, "sum", "nccl", "r"), ops.all_gather(v, members, i, "g"),
             ops.reduce_scatter(v, members, i, instance="s"), ops.broadcast(v, members, i, root=1, instance="b"))
            for i, v in enumerate(map(dt.constant, values))
        ]  # fmt: skip
        with dt.Session(graph=graph) as session:
            for _ in range(3):
                for i, (total, gathered, share, sent) in enumerate(session.run(made)):
                    np.testing.assert_array_equal(total, values[0] + values[1])
                    np.testing.assert_array_equal(gathered, np.concatenate(values))
                    np.testing.assert_array_equal(share, (values[0] + values[1])[i : i + 1])
                    np.testing.assert_array_equal(sent, values[1])


@two_gpus
def test_a_member_that_never_comes_is_given_up():
    gpus = [device(i) for i in range(2)]
    links = [nccl.NcclLink(gpu, i, 2) for i, gpu in enumerate(gpus)]
    told: list[Any] = []
    x = gpus[0].from_host(np.ones(1000, np.float32))

    class Job:
        def __init__(self, rank: int) -> None:
            self.rank = rank
            with gpus[rank].entered():
                self.ready = gpus[rank].compute.record()

        def call(self, library: Any, communicator: Any, stream: int, rows: Any) -> Any:
            if self.rank == 0:
                library.all_reduce(x.pointer, x.pointer, 1000, nccl.TYPES["float32"], 0, communicator, stream)

    for rank, link in enumerate(links):
        link.start(0, links[0].invitation(), Job(rank), [0, 0], told.append)
    end = time.monotonic() + WAIT_S
    while len(told) < 1:  # the member that makes no call
        assert time.monotonic() < end
        time.sleep(0.01)
    for link in links:
        link.stop()
    for link in links:
        assert link._thread is not None
        link._thread.join(WAIT_S)
        assert not link._thread.is_alive()
    gpus[0].synchronize()
    assert sum(isinstance(t, dt.errors.AbortedError) for t in told) == 1
