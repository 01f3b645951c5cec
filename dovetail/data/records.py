"""Iterators over record files: TensorFlow's format, and files with records of a fixed size."""

from __future__ import annotations

from collections.abc import Iterator as Walk
from functools import partial
from pathlib import Path

from ..graph.core.errors import InvalidArgumentError
from ..io.records import tf_record_iterator
from .files import compression_at, files_of, opened
from .kind_registry import Described, kind
from .resumable import after, flattened
from .runtime_values import At
from .spec import Element, text_element


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


__all__: list[str] = []
