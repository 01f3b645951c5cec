"""All-reduce between processes of this machine, beside TensorFlow's RING and PyTorch's gloo.

Each system runs in processes of its own, 2 and then 4, in turn, in one run. Small sizes are given as latency (median of single
all-reduces, as rank 0 sees them), large ones as bus bandwidth: 2 (n - 1) / n × bytes / time, what each member must send at
least. A peer that is not installed is left out; `--peer-python` names an interpreter with TensorFlow, DOVETAIL_GLOO_PYTHON one with
PyTorch.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from _harness import Row, main, peer_python, row

MEMBER = Path(__file__).with_name("_collectives.py")
KIB, MIB = 1 << 10, 1 << 20
SIZES = {4 * KIB: 200, 64 * KIB: 100, 1 * MIB: 40, 16 * MIB: 10, 64 * MIB: 5, 256 * MIB: 3}
LATENCY_UP_TO = 64 * KIB
PEERS = {"TensorFlow RING": "tensorflow", "gloo": "gloo"}
ROUNDS = 2


def rows(quick: bool) -> Iterator[Row]:
    """All rows of the table."""
    sizes = {s: max(3, c // 4) for s, c in SIZES.items() if s <= 16 * MIB} if quick else SIZES
    pythons = {
        "dovetail": sys.executable,
        "tensorflow": str(peer_python()),
        "gloo": os.environ.get("DOVETAIL_GLOO_PYTHON", sys.executable),
    }
    for members in (2,) if quick else (2, 4):
        times: dict[str, dict[int, list[float]]] = {}
        for number in range(1 if quick else ROUNDS):
            systems = list(pythons) if number % 2 == 0 else list(pythons)[::-1]
            for system in systems:
                found = measure(system, pythons[system], members, sizes)
                for size, seconds in (found or {}).items():
                    times.setdefault(system, {}).setdefault(size, []).extend(seconds)
        for size in sizes:
            for title, peer in PEERS.items():
                ours, theirs = times["dovetail"][size], times.get(peer, {}).get(size)
                name = f"{members} members, {_text(size)}"
                if size <= LATENCY_UP_TO:
                    figures = [statistics.median(t) * 1e6 if t else None for t in (ours, theirs)]
                    yield row(name, "µs", figures[0] or 0.0, figures[1], title, "ratio <= 1.0")
                else:
                    moved = 2 * (members - 1) / members * size
                    figures = [moved / statistics.median(t) / 1e9 if t else None for t in (ours, theirs)]
                    yield row(name, "GB/s", figures[0] or 0.0, figures[1], title, "ratio >= 1.0")


def measure(system: str, python: str, members: int, sizes: dict[int, int]) -> dict[int, list[float]] | None:
    """Seconds of each all-reduce, by size; None where the system is not installed."""
    ports = ",".join(map(str, _free_ports(members)))
    work = ",".join(f"{s}:{c}" for s, c in sizes.items())
    processes = [
        subprocess.Popen(
            [python, str(MEMBER), system, str(i), ports, work],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(members)
    ]
    try:
        out, err = processes[0].communicate(timeout=600)
    finally:
        for p in processes:
            p.kill()
            p.wait()
    found = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if not found:
        print(f"{system} left out ({python}): {(err.strip().splitlines() or ['no output'])[-1]}", file=sys.stderr)
        if system == "dovetail":
            raise RuntimeError(err)
        return None
    return {int(s): t for s, t in json.loads(found[0].removeprefix("RESULT ")).items()}


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def _text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


if __name__ == "__main__":
    main("All-reduce", rows)
