"""Input pipelines, under TensorFlow 1's names (`dt.data`).

>>> dataset = dt.data.Dataset.from_tensor_slices((images, labels)).shard(workers, index).shuffle(1000).repeat().batch(64)
>>> x, y = dataset.make_one_shot_iterator().get_next()
"""

from . import experimental
from .dataset import Dataset
from .files import NpyDataset, TextLineDataset
from .iterator import (
    Iterator,
    get_output_shapes,
    get_output_types,
    make_initializable_iterator,
    make_one_shot_iterator,
)
from .records import FixedLengthRecordDataset, TFRecordDataset

__all__ = [
    "Dataset",
    "FixedLengthRecordDataset",
    "Iterator",
    "NpyDataset",
    "TFRecordDataset",
    "TextLineDataset",
    "experimental",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]
