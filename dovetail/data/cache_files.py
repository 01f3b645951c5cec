"""The elements of a data set in a file, for `Dataset.cache(filename)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator as Walk, Sequence
from pathlib import Path

import msgpack

from ..graph.core.errors import DataLossError, InvalidArgumentError
from ..graph.formats.record_format import MAX_RECORD, MalformedError, Reader, extension
from .spec import Component, Element

FORMAT = "dovetail-elements-1"


def cached_in_file(name: str, make: Callable[[], Walk[Element]], components: Sequence[Component]) -> Walk[Element]:
    """The elements that a file holds; without one: those that `make` gives, which a file holds when all were taken.

    Raises:
        DataLossError: the file is damaged. InvalidArgumentError: its elements are of other types.
    """
    path = Path(f"{name}.elements")
    if path.exists():
        yield from _read(path, components)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    pieces: list[bytes] = []
    pack = msgpack.Packer(default=lambda value: extension(value, pieces), autoreset=True).pack
    count = 0
    try:
        with partial.open("wb") as file:
            file.write(pack((FORMAT, [c.dtype for c in components])))
            for element in make():
                record = pack(("e", list(element)))
                file.write(b"".join(pieces) + record)
                pieces.clear()
                count += 1
                yield element
            file.write(pack(("end", count)))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read(path: Path, components: Sequence[Component]) -> Walk[Element]:
    count, ended = 0, False
    try:
        with path.open("rb") as file:
            records = iter(Reader(MAX_RECORD, file))
            kind, types = next(records)
            if kind != FORMAT or types != tuple([c.dtype for c in components]):
                raise InvalidArgumentError.of(
                    f"{path} does not hold elements of {[c.dtype.name for c in components]}: delete it, or cache elsewhere"
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


__all__ = ["cached_in_file"]
