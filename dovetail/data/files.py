"""Iterators over files: lines of text, records, rows of `.npy` files, and file names."""

from __future__ import annotations

import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..graph.core.dtypes import string
from ..graph.core.errors import DataLossError, InvalidArgumentError, NotFoundError
from ..graph.core.graph import Tensor
from ..io import files as gfile
from ..io.records import compression_of, tf_record_iterator
from .kind_registry import DatasetBase, kind
from .resumable import flatten_iterators, skip_elements
from .runtime_values import IterationContext, Source, source_arrays
from .spec import Array, Element, bytes_element


def file_names_source(filenames: Any) -> Source:
    """Returns the file names of an argument: a string, several, or a tensor of them. TypeError: they are not strings."""
    if isinstance(filenames, os.PathLike):
        filenames = os.fsdecode(filenames)
    if isinstance(filenames, (list, tuple)) and not any(isinstance(n, Tensor) for n in filenames):
        filenames = np.array([os.fsencode(n) if isinstance(n, os.PathLike) else n for n in filenames], object)
    source = Source([filenames])
    if source.components[0].dtype is not string:
        raise TypeError(f"File names must be strings, not {source.components[0].dtype.name}")
    return source


def files_of(d: DatasetBase, context: IterationContext) -> list[str]:
    """Returns the file names of a data set in an iteration. NotFoundError: a file does not exist."""
    names = [
        os.fsdecode(n) for n in source_arrays(context, d._params["arrays"], d._params["given"])[0].ravel().tolist()
    ]
    for name in names:
        context.check_file(name)
        if not Path(name).is_file():
            raise NotFoundError.of(f"{name}; No such file or directory")
    return names


@kind("matching_files")
def _matching(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    patterns = [
        os.fsdecode(p) for p in source_arrays(context, d._params["arrays"], d._params["given"])[0].ravel().tolist()
    ]
    for pattern in patterns:
        context.check_file(re.split(r"[*?\[]", pattern)[0].rpartition("/")[0] or ".")
    found = sorted({name for p in patterns for name in gfile.Glob(p)})
    for name in found:
        context.check_file(name)
    if not found:
        raise InvalidArgumentError.of(f"No files matched pattern: {', '.join(patterns)}")
    return map(bytes_element, map(os.fsencode, found[skip:]))


@kind("text_lines")
def _lines(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    compression = compression_of_dataset(d, context)

    def lines(name: str) -> Iterator[Element]:
        try:
            with opened(name, compression) as file:
                for line in file:
                    text = line.rstrip(b"\n").replace(b"\r", b"")  # TensorFlow drops each "\r" of a line
                    if text or line.endswith(b"\n"):
                        yield bytes_element(text)
        except (OSError, EOFError, zlib.error) as e:
            raise DataLossError.of(f"{name} cannot be read as {compression or 'text'}: {e}") from None

    return skip_elements(flatten_iterators(map(lines, files_of(d, context))), skip)


def compression_of_dataset(d: DatasetBase, context: IterationContext) -> str:
    """Returns the compression type of a data set's files. InvalidArgumentError: it is unknown."""
    given = d._params["compression"]
    if not isinstance(given, str):
        given = source_arrays(context, (None,), given)[0].item().decode()
    try:
        return compression_of(given)
    except ValueError as e:
        raise InvalidArgumentError.of(str(e)) from None


def opened(name: str, compression: str) -> IO[bytes]:
    """Opens a file for reading its decompressed bytes."""
    if compression == "GZIP":
        unpacked: Any = gzip.open(name)  # noqa: SIM115  (the caller closes it)
        found: IO[bytes] = unpacked
        return found
    if compression == "ZLIB":
        return io.BytesIO(zlib.decompress(Path(name).read_bytes()))
    return Path(name).open("rb")


@kind("npy_rows")
def _npy_rows(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    for name in d._params["names"]:
        context.check_file(name)
    for file in npy_files(d._params["names"]):
        for i in range(min(skip, len(file)), len(file)):
            yield [np.array(file[i])]
        skip = max(0, skip - len(file))


def npy_files(names: Sequence[str]) -> list[Array]:
    """Opens `.npy` files as memory maps. ValueError: their rows have different shapes or types."""
    for name in names:
        if not Path(name).is_file():
            raise NotFoundError.of(f"{name}; No such file or directory")
    files: list[Array] = [np.load(name, mmap_mode="r", allow_pickle=False) for name in names]
    kinds = {(f.dtype, f.shape[1:]) for f in files if f.ndim}
    if len(kinds) != 1 or not all(f.ndim for f in files):
        raise ValueError(f"The files' rows must have one type and shape: {[(str(f.dtype), f.shape) for f in files]}")
    return files


@kind("records")
def _records(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    compression = compression_of_dataset(d, context)
    records = flatten_iterators(map(partial(tf_record_iterator, options=compression), files_of(d, context)))
    return map(bytes_element, skip_elements(records, skip))


@kind("fixed_records")
def _fixed(d: DatasetBase, context: IterationContext, skip: int) -> Iterator[Element]:
    size, before, behind = (
        context.int_of(d._params[name]) for name in ("record_bytes", "header_bytes", "footer_bytes")
    )
    compression = compression_of_dataset(d, context)

    def rows(name: str) -> Iterator[Element]:
        nonlocal skip
        if compression:
            with opened(name, compression) as file:
                length = len(file.read())
        else:
            length = Path(name).stat().st_size
        count, rest = divmod(length - before - behind, size)
        if rest or count < 0:
            raise InvalidArgumentError.of(
                f"{name} has {length - before - behind} bytes without header and footer, which is not a multiple of the record size of "
                f"{size} bytes",
            )
        if skip >= count:
            skip -= count
            return
        with opened(name, compression) as file:
            file.seek(before + skip * size)
            for _ in range(count - skip):
                yield bytes_element(file.read(size))
        skip = 0

    return flatten_iterators(map(rows, files_of(d, context)))
