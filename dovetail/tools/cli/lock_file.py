"""The lock file of a cluster that is up, next to the cluster's file (`cluster.yaml.up`: JSON, with the processes).

By it other commands find the cluster, and detect a stale file that `kill -9` left behind.
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
    """The lock file of a running cluster, locked by its supervisor.

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
        """Write targets and process ids of the tasks to the file."""
        content = {"keeper": os.getpid(), "on": self._on, "targets": targets, "processes": processes}
        text = json.dumps(content, indent=1).encode()
        # A reader sees the old text or the new one.
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    def __enter__(self) -> UpFile:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._descriptor)


def up_path(cluster_file: Path) -> Path:
    """The path of the lock file of a cluster."""
    return cluster_file.with_name(cluster_file.name + ".up")


def read_up(cluster_file: Path) -> dict[str, Any]:
    """The contents of the lock file of a running cluster.

    Raises:
        FileNotFoundError: the cluster is not up.
    """
    not_up = FileNotFoundError(f"The cluster of {cluster_file} is not up: `dovetail up {cluster_file}` starts it")
    try:
        with up_path(cluster_file).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                found: dict[str, Any] = json.load(file)
                return found
    except (FileNotFoundError, ValueError):
        raise not_up from None
    raise not_up  # it is not locked: the supervisor was killed, and the tasks have ended with it


def stop(cluster_file: Path, timeout_s: float = 15.0) -> None:
    """Stop a cluster that is up.

    Raises:
        FileNotFoundError: it is not up. TimeoutError: it has not ended in time.
    """
    os.kill(int(read_up(cluster_file)["keeper"]), signal.SIGTERM)
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(FileNotFoundError):
        while time.monotonic() < deadline:
            read_up(cluster_file)
            time.sleep(0.05)
        raise TimeoutError(f"The cluster of {cluster_file} has not stopped within {timeout_s:.0f} s")


def restart(cluster_file: Path, task: str) -> None:
    """End a task of a cluster that is up; its supervisor starts it again.

    Raises:
        FileNotFoundError: the cluster is not up. LookupError: it has no such task.
    """
    processes = read_up(cluster_file)["processes"]
    found = [
        pid for name, pid in processes.items() if task in (name, name.removeprefix("/job:").replace("/task:", ":"))
    ]
    if not found:
        raise LookupError(f"The cluster of {cluster_file} has no task {task!r}; it has {', '.join(processes)}")
    os.kill(int(found[0]), signal.SIGTERM)
