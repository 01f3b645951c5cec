"""Helper processes that compile GPU kernels in parallel.

Triton takes 0.1 to 1 s per kernel, and its passes are not thread-safe. So requests that arrive while this process compiles go to
helpers: one per further core, started on demand. A helper reads pickled kernels and targets from its input and writes pickled binaries, or
the texts of errors, to its output; the requesting process puts binaries into the cache. A helper ends after 30 s without work, and when
this process ends for any reason. A kernel that crashes Triton ends a helper, not the program.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from ....graph.core.errors import InternalError
from ...target import Target
from ..ir import Binary, TritonKernel

logger = logging.getLogger(__name__)

IDLE_SECONDS = 30.0  # an idle helper holds about 200 MB
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}\n"
    "from dovetail.codegen.gpu.toolchain import compile, workers\n"
    "workers.serve(compile.compile_here, {idle})"
)
_CRASHES = frozenset((-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE))

Compile = Callable[[TritonKernel, Target], Binary]


class Helper:
    """A compiling process, started at its first request. For one thread at a time."""

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.idle = idle
        self.process: subprocess.Popen[bytes] | None = None

    def compile(self, kernel: TritonKernel, target: Target) -> Binary | None:
        """A kernel's binary; None: no process can be started, or it was killed.

        Raises:
            InternalError: Triton rejects the kernel, or crashes.
        """
        for _ in range(2):  # it may just have ended because it was idle
            process = self._started()
            if process is None:
                return None
            try:
                return self._asked(process, kernel, target)
            except (OSError, EOFError, pickle.UnpicklingError):
                code = self.close()
                if code in _CRASHES:
                    raise InternalError.of(
                        f"Triton crashes ({signal.Signals(-code).name}) on {kernel.name} for {target}\n{kernel.text}"
                    ) from None
                if code:
                    break
        logger.warning("a process that helps to compile ended with %s", code)
        return None

    def close(self) -> int:
        """End the process; returns how it ended."""
        process, self.process = self.process, None
        if process is None:
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            return process.wait(10.0)
        except subprocess.TimeoutExpired:  # still compiling a kernel that is not needed any more
            process.kill()
            process.wait()
            return 0

    def _started(self) -> subprocess.Popen[bytes] | None:
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
        return self.process

    def _asked(self, process: subprocess.Popen[bytes], kernel: TritonKernel, target: Target) -> Binary:
        assert process.stdin is not None and process.stdout is not None
        pickle.dump((kernel, target), process.stdin)
        process.stdin.flush()
        answer: Binary | str = pickle.load(process.stdout)
        if isinstance(answer, str):
            raise InternalError.of(answer)
        return answer


# --- the pool --------------------------------------------------------------------------------------------------------


class CompilePool:
    """Compiles kernels in parallel: one at a time in this process, the others in helpers.

    Args:
        here: compiles in this process.
        count: the number of parallel compilations, including the one in this process.
    """

    def __init__(self, here: Compile, count: int) -> None:
        self.here = here
        self._compiling = threading.Lock()
        # The last one back is the first to be used again.
        self._free: queue.LifoQueue[Helper | None] = queue.LifoQueue()
        for _ in range(count - 1):
            self._free.put(Helper())
        self._free.put(None)

    def compile(self, kernel: TritonKernel, target: Target) -> Binary:
        """Compile in the first free process; blocks until one is free. Raises the errors of `here`."""
        helper = self._free.get()
        try:
            binary = None if helper is None else helper.compile(kernel, target)
            if binary is not None:
                return binary
            with self._compiling:
                return self.here(kernel, target)
        finally:
            self._free.put(helper)

    def close(self) -> None:
        """End the helpers that compile nothing. What is compiled later starts them anew."""
        idle: list[Helper | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._free.get_nowait())
        for helper in reversed(idle):
            if helper is not None:
                helper.close()
            self._free.put(helper)


# --- in a helper -----------------------------------------------------------------------------------------------------


def serve(work: Compile, idle: float) -> None:
    """Compile requests until none arrives for a while."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Triton's prints must not reach the reply pipe
    given = sys.stdin.buffer  # one request at a time: nothing else lies in the buffer when `select` looks
    with contextlib.suppress(BrokenPipeError, EOFError):  # the requesting process has ended
        while select.select([given], [], [], idle)[0]:
            kernel, target = pickle.load(given)
            try:
                answer: Binary | str = work(kernel, target)
            except Exception as e:
                answer = getattr(e, "message", None) or str(e)
            pickle.dump(answer, out)
            out.flush()
    os._exit(0)  # nothing is open but pipes
