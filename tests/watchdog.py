"""Watches a process for waits: `python watchdog.py PID SECONDS` goes on in the background and returns at once.

A process waits if neither it nor a child of it computes, or waits for a core or a disk. When it has done so for so many seconds, it
gets SIGUSR2. A limit on the whole time of a test cannot find waits: on a busy machine a test that computes takes minutes.
"""

import contextlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

IDLE = 0.05  # a process waits if it and its children use less than this part of one core
LOOKS = 20  # within the time that counts as a wait
TICKS = os.sysconf("SC_CLK_TCK")


def fields(path: Path) -> list[str]:
    """The fields of a process or thread behind its name: state, parent, ..."""
    return path.read_text().rpartition(")")[2].split()


def family(root: int) -> dict[int, float]:
    """Process id -> seconds of CPU time, with its ended children, of a process and all below it; empty when it has ended."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended meanwhile
            found = fields(folder / "stat")
            parents[int(folder.name)] = int(found[1])
            used[int(folder.name)] = sum(map(int, found[11:15])) / TICKS
    members = {root: used[root]} if root in used else {}
    while more := {pid: used[pid] for pid in parents if parents[pid] in members and pid not in members}:
        members.update(more)
    return members


def is_runnable(pids: Iterable[int]) -> bool:
    """Whether a thread of these processes runs, or waits for a core or a disk."""
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if fields(thread / "stat")[0] in "RD":
                    return True
    return False


def watch(root: int, wait_s: float) -> None:
    """Look on until the process ends."""
    looks: deque[tuple[float, float, bool]] = deque()  # (time, CPU seconds until then, runnable)
    while members := family(root):
        looks.append((time.monotonic(), sum(members.values()), is_runnable(members)))
        while len(looks) > 1 and looks[-1][0] - looks[1][0] >= wait_s:
            looks.popleft()
        seconds, used = looks[-1][0] - looks[0][0], looks[-1][1] - looks[0][1]
        is_starved = sum(runnable for _, _, runnable in looks) > len(looks) // 4
        if seconds >= wait_s and used < IDLE * seconds and not is_starved:
            looks.clear()
            with contextlib.suppress(ProcessLookupError):
                os.kill(root, signal.SIGUSR2)
        time.sleep(wait_s / LOOKS)


if __name__ == "__main__":
    if os.fork() == 0:  # the process that started this one sees it end, and has no child
        os.setsid()
        for descriptor in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        watch(int(sys.argv[1]), float(sys.argv[2]))
