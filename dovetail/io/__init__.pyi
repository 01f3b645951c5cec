"""Types of `dovetail.io`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.compat.tf1.image.files import (
    decode_and_crop_jpeg as decode_and_crop_jpeg, decode_bmp as decode_bmp, decode_gif as decode_gif, decode_image as decode_image,
    decode_jpeg as decode_jpeg, decode_png as decode_png, encode_jpeg as encode_jpeg, encode_png as encode_png, extract_jpeg_shape as
    extract_jpeg_shape, is_jpeg as is_jpeg,
)
from dovetail.compat.tf1.ops.sequence_parsing import (
    decode_json_example as decode_json_example, parse_sequence_example as parse_sequence_example, parse_single_sequence_example as
    parse_single_sequence_example, parse_tensor as parse_tensor, serialize_tensor as serialize_tensor,
)
from dovetail.graph.ops.io.files import matching_files as matching_files, read_file as read_file, write_file as write_file
from dovetail.graph.ops.io.parsing import (
    FixedLenFeature as FixedLenFeature, FixedLenSequenceFeature as FixedLenSequenceFeature, SparseFeature as SparseFeature,
    VarLenFeature as VarLenFeature, decode_raw as decode_raw, parse_example as parse_example, parse_single_example as
    parse_single_example,
)
from dovetail.graph.ops.state.queue_api import (
    FIFOQueue as FIFOQueue, PaddingFIFOQueue as PaddingFIFOQueue, PriorityQueue as PriorityQueue, QueueBase as QueueBase,
    RandomShuffleQueue as RandomShuffleQueue,
)
from dovetail.graph.ops.strings.split_join import decode_csv as decode_csv
from dovetail.graph.ops.strings.strings import decode_base64 as decode_base64, encode_base64 as encode_base64
from dovetail.io import gfile as gfile
from dovetail.io.files import match_filenames_once as match_filenames_once
from dovetail.io.records import (
    TFRecordCompressionType as TFRecordCompressionType, TFRecordOptions as TFRecordOptions, TFRecordWriter as TFRecordWriter,
    tf_record_iterator as tf_record_iterator,
)
__all__ = [
    "FIFOQueue", "FixedLenFeature", "FixedLenSequenceFeature", "PaddingFIFOQueue", "PriorityQueue", "QueueBase", "RandomShuffleQueue",
    "SparseFeature", "TFRecordCompressionType", "TFRecordOptions", "TFRecordWriter", "VarLenFeature", "decode_base64", "decode_csv",
    "decode_raw", "encode_base64", "gfile", "match_filenames_once", "matching_files", "parse_example", "parse_single_example",
    "read_file", "tf_record_iterator", "write_file",
]
