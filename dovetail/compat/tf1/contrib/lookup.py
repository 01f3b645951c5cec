"""Tables under the names that `tf.contrib.lookup` had for them; they live in `dt.lookup`."""

from ....api.ops.lookup import (
    HashTable,
    IdTableWithHashBuckets,
    KeyValueTensorInitializer,
    TextFileIndex,
    TextFileInitializer,
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_file,
    index_to_string_table_from_tensor,
)

__all__ = [
    "HashTable", "IdTableWithHashBuckets", "KeyValueTensorInitializer", "TextFileIndex", "TextFileInitializer",
    "index_table_from_file", "index_table_from_tensor", "index_to_string_table_from_file", "index_to_string_table_from_tensor",
]  # fmt: skip
