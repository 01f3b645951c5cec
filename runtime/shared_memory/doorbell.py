"""A doorbell: how another process of the machine wakes a task, without a message.

A doorbell is a pipe of the task. Others open it as `/proc/PID/fd/N`, which the kernel allows to processes of the same user only, and
write a byte. The byte says that something has happened, not what: the task looks itself (`variable_publisher.py`). If the pipe is full,
the task is being woken anyway; if the task has ended, there is nothing to wake.
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from pathlib import Path

from .segment import MappingError


class Doorbell:
    """A task's own.

    Attributes:
        fd: what there is to read from when it was rung.
        name: by which others find it: its descriptor and number.
    """

    def __init__(self) -> None:
        self.fd, self._held_open = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.name = self.fd, os.fstat(self.fd).st_ino

    def answer(self) -> None:
        """Let it be quiet, until it is rung again."""
        with contextlib.suppress(OSError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        """Take it away."""
        fds, self.fd, self._held_open = (self.fd, self._held_open), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    __del__ = close


class Ringer:
    """What rings another process's bell.

    Raises:
        Unreadable: there is none, or another one than the one meant.
    """

    def __init__(self, pid: int, fd: int, number: int) -> None:
        self._fd = -1
        path = f"/proc/{pid}/fd/{fd}"
        try:
            found = Path(path).stat()
            if not stat.S_ISFIFO(found.st_mode) or found.st_ino != number:
                raise MappingError(f"{path} is not the bell that was meant")
            self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as e:
            raise MappingError(f"{path}: {e.strerror}") from None

    def ring(self) -> None:
        """Ring."""
        with contextlib.suppress(OSError):
            os.write(self._fd, b"\0")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


_ropes: weakref.WeakValueDictionary[tuple[int, int, int], Ringer] = weakref.WeakValueDictionary()


def ringer(pid: int, fd: int, number: int) -> Ringer:
    """What rings a bell: the same for the whole process. Unreadable: as `Ringer`."""
    key = pid, fd, number
    found = _ropes.get(key)
    if found is None:
        found = _ropes[key] = Ringer(*key)
    return found


__all__ = ["Doorbell", "Ringer", "ringer"]
