"""Processes that compile GPU kernels beside this one.

Triton takes 0.1 to 1 s a kernel, and its passes are not made to run in several threads of one process. So what is wanted while this
process compiles goes to others: as many as there are further cores, begun when they are needed. A helper reads kernels from its
input and writes binaries to its output, whole, and touches no file that others read; who asked puts them into the cache. It ends
when nobody has asked for a while, and when this process ends, however that ends. A kernel that makes Triton crash ends a helper
and not the program.

    -> one line of JSON: kernel and target          <- one line of JSON: the binary's fields and the image's size, then the image;
                                                       or {"error": why}
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ....graph.core.errors import InternalError
from ..ir import Binary, Parameter, Target, TritonKernel

logger = logging.getLogger(__name__)

IDLE_SECONDS = 30.0  # an idle helper holds about 200 MB
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}\n"
    "from dovetail.codegen.gpu.toolchain import compile, workers\n"
    "workers.serve(compile.compile_here, {idle})"
)
_CRASHES = frozenset((-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE))

Compile = Callable[[TritonKernel, Target], Binary]


class NoHelperError(Exception):
    """A helper cannot be started, or has been ended by somebody: the kernel must be compiled elsewhere."""


class Helper:
    """A process that compiles, begun when it is first asked. For one thread at a time."""

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self.process: subprocess.Popen[bytes] | None = None

    def compile(self, kernel: TritonKernel, target: Target) -> Binary:
        """A kernel's binary.

        Raises:
            InternalError: Triton refuses the kernel, or crashes.
            NoHelperError: there is no such process.
        """
        for _ in range(2):  # it may have ended for want of work just now
            process = self._started()
            try:
                return self._asked(process, kernel, target)
            except (OSError, EOFError, ValueError):
                code = self.close()
                if code in _CRASHES:
                    raise InternalError(
                        None, None, f"Triton crashes ({signal.Signals(-code).name}) on {kernel.name} for {target}\n{kernel.text}"
                    ) from None  # fmt: skip
                if code:
                    break
        logger.warning("a process that helps to compile ended with %s", code)
        raise NoHelperError

    def close(self) -> int:
        """End the process; how it ended."""
        process, self.process = self.process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(10.0)
        except subprocess.TimeoutExpired:  # in the middle of a kernel that nobody wants any more
            process.kill()
            process.wait()
            return 0

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            program = _PROGRAM.format(path=sys.path, idle=self.idle)
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the program
                )
            except (OSError, ValueError) as e:  # an embedded Python may not know its own name
                logger.warning("no process can be started that helps to compile: %s", e)
                raise NoHelperError from e
        return self.process

    def _asked(self, process: subprocess.Popen[bytes], kernel: TritonKernel, target: Target) -> Binary:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"kernel": asdict(kernel), "target": asdict(target)}).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(_whole(process.stdout.readline()))
        if "error" in answer:
            raise InternalError(None, None, answer["error"])
        image = process.stdout.read(answer["size"])
        if len(image) != answer["size"]:
            raise EOFError
        return Binary.from_fields(answer["binary"], image)


def _whole(line: bytes) -> bytes:
    if not line.endswith(b"\n"):
        raise EOFError
    return line


# --- places to compile at --------------------------------------------------------------------------------------------


class Places:
    """Where kernels are compiled side by side: one at a time in this process, the others in helpers.

    Args:
        here: compiles in this process.
        count: how many places there are, this process included.
    """

    def __init__(self, here: Compile, count: int) -> None:
        self.here = here
        self._compiling = threading.Lock()
        self._free: queue.LifoQueue[Helper | None] = (
            queue.LifoQueue()
        )  # the last one back is the first to be used again
        for _ in range(count - 1):
            self._free.put(Helper())
        self._free.put(None)

    def compile(self, kernel: TritonKernel, target: Target) -> Binary:
        """Compile where there is room; waits for it. Raises what `here` raises."""
        helper = self._free.get()
        try:
            if helper is not None:
                with contextlib.suppress(NoHelperError):  # it has said so
                    return helper.compile(kernel, target)
            with self._compiling:
                return self.here(kernel, target)
        finally:
            self._free.put(helper)


# --- in a helper -----------------------------------------------------------------------------------------------------


def serve(work: Compile, idle: float) -> None:
    """Compile what comes in, until nothing comes."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Triton prints is not for the one who asked
    given = sys.stdin.buffer
    with contextlib.suppress(BrokenPipeError):  # nobody is there any more
        while select.select([given], [], [], idle)[0] and (line := given.readline()):
            answer, image = _answered(work, json.loads(line))
            out.write(json.dumps(answer).encode() + b"\n" + image)
            out.flush()
    os._exit(0)  # nothing is open but pipes


def _answered(work: Compile, asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    kernel = asked["kernel"]
    for name in ("constants", "options"):
        kernel[name] = tuple(map(tuple, kernel[name]))
    kernel["parameters"] = tuple([Parameter(**p) for p in kernel["parameters"]])
    try:
        made = work(TritonKernel(**kernel), Target(**asked["target"]))
    except Exception as e:
        return {"error": getattr(e, "message", None) or str(e)}, b""
    return {"binary": made.to_fields(), "size": len(made.image)}, made.image
