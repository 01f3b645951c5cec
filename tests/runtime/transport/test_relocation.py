"""A task that was started again elsewhere is found at its old address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dovetail as dt
from dovetail.runtime.server.local_cluster import reserved_address
from dovetail.runtime.server.server import Server
from dovetail.runtime.transport.address import location_of
from dovetail.runtime.transport.endpoint import relocate


@pytest.fixture
def cluster() -> Iterator[dict[str, list[str]]]:
    with reserved_address("127.0.0.1") as ps, reserved_address("127.0.0.1") as worker:
        jobs = {"ps": [ps], "worker": [worker]}
    yield jobs
    for (address,) in jobs.values():
        relocate(address, address)


def free() -> str:
    with reserved_address("127.0.0.1") as address:
        return address


def test_servers_and_sessions_reach_a_task_where_it_is_now(cluster: dict[str, list[str]]) -> None:
    with dt.Graph().as_default(), Server(cluster, "worker", 0) as worker:
        with dt.device("/job:ps"):
            v = dt.Variable(1.0, name="v")
        ps = Server(cluster, "ps", 0)
        with dt.Session(worker.target) as session:
            session.run(v.initializer)
            assert session.run(v) == 1.0
        ps.stop()

        moved = free()
        relocate(cluster["ps"][0], moved)
        with Server(cluster, "ps", 0, listen=moved) as ps:
            assert ps.address == moved
            with dt.Session(worker.target) as session:  # the worker's server connects to the ps
                session.run(v.initializer)
                assert session.run(v + 1.0) == 2.0
            with dt.Session(f"zmq://{cluster['ps'][0]}") as session:  # as this client does
                assert session.run(v) == 1.0


def test_the_master_of_a_session_may_move(cluster: dict[str, list[str]]) -> None:
    del cluster["ps"]
    target = f"zmq://{cluster['worker'][0]}"
    Server(cluster, "worker", 0).stop()
    at = free()
    with Server(cluster, "worker", 0, listen=at), dt.Graph().as_default():
        relocate(cluster["worker"][0], at)
        with dt.Session(target) as session:
            assert session.run(dt.constant(3.0)) == 3.0


def test_a_location_is_an_address() -> None:
    with pytest.raises(ValueError, match="host:port"):
        relocate("127.0.0.1:2222", "elsewhere")
    assert location_of("127.0.0.1:2222") == "127.0.0.1:2222"
