"""A process that builds graphs with one system: Dovetail, or the peer in whatever interpreter has it.

Each system gets a process of its own, so that neither's imports, threads or garbage weigh on the other, and
so that the growth of the process is the memory of the graph. The conversation is one line of JSON each way:
the process begins with `{"version": "2.21.0"}`, or `{"missing": why}` when its interpreter has not got the
system, and answers `{"graph": "adds", "count": 1000, "check": false}` with `{"nodes": 1001, "bytes": 123456,
"seconds": 0.005}` or `{"error": traceback}`.

The seconds are the building thread's processor time: building is one thread's work that waits for nothing, so
this is what it takes on a quiet machine, also while the machine is busy with something else.

Run as `python bench/_builder.py SYSTEM` by `Builder`; the top of this file needs the standard library only.
"""

import gc
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _graphs import GRAPHS, TASKS, adds_on_devices

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"dovetail": "dovetail", "tensorflow": "tensorflow.compat.v1"}
TITLES = {"dovetail": "Dovetail", "tensorflow": "TensorFlow"}


@dataclass(frozen=True, slots=True)
class Built:
    """What came of one request: nodes of the graph, bytes by which the process grew, seconds of work."""

    nodes: int
    bytes: int
    seconds: float


class Builder:
    """A system in a process of its own. Use it as a context manager; `missing` says why it cannot build.

    >>> with Builder("tensorflow", "/opt/tf/bin/python") as peer:
    ...     peer.build("adds", 1000).nodes
    1001
    """

    def __init__(self, system: str, python: str = sys.executable) -> None:
        self._who = f"{system} in {python}"
        quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
        try:
            self._process = subprocess.Popen(
                [python, __file__, system], env=quiet, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as e:
            raise SystemExit(f"Cannot start {python}: {e.strerror}") from None
        hello = self._answer()
        self.version: str = hello.get("version", "")
        self.missing: str = hello.get("missing", "")
        self.seconds = 0.0  # of all graphs so far: a clock that only runs while this system builds
        self.title = f"{TITLES[system]} {self.version}" if self.version else ""

    def build(self, graph: str, count: int, *, check: bool = False) -> Built:
        """Build one of `GRAPHS` and drop it; with `check`, see first that nodes know their lines and blocks.

        Raises:
            RuntimeError: building or the check failed (the text holds the traceback), or the process ended.
        """
        if self.missing:
            raise RuntimeError(f"{self._who}: {self.missing}")
        assert self._process.stdin is not None
        request = {"graph": graph, "count": count, "check": check}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        built = Built(**self._answer())
        self.seconds += built.seconds
        return built

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._who} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._who}: {answer['error']}")
        return answer

    def __enter__(self) -> "Builder":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()  # the end of its input is the end of the process


def load(system: str) -> Any:
    """The system's module, building graphs as TensorFlow 1 does."""
    sys.path.insert(1, str(ROOT))  # Dovetail runs in a checkout, installed or not
    module = importlib.import_module(MODULES[system])
    if system == "tensorflow":
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


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

    def reply(**answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    try:
        module = load(system)
    except ImportError as e:
        reply(missing=str(e))
        return
    reply(version=module.__version__)
    for line in sys.stdin:
        request = json.loads(line)
        before, start = resident(), time.thread_time()
        try:
            graph = GRAPHS[request["graph"]](module, request["count"])
            seconds, grown = time.thread_time() - start, resident() - before
            nodes = len(graph.get_operations())
            if request["check"]:
                check(graph, GRAPHS[request["graph"]])
        except Exception:
            reply(error=traceback.format_exc())
            continue
        reply(nodes=nodes, bytes=grown, seconds=seconds)
        del graph
        gc.collect()  # after the answer, so that nobody's clock runs


if __name__ == "__main__":
    serve(sys.argv[1])
