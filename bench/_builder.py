"""A process that builds graphs with one system: Dovetail, or the peer in whatever interpreter has it.

Each system gets a process of its own (`_processes.py`), so that the growth of the process is the memory of the graph. It answers
`{"graph": "adds", "count": 1000, "check": false}` with `{"nodes": 1001, "bytes": 123456, "seconds": 0.005}`.

The seconds are the building thread's processor time: building is one thread's work that waits for nothing, so
this is what it takes on a quiet machine, also while the machine is busy with something else.

Run as `python bench/_builder.py SYSTEM` by `Builder`; the top of this file needs the standard library only.
"""

import gc
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _graphs import GRAPHS, TASKS, adds_on_devices
from _processes import Conversation, answer, load, version_of


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one request: nodes of the graph, bytes by which the process grew, seconds of work."""

    nodes: int
    bytes: int
    seconds: float


class Builder(Conversation):
    """A system in a process of its own. `seconds` runs while it builds.

    >>> with Builder("tensorflow", "/opt/tf/bin/python") as peer:
    ...     peer.build("adds", 1000).nodes
    1001
    """

    def __init__(self, system: str, python: str = sys.executable) -> None:
        super().__init__(__file__, system, python)

    def build(self, graph: str, count: int, *, check: bool = False) -> Built:
        """Build one of `GRAPHS` and drop it; with `check`, see first that nodes know their lines and blocks.

        Raises:
            RuntimeError: building or the check failed (the text holds the traceback), or the process ended.
        """
        built = Built(**self.ask(graph=graph, count=count, check=check))
        self.seconds += built.seconds
        return built


def check(graph: Any, built_by: Callable[[Any, int], Any]) -> None:
    """See that Dovetail has recorded each node's own line and the device block around it.

    Raises:
        AssertionError: a node does not know where it was made, or in which block.
    """
    code = built_by.__code__
    made_at = {line for _, _, line in code.co_lines()}
    for node in graph.nodes:
        source = node.source
        assert source.file == code.co_filename and source.line in made_at, f"{node!r}: {source}"
    if built_by is adds_on_devices:
        for i, node in enumerate(graph.nodes[1:]):
            block, wanted = node.blocks, f"/job:worker/task:{i % TASKS}"
            assert node.source.text == "t = t + a", f"{node!r}: {node.source.text}"
            assert block.source.text == "with tf.device(devices[i % TASKS]):", f"{node!r}: {block}"
            assert node.device == block.spec == wanted, f"{node!r}: {block}, wanted {wanted}"


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def serve(system: str) -> None:
    """Answer requests until the input ends."""

    def begin() -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        module = load(system)

        def respond(request: dict[str, Any]) -> dict[str, Any]:
            before, start = resident(), time.thread_time()
            graph = GRAPHS[request["graph"]](module, request["count"])
            seconds, grown = time.thread_time() - start, resident() - before
            if request["check"]:
                check(graph, GRAPHS[request["graph"]])
            return {"nodes": len(graph.get_operations()), "bytes": grown, "seconds": seconds}

        return version_of(module), respond

    answer(begin, after=gc.collect)


if __name__ == "__main__":
    serve(sys.argv[1])
