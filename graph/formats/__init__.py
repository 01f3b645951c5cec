"""Bytes and files, which know nothing of graphs.

- `record_format`: the records of a saved graph. `atomic_files`: files that are written whole or not at all.
- `checkpoints`: sharded checkpoints. `tensor_bundle`, `sstable`, `crc32c`: TensorFlow's checkpoints. `png`: pictures.
- `text_lines`: lines of text files.
- `protos`, `values`: TensorFlow's messages, and tensors and attributes in them.

They import `core` only. Ops that read and write files, `io` and `tensorflow` import them.
"""
