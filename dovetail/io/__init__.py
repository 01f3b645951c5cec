"""Files, records, and the parsing of records (`dt.io`).

- `files`, `gfile`: file operations under TensorFlow 1's and TensorFlow 2's names.
- `records`: record files.

The ops that parse records are in `graph/ops/io`. `data`, `interop`, `train` and `compat` may import this package.
"""

from ..graph.ops.io.files import matching_files, read_file, write_file
from ..graph.ops.io.parsing import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
    decode_raw,
    parse_example,
    parse_single_example,
)
from ..graph.ops.state.queue_api import FIFOQueue, PaddingFIFOQueue, PriorityQueue, QueueBase, RandomShuffleQueue
from ..graph.ops.strings.split_join import decode_csv
from ..graph.ops.strings.strings import decode_base64, encode_base64
from ..public_paths import exported as _exported
from . import gfile
from .files import match_filenames_once
from .records import TFRecordCompressionType, TFRecordOptions, TFRecordWriter, tf_record_iterator

__all__ = _exported(globals(), "gfile")
