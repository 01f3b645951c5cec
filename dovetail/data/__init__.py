"""Input pipelines, under TensorFlow 1's names (`dt.data`).

>>> dataset = dt.data.Dataset.from_tensor_slices((images, labels)).shard(workers, index).shuffle(1000).repeat().batch(64)
>>> x, y = dataset.make_one_shot_iterator().get_next()
"""

from . import deserialize as _decoding, experimental  # noqa: F401  (it says how a worker reads descriptions)
from .dataset import Dataset, make_initializable_iterator, make_one_shot_iterator
from .file_datasets import FixedLengthRecordDataset, NpyDataset, TextLineDataset, TFRecordDataset
from .iterator import Iterator, get_output_classes, get_output_shapes, get_output_types
from .options import Options

__all__ = [
    "Dataset",
    "FixedLengthRecordDataset",
    "Iterator",
    "NpyDataset",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "experimental",
    "get_output_classes",
    "get_output_shapes",
    "get_output_types",
    "make_initializable_iterator",
    "make_one_shot_iterator",
]
