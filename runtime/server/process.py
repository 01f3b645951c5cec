"""The program of a plain task: a server, and nothing else. `LocalCluster` runs it as `python -m dovetail.runtime.server.process`.

The environment variable `TF_CONFIG` specifies the task. The process ends when its standard input closes, that is, when the process
that started it has ended.
"""

from __future__ import annotations

import json
import os
import sys

from ..config import ConfigProto
from ..logs import set_up_log
from .server import Server


def server_from_environment(device_count: dict[str, int] | None = None, *, start: bool = True) -> Server:
    """The server that `TF_CONFIG` describes.

    Raises:
        ValueError: `TF_CONFIG` is missing or describes no task.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        described = json.loads(text)
        cluster, task = described["cluster"], described["task"]
        job, index = str(task["type"]), int(task["index"])
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(
            f"TF_CONFIG={text!r} describes no task ({e}); it must hold JSON such as "
            '{"cluster": {"ps": ["localhost:2222"]}, "task": {"type": "ps", "index": 0}}'
        ) from None
    return Server(cluster, job, index, config=ConfigProto(device_count=device_count or {}), start=start)


def main() -> None:
    """Serve until standard input closes. Arguments, if any: the task, as lists of processes show it, and its device counts as JSON."""
    server = server_from_environment(*map(json.loads, sys.argv[2:]), start=False)
    set_up_log(server.job_name, server.task_index)
    with server:
        sys.stdin.buffer.read()
    # Threads of the pool may still run a kernel; the process does not wait for them.
    os._exit(0)


if __name__ == "__main__":
    main()
