"""Types of `dovetail.data`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.data import experimental as experimental
from dovetail.data.dataset import Dataset as Dataset
from dovetail.data.file_datasets import (
    FixedLengthRecordDataset as FixedLengthRecordDataset, NpyDataset as NpyDataset, TFRecordDataset as TFRecordDataset, TextLineDataset
    as TextLineDataset,
)
from dovetail.data.iterator import (
    Iterator as Iterator, get_output_classes as get_output_classes, get_output_shapes as get_output_shapes, get_output_types as
    get_output_types, make_initializable_iterator as make_initializable_iterator, make_one_shot_iterator as make_one_shot_iterator,
)
from dovetail.data.options import Options as Options
__all__ = [
    "Dataset", "FixedLengthRecordDataset", "Iterator", "NpyDataset", "Options", "TFRecordDataset", "TextLineDataset", "experimental",
    "get_output_classes", "get_output_shapes", "get_output_types", "make_initializable_iterator", "make_one_shot_iterator",
]
