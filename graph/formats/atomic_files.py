"""Atomic file replacement: a file is there whole or not at all, whatever kills the process or the machine.

A file is written under another name, flushed to the disk, renamed, and the rename flushed, too. A reader sees the old file or the
new one. Each of these steps is a *point*: with `DOVETAIL_FAULTS=save:N` the process kills itself at the Nth, so tests try all
points.

Names such as `s3://bucket/model` mean files of other systems, by fsspec (`path_of`). There a file appears whole when it is closed, so
it is written under its own name; one whose writer is killed never does. What other tasks have just written is seen, since listings are
not cached. There are no locks: one program at a time may save into a folder.

Where the file system is full, a ResourceExhaustedError names the file and how many bytes it needs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import mmap
import os
import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from ..core.errors import ResourceExhaustedError, UnimplementedError
from ..core.fault_injection import faults

logger = logging.getLogger(__name__)

PARTIAL = r"\.[0-9a-f]+\.partial"
"""What follows the name of a file that is being written, as a pattern."""

_UNCACHED_BYTES = 16 << 20  # the smallest file that is written without the operating system's cache
_BUFFER_BYTES = 1 << 18  # of it that are written at a time
_points = itertools.count(1)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # what file systems without locks say


def path_of(name: Any) -> Path:
    """The path of a name; of one such as `s3://bucket/file`, a path that fsspec opens (a `UPath`, which has the methods of `Path`).

    Raises:
        UnimplementedError: the package `universal_pathlib` is not installed.
    """
    if not is_remote(name):
        return Path(name)
    try:
        from upath import UPath  # fsspec: loaded for remote files only
    except ImportError:
        raise UnimplementedError.of(f"{name} is in a remote file system: pip install 'dovetail[remote]'") from None
    return cast(Path, UPath(name, use_listings_cache=False))


def is_remote(name: Any) -> bool:
    """Whether a name means a file of another system, such as `memory://x`."""
    return not isinstance(name, Path) and "://" in str(name)


def point() -> None:
    """A point at which a save may be killed."""
    if faults().get("save") == str(next(_points)):
        os.kill(os.getpid(), signal.SIGKILL)


def write_durably(path: Path, write: Callable[[Path], None], size: int | None = None) -> None:
    """Make a file: `write` is given the name under which it is to be written first; `size`: how many bytes it writes, if known.

    Raises:
        ResourceExhaustedError: the disk is full, or a quota reached.
        OSError: what else the file system says. Nothing is left then.
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
            with contextlib.suppress(OSError):  # its folder is not there, or no folder
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
    """What takes the bytes of a file, in order."""

    def write(self, content: Any, /) -> object: ...


@contextlib.contextmanager
def open_sink(path: Path, size: int) -> Iterator[Sink]:
    """Open a new file to write `size` bytes, without the operating system's cache if they are many.

    A write to the cache costs a copy, and its flush keeps a processor in the kernel for milliseconds at a time, which threads that run
    beside it notice. Without the cache, the writing thread sleeps while the disk works. The room is reserved first.
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
    """None: some file systems, and systems other than Linux, have no O_DIRECT."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o666)
    except (OSError, AttributeError):
        return None


def _reserve(handle: int, size: int) -> None:
    """Reserve room on the disk, if the file system can. OSError: it has none."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as e:
        if e.errno in _FULL:
            raise


class _Uncached:
    """Collects bytes in a buffer of whole pages and writes it when it is full: O_DIRECT needs aligned memory, offsets and sizes."""

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
        """Write what is left, which may be no whole number of pages."""
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
    """Make a file of these bytes. Errors as for `write_durably`."""

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_durably(path, write, len(content))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file: one thread of one process at a time does. The file is removed afterwards.

    A process that is killed gives it up. Where a file system has no locks, none is held.
    """
    if is_remote(path):
        yield
        return
    handle = _take(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # (a forked child may still have the file open)
        os.close(handle)


def _take(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("Waiting for %s, which another thread or process holds", path)
                fcntl.flock(handle, fcntl.LOCK_EX)
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
        os.close(handle)  # its holder has removed it: take the next one


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    point()
    path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
