"""Workers whose GPUs meet by NCCL, in two servers of this process, on stand-ins for driver and library."""

import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fake_nccl import FakeNccl
from gpu_backends import RecordedDriver, gpus_for_tests

import dovetail as dt
from dovetail import distribute
from dovetail.codegen.gpu.driver import nccl
from dovetail.codegen.gpu.driver.nccl import NcclLink
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from dovetail.graph.ops.state import collectives as ops
from dovetail.graph.resources.collective_context import LinkIdentity

WAIT_S = 60.0
MEMBERS = [f"/job:worker/task:{i}/gpu:0" for i in range(2)]


@pytest.fixture
def fake() -> Iterator[RecordedDriver]:
    with gpus_for_tests(1) as made:
        made.strict.be_patient(2)
        yield made


@pytest.fixture
def library(fake: RecordedDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    library = FakeNccl(fake)
    before = nccl.use(library)
    made = NcclLink.__init__

    def with_card(self: NcclLink, gpu: Any, rank: int, size: int) -> None:
        made(self, gpu, rank, size)
        self.identity = LinkIdentity(7, (1, rank))  # as if each had a GPU of its own

    monkeypatch.setattr(NcclLink, "__init__", with_card)
    yield library
    gc.collect()
    for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
        thread.join(WAIT_S)
    nccl.use(before)


@pytest.fixture
def servers(fake: RecordedDriver) -> Iterator[list[dt.train.Server]]:
    sockets = [socket.socket() for _ in range(2)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    spec = dt.train.ClusterSpec({"worker": [f"localhost:{s.getsockname()[1]}" for s in sockets]})
    for s in sockets:
        s.close()
    made = [dt.train.Server(spec, "worker", i, config=dt.ConfigProto(peer_timeout_s=WAIT_S)) for i in range(2)]
    yield made
    for server in made:
        server.stop()


def in_both(work: Callable[[int], Any]) -> list[Any]:
    """What `work(i)` gives, or raises, in a thread per worker."""
    found: list[Any] = [None, None]

    def worker(i: int) -> None:
        try:
            with dt.Graph().as_default():
                found[i] = work(i)
        except Exception as e:
            found[i] = e.with_traceback(None)  # which would keep the session

    threads = [threading.Thread(target=worker, args=(i,)) for i in range(2)]
    [t.start() for t in threads]
    [t.join(WAIT_S) for t in threads]
    assert not any(t.is_alive() for t in threads)
    return found


@pytest.mark.parametrize("way", ["AUTO", "NCCL"])
def test_workers_go_in_step(library: FakeNccl, servers: list[dt.train.Server], way: str) -> None:
    def work(i: int) -> Any:
        resolver = SimpleClusterResolver(servers[i].cluster_spec, task_type="worker", task_id=i)
        strategy = distribute.MultiWorkerMirroredStrategy(
            distribute.CollectiveCommunication[way], cluster_resolver=resolver, devices=["/gpu:0"], server=servers[i]
        )

        def step(x: Any) -> Any:
            w = dt.get_variable("w", [200], initializer=dt.constant_initializer(float(i)))
            return distribute.get_replica_context().all_reduce("sum", x), w.read_value()

        with strategy.scope():
            values, end = strategy.run(step, args=(dt.constant(np.full(200, 2.0 + i, np.float32)),)), strategy.barrier()
        config = strategy.update_config_proto(dt.ConfigProto())
        with dt.Session(strategy.session_target, config=config) as session:
            session.run(dt.global_variables_initializer())
            found = [session.run(values) for _ in range(2)]
            session.run(end)
        return found

    for found in in_both(work):
        if isinstance(found, Exception):
            raise found
        for total, first in found:
            np.testing.assert_array_equal(total, np.full(200, 5.0))
            np.testing.assert_array_equal(first, np.zeros(200))  # both began with worker 0's value
    assert sum(x[0] == "all_reduce" for x in library.log) == 4
    assert sum(x[0] == "broadcast" for x in library.log) == 2


@pytest.fixture
def two_gpus() -> Iterator[FakeNccl]:
    with gpus_for_tests(2) as made:
        made.strict.be_patient(2)
        library = FakeNccl(made)
        before = nccl.use(library)
        yield library
        gc.collect()
        for thread in [t for t in threading.enumerate() if t.name.startswith("nccl ")]:
            thread.join(WAIT_S)
        nccl.use(before)


def test_replicas_of_one_process_go_in_step(two_gpus: FakeNccl) -> None:
    """`NcclAllReduce`: each GPU takes part for itself, in one run for all gradients of a bucket."""
    gpus = [f"/device:GPU:{i}" for i in range(2)]
    with dt.Graph().as_default():
        rows = []
        for size in (300, 200):
            with dt.device(gpus[0]):
                one = dt.constant(np.full(size, 2.0, np.float32))
            with dt.device(gpus[1]):
                rows.append((one, dt.constant(np.arange(size, dtype=np.float32))))
        totals = distribute.NcclAllReduce().to_all(rows, [gpus[0]] * 2, gpus, distribute.ReduceOp.SUM)
        with dt.Session() as session:
            for _ in range(2):
                found = session.run([list(t.values) for t in totals])
    for size, copies in zip((300, 200), found, strict=True):
        for copy in copies:
            np.testing.assert_array_equal(copy, 2.0 + np.arange(size))
    assert [t.device for t in totals[0].values] == gpus
    assert sum(x[0] == "all_reduce" for x in two_gpus.log) == 2 * 2 * 2  # steps, GPUs, values


def test_a_step_that_ends_early_ends_the_collective_of_all(library: FakeNccl, servers: list[dt.train.Server]) -> None:
    """One member's library fails in the middle of a run: the other one, whose device waits for it, hears of it by message."""
    call = library._call

    def once(function: str, about: Any, send: int, receive: int, comm: int, stream: int) -> None:
        if library.alive[comm].rank == 1 and len([x for x in library.log if x[0] == "all_reduce"]) >= 2:
            raise RuntimeError("a cable was pulled")
        call(function, about, send, receive, comm, stream)

    library._call = once  # type: ignore[method-assign]

    def work(i: int) -> Any:
        with dt.device(f"/job:worker/task:{i}"):
            y = ops.all_reduce(dt.constant(np.ones(200, np.float32)), MEMBERS, i, instance="g")
        config = dt.ConfigProto(device_filters=[f"/job:worker/task:{i}"])
        with dt.Session(servers[i].target, config=config) as session:
            assert session.run(y)[0] == 2.0
            session.run(y)

    for i, found in enumerate(in_both(work)):
        assert isinstance(found, dt.errors.UnavailableError), (i, found)
        assert "the all_reduce 'g' of 2 members" in str(found) and "a cable was pulled" in str(found)


def test_who_shares_a_gpu_goes_on_by_messages(fake: RecordedDriver, servers: list[dt.train.Server]) -> None:
    before = nccl.use(library := FakeNccl(fake))
    try:

        def work(i: int) -> Any:
            with dt.device(f"/job:worker/task:{i}"):
                y = ops.all_reduce(dt.constant(np.full(200, i + 1.0, np.float32)), MEMBERS, i, instance="g")
            config = dt.ConfigProto(device_filters=[f"/job:worker/task:{i}"])
            with dt.Session(servers[i].target, config=config) as session:
                return [session.run(y) for _ in range(3)]

        for found in in_both(work):
            np.testing.assert_array_equal(found, np.full((3, 200), 3.0))
        assert not any(x[0] == "all_reduce" for x in library.log)
    finally:
        nccl.use(before)
