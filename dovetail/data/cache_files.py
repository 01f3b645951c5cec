"""Elements of a data set in a file, for `Dataset.cache(filename)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgpack

from ..graph.core.errors import DataLossError, InvalidArgumentError
from ..graph.formats.record_format import MAX_RECORD, MalformedError, Reader, extension
from .kind_registry import stop_when_cancelled
from .resumable import StepIterator
from .spec import Component, Element

FORMAT = "dovetail-elements-1"


def cached_in_file(
    name: str, make: Callable[[], Iterator[Element]], components: Sequence[Component]
) -> Iterator[Element]:
    """Reads the elements from a file. If there is none, yields the elements of `make()` and writes them to the file.

    The file appears under its name when the last element was taken.

    Raises:
        DataLossError: the file is damaged.
        InvalidArgumentError: its elements have other types.
    """
    path = Path(f"{name}.elements")
    if path.exists():
        return stop_when_cancelled(_read(path, components))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, elements = path.with_name(f"{path.name}.{os.getpid()}.partial"), make()
    return StepIterator(_CacheWriter(path, partial, partial.open("wb"), elements, components).next)


class _CacheWriter:
    """Passes elements on and writes them to a file. If it is dropped before the last element, it deletes the file."""

    def __init__(
        self, path: Path, partial: Path, file: IO[bytes], elements: Iterator[Element], components: Sequence[Component]
    ) -> None:
        self._path, self._partial, self._file, self._elements, self._count = path, partial, file, elements, 0
        # The packer refers to this list and not to `self`: a reference cycle would keep the file open until a garbage collection.
        pieces: list[bytes] = []
        self._pieces = pieces
        self._pack = msgpack.Packer(default=lambda value: extension(value, pieces), autoreset=True).pack
        self._file.write(self._pack((FORMAT, [c.dtype for c in components])))

    def next(self) -> Element:
        try:
            element = next(self._elements)
        except StopIteration:
            if not self._file.closed:
                self._file.write(self._pack(("end", self._count)))
                self._file.close()
                self._partial.replace(self._path)
            raise
        record = self._pack(("e", list(element)))
        self._file.write(b"".join(self._pieces) + record)
        self._pieces.clear()
        self._count += 1
        return element

    def __del__(self) -> None:
        if not self._file.closed:
            self._file.close()
            self._partial.unlink(missing_ok=True)


def _read(path: Path, components: Sequence[Component]) -> Iterator[Element]:
    count, ended = 0, False
    try:
        with path.open("rb") as file:
            records = iter(Reader(MAX_RECORD, file))
            kind, types = next(records)
            if kind != FORMAT or types != tuple([c.dtype for c in components]):
                raise InvalidArgumentError.of(
                    f"{path} does not hold elements of {[c.dtype.name for c in components]}. Delete it, or cache in another file"
                )
            for kind, what in records:
                if kind == "e":
                    count += 1
                    yield list(what)
                else:
                    ended = what == count
    except (MalformedError, ValueError, TypeError, StopIteration, msgpack.UnpackException) as e:
        raise DataLossError.of(f"{path} is damaged: {e}. Delete it") from None
    if not ended:
        raise DataLossError.of(f"{path} ends too early. Delete it")
