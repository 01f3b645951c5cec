"""Clusters of real processes on this machine.

`LocalCluster` starts one process per task, waits until all answer, and always ends them: each process holds the read end of a pipe,
only the parent has the other end, and the process ends when that closes. So even `kill -9` of the parent leaves no orphan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from ...graph.core.argument_names import explains_arguments
from ...graph.core.errors import UnavailableError
from ...graph.core.interpreter_state import process_id
from ...placer.cluster.spec import ClusterSpec, task_addresses
from ..rpc.pending_call import child_processes, how_it_ended
from ..transport.address import is_loopback
from ..transport.keys import client_keys
from .running_cluster import RunningCluster

logger = logging.getLogger(__name__)


class LocalCluster(RunningCluster):
    """Starts a cluster on this machine, with a process for each task. As a context manager it ends them at the end of the block.

    Args:
        jobs: job -> number of tasks, `{"ps": 2, "worker": 2}`, which get free ports; or job -> addresses on this machine,
            `{"ps": ["localhost:2222"]}`.
        programs: job -> command that its tasks run instead of a plain server. The command finds the cluster and its task in the
            environment variable `TF_CONFIG`, and should start a `Server` for it. It must exit when its standard input closes.
        device_count: devices of each task, as in `ConfigProto`, `{"CPU": 2}`; or job -> devices of each of its tasks.
        emulate_gpus: number of emulated GPUs of each task; or job -> number.
        start_timeout_s: seconds to wait until all tasks answer; None: do not wait.
        environment: additional environment variables of the tasks; or job -> those of its tasks.
        keys: folder of keys for all tasks and this process (`dovetail keys new`); None: the folder in DOVETAIL_KEYS, or no keys.
        piped: jobs whose standard output and error go to a pipe that the caller must read (`process(job, i).stdout`).
        output: called with each line that a task prints: (job, task index, line). The output goes nowhere else then.
        ps_replicas: 2: each variable of the job "ps" is kept by two of its tasks, so that killing either loses no update.

    Raises:
        TypeError, ValueError: `jobs` or another argument is malformed.
        UnavailableError: a task ended, or did not answer in time. All other tasks have then been ended.

    >>> with LocalCluster({"ps": 1, "worker": 2}) as cluster, Session(cluster.target("worker", 0)) as session:
    ...     print(len(session.list_devices()))
    3
    """

    @explains_arguments
    def __init__(
        self,
        jobs: Mapping[str, int | Sequence[str]],
        *,
        programs: Mapping[str, Sequence[str]] | None = None,
        device_count: Mapping[str, int] | Mapping[str, Mapping[str, int]] | None = None,
        emulate_gpus: int | Mapping[str, int] = 0,
        start_timeout_s: float | None = 30.0,
        environment: Mapping[str, str] | Mapping[str, Mapping[str, str]] | None = None,
        piped: Collection[str] = (),
        output: Callable[[str, int, str], None] | None = None,
        keys: str | Path | None = None,
        ps_replicas: int = 1,
    ) -> None:
        if not isinstance(jobs, Mapping):
            raise TypeError(
                f"`jobs` must be numbers of tasks such as {{'ps': 1, 'worker': 2}}, or addresses, not {jobs!r}"
            )
        for job, at in jobs.items():
            if isinstance(at, (bool, str)) or not isinstance(at, (int, Sequence)):
                raise TypeError(f"Job {job!r} must have a number of tasks or a list of addresses, not {at!r}")
        unknown = set(programs or ()) - set(jobs)
        if unknown:
            raise ValueError(f"`programs` names jobs that are not in `jobs`: {', '.join(sorted(unknown))}")
        self._programs = {job: list(command) for job, command in (programs or {}).items()}
        self._device_count: dict[str, Any] = dict(device_count or {})
        self._emulate_gpus = emulate_gpus
        self._environment: dict[str, Any] = dict(environment or {})
        self.keys = client_keys(keys)
        self._common = {"DOVETAIL_PS_REPLICAS": str(ps_replicas)} if ps_replicas != 1 else {}
        if keys:
            self._common["DOVETAIL_KEYS"] = str(Path(keys).expanduser().resolve())
        self._piped = frozenset(piped)
        self._output = output
        self._readers: list[threading.Thread] = []  # of the output
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        beyond = [a for at in jobs.values() if not isinstance(at, int) for a in at if not is_loopback(a)]
        if beyond:
            raise ValueError(f"{beyond[0]} is not an address of this machine alone: a LocalCluster has localhost:PORT")
        if any(isinstance(at, int) and at < 0 for at in jobs.values()) or not any(jobs.values()):
            raise ValueError(f"A job has 0 or more tasks, and at least one job has a task, not {dict(jobs)}")
        if (target := os.environ.get("TARGET", "")).startswith("zmq://"):
            logger.warning(
                "This program starts a cluster of its own, beside the one that $TARGET names (%s), where `dovetail run` runs it. To use "
                "that one, pass its target: dt.compile(..., cluster=os.environ['TARGET']), or dt.Session(os.environ['TARGET'])", target,
            )  # fmt: skip
        with contextlib.ExitStack() as reserved:
            self.cluster_spec = ClusterSpec(
                {
                    job: [reserved.enter_context(reserved_address()) for _ in range(at)] if isinstance(at, int) else at
                    for job, at in jobs.items()
                    if at
                }
            )
            self._finalizer = weakref.finalize(
                self, _take_down, self._processes, task_addresses(self.cluster_spec), process_id()
            )
            try:
                for task in self.tasks:
                    self.start(*task)
                if start_timeout_s is not None:
                    self.wait_until_up(start_timeout_s)
            except BaseException:
                self.close()
                raise

    def process(self, job: str, task_index: int) -> subprocess.Popen[bytes]:
        """The process of a task."""
        return self._processes[job, task_index]

    def first_ended(self) -> str | None:
        """A message about the first process that has ended; None: all are running."""
        for (job, i), process in self._processes.items():
            if (code := process.poll()) is not None:
                return f"The process of /job:{job}/task:{i} {how_it_ended(code)}"
        return None

    def start(self, job: str, task_index: int) -> None:
        """Start the process of a task that has ended. Does nothing while it runs."""
        running = self._processes.get((job, task_index))
        if running is not None:
            if running.poll() is None:
                return
            if running.stdin is not None:
                running.stdin.close()
        command = self._programs.get(job) or [
            sys.executable, "-m", "dovetail.runtime.server.process", f"/job:{job}/task:{task_index}",
            json.dumps(_of_job(self._device_count, job)),
        ]  # fmt: skip
        threads = str(max(1, (os.cpu_count() or 1) // len(self.tasks)))
        gpus = self._emulate_gpus if isinstance(self._emulate_gpus, int) else self._emulate_gpus.get(job, 0)
        environment = {
            # Each process would start one BLAS thread per core; together they would be far more than there are cores.
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads),
            **os.environ,
            **_of_job(self._environment, job),
            **self._common,
            "TF_CONFIG": json.dumps({"cluster": self.cluster_spec.as_dict(), "task": {"type": job, "index": task_index}}),
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }  # fmt: skip
        if gpus:
            environment["DOVETAIL_EMULATE_GPUS"] = str(gpus)
        piped = job in self._piped or self._output is not None
        self._processes[job, task_index] = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if piped else None,
            stderr=subprocess.STDOUT if piped else None,
            env=environment,
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        child_processes[self.cluster_spec.task_address(job, task_index)] = lambda: how_it_ended(process.poll())
        if self._output is not None and process.stdout is not None:
            self._readers.append(follow_output(process.stdout, partial(self._output, job, task_index)))
            process.stdout = None  # the thread's own

    def _finished(self, waiting: Mapping[str, tuple[str, int]]) -> Collection[str]:
        finished = []
        for address, (job, i) in waiting.items():
            process = self._processes[job, i]
            code = process.poll()
            if code == 0 and job in self._programs:
                finished.append(address)
            elif code is not None:
                said = process.stdout.read().decode(errors="replace").strip() if process.stdout else ""
                why = f":\n{said}" if said else "; its output says why"
                raise UnavailableError.of(
                    f"The process of /job:{job}/task:{i} {how_it_ended(code)} before it answered{why}"
                )
        return finished

    def kill(self, job: str, task_index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a task's process (default: SIGKILL). After SIGKILL and SIGSTOP, wait until the process has ended or stopped."""
        process = self._processes[job, task_index]
        process.send_signal(number)
        if number == signal.SIGKILL:
            process.wait()
        elif number == signal.SIGSTOP:  # its threads on other processors run on for a moment
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def wait(self, job: str, timeout_s: float | None = None) -> list[int]:
        """Wait until all processes of a job have ended, and return their exit statuses.

        Raises:
            TimeoutExpired: they have not ended within `timeout_s` seconds.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        return [
            p.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for (j, _), p in self._processes.items()
            if j == job
        ]

    def close(self) -> None:
        """End all processes, and wait until `output` has had what they printed. A second call does nothing."""
        self._finalizer()
        deadline = time.monotonic() + GRACE_S  # others that a task has started may hold the pipe
        for reader in set(self._readers) - {threading.current_thread()}:
            reader.join(max(0.0, deadline - time.monotonic()))

    def __repr__(self) -> str:
        up = sum(p.poll() is None for p in self._processes.values())
        return f"<dt.LocalCluster {self.cluster_spec.as_dict()}, {up} of {len(self._processes)} processes running>"


def _of_job(settings: Mapping[str, Any], job: str) -> Mapping[str, Any]:
    """Settings of a job's tasks: the same for all jobs, or by job."""
    return settings.get(job, {}) if all(isinstance(v, Mapping) for v in settings.values()) else settings


def follow_output(stream: IO[bytes], line: Callable[[str], None]) -> threading.Thread:
    """Start a thread that calls `line` with each line of a process's output until the process ends."""

    def read() -> None:
        with stream:
            for text in stream:
                line(text.decode(errors="replace").rstrip("\r\n"))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _take_down(
    processes: Mapping[tuple[str, int], subprocess.Popen[bytes]], addresses: Mapping[tuple[str, int], str], owner: int
) -> None:
    """Close the standard input of all processes, and kill those that do not end then. Only the process that started them may."""
    if process_id() != owner:
        return
    for task, p in processes.items():
        child_processes.pop(addresses[task], None)
        if p.stdin is not None:
            with contextlib.suppress(OSError):
                p.stdin.close()
        if p.poll() is None:  # a stopped process must continue to notice it
            with contextlib.suppress(ProcessLookupError):
                p.send_signal(signal.SIGCONT)
    deadline = time.monotonic() + GRACE_S
    for p in processes.values():
        try:
            p.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
        if p.stdout is not None:
            p.stdout.close()


@contextlib.contextmanager
def reserved_address(host: str = "localhost") -> Iterator[str]:
    """A context manager with an address of this machine, whose free port is reserved until the task listens there.

    A socket is bound there but does not listen; with SO_REUSEADDR on both sides the task's own socket may bind the same port.
    """
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, 0))
        yield f"{host}:{s.getsockname()[1]}"


GRACE_S = 3.0  # between the request to end and SIGKILL
