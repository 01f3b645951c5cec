"""Systems in processes of their own, so that neither's imports, threads, garbage and memory weigh on the other.

A `Conversation` is one process that answers each line of JSON with one. It begins with `{"version": "2.21.0"}`, or with
`{"missing": why}` when its interpreter has not got the system, and answers a request that fails with `{"error": traceback}`. `answer`
is the other side of it. `Group` is a cluster of processes that all get the same line.

This file needs the standard library only: the peer's interpreter need not have what Dovetail needs.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"tensorflow": "tensorflow.compat.v1", "dovetail-numpy": "dovetail"}
"""The module of a system, where it has another name."""
TITLES = {
    "dovetail": "Dovetail", "dovetail-numpy": "Dovetail, NumPy kernels", "tensorflow": "TensorFlow", "numpy": "NumPy", "jax": "JAX",
    "torch": "PyTorch", "ray": "Ray compiled graphs",
}  # fmt: skip
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}  # TensorFlow's cells are in tf_keras


def load(system: str) -> Any:
    """The system's module; TensorFlow builds graphs."""
    if system.startswith("dovetail"):
        sys.path.insert(1, str(ROOT))  # Dovetail runs in a checkout, installed or not
    module = importlib.import_module(MODULES.get(system, system))
    if system == "tensorflow":
        module.disable_v2_behavior()
        module.logging.set_verbosity(module.logging.ERROR)
    return module


def version_of(module: Any) -> str:
    """A module's version."""
    return str(getattr(module, "__version__", "") or getattr(getattr(module, "version", None), "VERSION", ""))


def answer(
    begin: Callable[[], tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]],
    after: Callable[[], object] = lambda: None,
) -> None:
    """Answer requests until the input ends. `begin` loads the system, and gives its version and what answers; it may raise ImportError.

    `after` is called after each answer, when no clock runs.
    """

    def say(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), flush=True)

    try:
        version, respond = begin()
    except ImportError as e:
        say({"missing": str(e)})
        return
    say({"version": version})
    for line in sys.stdin:
        try:
            found = respond(json.loads(line))
        except Exception:
            found = {"error": traceback.format_exc()}
        say(found)
        del found
        after()


class Conversation:
    """A process that runs `program SYSTEM`. Use it as a context manager; `missing` says why it cannot do anything.

    Attributes:
        title: the system and its version. seconds: a clock that only runs while the system works; `ask` lets it run.
    """

    def __init__(
        self, program: str, system: str, python: str = sys.executable, patience_s: float | None = None, **settings: str
    ) -> None:
        self._who, self._patience_s = f"{system} in {python}", patience_s
        try:
            self._process = subprocess.Popen(
                [python, program, system], env=os.environ | SETTINGS | settings, text=True, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as e:
            raise SystemExit(f"Cannot start {python}: {e.strerror}") from None
        hello = self._answer()
        self.missing: str = hello.get("missing", "")
        self.title = "" if self.missing else f"{TITLES[system]} {hello['version']}"
        self.seconds = 0.0

    def ask(self, **request: Any) -> dict[str, Any]:
        """What it answers.

        Raises:
            RuntimeError: it failed (the text holds the traceback), or the process ended. TimeoutError: no answer in time.
        """
        if self.missing:
            raise RuntimeError(f"{self._who}: {self.missing}")
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if self._patience_s is not None and not select.select([self._process.stdout], [], [], self._patience_s)[0]:
            raise TimeoutError(f"{self._who}: no answer for {self._patience_s:g} s")
        line = self._process.stdout.readline()  # it writes whole lines, and one for each that it reads
        if not line:
            raise RuntimeError(f"{self._who} ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise RuntimeError(f"{self._who}: {found['error']}")
        return found

    def close(self) -> None:
        """The end of its input is the end of the process; one that hangs is killed, with all that it has started."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Group:
    """Processes of one system that work together. `missing` says why there are none (any more); `pids` are theirs.

    Args:
        commands: one for each process. told: the numbers of those that get lines. settings: more environment.
    """

    def __init__(self, commands: Sequence[Sequence[str]], told: Sequence[int] | None = None, **settings: str) -> None:
        self.missing = ""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the group)
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True,
                env=os.environ | settings,
            )
            for command in commands
        ]  # fmt: skip
        self.pids = [p.pid for p in self._processes]
        self._told = [self._processes[i] for i in (range(len(commands)) if told is None else told)]

    def say(self, line: str, word: str, answering: int, limit_s: float) -> list[str]:
        """Give all a line, and read what follows `word` in the lines of the first `answering` of them; none when that fails."""
        if self.missing:
            return []
        limit = threading.Timer(limit_s, self._kill)
        limit.start()
        try:
            for p in self._told:
                assert p.stdin is not None
                with contextlib.suppress(OSError):
                    print(line, file=p.stdin, flush=True)
            found = [text for p in self._told[:answering] for text in _after(p, word)]
        finally:
            limit.cancel()
        if len(found) == answering:
            return found
        self.close()
        self._errors.seek(0)
        self.missing = (self._errors.read().strip().splitlines() or [f"no answer in {limit_s:.0f} s"])[-1]
        return []

    def _kill(self) -> None:
        for p in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the processes."""
        self._kill()
        for p in self._processes:
            p.communicate()


def _after(process: "subprocess.Popen[str]", word: str) -> Iterator[str]:
    """What follows `word` in the next line that begins with it; nothing if the process ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"{word} "):
            yield line.removeprefix(word).strip()
            return


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
