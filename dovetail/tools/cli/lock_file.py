"""The lock file of a cluster that is up. It is beside the cluster's file (`cluster.yaml.up`), and has the processes as JSON.

Other commands use it to find the cluster. The lock distinguishes it from a stale file that `kill -9` left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from pathlib import Path
from typing import Any


class UpFile:
    """The lock file of a running cluster. The cluster's supervisor holds the lock.

    Args:
        cluster_file: the cluster's file.
        on: the engine.

    Raises:
        FileExistsError: the cluster is up already.
    """

    def __init__(self, cluster_file: Path, on: str = "local") -> None:
        self.path = up_path(cluster_file)
        self._on = on
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise FileExistsError(f"The cluster of {cluster_file} is up already: {self.path}") from None

    def write(self, targets: dict[str, str], processes: dict[str, int]) -> None:
        """Writes the targets and process ids of the tasks to the file."""
        content = {"keeper": os.getpid(), "on": self._on, "targets": targets, "processes": processes}
        text = json.dumps(content, indent=1).encode()
        # One write, so that a reader sees either the old text or the new one.
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    def __enter__(self) -> UpFile:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)


def up_path(cluster_file: Path) -> Path:
    """Returns the path of the lock file of a cluster."""
    return cluster_file.with_name(cluster_file.name + ".up")


def read_up(cluster_file: Path) -> dict[str, Any]:
    """Returns the contents of the lock file of a running cluster. FileNotFoundError: the cluster is not up."""
    not_up = FileNotFoundError(f"The cluster of {cluster_file} is not up. Start it with `dovetail up {cluster_file}`")
    try:
        with up_path(cluster_file).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                found: dict[str, Any] = json.load(file)
                return found
    except (FileNotFoundError, ValueError):
        raise not_up from None
    raise not_up  # the file is not locked, so the supervisor was killed, and the tasks have ended with it


def stop(cluster_file: Path, timeout_s: float = 15.0) -> None:
    """Stops a cluster that is up.

    Raises:
        FileNotFoundError: it is not up.
        TimeoutError: it did not end in time.
    """
    os.kill(int(read_up(cluster_file)["keeper"]), signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(FileNotFoundError):
        while time.monotonic() < deadline:
            read_up(cluster_file)
            time.sleep(0.05)
        raise TimeoutError(f"The cluster of {cluster_file} did not stop within {timeout_s:.0f} s")


def restart(cluster_file: Path, task: str) -> None:
    """Ends a task of a cluster that is up. The cluster's supervisor restarts it.

    Raises:
        FileNotFoundError: the cluster is not up.
        LookupError: it has no such task.
    """
    processes = read_up(cluster_file)["processes"]
    found = [
        pid for name, pid in processes.items() if task in (name, name.removeprefix("/job:").replace("/task:", ":"))
    ]
    if not found:
        raise LookupError(f"The cluster of {cluster_file} has no task {task!r}. Its tasks: {', '.join(processes)}")
    os.kill(int(found[0]), signal.SIGTERM)
