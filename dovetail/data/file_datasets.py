"""The public data sets of files. An iterator opens the files when it starts, in the task where it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..graph.core.dtypes import as_dtype, string
from ..graph.core.graph import Tensor
from ..io.records import compression_of
from .dataset import Dataset
from .files import file_names_source, npy_files
from .kind_registry import DatasetBase
from .runtime_values import IntInput, RuntimeInputs, int_input, static_value_or_tensor
from .spec import Component


def _compression(given: Any) -> str | RuntimeInputs:
    found = static_value_or_tensor(given)
    return RuntimeInputs([found]) if isinstance(found, Tensor) else compression_of(_plain(found))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


class _FromFiles(Dataset):
    """A data set of the records of files. The file names are constants, a tensor, or the elements of another data set."""

    def __init__(self, kind: str, filenames: Any, parallel: Any, **params: Any) -> None:
        components = [Component(string, ())]
        if not isinstance(filenames, DatasetBase) and parallel is None:
            source = file_names_source(filenames)
            super().__init__(kind, "", components, arrays=source.arrays, given=source.given, **params)
            return
        if not isinstance(filenames, Dataset):
            source = file_names_source(filenames)
            if source.components[0].dims == ():
                filenames = Dataset.from_tensors(filenames)
            else:
                filenames = Dataset.from_tensor_slices(filenames)
        elif [c.dtype for c in filenames._components] != [string]:
            raise TypeError("`filenames` must be a `tf.data.Dataset` of `tf.string` elements.")

        def of_one(name: Any) -> Dataset:
            found = file_names_source(name)
            return Dataset(kind, "", components, arrays=found.arrays, given=found.given, **params)

        whole = filenames.flat_map(of_one) if parallel is None else filenames.interleave(of_one, parallel, 1, parallel)
        super().__init__(whole._kind, "", components, whole._inputs, **whole._params)


class _LinesOrRecords(_FromFiles):
    """The constructor that data sets of lines and of TFRecords share."""

    _KIND: str

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        super().__init__(self._KIND, filenames, num_parallel_reads, compression=_compression(compression_type))


class TextLineDataset(_LinesOrRecords):
    """The lines of text files as bytes, without line ends.

    Args:
        filenames: a file name, several, a tensor of them, or a data set of them.
        compression_type: "", "ZLIB" or "GZIP"; None: no compression.
        buffer_size: accepted without effect.
        num_parallel_reads: number of files to read in parallel, interleaved by line; None: one file after another.

    Raises:
        NotFoundError: in a step, if a file does not exist.

    >>> lines = TextLineDataset("words.txt").filter(lambda line: dt.not_equal(line, ""))
    """

    _KIND = "text_lines"


class TFRecordDataset(_LinesOrRecords):
    """The records of TFRecord files, as bytes.

    Args:
        filenames: a file name, several, a tensor of them, or a data set of them.
        compression_type: "", "ZLIB" or "GZIP"; None: no compression.
        buffer_size: accepted without effect.
        num_parallel_reads: number of files to read in parallel, interleaved by record; None: one file after another.

    Raises:
        NotFoundError: in a step, if a file does not exist.
        DataLossError: in a step, if a record is damaged.

    >>> dataset = TFRecordDataset("train.tfrecord").map(lambda record: dt.io.parse_single_example(record, features))
    """

    _KIND = "records"


class FixedLengthRecordDataset(_FromFiles):
    """Records of a fixed size, as bytes.

    Args:
        filenames: as in `TFRecordDataset`.
        record_bytes: the size of a record in bytes.
        header_bytes: bytes to skip at the beginning of each file.
        footer_bytes: bytes to skip at the end of each file.
        buffer_size: accepted without effect.
        compression_type: as in `TFRecordDataset`.
        num_parallel_reads: as in `TFRecordDataset`.

    Raises:
        ValueError: `record_bytes` is less than 1.
        NotFoundError: in a step, if a file does not exist.
        InvalidArgumentError: in a step, if the size of a file is not a multiple of the record size.

    >>> rows = FixedLengthRecordDataset("train.bin", record_bytes=3073).map(lambda r: dt.decode_raw(r, dt.uint8))
    """

    def __init__(
        self,
        filenames: Any,
        record_bytes: Any,
        header_bytes: Any = None,
        footer_bytes: Any = None,
        buffer_size: Any = None,
        compression_type: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        size: IntInput = int_input(record_bytes)
        if isinstance(size, int) and size < 1:
            raise ValueError(f"record_bytes must be at least 1, not {size}")
        super().__init__(
            "fixed_records", filenames, num_parallel_reads, compression=_compression(compression_type), record_bytes=size,
            header_bytes=int_input(0 if header_bytes is None else header_bytes),
            footer_bytes=int_input(0 if footer_bytes is None else footer_bytes),
        )  # fmt: skip


class NpyDataset(Dataset):
    """The rows of `.npy` files, read lazily. TensorFlow has no such data set.

    Args:
        filenames: a file name, or several.

    Raises:
        NotFoundError: a file does not exist.
        ValueError: the files have rows of different shapes or types.

    >>> images = NpyDataset(["part-0.npy", "part-1.npy"]).batch(32)
    """

    def __init__(self, filenames: Any) -> None:
        given = [filenames] if isinstance(filenames, (str, bytes, Path)) else list(filenames)
        names = tuple([os.fsdecode(n) for n in given])
        files = npy_files(names)
        component = Component(as_dtype(files[0].dtype), files[0].shape[1:])
        super().__init__("npy_rows", 0, [component], (), sum(map(len, files)), names=names)
