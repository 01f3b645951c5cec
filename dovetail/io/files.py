"""File operations under TensorFlow 1's names (`dt.gfile`).

Names such as `s3://bucket/file`, `gs://bucket/file` and `memory://file` are files in remote file systems, which fsspec accesses:
`pip install 'dovetail[s3]'`, `[gcs]`, or `[remote]` for others. Other names are files of this machine.
"""

from __future__ import annotations

import glob as _glob
import io
import os
import shutil
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from ..graph.core.build import TensorLike
from ..graph.core.default_graph import GraphKeys
from ..graph.core.errors import AlreadyExistsError, NotFoundError
from ..graph.formats.atomic_files import is_remote, path_of
from ..graph.ops.io.files import matching_files
from ..graph.variables.variable import Variable


class FileStatistics(NamedTuple):
    """The size of a file in bytes, its modification time in ns since 1970, and whether it is a folder."""

    length: int
    mtime_nsec: int
    is_directory: bool


class _TextFile(io.TextIOWrapper):
    """A file of text, to which bytes can also be written."""

    def write(self, data: str | bytes) -> int:
        if isinstance(data, str):
            return super().write(data)
        self.flush()
        self.buffer.write(data)
        return len(data)


class _BinaryFile(io.BufferedWriter):
    """A file of bytes, to which text can also be written, as UTF-8."""

    def write(self, data: Any) -> int:
        return super().write(data.encode() if isinstance(data, str) else data)

    def flush(self) -> None:
        super().flush()
        self.raw.flush()  # it has a buffer of its own


def GFile(name: str, mode: str = "r") -> IO[Any]:
    """Open a file. Text is UTF-8. Both kinds of files take text and bytes alike. NotFoundError: the file does not exist."""
    try:
        opened: Any = path_of(name).open(mode if "b" in mode else f"{mode}b")
    except FileNotFoundError as e:
        raise NotFoundError.of(f"{name}; No such file or directory") from e
    if "b" not in mode:
        return _TextFile(opened, "utf-8")
    return _BinaryFile(opened) if mode[0] in "wa" and "+" not in mode else opened


Open = FastGFile = GFile


def Exists(filename: str) -> bool:
    """Whether a file or folder of that name exists."""
    return path_of(filename).exists()


def IsDirectory(dirname: str) -> bool:
    """Whether a folder of that name exists."""
    return path_of(dirname).is_dir()


def MkDir(dirname: str) -> None:
    """Create a folder in an existing one."""
    path_of(dirname).mkdir()


def MakeDirs(dirname: str) -> None:
    """Create a folder and its parents. It may already exist."""
    path_of(dirname).mkdir(parents=True, exist_ok=True)


def ListDirectory(dirname: str) -> list[str]:
    """Return the names in a folder, sorted. NotFoundError: the folder does not exist."""
    try:
        return sorted(p.name for p in path_of(dirname).iterdir())
    except FileNotFoundError as e:
        raise NotFoundError.of(f"Could not find directory {dirname}") from e


def Glob(filename: str) -> list[str]:
    """Return the names of the files that match a pattern (`*`, `?`, `[...]`), sorted."""
    if is_remote(filename):
        fs, path = _file_system(filename)
        return sorted(fs.unstrip_protocol(found) for found in fs.glob(path))
    return sorted(_glob.glob(filename))  # noqa: PTH207  (pathlib cannot match absolute patterns)


def Stat(filename: str) -> FileStatistics:
    """Return the `FileStatistics` of a file. NotFoundError: the file does not exist."""
    try:
        found = path_of(filename).stat()
    except FileNotFoundError as e:
        raise NotFoundError.of(f"{filename}; No such file or directory") from e
    return FileStatistics(found.st_size, found.st_mtime_ns, path_of(filename).is_dir())


def Walk(top: str, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, subfolder names, file names) for a folder and all folders below it.

    Args:
        top: the folder.
        in_order: whether a folder comes before its subfolders.
    """
    if is_remote(top):
        fs, path = _file_system(top)
        found = [
            (fs.unstrip_protocol(f).rstrip("/"), sorted(folders), sorted(files)) for f, folders, files in fs.walk(path)
        ]
        yield from found if in_order else reversed(found)
        return
    for folder, folders, files in os.walk(top, topdown=in_order):
        folders.sort()
        yield folder, sorted(folders), sorted(files)


def Remove(filename: str) -> None:
    """Remove a file. NotFoundError: the file does not exist."""
    try:
        path_of(filename).unlink()
    except FileNotFoundError as e:
        raise NotFoundError.of(f"{filename}; No such file or directory") from e


def DeleteRecursively(dirname: str) -> None:
    """Remove a folder with its contents. NotFoundError: the folder does not exist."""
    try:
        if is_remote(dirname):
            fs, path = _file_system(dirname)
            fs.rm(path, recursive=True)
        else:
            shutil.rmtree(dirname)
    except FileNotFoundError as e:
        raise NotFoundError.of(f"{dirname}; No such file or directory") from e


def Copy(oldpath: str, newpath: str, overwrite: bool = False) -> None:
    """Copy a file. AlreadyExistsError: the new file exists, and `overwrite` is False."""
    _check_free(newpath, overwrite)
    if is_remote(oldpath) or is_remote(newpath):
        with path_of(oldpath).open("rb") as source, path_of(newpath).open("wb") as target:
            shutil.copyfileobj(source, target)
    else:
        shutil.copyfile(oldpath, newpath)


def Rename(oldname: str, newname: str, overwrite: bool = False) -> None:
    """Rename a file. AlreadyExistsError: the new file exists, and `overwrite` is False."""
    _check_free(newname, overwrite)
    if is_remote(oldname) or is_remote(newname):
        Copy(oldname, newname, overwrite=True)
        Remove(oldname)
    else:
        path_of(oldname).replace(newname)


def _file_system(name: str) -> tuple[Any, str]:
    """Returns fsspec's file system of a name, and the path in it."""
    path: Any = path_of(name)
    return path.fs, path.path


def _check_free(path: str, overwrite: bool) -> None:
    if not overwrite and path_of(path).exists():
        raise AlreadyExistsError.of(f"file already exists: {path}")


def match_filenames_once(pattern: TensorLike, name: str | None = None) -> Variable:
    """Create a local variable, string `[n]`, with the names of the client's files that match one or several patterns.

    The patterns are matched when local variables are initialized, so every epoch has the same files.

    Args:
        pattern: a pattern, or several.
        name: name of the variable.
    """
    return Variable(
        matching_files(pattern),
        trainable=False,
        validate_shape=False,
        collections=[GraphKeys.LOCAL_VARIABLES],
        name=name or "matching_filenames",
    )


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
