"""Input pipelines, under TensorFlow 1's names (`dt.data`).

>>> dataset = dt.data.Dataset.from_tensor_slices((images, labels)).shard(workers, index).shuffle(1000).repeat().batch(64)
>>> x, y = dataset.make_one_shot_iterator().get_next()

- `dataset`: `Dataset` and its methods. `experimental`: transformations for `Dataset.apply`. `options`: options of data sets.
- `spec`, `checks`: the structure of elements; checks of arguments.
- `iterator`: `Iterator` and its position. `runtime_values`: the values that an iterator receives when it starts. `function`: traced
  functions of elements.
- `kind_registry`: the table of kinds of data sets. `element_iterators`, `combined_iterators`, `files`, `cache_files`: how each kind
  iterates. `prefetch`, `resumable`: iterators with threads, and iterators that continue after an error.
- `file_datasets`: the public data sets of files.
- `serialize`, `deserialize`: data sets as bytes, for another process.

`distribute`, `compat` and programs may import it. It imports `io`, `api`, `runtime` and `graph`.
"""

from ..public_paths import exported as _exported
from . import deserialize as _decoding, experimental  # deserialize registers the decoder that workers use
from .dataset import Dataset
from .file_datasets import FixedLengthRecordDataset, NpyDataset, TextLineDataset, TFRecordDataset
from .iterator import (
    Iterator,
    get_output_classes,
    get_output_shapes,
    get_output_types,
    make_initializable_iterator,
    make_one_shot_iterator,
)
from .options import Options

__all__ = _exported(globals(), "experimental")
