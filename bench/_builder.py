"""A process that builds graphs with one system: Dovetail, or the peer in whatever interpreter has it.

Each system gets a process of its own (`_processes.py`), so that the growth of the process is the memory of the graph. It answers
`{"graph": "adds", "count": 1000, "check": false}` with `{"nodes": 1001, "bytes": 123456, "seconds": 0.005}`.

The seconds are the building thread's processor time: building is one thread's work that waits for nothing, so
this is what it takes on a quiet machine, also while the machine is busy with something else. The graphs are written once, in
TensorFlow 1's names, so that both systems build the same program.

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

from _processes import Conversation, answer, load, version_of

# --- graphs: each function takes the system's module and how often to repeat, builds into a new graph and returns it ----

TASKS = 4


def adds(tf: Any, count: int) -> Any:
    """A chain of `t + a`, one node each."""
    graph = tf.Graph()
    with graph.as_default():
        a = t = tf.constant(1.0)
        for _ in range(count):
            t = t + a
    return graph


def adds_on_devices(tf: Any, count: int) -> Any:
    """The same, each node in a device block of its own."""
    devices = [f"/job:worker/task:{i}" for i in range(TASKS)]
    graph = tf.Graph()
    with graph.as_default():
        a = t = tf.constant(1.0)
        for i in range(count):
            with tf.device(devices[i % TASKS]):
                t = t + a
    return graph


def numbers(tf: Any, count: int) -> Any:
    """A chain of `t * 2.0`, two nodes each: the number becomes a constant in the op's name scope."""
    graph = tf.Graph()
    with graph.as_default():
        t = tf.constant(1.0)
        for _ in range(count):
            t = t * 2.0
    return graph


def layers(tf: Any, count: int) -> Any:
    """Layers of matmul, bias and relu on given weights, three nodes each."""
    graph = tf.Graph()
    with graph.as_default():
        t = weights = tf.constant([[1.0] * 8] * 8)
        bias = tf.constant([1.0] * 8)
        for _ in range(count):
            t = tf.nn.relu(tf.nn.bias_add(tf.matmul(t, weights), bias))
    return graph


def variables(tf: Any, count: int) -> Any:
    """Variables, four nodes each: initial value, place, Assign, read."""
    graph = tf.Graph()
    with graph.as_default():
        for _ in range(count):
            tf.Variable(1.0)
    return graph


def constants(tf: Any, count: int) -> Any:
    """Scalar constants, one node each."""
    graph = tf.Graph()
    with graph.as_default():
        for _ in range(count):
            tf.constant(1.0)
    return graph


GRAPHS: dict[str, Callable[[Any, int], Any]] = {
    each.__name__: each for each in (adds, adds_on_devices, numbers, layers, variables, constants)
}


# --- the process ----------------------------------------------------------------------------------------------------------


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
