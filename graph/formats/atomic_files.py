"""Atomic file replacement: a file is complete or absent, even if the process or the machine is killed.

A file is written under another name, flushed to the disk and renamed. The rename is flushed, too. A reader sees the old file or the
new one. Each of these steps is a *point*. With `DOVETAIL_FAULTS=save:N` the process kills itself at the Nth point, so tests try all
points.

Names such as `s3://bucket/model` are remote files, which fsspec opens (`path_of`). A remote file appears when it is closed, so it is
written under its own name. If its writer is killed, it does not appear. Listings are not cached, so files of other tasks are seen at
once. There are no locks, so only one program at a time may save into a remote folder.

If the file system is full, a ResourceExhaustedError names the file and the number of bytes that it needs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import math
import mmap
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from ..core.errors import ResourceExhaustedError, UnimplementedError
from ..core.fault_injection import faults

logger = logging.getLogger(__name__)

PARTIAL = r"\.[0-9a-f]+\.partial"
"""A pattern for the suffix of a file that is being written."""

_UNCACHED_BYTES = 16 << 20  # size from which files are written without the operating system's cache
_BUFFER_BYTES = 1 << 18  # bytes of such a file that are written at a time
_POLL_S = 0.02  # how often a lock is asked for that is not waited for without end
_points = itertools.count(1)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without locks


def path_of(name: Any) -> Path:
    """The path of a name. For a remote name such as `s3://bucket/file`, it is a `UPath`, which has the methods of `Path`.

    Raises:
        UnimplementedError: the package `universal_pathlib` is not installed.
    """
    if not is_remote(name):
        return Path(name)
    try:
        from upath import UPath  # imported for remote files only
    except ImportError:
        raise UnimplementedError.of(f"{name} is in a remote file system: pip install 'dovetail[remote]'") from None
    return cast(Path, UPath(name, use_listings_cache=False))


def is_remote(name: Any) -> bool:
    """Whether a name is that of a remote file, such as `memory://x`."""
    return not isinstance(name, Path) and "://" in str(name)


def point() -> None:
    """A point at which a save may be killed."""
    if faults().get("save") == str(next(_points)):
        os.kill(os.getpid(), signal.SIGKILL)


def write_durably(path: Path, write: Callable[[Path], None], size: int | None = None) -> None:
    """Write a file atomically, and flush it to the disk.

    Args:
        path: name of the file.
        write: function that writes the content to the path that it gets.
        size: number of bytes that it writes, if it is known.

    Raises:
        ResourceExhaustedError: the disk is full, or a quota is reached.
        OSError: another error of the file system. The unfinished file is removed.
    """
    if is_remote(path):
        point()
        write(path)
        point()
        return
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    point()
    try:
        partial.touch()
        point()
        write(partial)
        point()
        _flush(partial)
        point()
        partial.replace(path)
    except OSError as e:
        if e.errno not in _FULL:
            with contextlib.suppress(OSError):  # its folder does not exist or is not a folder
                partial.unlink()
            if e.filename == str(partial):
                e.filename = str(path)
            raise
        written = partial.stat().st_size
        partial.unlink(missing_ok=True)
        raise ResourceExhaustedError.of(_full(path, e, written, size)) from None
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    point()
    _flush(path.parent)
    point()


class Sink(Protocol):
    """An object that writes the bytes of a file in order."""

    def write(self, content: Any, /) -> object: ...


@contextlib.contextmanager
def open_sink(path: Path, size: int) -> Iterator[Sink]:
    """Open a new file to write `size` bytes. A large file bypasses the operating system's cache.

    A write to the cache costs a copy. Its flush keeps a processor in the kernel for milliseconds at a time, which delays other threads.
    Without the cache, the writing thread sleeps while the disk works. The room on the disk is reserved first.
    """
    handle = None if is_remote(path) or size < _UNCACHED_BYTES else _open_uncached(path)
    if handle is None:
        with path.open("wb") as file:
            yield file
        return
    try:
        _reserve(handle, size)
        uncached = _Uncached(handle)
        yield uncached
        uncached.finish()
    finally:
        os.close(handle)


def _open_uncached(path: Path) -> int | None:
    """Open a file with O_DIRECT. None if the file system or the operating system does not have it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    except (OSError, AttributeError):
        return None


def _reserve(handle: int, size: int) -> None:
    """Reserve room on the disk, if the file system can. OSError if the disk is full."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as e:
        if e.errno in _FULL:
            raise


class _Uncached:
    """Writes bytes by a buffer of whole pages, because O_DIRECT needs aligned memory, offsets and sizes."""

    def __init__(self, handle: int) -> None:
        self._handle, self._buffer, self._count = handle, memoryview(mmap.mmap(-1, _BUFFER_BYTES)), 0

    def write(self, content: Any) -> None:
        rest = memoryview(content)
        while rest.nbytes:
            begin = self._count
            self._count = end = min(begin + rest.nbytes, _BUFFER_BYTES)
            self._buffer[begin:end] = rest[: end - begin]
            rest = rest[end - begin :]
            if end == _BUFFER_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write the rest, which may end within a page."""
        fcntl.fcntl(self._handle, fcntl.F_SETFL, fcntl.fcntl(self._handle, fcntl.F_GETFL) & ~os.O_DIRECT)
        self._flush()

    def _flush(self) -> None:
        left = self._buffer[: self._count]
        while left:
            left = left[os.write(self._handle, left) :]
        self._count = 0


def _full(path: Path, error: OSError, written: int, size: int | None) -> str:
    disk = os.statvfs(path.parent)
    needs = f"{size} bytes are needed" if size is not None else f"it was full after {written} bytes"
    return (
        f"{path} cannot be written: {error.strerror}: {needs}, {disk.f_bavail * disk.f_frsize} are free on its file system. "
        "Make room there, or write elsewhere"
    )


def write_bytes_durably(path: Path, content: bytes) -> None:
    """Write a file of these bytes. Errors are as for `write_durably`."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_durably(path, write, len(content))


@contextlib.contextmanager
def locked(path: Path, wait_s: float = math.inf) -> Iterator[None]:
    """Hold a lock file, which only one thread of one process can do at a time. The file is removed afterwards.

    The lock is released if the process is killed. On a file system without locks, this has no effect.

    Args:
        path: name of the lock file.
        wait_s: the longest wait for another holder, in seconds. After it, this goes on without the lock.
    """
    handle = None if is_remote(path) else _take(path, time.monotonic() + wait_s)
    if handle is None:
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # because a forked child may still have the file open
        os.close(handle)


def _take(path: Path, deadline: float) -> int | None:
    """Open and lock a file. None if another holder still has it at the deadline."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("Waiting for %s, which another thread or process holds", path)
                if not _is_freed(handle, deadline):
                    os.close(handle)
                    return None
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        except OSError as e:
            if e.errno in _NO_LOCKS:
                return handle
            os.close(handle)
            raise
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder has removed the file: try again


def _is_freed(handle: int, deadline: float) -> bool:
    """Wait for a lock, and take it. False if it is still taken at the deadline."""
    if deadline == math.inf:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return True
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    return False


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    point()
    path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
