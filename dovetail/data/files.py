"""Iterators over files: lines of text, records, rows of NumPy's files, and names of files."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator as Walk, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..graph.core.dtypes import string
from ..graph.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from ..graph.core.graph import Tensor
from ..io import files as gfile
from ..io.records import compression_of, tf_record_iterator
from .kind_registry import Described, kind
from .resumable import after, flattened
from .runtime_values import At, Source, arrays_of
from .spec import Array, Element, text_element


def names_of(filenames: Any) -> Source:
    """The names of files that an argument gives: text, several, or a tensor of them. TypeError: no text."""
    if isinstance(filenames, os.PathLike):
        filenames = os.fsdecode(filenames)
    if isinstance(filenames, (list, tuple)) and not any(isinstance(n, Tensor) for n in filenames):
        filenames = np.array([os.fsencode(n) if isinstance(n, os.PathLike) else n for n in filenames], object)
    source = Source([filenames])
    if source.components[0].dtype is not string:
        raise TypeError(f"Names of files are text, not {source.components[0].dtype.name}")
    return source


def files_of(d: Described, at: At) -> list[str]:
    """The files of a data set in a walk. NotFoundError: one is not there."""
    names = [os.fsdecode(n) for n in arrays_of(at, d._params["arrays"], d._params["given"])[0].ravel().tolist()]
    for name in names:
        at.check_file(name)
        if not Path(name).is_file():
            raise NotFoundError.of(f"{name}; No such file or directory")
    return names


@kind("matching_files")
def _matching(d: Described, at: At, skip: int) -> Walk[Element]:
    patterns = [os.fsdecode(p) for p in arrays_of(at, d._params["arrays"], d._params["given"])[0].ravel().tolist()]
    for pattern in patterns:
        at.check_file(re.split(r"[*?\[]", pattern)[0].rpartition("/")[0] or ".")
    found = sorted({name for p in patterns for name in gfile.Glob(p)})
    for name in found:
        at.check_file(name)
    if not found:
        raise InvalidArgumentError.of(f"No files matched pattern: {', '.join(patterns)}")
    return map(text_element, map(os.fsencode, found[skip:]))


@kind("text_lines")
def _lines(d: Described, at: At, skip: int) -> Walk[Element]:
    compression = compression_at(d, at)

    def lines(name: str) -> Walk[Element]:
        try:
            with opened(name, compression) as file:
                for line in file:
                    text = line.rstrip(b"\n").replace(b"\r", b"")  # TensorFlow drops each one, wherever it stands
                    if text or line.endswith(b"\n"):
                        yield text_element(text)
        except (OSError, EOFError, zlib.error) as e:
            raise DataLossError.of(f"{name} cannot be read as {compression or 'text'}: {e}") from None

    return after(flattened(map(lines, files_of(d, at))), skip)


def compression_at(d: Described, at: At) -> str:
    """How the files of a data set are compressed. InvalidArgumentError: not known."""
    given = d._params["compression"]
    if not isinstance(given, str):
        given = arrays_of(at, (None,), given)[0].item().decode()
    try:
        return compression_of(given)
    except ValueError as e:
        raise InvalidArgumentError.of(str(e)) from None


def opened(name: str, compression: str) -> IO[bytes]:
    """A file for reading, uncompressed."""
    if compression == "GZIP":
        unpacked: Any = gzip.open(name)  # noqa: SIM115  (the caller closes it)
        found: IO[bytes] = unpacked
        return found
    if compression == "ZLIB":
        return io.BytesIO(zlib.decompress(Path(name).read_bytes()))
    return Path(name).open("rb")


@kind("npy_rows")
def _npy_rows(d: Described, at: At, skip: int) -> Walk[Element]:
    for name in d._params["names"]:
        at.check_file(name)
    for file in npy_files(d._params["names"]):
        for i in range(min(skip, len(file)), len(file)):
            yield [np.array(file[i])]
        skip = max(0, skip - len(file))


def npy_files(names: Sequence[str]) -> list[Array]:
    """NumPy's files, whose rows are read lazily. ValueError: rows of different shapes or types."""
    for name in names:
        if not Path(name).is_file():
            raise NotFoundError.of(f"{name}; No such file or directory")
    files: list[Array] = [np.load(name, mmap_mode="r", allow_pickle=False) for name in names]
    kinds = {(f.dtype, f.shape[1:]) for f in files if f.ndim}
    if len(kinds) != 1 or not all(f.ndim for f in files):
        raise ValueError(f"The files' rows must have one type and shape: {[(str(f.dtype), f.shape) for f in files]}")
    return files


@kind("records")
def _records(d: Described, at: At, skip: int) -> Walk[Element]:
    compression = compression_at(d, at)
    records = flattened(map(partial(tf_record_iterator, options=compression), files_of(d, at)))
    return map(text_element, after(records, skip))


@kind("fixed_records")
def _fixed(d: Described, at: At, skip: int) -> Walk[Element]:
    size, before, behind = (at.number(d._params[name]) for name in ("record_bytes", "header_bytes", "footer_bytes"))
    compression = compression_at(d, at)

    def rows(name: str) -> Walk[Element]:
        nonlocal skip
        if compression:
            with opened(name, compression) as file:
                length = len(file.read())
        else:
            length = Path(name).stat().st_size
        count, rest = divmod(length - before - behind, size)
        if rest or count < 0:
            raise InvalidArgumentError.of(
                f"{name} does not hold a whole number of records of {size} bytes: without header and footer it has "
                f"{length - before - behind} bytes",
            )
        if skip >= count:
            skip -= count
            return
        with opened(name, compression) as file:
            file.seek(before + skip * size)
            for _ in range(count - skip):
                yield text_element(file.read(size))
        skip = 0

    return flattened(map(rows, files_of(d, at)))


__all__ = ["compression_at", "files_of", "names_of", "npy_files", "opened"]
