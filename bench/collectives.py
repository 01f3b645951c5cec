"""All-reduce between processes of this machine, beside TensorFlow's RING and PyTorch's gloo.

Each system runs in processes of its own, 2 and then 4; size by size, the systems take turns in one run. Small sizes are given as
latency (median of single all-reduces, as rank 0 sees them), large ones as bus bandwidth: 2 (n - 1) / n × bytes / time, what each
member must send at least; `p99` is the 99th percentile of single all-reduces. A peer that is not installed is left out;
`--peer-python` names an interpreter with TensorFlow, DOVETAIL_GLOO_PYTHON one with PyTorch.

All of it takes about four minutes on two cores. `--only NAME` measures a part of it anew.
"""

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from _harness import Row, main, p99, peer_python, row
from _processes import Group, free_ports

MEMBER = Path(__file__).with_name("_collectives.py")
KIB, MIB = 1 << 10, 1 << 20
SIZES = {
    4 * KIB: 200, 64 * KIB: 100, 256 * KIB: 60, MIB: 30, 4 * MIB: 15, 16 * MIB: 6, 64 * MIB: 3, 256 * MIB: 2,
}  # fmt: skip
LATENCY_UP_TO = 64 * KIB
OURS = "dovetail"
PEERS = {"TensorFlow RING": "tensorflow", "gloo": "gloo"}
ROUNDS = 3
LIMIT_S = 100.0  # for one system, size and round
START_S = 300.0  # for the first, until which all processes must have started


class Members(Group):
    """The processes of one system that reduce together, with `settings` in their environment; rank 0 answers."""

    def __init__(self, system: str, python: str, members: int, **settings: str) -> None:
        self.system = system
        self._warm: tuple[int, str] | None = None
        ports = ",".join(map(str, free_ports(members)))
        super().__init__([[python, str(MEMBER), system, str(i), ports] for i in range(members)], **settings)

    def measure(self, size: int, count: int, kind: str = "") -> list[float]:
        """Seconds of each of `count` all-reduces, or of another kind of Dovetail's; none when the group is missing."""
        if self.missing:
            return []
        warm, limit_s = 1 if self._warm == (size, kind) else 3, LIMIT_S if self._warm else START_S
        self._warm = size, kind
        found = self.say(f"{size} {warm} {count} {kind}", "RESULT", 1, limit_s)
        if self.missing:
            print(f"{self.system} left out: {self.missing}", file=sys.stderr)
            return []
        seconds: list[float] = json.loads(found[0])
        return seconds


def rows(members: int, quick: bool) -> Iterator[Row]:
    """The rows of so many members."""
    pythons = {
        OURS: sys.executable,
        "tensorflow": peer_python(),
        "gloo": os.environ.get("DOVETAIL_GLOO_PYTHON", sys.executable),
    }
    sizes = {s: max(2, c // 4) for s, c in SIZES.items() if s <= 16 * MIB} if quick else SIZES
    with contextlib.ExitStack() as stack:
        groups = [stack.enter_context(contextlib.closing(Members(s, p, members))) for s, p in pythons.items()]
        for size, count in sizes.items():
            times: dict[str, list[float]] = {g.system: [] for g in groups}
            for number in range(1 if quick else ROUNDS):
                for group in groups if number % 2 == 0 else groups[::-1]:
                    times[group.system] += group.measure(size, count)
            if not times[OURS]:
                raise RuntimeError(groups[0].missing)
            for title, peer in PEERS.items():
                yield from _rows(f"{members} members, {_text(size)}", members, size, times[OURS], times[peer], title)


def _rows(name: str, members: int, size: int, ours: list[float], theirs: list[float], title: str) -> Iterator[Row]:
    def beside(what: str, unit: str, figure: Callable[[list[float]], float], target: str = "") -> Row:
        return row(
            f"{name}{what}, beside {title}", unit, figure(ours), figure(theirs) if theirs else None, title, target
        )

    moved = 2 * (members - 1) / members * size / 1e9
    if size <= LATENCY_UP_TO:
        yield beside("", "µs", lambda seconds: statistics.median(seconds) * 1e6, "ratio <= 1.0")
    else:
        yield beside("", "GB/s", lambda seconds: moved / statistics.median(seconds), "ratio >= 1.0")
    yield beside(", p99", "µs", lambda seconds: p99(seconds) * 1e6)


def _text(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


if __name__ == "__main__":
    groups: dict[str, Callable[[bool], Iterator[Row]]] = {f"{n} members": partial(rows, n) for n in (2, 4)}
    main("All-reduce", groups)
