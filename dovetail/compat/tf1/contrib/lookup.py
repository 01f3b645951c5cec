"""Tables under the names that `tf.contrib.lookup` had for them; they live in `dt.lookup`."""

from ....api.ops.lookup import (
    FastHashSpec,
    HasherSpec,
    HashTable,
    IdTableWithHashBuckets,
    KeyValueTensorInitializer,
    StrongHashSpec,
    TextFileIndex,
    TextFileInitializer,
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_file,
    index_to_string_table_from_tensor,
)

__all__ = [
    "FastHashSpec", "HashTable", "HasherSpec", "IdTableWithHashBuckets", "KeyValueTensorInitializer", "StrongHashSpec",
    "TextFileIndex", "TextFileInitializer",
    "index_table_from_file", "index_table_from_tensor", "index_to_string_table_from_file", "index_to_string_table_from_tensor",
]  # fmt: skip
