"""Input pipelines, under TensorFlow 1's names (`dt.data`).

>>> dataset = dt.data.Dataset.from_tensor_slices((images, labels)).shard(workers, index).shuffle(1000).repeat().batch(64)
>>> x, y = dataset.make_one_shot_iterator().get_next()

- `dataset`: `Dataset` and its methods. `transformations`, `experimental`: those for `Dataset.apply`. `options`, `spec`, `checks`: options;
  the structure of elements; checks of arguments.
- `iterator`: `Iterator` and its position. `runtime_values`: what an iterator gets when it starts. `function`: traced functions of elements.
- `kind_registry`: how each kind is walked. `element_iterators`, `combined_iterators`, `prefetch`, `resumable`: the walks.
- `file_datasets`, `files`, `cache_files`: data sets of files, and in a file.
- `serialize`, `deserialize`: data sets as bytes, for another process.

`distribute`, `compat` and programs may import it. It imports `io`, `api` and the parts below.
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
