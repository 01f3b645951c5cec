"""Readers: nodes that read the files that a queue names, one record a step.

    names = dt.train.string_input_producer(["a.csv", "b.csv"])
    _, line = dt.TextLineReader(skip_header_lines=1).read(names)
    x, y = dt.decode_csv(line, [[0.0], [0]])
    xs, ys = dt.train.shuffle_batch([x, y], batch_size=32, capacity=1000, min_after_dequeue=500)

They are TensorFlow 1's older way; a `dt.data.Dataset` does the same without queues and threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....graph.core.build import TensorLike, convert, make
from ....graph.core.dtypes import int64
from ....graph.core.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from ....graph.core.graph import Node, Tensor
from ....graph.formats.text_lines import lines_of
from ....graph.ops.state.queue_api import QueueBase
from ....io.records import compression_of, tf_record_iterator
from ..ops.readers import Format, Record, reader


class ReaderBase:
    """What all readers can do.

    Attributes:
        reader_ref: the handle. supports_serialize: False.
    """

    supports_serialize = False

    def __init__(self, records_of: Format, name: str | None, shared_name: str | None = None) -> None:
        self.reader_ref: Tensor = reader(records_of, shared_name, name or type(self).__name__)

    def read(self, queue: QueueBase | Tensor, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The next record: (key, record), string scalars. When a file is finished, the next name is taken from the queue.

        Raises (when it runs):
            OutOfRangeError: the queue is closed and empty. NotFoundError: a file is not there.
        """
        node = make("ReaderReadV2", (self.reader_ref, _handle(queue)), None, name or "ReaderRead")
        return node.outputs[0], node.outputs[1]

    def read_up_to(
        self, queue: QueueBase | Tensor, num_records: TensorLike, name: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Up to so many records: (keys, records), `[n]`; fewer, but at least one, at the end of each file."""
        count = convert(num_records, int64, name="num_records")
        node = make("ReaderReadUpToV2", (self.reader_ref, _handle(queue), count), None, name or "ReaderReadUpTo")
        return node.outputs[0], node.outputs[1]

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records it has given, int64."""
        return make("ReaderNumRecordsProducedV2", (self.reader_ref,), None, name).outputs[0]

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files it has finished, int64."""
        return make("ReaderNumWorkUnitsCompletedV2", (self.reader_ref,), None, name).outputs[0]

    def reset(self, name: str | None = None) -> Node:
        """A node that makes it as new; what the queue has given is gone."""
        return make("ReaderResetV2", (self.reader_ref,), None, name)

    def serialize_state(self, name: str | None = None) -> Tensor:
        """UnimplementedError: where a data set stands can be saved (`data.experimental.make_saveable_from_iterator`)."""
        raise UnimplementedError(
            None, None,
            f"The state of a {type(self).__name__} cannot be saved; that of a data set can: make_saveable_from_iterator",
        )  # fmt: skip

    restore_state = serialize_state


def _handle(queue: QueueBase | Tensor) -> Tensor:
    return queue if isinstance(queue, Tensor) else queue.queue_ref


def _opened(name: str) -> Any:
    try:
        return Path(name).open("rb")
    except OSError as e:
        raise NotFoundError(None, None, f"{name}; {e.strerror}") from e


class TextLineReader(ReaderBase):
    """Lines of text, without their ends. The key is `file:line`, counted from 1.

    Args:
        skip_header_lines: so many at the beginning of each file are left out.
    """

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        skipped = skip_header_lines or 0

        def lines(path: str) -> Iterator[Record]:
            with _opened(path) as file:
                for number, line in enumerate(lines_of(file), 1):
                    if number > skipped:
                        yield f"{path}:{number}", line

        super().__init__(lines, name)


class WholeFileReader(ReaderBase):
    """Files as they are. The key is the file's name."""

    def __init__(self, name: str | None = None) -> None:
        def content(path: str) -> Iterator[Record]:
            with _opened(path) as file:
                yield path, file.read()

        super().__init__(content, name)


class IdentityReader(ReaderBase):
    """The names themselves, as key and as record."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(lambda path: iter([(path, path.encode())]), name)


class TFRecordReader(ReaderBase):
    """Records of TensorFlow's record files. The key is `file:byte`, where the record begins.

    Args:
        options: a `TFRecordOptions`, or the compression.
    """

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        compression = compression_of(options)

        def records(path: str) -> Iterator[Record]:
            at = 0
            for record in tf_record_iterator(path, compression):
                yield f"{path}:{at}", record
                at += 16 + len(record)

        super().__init__(records, name)


class FixedLengthRecordReader(ReaderBase):
    """Records of one size. The key is `file:number`, counted from 0.

    Args:
        record_bytes: the size. header_bytes, footer_bytes: what is left out at the beginning and the end of each file.
        hop_bytes: from the beginning of a record to that of the next; 0 or None: as many as it has. encoding: "", "ZLIB" or "GZIP".

    Raises:
        ValueError: a size that is not positive. InvalidArgumentError, when it runs: a file holds no whole number of records.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        before, after, hop = header_bytes or 0, footer_bytes or 0, hop_bytes or record_bytes
        if record_bytes < 1 or min(before, after, hop) < 0:
            raise ValueError(
                f"sizes must be positive: {record_bytes} bytes a record, {before} before, {after} after, {hop} on"
            )
        if encoding not in (None, "", "ZLIB", "GZIP"):
            raise ValueError(f"encoding must be '', 'ZLIB' or 'GZIP', not {encoding!r}")

        def records(path: str) -> Iterator[Record]:
            import zlib

            with _opened(path) as file:
                data = file.read()
            if encoding:
                data = zlib.decompress(data, 16 + zlib.MAX_WBITS if encoding == "GZIP" else zlib.MAX_WBITS)
            body = data[before : len(data) - after]
            if hop == record_bytes and len(body) % record_bytes:
                raise InvalidArgumentError(
                    None,
                    None,
                    f'Excluding the header ({before} bytes) and footer ({after} bytes), input file "{path}" has body length '
                    f"{len(body)} bytes, which is not an exact multiple of the record length ({record_bytes} bytes).",
                )
            for number, at in enumerate(range(0, len(body) - record_bytes + 1, hop)):
                yield f"{path}:{number}", body[at : at + record_bytes]

        super().__init__(records, name)


__all__ = [
    "FixedLengthRecordReader",
    "IdentityReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
]
