"""Iterators over record files: TensorFlow's format, and files with records of a fixed size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator as Walk
from pathlib import Path

from ..graph.core.errors import InvalidArgumentError
from ..io.records import tf_record_iterator
from .files import compression_at, files_of, opened
from .kind_registry import Described, kind
from .runtime_values import At
from .spec import Element, text_element


@kind("records")
def _records(d: Described, at: At, skip: int) -> Walk[Element]:
    compression = compression_at(d, at)
    records = itertools.chain.from_iterable(tf_record_iterator(name, compression) for name in files_of(d, at))
    return map(text_element, itertools.islice(records, skip, None))


@kind("fixed_records")
def _fixed(d: Described, at: At, skip: int) -> Walk[Element]:
    size, before, after = (at.number(d._params[name]) for name in ("record_bytes", "header_bytes", "footer_bytes"))
    compression = compression_at(d, at)
    for name in files_of(d, at):
        if compression:
            with opened(name, compression) as file:
                length = len(file.read())
        else:
            length = Path(name).stat().st_size
        count, rest = divmod(length - before - after, size)
        if rest or count < 0:
            raise InvalidArgumentError.of(
                f"{name} does not hold a whole number of records of {size} bytes: without header and footer it has "
                f"{length - before - after} bytes",
            )
        if skip >= count:
            skip -= count
            continue
        with opened(name, compression) as file:
            file.seek(before + skip * size)
            for _ in range(count - skip):
                yield text_element(file.read(size))
        skip = 0


__all__: list[str] = []
