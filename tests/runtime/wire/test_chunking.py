"""Large messages in chunks: how they are cut and put together, what is refused, and real connections that are slow."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from echoing import Connection

from dovetail.runtime.timeouts import HEARTBEAT_TIMEOUT_MS
from dovetail.runtime.transport import keys as files
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.keys import Keys
from dovetail.runtime.transport.zmq_sockets import new_key_pair
from dovetail.runtime.wire.chunking import (
    CHUNK_BYTES,
    LARGE_BYTES,
    PROGRESS_ACK,
    Reassembler,
    in_chunks,
    is_chunk,
)
from dovetail.runtime.wire.messages import VERSION, Message, encode
from dovetail.runtime.wire.schema import WireError
from dovetail.runtime.wire.tensors import Frame

WAIT_S = 60.0  # far beyond what anything here takes; only a failure waits so long


def tensors(step: int, size: int = 0) -> list[Frame]:
    value = np.zeros(size, np.uint8)
    return encode(Message("tensors", {"step": step, "channels": [1], "without": []}, (value,)))


def joined(frames: list[Frame]) -> list[bytes]:
    return [bytes(f) for f in frames]


def through(reassembler: Reassembler, messages: list[list[Frame]]) -> list[list[bytes]]:
    """The messages that come out at the other end."""
    out = []
    for frames in messages:
        whole = reassembler.take(frames) if is_chunk(frames[0]) else frames
        if whole is not None:
            out.append(joined(whole))
    return out


class TestCutting:
    @pytest.mark.parametrize("seed", range(20))
    def test_any_messages_come_out_as_they_went_in(self, seed: int) -> None:
        rng = random.Random(seed)
        messages: list[list[Frame]] = []
        for _ in range(rng.randrange(1, 6)):
            sizes = [
                rng.choice((0, 1, 17, 5_000, 70_000, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES))
                for _ in range(rng.randrange(5))
            ]
            messages.append([b"head", *(rng.randbytes(size) for size in sizes)])
        reassembler, came = Reassembler(8, 1 << 30), [chunk for frames in messages for chunk in in_chunks(frames)]
        assert through(reassembler, came) == [joined(m) for m in messages]
        assert not reassembler.is_open()
        assert all(sum(map(len, frames[1:])) <= CHUNK_BYTES for frames in came if is_chunk(frames[0]))

    def test_many_small_frames_share_pieces(self) -> None:
        frames: list[Frame] = [b"h", *(bytes([i % 256]) * 5_000 for i in range(1_000))]
        reassembler, came = Reassembler(1_001, 1 << 30), list(in_chunks(frames))
        assert len(came) < 20 and through(reassembler, came) == [joined(frames)]

    def test_a_small_message_is_not_touched(self) -> None:
        for frames in (tensors(1, 4_000), [b"", bytes(LARGE_BYTES - 1)]):
            assert list(in_chunks(frames)) == [frames]
        for large in ([b"x", bytes(LARGE_BYTES - 1)], [bytes(LARGE_BYTES)]):
            assert all(is_chunk(chunk[0]) for chunk in in_chunks(large))
        assert not is_chunk(tensors(1)[0]) and is_chunk(PROGRESS_ACK) and not is_chunk(b"")


def label(place: int, number: int, sizes: tuple[int, ...] = (), version: int = VERSION) -> bytes:
    return struct.pack(f"<BBxxIQ{len(sizes)}Q", 0x95, version, place, number, *sizes)


BEGUN = [label(0, 7, (4, 6)), b"abcd"]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([[label(0, 7, (4, 6))[:9]]], "cut off"),
        ([[label(0, 7, (4, 6), version=VERSION + 1), b"abcd"]], "this process speaks"),
        ([[label(0, 7), b"abcd"]], "has 0 frames"),
        ([[label(0, 7, (1,) * 9), b"abcd"]], "has 9 frames, and may have 8"),
        ([[label(0, 7, (4,)) + b"x", b"abcd"]], "frames"),
        ([[label(0, 7, (1 << 40,)), b"abcd"]], "the limit is 1048576"),
        ([[label(0, 7, ((1 << 64) - 1, 1 << 63)), b"abcd"]], "the limit is 1048576"),
        ([[label(0, 7, (0, 0)), b""]], "its message is empty"),
        ([[label(0, 0, (4,)), b"ab"]], "message 0"),
        ([[label(0, 7, (4, 6))]], "it has 0 bytes"),
        ([[label(1, 7), b"abcd"]], "is the next"),
        ([BEGUN, [label(1, 7)]], "it has 0 bytes"),
        ([BEGUN, [label(1, 7), b""]], "it has 0 bytes"),
        ([BEGUN, [label(2, 7), b"ab"]], "it is chunk 2 of message 7, and chunk 1 of message 7 is the next"),
        ([BEGUN, [label(1, 7, (4,)), b"ab"]], "is the next"),
        ([BEGUN, [label(1, 8), b"ab"]], "is the next"),
        ([BEGUN, [label(1, 7), b"abcdefg"]], "it has 7 bytes, and 6 of"),
        ([BEGUN, [label(1, 7), b"abcdef"], [label(2, 7), b"g"]], "is the next"),
        ([[PROGRESS_ACK, b""]], "message 0"),
        ([[label(1, 0)]], "message 0"),
    ],
)
def test_what_is_refused(messages: list[list[Frame]], says: str) -> None:
    reassembler = Reassembler(8, 1 << 20)
    for frames in messages[:-1]:
        reassembler.take(frames)
    with pytest.raises(WireError, match=says):
        reassembler.take(messages[-1])
    assert not reassembler.is_open() and reassembler._message is None  # its memory is free


def test_a_broken_parcel_is_refused_once_and_its_rest_passed_over() -> None:
    reassembler = Reassembler(8, 1 << 20)
    with pytest.raises(WireError):
        reassembler.take([label(5, 7), b"late"])
    assert [reassembler.take([label(i, 7), b"late"]) for i in range(6, 50)] == [None] * 44
    assert reassembler.take([label(0, 8, (4,)), b"good"]) is not None


def test_a_new_parcel_ends_one_that_was_open() -> None:
    reassembler = Reassembler(8, 1 << 20)
    reassembler.take(BEGUN)
    assert joined(reassembler.take([label(0, 8, (2,)), b"ok"]) or []) == [b"ok"] and not reassembler.is_open()


def test_changed_pieces_give_messages_or_are_refused() -> None:
    """A fuzz: pieces in any order, changed anywhere; a message that comes has the sizes that were announced."""
    rng = random.Random(1)
    pieces: list[list[Frame]] = []
    for size in (CHUNK_BYTES + 1, 2 * CHUNK_BYTES, 3 * CHUNK_BYTES):
        pieces += in_chunks([b"header", bytes(100), bytes(size)])
    reassembler, refused, whole = Reassembler(8, 1 << 22), 0, 0
    for _ in range(4_000):
        frames = list(pieces[rng.randrange(len(pieces))])
        if rng.random() < 0.3:
            changed = bytearray(frames[0])
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            frames[0] = bytes(changed)
        if rng.random() < 0.1:
            frames[1:] = [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(3))]
        with contextlib.suppress(WireError):
            refused += 1
            came = reassembler.take(frames)
            refused -= 1
            whole += came is not None
    for frames in given_again(pieces):
        whole += reassembler.take(frames) is not None
    assert refused > 100 and whole >= 3


def given_again(pieces: list[list[Frame]]) -> list[list[Frame]]:
    """The same pieces with numbers of their own, so that none is taken for the rest of a refused message."""
    return [[frames[0][:8] + (int.from_bytes(frames[0][8:16], "little") + 1_000_000).to_bytes(8, "little") + frames[0][16:],
             *frames[1:]] for frames in pieces]  # fmt: skip


# Over real connections


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pairs = (new_key_pair() for _ in itertools.count())
    files.write_cluster(tmp_path / "keys", [("a-0", "")], ["client"], pairs)
    return tmp_path / "keys"


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", "0")  # and with keys there is no stream over TCP


@pytest.fixture
def echo(folder: Path) -> Iterator[Endpoint]:
    def answer(peer: bytes, message: Message) -> None:
        if message.kind == "run":
            message = Message("done", {"request": 1, "fetches": ["1"]}, message.tensors)
        endpoint.reply(peer, message)

    with Endpoint("localhost:0", answer, keys=Keys.load(folder, "a-0")) as endpoint:
        yield endpoint


def run(value: np.ndarray) -> Message:
    return Message("run", {"request": 1, "step": 1, "program": "p", "feeds": ["1"]}, (value,))


def half_received(endpoint: Endpoint) -> list[Reassembler]:
    return [peer.reassembler for peer in list(endpoint._peers.by_name.values()) if peer.reassembler.is_open()]


def test_large_messages_go_there_and_back(echo: Endpoint, folder: Path) -> None:
    with Connection(echo.address, keys=Keys.load(folder, "client")) as connection:
        for size in (CHUNK_BYTES, 5_000_001, 20_000_000):
            value = np.random.default_rng(size).integers(0, 255, size, np.uint8)
            connection.send(run(value))
            connection.send(Message("ping", {"seq": size}))
            answer = connection.recv(WAIT_S)
            assert answer is not None and answer.kind == "done" and np.array_equal(answer.tensors[0], value)
            after = connection.recv(WAIT_S)
            assert after is not None and after.fields["seq"] == size
    assert echo.counters.malformed == 0


def test_a_large_message_may_be_sent_before_there_is_a_server(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"localhost:{free.getsockname()[1]}"
    with Connection(address, keys=Keys.load(folder, "client")) as connection:
        connection.send(run(np.ones(12 * CHUNK_BYTES, np.uint8)))
        assert connection.recv(0.05) is None
        keys = Keys.load(folder, "a-0")
        got: list[Message] = []
        come = threading.Event()

        def take(peer: bytes, message: Message) -> None:
            got.append(message)
            come.set()

        with Endpoint(address, take, keys=keys):
            until = time.monotonic() + WAIT_S
            while not come.is_set() and time.monotonic() < until:
                connection.recv(0.05)
        assert got and got[0].tensors[0].nbytes == 12 * CHUNK_BYTES


def test_what_a_client_left_half_sent_is_let_go_of(echo: Endpoint, folder: Path) -> None:
    with Connection(echo.address, keys=Keys.load(folder, "client")) as connection:
        connection.give([label(0, 7, (1 << 20,)), bytes(1_000)])
        connection.send(Message("ping", {"seq": 1}))
        assert connection.recv(WAIT_S) is not None  # it waits for the rest, and serves others meanwhile
        assert [part.is_open() for part in half_received(echo)] == [True]
    until = time.monotonic() + WAIT_S
    while half_received(echo) and time.monotonic() < until:
        time.sleep(0.01)
    assert not half_received(echo)


def test_broken_pieces_are_refused_and_their_sender_is_no_longer_heard(echo: Endpoint, folder: Path) -> None:
    with Connection(echo.address, keys=Keys.load(folder, "client")) as connection:
        for number in range(1, 20):
            connection.give([label(3, number), b"x"])
        said = connection.recv(WAIT_S)
        assert said is not None and said.kind == "error" and "is the next" in said.fields["message"]
    with Connection(echo.address, keys=Keys.load(folder, "client")) as connection:
        connection.send(Message("ping", {"seq": 1}))
        assert connection.recv(WAIT_S) is not None


class SlowLink:
    """Passes bytes on between a client and a server, so many a second in each direction."""

    def __init__(self, address: str, rate: float) -> None:
        self._to = int(address.rpartition(":")[2])
        self._rate = rate
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.create_connection(("127.0.0.1", self._to))
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(a, b), daemon=True).start()

    def _carry(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 14):
                b.sendall(data)
                time.sleep(len(data) / self._rate)  # how fast the link is: nothing waits for it to be over
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.slow
def test_a_message_that_takes_longer_than_signs_of_life_may_gets_through_a_slow_link(
    echo: Endpoint, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 << 20
    rate = size / (1.5 * HEARTBEAT_TIMEOUT_MS / 1e3)
    take = Reassembler.take
    acknowledged: list[Reassembler | None] = []  # who took a progress acknowledgement

    def note_and_take(self: Reassembler, frames: Sequence[Frame]) -> list[Frame] | None:
        if bytes(frames[0]) == PROGRESS_ACK:
            acknowledged.append(self)
        return take(self, frames)

    monkeypatch.setattr(Reassembler, "take", note_and_take)
    link = SlowLink(echo.address, rate)
    with contextlib.closing(link), Connection(link.address, keys=Keys.load(folder, "client")) as connection:
        value = np.random.default_rng(0).integers(0, 255, size, np.uint8)
        connection.send(run(value))
        answer = connection.recv(2 * WAIT_S)
        assert answer is not None and np.array_equal(answer.tensors[0], value)
        assert link.connections == 1  # it never broke
        # The server said that it comes.
        assert acknowledged.count(connection.peer.reassembler) > 1


def test_numbers_of_parcels_are_never_used_twice() -> None:
    first, second = (next(in_chunks([bytes(CHUNK_BYTES + 1)]))[0] for _ in range(2))
    assert bytes(first[8:16]) != bytes(second[8:16])
