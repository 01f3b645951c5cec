"""The memory of large messages that arrive: it is made as bytes come, and what is too large costs its sender only."""

from __future__ import annotations

import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zmq
from echoing import WAIT_S, Connection

import dovetail as tf
from dovetail.runtime.transport import event_loop, peer
from dovetail.runtime.transport.address import split_address
from dovetail.runtime.transport.client import shared_context
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.stream import Stream
from dovetail.runtime.wire import reassembly
from dovetail.runtime.wire.chunking import PROGRESS_ACK
from dovetail.runtime.wire.messages import VERSION, Message, decode, encode
from dovetail.runtime.wire.reassembly import PartialMessage, TooLargeError

GIB = 1 << 30
LARGE = 4 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def virtual_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("sizes", [[3, 0, LARGE, 5, 0], [2, LARGE + 1, 1], [5 * LARGE, 7], [1, 0]])
@pytest.mark.parametrize("piece", [70_001, LARGE])
def test_a_message_is_what_came(sizes: list[int], piece: int) -> None:
    data = np.random.default_rng(0).bytes(sum(sizes))
    message, at = PartialMessage(sizes, GIB), 0
    while message.left:
        message.put(data[at : at + piece])
        at += piece
    assert message.is_whole() and message.refusal() is None
    assert [len(frame) for frame in message.frames] == sizes
    assert b"".join(map(bytes, message.frames)) == data


def test_no_memory_is_made_for_what_is_only_announced() -> None:
    before = resident_bytes()
    messages = [PartialMessage([10, GIB], 2 * GIB) for _ in range(50)]
    for message in messages:
        message.put(bytes(20))
    assert resident_bytes() - before < 51 * LARGE


def test_the_memory_of_a_large_message_serves_the_next_one() -> None:
    size, places = 3 * LARGE + 77, []
    for _ in range(2):
        message = PartialMessage([size], GIB)
        message.put(bytes(size))
        places.append(np.frombuffer(message.frames[0], np.uint8).ctypes.data)
        del message
    assert places[0] == places[1]


@pytest.mark.parametrize("why", ["limit", "announced", "meanwhile"])
def test_a_message_without_room_names_its_request_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Refused when it begins, or while it arrives: the stream goes on behind it."""
    left = {"announced": [0], "meanwhile": [GIB, 0], "limit": [GIB]}[why]
    monkeypatch.setattr(reassembly, "_LOOK_BYTES", LARGE)
    monkeypatch.setattr(reassembly, "memory_left", lambda: left.pop(0))
    feeds = (np.zeros(4 * LARGE, np.uint8),)
    frames = encode(Message("run", {"request": 7, "step": 9, "program": "p", "feeds": ["x"]}, feeds))
    ours, theirs = socket.socketpair()
    sender, receiver = Stream(ours, 8, GIB), Stream(theirs, 8, LARGE if why == "limit" else GIB)
    sender.send(frames)
    sender.send([b"next"])
    came = []
    while not came:
        sender.flush()
        came = receiver.receive()
    error = receiver.refused
    assert came == [[b"next"]] and error is not None
    assert (error.kind, error.request, error.step) == ("run", 7, 9)
    sender.close()
    receiver.close()


def test_a_failure_of_one_turn_does_not_end_the_io_thread(echo: Endpoint, client: Connection) -> None:
    def fail(event: int) -> None:
        theirs.recv(1)
        raise MemoryError

    ours, theirs = socket.socketpair()
    echo.call_soon(lambda: echo._io.watch(theirs.fileno(), fail))
    for seq in range(3):
        ours.send(b"x")
        client.send(Message("ping", {"seq": seq}))
        assert client.recv(WAIT_S) is not None
    done = threading.Event()
    echo.call_soon(lambda: (echo._io.unwatch(theirs.fileno()), done.set()))
    assert done.wait(WAIT_S)
    ours.close()
    theirs.close()


def test_a_process_whose_io_thread_cannot_go_on_ends() -> None:
    """It has no limit of its own: the process takes 5 s with all cores, and a minute where others use them."""
    program = """
import threading
from dovetail.runtime.transport.endpoint import Endpoint
endpoint = Endpoint("localhost:0", lambda peer, message: None)
def fail():
    raise MemoryError("none left")
endpoint._io.patience = lambda: 0.0  # so that every iteration fails
endpoint._io.settle = fail
endpoint.call_soon(lambda: None)
threading.Event().wait()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert ended.returncode == event_loop.EXIT_STATUS
    assert b"the I/O thread cannot go on, so this process ends" in ended.stderr and b"none left" in ended.stderr


@pytest.fixture(scope="module")
def tight() -> Iterator[tf.LocalCluster]:
    """A task that may get 96 MiB more memory than it has, and whose tensors come in messages."""
    with tf.LocalCluster({"a": 1}, environment={"DOVETAIL_SHARED_MEMORY_MB": "0"}) as cluster:
        with tf.Graph().as_default(), tf.Session(cluster.target("a")) as session:
            session.run(tf.constant(1.0) + 1.0)  # its threads have their stacks
        pid = cluster.process("a", 0).pid
        resource.prlimit(pid, resource.RLIMIT_AS, (virtual_bytes(pid) + (96 << 20),) * 2)
        yield cluster


def test_a_feed_without_room_is_an_error_of_its_sender(tight: tf.LocalCluster) -> None:
    x = tf.placeholder(tf.uint8, [None])
    total = tf.reduce_sum(tf.cast(x[:10], tf.int32))
    with tf.Session(tight.target("a")) as session:
        for _ in range(2):
            with pytest.raises(tf.errors.ResourceExhaustedError, match="memory"):
                session.run(total, {x: np.ones(256 << 20, np.uint8)})
            assert session.run(total, {x: np.ones(20 << 20, np.uint8)}) == 10


def test_a_few_bytes_that_announce_gigabytes_do_no_harm(tight: tf.LocalCluster) -> None:
    address = tight.target("a").removeprefix("zmq://")
    label = struct.pack("<BBBxIQ2Q", 0x95, VERSION, 0, 0, 7, 180, 8 * GIB)
    with shared_context().socket(zmq.DEALER) as rude:
        rude.linger, rude.rcvtimeo = 0, int(WAIT_S * 1000)
        rude.connect(f"tcp://127.0.0.1:{split_address(address)[1]}")
        rude.send_multipart([label, bytes(180)])
        rude.send_multipart([struct.pack("<BBBxIQ", 0x95, VERSION, 0, 1, 7), b"more"])
        assert rude.recv() == PROGRESS_ACK
        assert decode([rude.recv()]).fields["code"] == "RESOURCE_EXHAUSTED"
    with tf.Session(tight.target("a")) as session:
        assert session.run(tf.constant(1.0) + 1.0) == 2.0


def test_a_tensor_of_another_task_that_is_too_large_ends_its_step() -> None:
    with tf.device("/job:a"):
        large = tf.zeros([tf.placeholder_with_default(3 << 20, [])], tf.uint8)
    with tf.device("/job:b"):
        total = tf.reduce_sum(tf.cast(large[:10], tf.int32))
    environment = {"DOVETAIL_SHARED_MEMORY_MB": "0", "DOVETAIL_MAX_MESSAGE_MB": "2"}
    with (
        tf.LocalCluster({"a": 1, "b": 1}, environment=environment) as cluster,
        tf.Session(cluster.target("a")) as session,
    ):
        with pytest.raises(tf.errors.ResourceExhaustedError, match="the limit is 2097152 .DOVETAIL_MAX_MESSAGE_MB"):
            session.run(total)
        assert session.run(total, {large: np.zeros(100, np.uint8)}) == 0


def test_an_answer_that_is_too_large_for_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_MAX_MESSAGE_MB", "1")
    monkeypatch.setattr(peer, "pool_of_process", lambda: None)
    answers = []

    def answer(peer: bytes, message: Message) -> None:
        tensor = np.zeros(message.fields["step"], np.uint8)
        endpoint.reply(peer, Message("done", {"request": message.fields["request"], "fetches": ["x"]}, (tensor,)))

    with Endpoint("localhost:0", answer) as endpoint, Connection(endpoint.address) as client:
        for request, size in enumerate([3 << 20, 10, 3 << 20]):
            client.send(Message("run", {"request": request, "step": size, "program": "p", "feeds": []}))
            try:
                answers.append(client.recv(WAIT_S))
            except TooLargeError as error:
                answers.append(error.request)
    assert answers[0] == 0 and answers[1].fields["request"] == 1 and answers[2] == 2


def test_memory_left_is_below_what_the_process_may_have() -> None:
    assert 0 < reassembly.memory_left() < 1 << 50
