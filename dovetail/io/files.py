"""Files, under TensorFlow 1's names (`dt.gfile`): those of this machine, by Python's own functions."""

from __future__ import annotations

import glob as _glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..graph.core.errors import AlreadyExistsError, NotFoundError


class FileStatistics(NamedTuple):
    """What is known about a file: its size in bytes, when it was changed (ns since 1970), and whether it is a folder."""

    length: int
    mtime_nsec: int
    is_directory: bool


def GFile(name: str, mode: str = "r") -> IO[Any]:
    """An open file; text is UTF-8. NotFoundError: it is not there."""
    try:
        return Path(name).open(mode, encoding=None if "b" in mode else "utf-8")
    except FileNotFoundError as e:
        raise NotFoundError(None, None, f"{name}; No such file or directory") from e


Open = FastGFile = GFile


def Exists(filename: str) -> bool:
    """Whether a file or folder of that name is there."""
    return Path(filename).exists()


def IsDirectory(dirname: str) -> bool:
    """Whether a folder of that name is there."""
    return Path(dirname).is_dir()


def MkDir(dirname: str) -> None:
    """Make a folder in one that is there."""
    Path(dirname).mkdir()


def MakeDirs(dirname: str) -> None:
    """Make a folder, and those above it; it may be there."""
    Path(dirname).mkdir(parents=True, exist_ok=True)


def ListDirectory(dirname: str) -> list[str]:
    """Names in a folder, sorted. NotFoundError: it is not there."""
    try:
        return sorted(p.name for p in Path(dirname).iterdir())
    except FileNotFoundError as e:
        raise NotFoundError(None, None, f"Could not find directory {dirname}") from e


def Glob(filename: str) -> list[str]:
    """Files whose names fit a pattern (`*`, `?`, `[...]`), sorted."""
    return sorted(_glob.glob(filename))  # noqa: PTH207  (patterns with a folder in them)


def Stat(filename: str) -> FileStatistics:
    """What is known about a file. NotFoundError: it is not there."""
    try:
        found = Path(filename).stat()
    except FileNotFoundError as e:
        raise NotFoundError(None, None, f"{filename}; No such file or directory") from e
    return FileStatistics(found.st_size, found.st_mtime_ns, Path(filename).is_dir())


def Walk(top: str, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of folders, names of files) for a folder and those below it; `in_order`: a folder before what is in it."""
    for folder, folders, files in os.walk(top, topdown=in_order):
        folders.sort()
        yield folder, sorted(folders), sorted(files)


def Remove(filename: str) -> None:
    """Remove a file. NotFoundError: it is not there."""
    try:
        Path(filename).unlink()
    except FileNotFoundError as e:
        raise NotFoundError(None, None, f"{filename}; No such file or directory") from e


def DeleteRecursively(dirname: str) -> None:
    """Remove a folder with all that is in it. NotFoundError: it is not there."""
    try:
        shutil.rmtree(dirname)
    except FileNotFoundError as e:
        raise NotFoundError(None, None, f"{dirname}; No such file or directory") from e


def Copy(oldpath: str, newpath: str, overwrite: bool = False) -> None:
    """Copy a file. AlreadyExistsError: the new one is there, unless `overwrite`."""
    _check_free(newpath, overwrite)
    shutil.copyfile(oldpath, newpath)


def Rename(oldname: str, newname: str, overwrite: bool = False) -> None:
    """Rename a file. AlreadyExistsError: the new one is there, unless `overwrite`."""
    _check_free(newname, overwrite)
    Path(oldname).replace(newname)


def _check_free(path: str, overwrite: bool) -> None:
    if not overwrite and Path(path).exists():
        raise AlreadyExistsError(None, None, f"file already exists: {path}")


__all__ = [
    "Copy",
    "DeleteRecursively",
    "Exists",
    "FastGFile",
    "GFile",
    "Glob",
    "IsDirectory",
    "ListDirectory",
    "MakeDirs",
    "MkDir",
    "Open",
    "Remove",
    "Rename",
    "Stat",
    "Walk",
]
