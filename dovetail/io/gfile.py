"""The file operations of `files`, under the names of `tf.io.gfile`."""

from __future__ import annotations

from collections.abc import Iterator

from ..graph.formats.atomic_files import path_of
from . import files as _v1
from .files import FileStatistics, GFile

copy = _v1.Copy
exists = _v1.Exists
glob = _v1.Glob
isdir = _v1.IsDirectory
listdir = _v1.ListDirectory
makedirs = _v1.MakeDirs
mkdir = _v1.MkDir
remove = _v1.Remove
rename = _v1.Rename
rmtree = _v1.DeleteRecursively
stat = _v1.Stat


def walk(top: str, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (folder, subfolder names, file names) for a folder and all folders below it.

    Args:
        top: the folder.
        topdown: whether a folder comes before its subfolders.
    """
    return _v1.Walk(top, topdown)


def join(path: str, *paths: str) -> str:
    """Join the parts of a path."""
    return str(path_of(path).joinpath(*paths))


__all__ = [
    "FileStatistics",
    "GFile",
    "copy",
    "exists",
    "glob",
    "isdir",
    "join",
    "listdir",
    "makedirs",
    "mkdir",
    "remove",
    "rename",
    "rmtree",
    "stat",
    "walk",
]
