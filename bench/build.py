"""What a node costs while a graph is built: time and memory, beside TensorFlow in graph mode.

Dovetail records each node's source line and device blocks meanwhile; the benchmark sees to it that it does.

TensorFlow is no dependency. It is found in the running interpreter, or in another one that
`--peer-python PATH` (or the environment variable DOVETAIL_PEER_PYTHON) names; without it the column of the
peer stays empty.
"""

import sys
from collections.abc import Iterator
from functools import partial

from _builder import Builder
from _harness import Row, main, measure, peer_python, row

# Row -> the graph that it times.
TIMED = {
    "a + b": "adds",
    "a + b in a device block": "adds_on_devices",
    "a * 2.0": "numbers",
    "matmul, bias, relu": "layers",
    "variable": "variables",
    "constant": "constants",
}
TARGET = "ratio <= 0.1"


def rows(quick: bool) -> Iterator[Row]:
    """Time per node of each graph, then memory per node of a long chain."""
    python = peer_python()
    with Builder("dovetail") as dovetail, Builder("tensorflow", python) as peer:
        if peer.missing:
            print(f"TensorFlow not installed: peer column empty ({python}: {peer.missing})", file=sys.stderr)
        yield from (timed(name, graph, dovetail, peer, quick) for name, graph in TIMED.items())
    yield memory(python, 100_000 if quick else 1_000_000)


def timed(name: str, graph: str, dovetail: Builder, peer: Builder, quick: bool) -> Row:
    """Time per node of one graph; how many nodes it has, each system counts for itself."""
    repeats = 500 if quick else 2000
    nodes = dovetail.build(graph, repeats, check=True).nodes
    build, peer_build = partial(dovetail.build, graph, repeats), partial(peer.build, graph, repeats)
    seconds, peer_seconds = measure(
        build,
        None if peer.missing else peer_build,
        rounds=5 if quick else 15,
        clock=lambda: dovetail.seconds + peer.seconds,
    )
    theirs = None if peer_seconds is None else peer_seconds / peer_build().nodes * 1e6
    return row(name, "µs/node", seconds / nodes * 1e6, theirs, peer.title, TARGET)


def memory(python: str, count: int) -> Row:
    """By how much a fresh process grows per node of a chain; the peer, which takes longer, builds a tenth."""
    with Builder("dovetail") as dovetail:
        ours = dovetail.build("adds", count)
    with Builder("tensorflow", python) as peer:
        theirs = None if peer.missing else peer.build("adds", count // 10)
    return row(
        f"memory, chain of {count:,} a + b", "bytes/node", ours.bytes / ours.nodes,
        theirs.bytes / theirs.nodes if theirs is not None else None, peer.title,
    )  # fmt: skip


if __name__ == "__main__":
    main("Building graphs", rows)
