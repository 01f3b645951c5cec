"""TensorFlow's record files, which are sequences of byte records.

    length    8 bytes, little endian
    CRC       of the length, 4 bytes
    record    length bytes
    CRC       of the record, 4 bytes

The whole file may be compressed with zlib or gzip.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from typing import IO, Any

from ..graph.core.errors import DataLossError, NotFoundError
from ..graph.formats.atomic_files import path_of
from ..graph.formats.crc32c import masked

# Number of bytes to read at once from a zlib-compressed file.
CHUNK = 1 << 20


class TFRecordCompressionType:
    """The compression of a record file."""

    NONE, ZLIB, GZIP = 0, 1, 2


class TFRecordOptions:
    """Options of record files.

    Args:
        compression_type: a `TFRecordCompressionType`, or "", "ZLIB" or "GZIP".
        compression_level: from 0 to 9; None: zlib's default.
        flush_mode: accepted without effect.
        input_buffer_size: accepted without effect.
        output_buffer_size: accepted without effect.
        window_bits: accepted without effect.
        compression_method: accepted without effect.
        mem_level: accepted without effect.
        compression_strategy: accepted without effect.
    """

    compression_type_map = {0: "", 1: "ZLIB", 2: "GZIP"}

    def __init__(
        self,
        compression_type: Any = None,
        flush_mode: Any = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> None:
        self.compression_type = compression_of(compression_type)
        self.compression_level = -1 if compression_level is None else int(compression_level)


def compression_of(given: Any) -> str:
    """Converts a compression type, its enum value or options to '', 'ZLIB' or 'GZIP'. ValueError: it is something else."""
    if isinstance(given, TFRecordOptions):
        return given.compression_type
    known: dict[Any, str] = {None: "", **TFRecordOptions.compression_type_map}
    found = known.get(given, given)
    if isinstance(found, bytes):
        found = found.decode()
    if found not in ("", "ZLIB", "GZIP"):
        raise ValueError(f"compression_type must be '', 'ZLIB' or 'GZIP', not {given!r}")
    return str(found)


class TFRecordWriter:
    """Writes records to a file.

    Args:
        path: the file; an existing file is overwritten.
        options: a `TFRecordOptions`, or a compression type, "ZLIB" or "GZIP".

    >>> with TFRecordWriter("/tmp/data.tfrecord") as writer:
    ...     writer.write(example.SerializeToString())
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        compression = compression_of(options)
        level = options.compression_level if isinstance(options, TFRecordOptions) else -1
        self._deflate = zlib.compressobj(level) if compression == "ZLIB" else None
        self._file: Any  # an open file; None once it is closed
        if compression == "GZIP":
            self._file = gzip.open(str(path), "wb", 6 if level < 0 else level)  # noqa: SIM115  (`close` closes it)
        else:
            self._file = path_of(path).open("wb")  # noqa: SIM115

    def write(self, record: bytes) -> None:
        """Write a record. ValueError: the file is closed."""
        data = bytes(record)
        length = struct.pack("<Q", len(data))
        self._put(length + masked(length) + data + masked(data))

    def _put(self, data: bytes) -> None:
        if self._file is None:
            raise ValueError("The writer is closed.")
        self._file.write(self._deflate.compress(data) if self._deflate is not None else data)

    def flush(self) -> None:
        """Write buffered records to the file."""
        if self._file is None:
            raise ValueError("The writer is closed.")
        if self._deflate is not None:
            self._file.write(self._deflate.flush(zlib.Z_SYNC_FLUSH))
        self._file.flush()

    def close(self) -> None:
        """Write buffered records, and close the file."""
        if self._file is None:
            return
        if self._deflate is not None:
            self._file.write(self._deflate.flush())
        self._file.close()
        self._file = None

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Inflated:
    """Decompresses a zlib-compressed file in parts. EOFError: the file is truncated."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._inflate, self._ready = file, zlib.decompressobj(), bytearray()
        self._begun = False

    def read(self, count: int) -> bytes:
        while len(self._ready) < count and (data := self._inflate.unused_data or self._file.read(CHUNK)):
            if self._inflate.eof:  # a file may have several streams, as a concatenation of files
                self._inflate = zlib.decompressobj()
            self._begun = True
            self._ready += self._inflate.decompress(data)
        if len(self._ready) < count and self._begun and not self._inflate.eof:
            raise EOFError("the compressed data is truncated")
        found = bytes(self._ready[:count])
        del self._ready[:count]
        return found

    def close(self) -> None:
        self._file.close()


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """Iterate over the records of a file.

    Args:
        path: the file.
        options: a `TFRecordOptions`, or a compression type, "ZLIB" or "GZIP".

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: it is damaged or truncated.

    >>> count = sum(1 for record in tf_record_iterator("/tmp/data.tfrecord"))
    """
    compression = compression_of(options)
    try:
        file = path_of(path).open("rb")  # noqa: SIM115  (closed below)
    except FileNotFoundError as e:
        raise NotFoundError.of(f"{path}; No such file or directory") from e
    source: Any = file
    if compression == "GZIP":
        source = gzip.GzipFile(fileobj=file)
    elif compression == "ZLIB":
        source = _Inflated(file)
    with file:
        yield from _records(source, path)


def _records(source: Any, path: Any) -> Iterator[bytes]:
    at = 0
    while True:
        try:
            head = source.read(12)
            if not head:
                return
            length = _checked(head, 8, path, at)
            (count,) = struct.unpack("<Q", length)
            body = source.read(count + 4)
        except (OSError, EOFError, zlib.error) as e:
            raise DataLossError.of(f"{path}: corrupted record at {at}: {e}") from None
        yield _checked(body, count, path, at)
        at += 16 + count


def _checked(data: bytes, count: int, path: Any, at: int) -> bytes:
    """Returns the data before a CRC. DataLossError: the CRC does not match."""
    if len(data) < count + 4:
        raise DataLossError.of(f"{path}: truncated record at {at}")
    found = data[:count]
    if masked(found) != data[count:]:
        raise DataLossError.of(f"{path}: corrupted record at {at}: wrong checksum. The file may be compressed")
    return found


__all__ = ["TFRecordCompressionType", "TFRecordOptions", "TFRecordWriter", "tf_record_iterator"]
