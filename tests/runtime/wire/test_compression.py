"""Compressed tensors: what goes in comes out, noise is left alone, and nothing unpacks to more than was announced."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgpack
import numpy as np
import pytest
from echoing import Connection
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.graph.core import dtypes
from dovetail.runtime.shared_memory import pool as memory_pool
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.wire import compression
from dovetail.runtime.wire.compression import LEAST_BYTES, MOST_BYTES, compress, decompress
from dovetail.runtime.wire.messages import Message, decode, encode
from dovetail.runtime.wire.schema import WireError
from dovetail.runtime.worker.registration import Registration
from dovetail.runtime.worker.worker import Worker

COUNTS = np.arange(LEAST_BYTES, dtype=np.int64)


@given(
    st.sampled_from([t for t in dtypes.ALL if t.np.kind != "O"]),
    st.integers(LEAST_BYTES, 3 * LEAST_BYTES),
    st.integers(1, 9),
)
def test_what_goes_in_comes_out(dtype: dtypes.DType, count: int, few: int) -> None:
    array = (np.arange(count) % few).astype(dtype.np)
    packed = compress(array)
    assert packed is not None and len(packed) < array.nbytes / 4
    again = decompress(packed, array.nbytes, array.dtype.itemsize)
    assert again.tobytes() == array.tobytes()


def test_noise_small_and_very_large_tensors_are_left_alone() -> None:
    assert compress(np.frombuffer(np.random.default_rng(0).bytes(1 << 20), np.uint8)) is None
    assert compress(np.zeros(LEAST_BYTES - 1, np.uint8)) is None
    assert compress(np.zeros(1 << 20, np.uint8), room=1 << 19) is None
    mixed = np.concatenate(
        [np.zeros(1 << 17, np.uint8), np.frombuffer(np.random.default_rng(0).bytes(1 << 20), np.uint8)]
    )
    assert compress(mixed[: 1 << 19]) is None, "the middle looked well, but the whole gains too little"


def refused(packed: bytes, size: int, says: str, width: int = 1) -> None:
    with pytest.raises(ValueError, match=says):
        decompress(packed, size, width)


def test_nothing_else_than_what_was_announced_is_unpacked() -> None:
    plain = bytes(1 << 20)
    packed = zlib.compress(plain)
    assert decompress(packed, 1 << 20, 1).tobytes() == plain
    for size in ((1 << 20) - 1, (1 << 20) + 1, LEAST_BYTES):
        refused(packed, size, "do not unpack to")
    for size in (0, LEAST_BYTES - 1, MOST_BYTES + 1, 1 << 60):
        refused(packed, size, "are not compressed")
    refused(packed, 1 << 20, "are not compressed", width=3)
    refused(packed[:-1], 1 << 20, "do not unpack to")
    refused(packed + b"x", 1 << 20, "do not unpack to")
    refused(b"", 1 << 20, "do not unpack to")
    refused(b"garbage", 1 << 20, "not compressed with zlib")
    refused(packed[:-4] + b"abcd", 1 << 20, "not compressed with zlib")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of what was unpacked."""
    sizes: list[int] = []

    def noted(packed: bytes, size: int, width: int) -> compression.Bytes:
        sizes.append(size)
        return decompress(packed, size, width)

    monkeypatch.setattr(compression, "decompress", noted)
    yield sizes


def sent(*tensors: np.ndarray) -> Message:
    return Message("tensors", {"step": 1, "channels": list(range(len(tensors))), "without": []}, tensors)


def test_messages_carry_compressed_tensors_between_others(unpacked: list[int]) -> None:
    noise = np.frombuffer(np.random.default_rng(0).bytes(1 << 17), np.float16)
    tensors = (COUNTS, np.float32(3), noise, np.array([b"text"], object), COUNTS.reshape(256, -1).T, np.zeros((0, 3)))
    frames = encode(sent(*tensors), compressed=True)
    assert sum(map(len, frames)) < sum(map(len, encode(sent(*tensors)))) / 2
    for mine, other in zip(tensors, decode(frames).tensors, strict=True):
        np.testing.assert_array_equal(other, mine)
        assert other.dtype == mine.dtype and not other.flags.writeable
    assert unpacked == [COUNTS.nbytes] * 2
    assert decode(encode(sent(*tensors))).tensors[0].tobytes() == COUNTS.tobytes()


def test_a_message_unpacks_to_no_more_than_one_may(unpacked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    frames = encode(sent(COUNTS, COUNTS, COUNTS), compressed=True)
    monkeypatch.setattr(compression, "MOST_BYTES", 2 * COUNTS.nbytes)
    with pytest.raises(WireError, match="compressed tensors of a message have more than"):
        decode(frames)
    assert len(unpacked) == 2
    assert sum(len(f) == COUNTS.nbytes for f in encode(sent(COUNTS, COUNTS, COUNTS), compressed=True)) == 1
    decode(encode(sent(COUNTS, COUNTS, COUNTS), compressed=True))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (["int64", [1 << 40, 1 << 40], "zlib"], "too large"),
        (["int64", [1 << 40], "zlib"], "more than"),
        (["int64", [1 << 16], "zip"], "unknown way"),
        (["int64", [1], "zlib"], "not compressed"),
        (["int64", [-1], "zlib"], "dimension"),
        (["int64", 7, "zlib"], "not .dtype, shape"),
        (["int64", [1 << 15], "zlib"], "do not unpack"),
        (["string", [1 << 16], "zlib"], "cannot lie there"),
        ([None, [1 << 16], "zlib"], "not .dtype, shape"),
        (["bool", [1 << 19], "zlib"], "neither 0 nor 1"),
    ],
)
def test_descriptions_that_lie_are_refused(spec: list[object], says: str) -> None:
    header, frame = encode(sent(COUNTS), compressed=True)
    begin = 8 + 8 * header[2]
    kind, fields, _ = msgpack.unpackb(header[begin:])
    lying = msgpack.packb([kind, fields, [spec]])
    with pytest.raises(WireError, match=says):
        decode([header[:4] + struct.pack("<I", len(lying)) + header[8:begin] + lying, frame])


@pytest.mark.parametrize("shared", ["0", "64"])
def test_only_who_cannot_read_our_memory_gets_compressed_tensors(
    unpacked: list[int], monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", shared)
    monkeypatch.setattr(memory_pool, "_pools", {})

    def answer(peer: bytes, message: Message) -> None:
        server.reply(peer, sent(COUNTS) if message.kind == "tensors" else message, compressed=True)

    with Endpoint("localhost:0", answer) as server, Connection(server.address) as client:
        for _ in range(3):  # the first message may leave before the two know each other
            client.send(Message("ping", {"seq": 1}))
            assert client.recv(60.0) is not None
        client.send(sent(COUNTS))
        got = client.recv(60.0)
        assert got is not None
        np.testing.assert_array_equal(got.tensors[0], COUNTS)
    assert unpacked == ([COUNTS.nbytes] if shared == "0" else [])


def test_a_worker_knows_which_steps_ask_for_it() -> None:
    task = "/job:worker/replica:0/task:0"
    worker = Worker(task, [])
    for session, compresses in (("plain", False), ("packed", True)):
        worker.register(Registration(session, session, (), seed=0, compresses=compresses))
    running = {}
    for number, session in enumerate(("plain", "packed")):
        worker.start(
            number, session, {}, lambda outcome, number=number: running.update({number: worker.compresses(number)})
        )
    assert not worker.compresses(17)
    worker.close()


@pytest.mark.slow
def test_a_session_may_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", "0")
    config = dt.ConfigProto(graph_options=dt.GraphOptions(compress_sendrecv=True))
    assert dt.ConfigProto.from_fields(config.to_fields()).graph_options.compress_sendrecv
    with dt.LocalCluster({"ps": 1, "worker": 1}) as cluster, dt.Graph().as_default():
        with dt.device("/job:ps/task:0"):
            v = dt.Variable(COUNTS)
        with dt.device("/job:worker/task:0"):
            y = v * 2
        with dt.Session(cluster.target("worker"), config=config) as session:
            session.run(v.initializer)
            for _ in range(2):
                np.testing.assert_array_equal(session.run(y), COUNTS * 2)
