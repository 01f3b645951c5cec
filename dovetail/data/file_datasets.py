"""The public data sets of files. Files are opened when an iterator starts, on the task where it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..graph.core.dtypes import as_dtype, string
from ..graph.core.graph import Tensor
from ..io.records import compression_of
from .dataset import Dataset
from .files import names_of, npy_files
from .kind_registry import Described
from .runtime_values import Given, Number, known, whole_number
from .spec import Component


def _compression(given: Any) -> str | Given:
    found = known(given)
    return Given([found]) if isinstance(found, Tensor) else compression_of(_plain(found))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


class _FromFiles(Dataset):
    """Records of files. The names are constants, a tensor, or the elements of another data set."""

    def __init__(self, kind: str, filenames: Any, parallel: Any, **params: Any) -> None:
        components = [Component(string, ())]
        if not isinstance(filenames, Described) and parallel is None:
            source = names_of(filenames)
            super().__init__(kind, "", components, arrays=source.arrays, given=source.given, **params)
            return
        if not isinstance(filenames, Dataset):
            source = names_of(filenames)
            if source.components[0].dims == ():
                filenames = Dataset.from_tensors(filenames)
            else:
                filenames = Dataset.from_tensor_slices(filenames)
        elif [c.dtype for c in filenames._components] != [string]:
            raise TypeError("`filenames` must be a `tf.data.Dataset` of `tf.string` elements.")

        def of_one(name: Any) -> Dataset:
            found = names_of(name)
            return Dataset(kind, "", components, arrays=found.arrays, given=found.given, **params)

        whole = filenames.flat_map(of_one) if parallel is None else filenames.interleave(of_one, parallel, 1, parallel)
        super().__init__(whole._kind, "", components, whole._inputs, **whole._params)


class TextLineDataset(_FromFiles):
    """The lines of text files as bytes, without line ends.

    Args:
        filenames: a file name, several, a tensor of them, or a data set of them.
        compression_type: "", "ZLIB" or "GZIP"; None: no compression.
        buffer_size: accepted without effect.
        num_parallel_reads: number of files to read in parallel, interleaved by line; None: one file after another.

    Raises:
        NotFoundError: in a step: a file does not exist.
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        super().__init__("text_lines", filenames, num_parallel_reads, compression=_compression(compression_type))


class TFRecordDataset(_FromFiles):
    """The records of TFRecord files, as bytes.

    Args:
        filenames: a file name, several, a tensor of them, or a data set of them.
        compression_type: "", "ZLIB" or "GZIP"; None: no compression.
        buffer_size: accepted without effect.
        num_parallel_reads: number of files to read in parallel, interleaved by record; None: one file after another.

    Raises:
        NotFoundError: in a step: a file does not exist. DataLossError: in a step: a record is damaged.

    >>> dataset = TFRecordDataset("train.tfrecord").map(lambda record: dt.io.parse_single_example(record, features))
    """

    def __init__(
        self,
        filenames: Any,
        compression_type: Any = None,
        buffer_size: Any = None,
        num_parallel_reads: Any = None,
    ) -> None:
        super().__init__("records", filenames, num_parallel_reads, compression=_compression(compression_type))


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
        NotFoundError: in a step: a file does not exist. InvalidArgumentError: in a step: a file has no whole number of records.
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
        size: Number = whole_number(record_bytes)
        if isinstance(size, int) and size < 1:
            raise ValueError(f"record_bytes must be at least 1, not {size}")
        super().__init__(
            "fixed_records", filenames, num_parallel_reads, compression=_compression(compression_type), record_bytes=size,
            header_bytes=whole_number(0 if header_bytes is None else header_bytes),
            footer_bytes=whole_number(0 if footer_bytes is None else footer_bytes),
        )  # fmt: skip


class NpyDataset(Dataset):
    """The rows of `.npy` files, read lazily. Not in TensorFlow.

    Raises:
        NotFoundError: a file does not exist. ValueError: the files have rows of different shapes or types.
    """

    def __init__(self, filenames: Any) -> None:
        given = [filenames] if isinstance(filenames, (str, bytes, Path)) else list(filenames)
        names = tuple([os.fsdecode(n) for n in given])
        files = npy_files(names)
        component = Component(as_dtype(files[0].dtype), files[0].shape[1:])
        super().__init__("npy_rows", 0, [component], (), sum(map(len, files)), names=names)


__all__ = ["FixedLengthRecordDataset", "NpyDataset", "TFRecordDataset", "TextLineDataset"]
