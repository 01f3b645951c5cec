"""Data sets from files of records: TensorFlow's own, and those whose records have one size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator as Walk
from pathlib import Path
from typing import Any

import numpy as np

from ..graph.dtypes import string
from ..io.records import compression_of, tf_record_iterator
from .dataset import Dataset
from .files import files_of, names_of
from .given import Seeds
from .spec import Component, Element


def _text(record: bytes) -> Element:
    out = np.empty((), object)
    out[()] = record
    return [out]


class TFRecordDataset(Dataset):
    """The records of TensorFlow's record files, as bytes: one file after the other.

    Args:
        filenames: a file, or several, or a tensor of names. compression_type: "", "ZLIB" or "GZIP"; None: none.
        buffer_size, num_parallel_reads: accepted; `interleave` reads several files at once.

    Raises:
        NotFoundError: a file is not there. DataLossError: when it comes to a record that is damaged.

    >>> dataset = TFRecordDataset("train.tfrecord").map(lambda record: dt.io.parse_single_example(record, features))
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: str | None = None,
        buffer_size: int | None = None,
        num_parallel_reads: int | None = None,
    ) -> None:
        (names, given), compression = files_of(filenames), compression_of(compression_type)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            records = itertools.chain.from_iterable(tf_record_iterator(name, compression) for name in names(seeds))
            return map(_text, itertools.islice(records, skip, None))

        super().__init__("", [Component(string, ())], walk, given=given)


class FixedLengthRecordDataset(Dataset):
    """Records of one size, as bytes: one file after the other.

    Args:
        filenames: a file, or several. record_bytes: the size of a record.
        header_bytes, footer_bytes: what is left out at the beginning and the end of each file.
        buffer_size: accepted.

    Raises:
        NotFoundError: a file is not there. ValueError: a file holds no whole number of records.
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        buffer_size: int | None = None,
    ) -> None:
        names, before, after = names_of(filenames), header_bytes or 0, footer_bytes or 0
        if record_bytes < 1:
            raise ValueError(f"record_bytes must be at least 1, not {record_bytes}")
        counts = []
        for name in names:
            count, rest = divmod(Path(name).stat().st_size - before - after, record_bytes)
            if rest or count < 0:
                raise ValueError(f"{name} does not hold a whole number of records of {record_bytes} bytes")
            counts.append(count)

        def walk(seeds: Seeds, skip: int) -> Walk[Element]:
            for name, count in zip(names, counts, strict=True):
                if skip >= count:
                    skip -= count
                    continue
                with Path(name).open("rb") as file:
                    file.seek(before + skip * record_bytes)
                    for _ in range(count - skip):
                        yield _text(file.read(record_bytes))
                skip = 0

        super().__init__("", [Component(string, ())], walk, sum(counts))


__all__ = ["FixedLengthRecordDataset", "TFRecordDataset"]
