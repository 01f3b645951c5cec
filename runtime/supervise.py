"""Keeping a cluster of this machine up: tasks that end are started again, later each time.

While it is up, a file beside the cluster's says so (`cluster.yaml.up`: JSON, with the processes), and its keeper holds a lock on that
file. So another command can find it, and a file that was left behind by `kill -9` is not mistaken for a cluster.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from .local import LocalCluster

FIRST_PAUSE_S = 1.0  # before a task that has ended is started again ...
MOST_PAUSE_S = 30.0  # ... twice as long each time, up to this ...
STEADY_S = 60.0  # ... and from the beginning after it has been up for so long


@dataclass(slots=True)
class _Kept:
    """One task: when it was started, and when it will be."""

    started: float
    pause: float = FIRST_PAUSE_S
    again_at: float | None = None


class Supervisor:
    """Keeps the tasks of a cluster running.

    Args:
        cluster: it must be up.
        say: told what happens, in words.
        restart: start tasks again that have ended.
        clock: seconds; tests give their own.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        say: Callable[[str], None],
        *,
        restart: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._restart = restart
        self._clock = clock
        self._kept = {task: _Kept(clock()) for task in cluster.tasks}

    def look(self) -> bool:
        """See to all tasks once; True if any has been started again or has ended since the last look."""
        changed = False
        for (job, i), kept in self._kept.items():
            now = self._clock()
            code = self._cluster.process(job, i).poll()
            if code is None:
                if now - kept.started > STEADY_S:
                    kept.pause = FIRST_PAUSE_S
                continue
            if kept.again_at is None:
                changed = True
                kept.again_at = now + kept.pause
                how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
                then = f"; it is started again in {kept.pause:.0f} s" if self._restart else ""
                self._say(f"/job:{job}/task:{i} {how}{then}")
            if self._restart and now >= kept.again_at:
                changed = True
                self._cluster.start(job, i)
                kept.started, kept.again_at = now, None
                kept.pause = min(MOST_PAUSE_S, 2 * kept.pause)
                self._say(f"/job:{job}/task:{i} was started again")
        return changed

    @property
    def all_ended(self) -> bool:
        """Whether no task runs, nor will again."""
        return not self._restart and all(self._cluster.process(*task).poll() is not None for task in self._kept)

    def processes(self) -> dict[str, int]:
        """Task -> process number."""
        return {f"/job:{job}/task:{i}": self._cluster.process(job, i).pid for job, i in self._kept}


class UpFile:
    """The file that says that a cluster is up, held by its keeper.

    Raises:
        FileExistsError: the cluster is up already.
    """

    def __init__(self, cluster_file: Path) -> None:
        self.path = up_path(cluster_file)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise FileExistsError(f"The cluster of {cluster_file} is up already: {self.path}") from None

    def write(self, targets: dict[str, str], processes: dict[str, int]) -> None:
        """Say which tasks there are."""
        text = json.dumps({"keeper": os.getpid(), "targets": targets, "processes": processes}, indent=1).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text, 0)

    def __enter__(self) -> UpFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)


def up_path(cluster_file: Path) -> Path:
    """Where the file for a cluster is."""
    return cluster_file.with_name(cluster_file.name + ".up")


def read_up(cluster_file: Path) -> dict[str, Any]:
    """What the keeper of a cluster that is up has written.

    Raises:
        FileNotFoundError: the cluster is not up.
    """
    gone = FileNotFoundError(f"The cluster of {cluster_file} is not up: `dovetail cluster up {cluster_file}` starts it")
    try:
        with up_path(cluster_file).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                found: dict[str, Any] = json.load(file)
                return found
    except (FileNotFoundError, ValueError):
        raise gone from None
    raise gone  # nobody holds it: its keeper was killed, and the tasks ended with it


def stop(cluster_file: Path, timeout_s: float = 15.0) -> None:
    """Stop a cluster that is up.

    Raises:
        FileNotFoundError: it is not up. TimeoutError: it has not gone in time.
    """
    os.kill(int(read_up(cluster_file)["keeper"]), signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(FileNotFoundError):
        while time.monotonic() < deadline:
            read_up(cluster_file)
            time.sleep(0.05)
        raise TimeoutError(f"The cluster of {cluster_file} has not gone within {timeout_s:.0f} s")


def restart(cluster_file: Path, task: str) -> None:
    """End a task of a cluster that is up; its keeper starts it again.

    Raises:
        FileNotFoundError: the cluster is not up. LookupError: it has no such task.
    """
    processes = read_up(cluster_file)["processes"]
    found = [
        pid
        for name, pid in processes.items()
        if name.removeprefix("/job:").replace("/task:", ":") == task or name == task
    ]
    if not found:
        raise LookupError(f"The cluster of {cluster_file} has no task {task!r}; it has {', '.join(processes)}")
    os.kill(int(found[0]), signal.SIGTERM)
