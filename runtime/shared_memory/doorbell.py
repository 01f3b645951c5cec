"""A doorbell: wakes a task of another process on this machine without a message.

A doorbell is a pipe of the task. Others open it as `/proc/PID/fd/N`, which the kernel allows to processes of the same user only, and
write a byte. The byte carries no information: the task checks its state itself (`variable_publisher.py`). A full pipe means that the
task is being woken anyway. A task that has ended is not woken.
"""

from __future__ import annotations

import contextlib
import os
import stat
import weakref
from pathlib import Path

from .segment import MappingError


class Doorbell:
    """The receiving end of a task's doorbell.

    Attributes:
        fd: readable after a wake-up.
        name: its descriptor and number, by which other processes open it.
    """

    def __init__(self) -> None:
        self.fd, self._held_open = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.name = self.fd, os.fstat(self.fd).st_ino

    def answer(self) -> None:
        """Clear the doorbell until the next wake-up."""
        with contextlib.suppress(OSError):
            os.read(self.fd, 4096)

    def close(self) -> None:
        """Close the doorbell."""
        fds, self.fd, self._held_open = (self.fd, self._held_open), -1, -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    __del__ = close


class Ringer:
    """The sending end of another process's doorbell.

    Raises:
        MappingError: the process has no such doorbell.
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
        """Wake the task."""
        with contextlib.suppress(OSError):
            os.write(self._fd, b"\0")

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


_ropes: weakref.WeakValueDictionary[tuple[int, int, int], Ringer] = weakref.WeakValueDictionary()


def ringer(pid: int, fd: int, number: int) -> Ringer:
    """The cached sending end of a doorbell, shared by the whole process. MappingError: as `Ringer`."""
    key = pid, fd, number
    found = _ropes.get(key)
    if found is None:
        found = _ropes[key] = Ringer(*key)
    return found


__all__ = ["Doorbell", "Ringer", "ringer"]
