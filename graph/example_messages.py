"""`Example` and what it is made of: the protocol buffers that TensorFlow's record files hold. `messages` makes classes of them."""

from __future__ import annotations

MESSAGES: dict[str, tuple[str, ...]] = {
    "BytesList": ("repeated bytes value = 1",),
    "FloatList": ("repeated float value = 1",),
    "Int64List": ("repeated int64 value = 1",),
    "Feature": ("oneof BytesList bytes_list = 1", "oneof FloatList float_list = 2", "oneof Int64List int64_list = 3"),
    "Features": ("map Feature feature = 1",),
    "Example": ("Features features = 1",),
    "FeatureList": ("repeated Feature feature = 1",),
    "FeatureLists": ("map FeatureList feature_list = 1",),
    "SequenceExample": ("Features context = 1", "FeatureLists feature_lists = 2"),
}

__all__ = ["MESSAGES"]
