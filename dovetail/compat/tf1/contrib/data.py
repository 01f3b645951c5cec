"""`tf.contrib.data`: data sets and their transformations, where TensorFlow 1 had them first; they live in `dt.data`."""

from __future__ import annotations

from collections.abc import Callable

from ....data import Dataset, FixedLengthRecordDataset, Iterator, TextLineDataset, TFRecordDataset
from ....data.experimental import (
    AUTOTUNE,
    Counter,
    bucket_by_sequence_length,
    choose_from_datasets,
    copy_to_device,
    enumerate_dataset,
    get_single_element,
    group_by_window,
    make_saveable_from_iterator,
    map_and_batch,
    parallel_interleave,
    prefetch_to_device,
    sample_from_datasets,
    shuffle_and_repeat,
    unbatch,
)


def batch_and_drop_remainder(batch_size: int) -> Callable[[Dataset], Dataset]:
    """`batch(batch_size, drop_remainder=True)`, for `Dataset.apply`."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


__all__ = [
    "AUTOTUNE",
    "Counter",
    "Dataset",
    "FixedLengthRecordDataset",
    "Iterator",
    "TFRecordDataset",
    "TextLineDataset",
    "batch_and_drop_remainder",
    "bucket_by_sequence_length",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "get_single_element",
    "group_by_window",
    "make_saveable_from_iterator",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "sample_from_datasets",
    "shuffle_and_repeat",
    "unbatch",
]
