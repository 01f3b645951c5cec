"""Fuzzing the wire: real messages, changed in every way that comes to mind, thrown at the decoder and at a running server.

Three stages, each of which can be run alone:

    decode    each changed message gives a message or a WireError, nothing else, and quickly
    stream      bytes on a stream give messages or end the stream
    server    a server in a process of its own gets them over real connections; it must live, answer, serve another client all the
              while, and not grow

The messages are recorded from a small cluster that does a bit of everything. As a script it throws a million:

    python tests/runtime/fuzz_wire.py --count 1000000

With `--atheris` the decoder is fuzzed by coverage instead, where the package atheris is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a script in a checkout

import msgpack
from echoing import Connection

import dovetail as tf
from dovetail.runtime.shared_memory.pool import mapper
from dovetail.runtime.transport.peer import Peer
from dovetail.runtime.transport.peers import Peers
from dovetail.runtime.transport.stream import Stream
from dovetail.runtime.wire import messages
from dovetail.runtime.wire.messages import Message, decode, encode
from dovetail.runtime.wire.schema import KINDS, RECORDS, Record, WireError

Frames = list[bytes]

INTERESTING: list[Any] = [
    None, True, False, 0, 1, -1, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, -(2**63), 2**64 - 1, 0.0, -1.5, float("inf"),
    float("nan"), "", "a", "x" * 300, "/job:a/replica:0/task:0/device:CPU:0", "localhost:1", "\0", "7@0@1", "7@", b"", b"\0" * 16,
    [], [[]], {}, {"a": []}, [0] * 40, ["float32", [2, 2]], ["string", [1 << 40]], {"code": 1},
]  # fmt: skip


def record() -> list[Frames]:
    """The messages of a small cluster that does a bit of everything, in both directions."""
    recorded: dict[bytes, Frames] = {}
    handle = Peers.handle

    def note(self: Peers, peer: Peer, frames: list[Any]) -> None:
        copied = [bytes(f) for f in frames]
        if sum(map(len, copied)) < 20_000:
            description = copied[0][8 + 8 * copied[0][2] :]
            recorded.setdefault(description[:40], copied)
        handle(self, peer, frames)

    with contextlib.ExitStack() as undo:
        undo.callback(setattr, Peers, "handle", handle)
        Peers.handle = note
        _be_busy()
    found = list(recorded.values())
    for row in KINDS.values():  # and one of each kind that did not come
        found.append([bytes(f) for f in encode(Message(row.kind, _record(row.content)))])
    return found


_EXAMPLES: dict[str, Any] = {
    "bool": False, "int": 1, "uint": 1, "channel": 1, "float": 0.5, "str": "a", "bytes": b"abc", "dict": {},
}  # fmt: skip


def _record(record: Record) -> dict[str, Any]:
    return {name: _example(t) for name, t in record.fields.items()}


def _example(wanted: str) -> Any:
    """A value of a type of the table."""
    if wanted.endswith(("[]", "?")):
        return [_example(wanted[:-2])] if wanted.endswith("[]") else _example(wanted[:-1])
    if wanted not in RECORDS:
        return _EXAMPLES[wanted]
    fields = _record(RECORDS[wanted])
    return list(fields.values()) if RECORDS[wanted].is_list else fields


def _be_busy() -> None:
    ports = []
    for _ in range(2):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            ports.append(s.getsockname()[1])
    cluster = {"a": [f"localhost:{ports[0]}"], "b": [f"localhost:{ports[1]}"]}
    graph = tf.Graph()
    with graph.as_default():
        with tf.device("/job:b"):
            v = tf.get_variable("v", initializer=tf.zeros([3]))
            q = tf.FIFOQueue(3, tf.float32, shapes=[[]])
            put, take = q.enqueue(2.0), q.dequeue()
            up = v.assign_add([1.0, 2.0, 3.0])
        with tf.device("/job:a"):
            x = tf.placeholder(tf.float32, [None])
            y = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
            z = v + tf.reduce_sum(x)
            words = tf.identity(tf.constant(["a", "bc"]))
    with tf.train.Server(cluster, "a", 0) as server, tf.train.Server(cluster, "b", 0):
        with tf.Session(server.target, graph=graph) as session:
            session.run(v.initializer)
            session.run(put)
            session.run([z, y, up, take, words], {x: [1.0, 2.0]})
            with contextlib.suppress(tf.errors.OpError):
                session.run(take, options=tf.RunOptions(timeout_in_ms=50))
        tf.Session.reset(server.target)


# --- changing messages -------------------------------------------------------------------------------------------------


def mutated(corpus: Sequence[Frames], rng: random.Random) -> Frames:
    """One message of the corpus, changed."""
    frames = [bytes(f) for f in rng.choice(corpus)]
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_CHANGES)(frames, corpus, rng)
    return frames


def changed_piece(rng: random.Random) -> Frames:
    """A piece of a large message, mostly changed."""
    sizes = [rng.choice((0, 5, 1_000, 1 << 20, 1 << 40)) for _ in range(rng.randrange(3))]
    place, number = rng.choice((0, 0, 1, 2)), rng.randrange(1, 4)
    label = bytearray(struct.pack(f"<BBBxIQ{len(sizes)}Q", 0x95, messages.VERSION, 0, place, number, *sizes))
    if rng.random() < 0.5:
        label[rng.randrange(1, len(label))] ^= 1 << rng.randrange(8)
    return [bytes(label), *(rng.randbytes(rng.choice((0, 3, 1_000))) for _ in range(rng.randrange(3)))]


def _bytes(frames: Frames, corpus: Sequence[Frames], rng: random.Random) -> None:
    i = rng.randrange(len(frames))
    data = bytearray(frames[i])
    at = rng.randrange(len(data) + 1)
    what = rng.randrange(5)
    if what == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif what == 1 and data:
        data[at % len(data)] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDF, 0xFF, rng.randrange(256)))
    elif what == 2:
        del data[at : at + rng.randrange(1, 9)]
    elif what == 3:
        data[at:at] = rng.randbytes(rng.randrange(1, 9))
    else:
        data[at:at] = data[at : at + rng.randrange(1, 30)]
    frames[i] = bytes(data)


def _frames(frames: Frames, corpus: Sequence[Frames], rng: random.Random) -> None:
    what = rng.randrange(4)
    if what == 0:
        frames.append(rng.choice(rng.choice(corpus)))
    elif what == 1 and len(frames) > 1:
        del frames[rng.randrange(len(frames))]
    elif what == 2 and len(frames) > 2:
        rng.shuffle(frames)
    else:
        other = rng.choice(corpus)
        frames[1:] = other[1:]


def _values(frames: Frames, corpus: Sequence[Frames], rng: random.Random) -> None:
    """Change something inside the header that is still a header."""
    parts = _taken_apart(frames[0])
    if parts is None:
        return
    numbers, described, values = parts
    where = rng.random()
    if where < 0.1:
        described[0] = rng.choice(list(KINDS))
    elif where < 0.3 and numbers:
        numbers[rng.randrange(len(numbers))] = rng.choice([n for n in INTERESTING if type(n) is int and n < 1 << 63])
    elif where < 0.4:
        values = (
            values + rng.randbytes(rng.randrange(1, 9))
            if rng.random() < 0.5
            else values[: rng.randrange(len(values) + 1)]
        )
    else:
        part = rng.choice((1, 1, 2))
        described[part] = _changed(described[part], rng)
    with contextlib.suppress(Exception):
        description = msgpack.packb(described)
        head = struct.pack(f"<BBBxI{len(numbers)}q", 0x94, messages.VERSION, len(numbers), len(description), *numbers)
        frames[0] = head + description + values


def _taken_apart(header: bytes) -> tuple[list[int], list[Any], bytes] | None:
    """The numbers of a header, what its description says, and its values; None if it is none any more."""
    try:
        _, _, count, size = struct.unpack_from("<BBBxI", header)
        numbers = list(struct.unpack_from(f"<{count}q", header, 8))
        at = 8 + 8 * count
        described = msgpack.unpackb(header[at : at + size], raw=False, strict_map_key=False)
    except Exception:
        return None
    if type(described) is not list or len(described) != 3:
        return None
    return numbers, described, header[at + size :]


def _changed(value: Any, rng: random.Random) -> Any:
    """A plain value with one thing in it changed."""
    if type(value) is list and value and rng.random() < 0.85:
        value = list(value)
        i = rng.randrange(len(value))
        what = rng.random()
        if what < 0.7:
            value[i] = _changed(value[i], rng)
        elif what < 0.85:
            value.insert(i, value[rng.randrange(len(value))])
        else:
            del value[i]
        return value
    if type(value) is dict and value and rng.random() < 0.85:
        value = dict(value)
        name = rng.choice(list(value))
        what = rng.random()
        if what < 0.8:
            value[name] = _changed(value[name], rng)
        elif what < 0.9:
            del value[name]
        else:
            value[rng.choice(("x", "step", "request", "session"))] = rng.choice(INTERESTING)
        return value
    if type(value) is int and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 2, 1 << 20))
    if type(value) is str and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "x", "/", ":", "@", "é", "0")) + value[at + 1 :]
    return rng.choice(INTERESTING)


_CHANGES: tuple[Callable[[Frames, Sequence[Frames], random.Random], None], ...] = (_bytes, _frames, _values, _values)


# --- stages ------------------------------------------------------------------------------------------------------------


def fuzz_decode(corpus: Sequence[Frames], count: int, seed: int) -> dict[str, int]:
    """Throw changed messages at the decoder. Raises whatever comes that is no WireError; AssertionError: it took too long."""
    rng = random.Random(seed)
    outcomes = {"decoded": 0, "refused": 0}
    for _ in range(count):
        frames = mutated(corpus, rng)
        began = time.thread_time()
        try:
            decode(frames, mapper.borrow)
            outcomes["decoded"] += 1
        except WireError:
            outcomes["refused"] += 1
        assert time.thread_time() - began < 2.0, f"slow to decode: {frames!r}"
    return outcomes


def fuzz_stream(corpus: Sequence[Frames], count: int, seed: int) -> dict[str, int]:
    """Write changed bytes on streams. Each ends with messages, with nothing, or with an error that ends the stream."""
    rng = random.Random(seed)
    outcomes = {"messages": 0, "ended": 0}
    for _ in range(count):
        ours, theirs = socket.socketpair()
        with contextlib.closing(Stream(theirs, 64, 1 << 20)) as stream, ours:
            frames = mutated(corpus, rng)
            data = bytearray(len(frames).to_bytes(4, "little") + b"".join(len(f).to_bytes(8, "little") for f in frames))
            data += b"".join(frames)
            for _ in range(rng.randrange(3)):
                at = rng.randrange(min(len(data), 40))
                data[at] ^= 1 << rng.randrange(8)
            ours.setblocking(False)
            sent = ours.send(data)
            ours.shutdown(socket.SHUT_WR)
            assert sent == len(data)
            try:
                while True:
                    outcomes["messages"] += len(stream.receive())
            except (ConnectionError, WireError):
                outcomes["ended"] += 1
    return outcomes


ANSWERS = 8  # that are waited for on each connection: the server says of some broken messages what is wrong, then ignores them

MOST_LEFT = 16  # descriptors: threads that were not needed before, and listeners, have some


def fuzz_server(
    corpus: Sequence[Frames], count: int, seed: int, tell: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Throw changed messages at a server in a process of its own, while another client works with it.

    Raises:
        AssertionError: the server died, does not answer, grew, or let the other client down.
    """
    rng = random.Random(seed)
    outcomes: dict[str, Any] = {"sent": 0, "answers": 0, "steps": 0}
    with tempfile.TemporaryDirectory() as folder:
        environment = {"DOVETAIL_CHECKPOINT_DIR": folder, "DOVETAIL_LOG_LEVEL": "CRITICAL"}
        with tf.LocalCluster({"a": 1}, environment=environment) as cluster:
            address = cluster.cluster_spec.task_address("a", 0)
            pid = cluster.process("a", 0).pid
            graph = tf.Graph()
            with graph.as_default():
                x = tf.placeholder(tf.float32, [])
                y = x * 2.0 + 1.0
            session = tf.Session(cluster.target("a"), graph=graph)
            with contextlib.ExitStack() as ending:
                ending.callback(lambda: session.close())
                samples: list[int] = []
                before = _descriptors(pid)
                while outcomes["sent"] < count:
                    with Connection(address) as connection:
                        for _ in range(min(200, count - outcomes["sent"])):
                            if rng.random() < 0.05:
                                connection.give(list(changed_piece(rng)))
                            else:
                                connection.give(list(mutated(corpus, rng)))
                            outcomes["sent"] += 1
                        with contextlib.suppress(WireError):
                            for _ in range(ANSWERS):
                                if connection.recv(2.0) is None:
                                    break
                                outcomes["answers"] += 1
                    began = time.monotonic()
                    try:
                        assert session.run(y, {x: outcomes["steps"]}) == outcomes["steps"] * 2 + 1
                    except (
                        tf.errors.AbortedError,
                        tf.errors.CancelledError,
                    ):  # a good `reset` came through, which closes all sessions
                        session.close()
                        session = tf.Session(cluster.target("a"), graph=graph)
                        outcomes["resets"] = outcomes.get("resets", 0) + 1
                        continue
                    took = time.monotonic() - began
                    assert took < 5.0, f"another client waited {took:.1f} s"
                    outcomes["steps"] += 1
                    outcomes["slowest_s"] = max(took, outcomes.get("slowest_s", 0.0))
                    if outcomes["sent"] % 2_000 == 0:
                        samples.append(_resident(pid))
                        tell(f"{outcomes['sent']} sent, {samples[-1]} MiB, slowest step {outcomes['slowest_s']:.2f} s")
                assert cluster.process("a", 0).poll() is None
                until = time.monotonic() + 60.0  # the dead are looked for once a second
                while _descriptors(pid) > before + MOST_LEFT:
                    assert time.monotonic() < until, f"{_descriptors(pid)} descriptors are left, there were {before}"
                    time.sleep(0.2)
            outcomes["MiB"] = samples
            settled = samples[len(samples) // 4] if samples else 0
            assert not samples or samples[-1] <= settled + max(64, settled // 2), f"it grows: {samples} MiB"
    return outcomes


def _descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _resident(pid: int) -> int:
    """MiB of memory that a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    return 0


def fuzz_with_atheris(corpus: Sequence[Frames], runs: int) -> None:
    """Fuzz the decoder by coverage, from the recorded messages on; ends the process."""
    import atheris  # type: ignore[import-not-found]

    for name, value in list(vars(messages).items()):  # only what decodes: instrumenting everything takes minutes
        if inspect.isfunction(value) and value.__module__ == messages.__name__:
            setattr(messages, name, atheris.instrument_func(value))

    def one(data: bytes) -> None:
        with contextlib.suppress(WireError):
            messages.decode(list(frames_of(data)), mapper.borrow)

    with tempfile.TemporaryDirectory() as folder:
        for i, frames in enumerate(corpus):
            joined = b"".join(len(f).to_bytes(2, "big") + f for f in frames)
            (Path(folder) / str(i)).write_bytes(joined)
        atheris.Setup([sys.argv[0], f"-runs={runs}", "-max_len=32768", folder], one)
        atheris.Fuzz()


def frames_of(data: bytes) -> Iterator[bytes]:
    """The frames that a fuzzer's bytes stand for: each after its length."""
    at = 0
    while at < len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        yield data[at + 2 : end]
        at = end


def main() -> None:
    """Fuzz, and print what came of it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="changed messages, over all stages")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="fuzz the decoder by coverage")
    arguments = parser.parse_args()
    corpus = record()
    print(f"{len(corpus)} messages recorded, of {len({decode(f).kind for f in corpus})} kinds")
    if arguments.atheris:
        fuzz_with_atheris(corpus, arguments.count)
    began = time.monotonic()
    half = arguments.count // 2
    print("decode:", fuzz_decode(corpus, half, arguments.seed), f"{time.monotonic() - began:.0f} s", flush=True)
    print("stream:", fuzz_stream(corpus, half // 10, arguments.seed), f"{time.monotonic() - began:.0f} s", flush=True)
    rest = arguments.count - half - half // 10
    print("server:", fuzz_server(corpus, rest, arguments.seed, print), f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
