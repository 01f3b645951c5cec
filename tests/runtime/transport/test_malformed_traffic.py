"""The transport and those who do not keep to the protocol."""

from __future__ import annotations

import os
import socket
import struct
import time

import msgpack
import pytest
import zmq
from echoing import WAIT_S, Connection, ping, until

from dovetail.runtime.transport import peer, zmq_links
from dovetail.runtime.transport.address import split_address
from dovetail.runtime.transport.client import shared_context
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire.messages import VERSION, Message, decode, encode


def dealer(echo: Endpoint, name: bytes | None = None) -> zmq.Socket[bytes]:
    """A peer that is not held to the wire's rules."""
    sock = shared_context().socket(zmq.DEALER)
    if name is not None:
        sock.set(zmq.ROUTING_ID, name)
    sock.linger = 0
    sock.rcvtimeo = int(WAIT_S * 1000)
    host, port = split_address(echo.address)
    sock.connect(f"tcp://127.0.0.1:{port}")
    return sock


def test_garbage_is_answered_and_hurts_nobody(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        for i, frames in enumerate([[b""], [b"garbage"], [b"", b"", b""], [os.urandom(100)] * 5], 1):
            rude.send_multipart(frames)
            answer = decode([rude.recv()])
            assert answer.kind == "error" and answer.fields["code"] == "INVALID_ARGUMENT"
            assert echo.address in answer.fields["message"]
            client.send(ping(i))
            assert (reply := client.recv(WAIT_S)) is not None and reply.fields == {"seq": i}
            assert echo.counters.malformed == i
    finally:
        rude.close()


def test_the_answer_to_garbage_names_its_request(echo: Endpoint) -> None:
    rude = dealer(echo)
    try:
        description = msgpack.packb(["status", {"odd": 0}, []])
        rude.send(struct.pack("<BBBxIq", 0x94, VERSION, 1, len(description), 12) + description)
        fields = decode([rude.recv()]).fields
        assert fields["request"] == 12 and "unknown field `odd`" in fields["message"]
    finally:
        rude.close()


def test_a_peer_that_sends_only_garbage_is_no_longer_heard(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        for _ in range(peer.MAX_STRIKES + 20):
            rude.send(b"garbage")
        answers = [rude.recv() for _ in range(peer.MAX_STRIKES)]
        assert b"no more are read" in answers[-1] and b"no more are read" not in answers[-2]
        until(lambda: echo.counters.ignored == 20, "the rest was ignored")
        assert rude.poll(50) == 0
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    finally:
        rude.close()


def test_a_message_of_too_many_frames_is_refused(echo: Endpoint, client: Connection) -> None:
    rude = dealer(echo)
    try:
        rude.send_multipart([b"x"] * (zmq_links.MAX_FRAMES + 100))
        assert b"frames" in rude.recv()
        client.send(ping())
        assert client.recv(WAIT_S) is not None
    finally:
        rude.close()


def test_bytes_that_are_not_zeromq_hurt_nobody(echo: Endpoint, client: Connection) -> None:
    port = split_address(echo.address)[1]
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5_000), b"\xff" + bytes(8) + b"\x7f", b""):
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(data)
    client.send(ping())
    assert client.recv(WAIT_S) is not None


def test_a_client_cannot_take_the_name_of_a_dialled_peer(echo: Endpoint, client: Connection) -> None:
    """ZeroMQ's clients refuse such names, so this one speaks ZMTP by hand. No reply may go there."""
    with socket.create_server(("127.0.0.1", 0)) as victim:
        forged = zmq_links.dialled_name(f"127.0.0.1:{victim.getsockname()[1]}")
        port = split_address(echo.address)[1]
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            raw.settimeout(WAIT_S)
            greeting = b""
            while len(greeting) < 64:
                greeting += raw.recv(64 - len(greeting))
            properties = b"".join(
                bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
                for name, value in [(b"Socket-Type", b"DEALER"), (b"Identity", forged)]
            )
            command = b"\x05READY" + properties
            raw.sendall(bytes([4, len(command)]) + command)
            (message,) = encode(ping())
            raw.sendall(bytes([0, len(message)]) + message)
            until(lambda: echo.counters.ignored == 1, "the forger is ignored")
        client.send(ping())
        assert client.recv(WAIT_S) is not None
        victim.settimeout(0.1)
        with pytest.raises(TimeoutError):
            victim.accept()


def test_two_endpoints_do_not_argue_for_ever() -> None:
    """Garbage from a peer that was dialled is not answered: the answer might be garbage to it again."""

    def handle(peer: bytes, message: Message) -> None:
        rude._peers.post(rude._peers.get(peer), [b"garbage"])

    with Endpoint("localhost:0", handle) as rude, Endpoint("localhost:0", handle) as other:
        other.send(rude.address, ping())
        until(lambda: other.counters.malformed == 1, "the garbage arrived")
        time.sleep(0.05)
        assert rude.counters.received == 1 and rude.counters.malformed == 0
        assert other.counters.received == 0
