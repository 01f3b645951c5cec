"""Peers that connect and say nothing, or junk: they may take neither a server's descriptors, nor its processor, nor its log."""

from __future__ import annotations

import logging
import os
import resource
import socket
import time
from pathlib import Path

import pytest
import zmq
from echoing import WAIT_S, Connection, ping, until

import dovetail as tf
from dovetail.runtime.logs import Throttle
from dovetail.runtime.rpc.pending_call import ConnectionPool
from dovetail.runtime.transport.access_control import end_connection, peer_of
from dovetail.runtime.transport.address import split_address
from dovetail.runtime.transport.client import shared_context
from dovetail.runtime.transport.endpoint import MAX_STRIKES, RESERVE, DescriptorReserve, Endpoint
from dovetail.runtime.transport.zmq_links import name_of


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_idle_connections_take_neither_the_processor_nor_the_last_descriptors() -> None:
    with tf.LocalCluster({"a": 1}) as cluster, tf.Session(cluster.target("a")) as session:
        x = tf.constant(1.0) + 1.0
        session.run(x)
        pid = cluster.process("a", 0).pid
        descriptors = Path(f"/proc/{pid}/fd")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(descriptors.iterdir())) + 60,) * 2)
        host = ("127.0.0.1", split_address(cluster.target("a").removeprefix("zmq://"))[1])
        idle = []
        try:
            with pytest.raises(ConnectionRefusedError):  # it listens no more
                for _ in range(2_000):
                    idle.append(socket.create_connection(host, 5.0))
                    time.sleep(0.005)
            before = processor_s(pid)
            time.sleep(1.0)
            assert processor_s(pid) - before < 0.5
            assert session.run(x) == 2.0
            with tf.Graph().as_default():  # a file can be opened there
                assert session.run(x) == 2.0
        finally:
            for sock in idle:
                sock.close()
        with tf.Session(cluster.target("a"), wait_for_cluster=15.0) as another:
            assert another.run(x) == 2.0


def test_a_reserve_is_let_go_of_when_all_others_are_taken() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve, taken = DescriptorReserve(), []
    assert not reserve.look()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 8, hard))
        os.close(os.dup(0) - 1)
        with pytest.raises(OSError, match="Too many open files"):
            for _ in range(1_000):
                taken.append(os.dup(0))
        assert reserve.look() and reserve.look()
        for _ in range(RESERVE):
            taken.append(os.dup(0))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert not reserve.look()
    reserve.close()


def test_a_call_without_a_free_descriptor_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pool, free = ConnectionPool(), os.dup(0)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        with pytest.raises(tf.errors.ResourceExhaustedError, match=r"Too many open files.*ulimit -n"):
            pool.take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(free)
    pool.give_back(pool.take())
    pool.close()


def test_junk_is_logged_a_few_times_only(echo: Endpoint, client: Connection, caplog: pytest.LogCaptureFixture) -> None:
    port = split_address(echo.address)[1]
    with caplog.at_level(logging.WARNING):
        for i in range(5):
            with shared_context().socket(zmq.DEALER) as rude:
                rude.linger = 1_000
                rude.set(zmq.ROUTING_ID, b"%d" % i * 200)
                rude.connect(f"tcp://127.0.0.1:{port}")
                for _ in range(MAX_STRIKES):
                    rude.send(b"junk")
                until(lambda i=i: echo.counters.malformed == (i + 1) * MAX_STRIKES, "all was refused")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 10 and max(map(len, told)) < 200
    client.send(ping())
    assert client.recv(WAIT_S) is not None


def test_what_was_not_logged_is_counted() -> None:
    throttle = Throttle(most=2, every_s=10.0)
    assert [throttle.more(float(second)) for second in range(12)] == ["", "", *[None] * 8, " (and 8 more like it)", ""]


def test_long_names_of_peers_are_cut() -> None:
    assert name_of(b"\1" * 5) == "client 0101010101"
    assert name_of(b"\1" * 255) == f"client {'01' * 16}..."


def test_a_number_that_is_another_file_by_now_is_no_connection_and_costs_no_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "reused").open("w") as file:
        before = set(Path("/proc/self/fd").iterdir())
        assert peer_of(file.fileno()) is None
        end_connection(file.fileno(), ("127.0.0.1", 1))
        assert len(set(Path("/proc/self/fd").iterdir())) == len(before)
