"""File and message formats. They do not depend on graphs.

- `record_format`: the records of a saved graph. `atomic_files`: atomic file replacement.
- `checkpoints`: sharded checkpoints. `tensor_bundle`, `sstable`, `crc32c`: TensorFlow's checkpoints. `png`: images.
- `text_lines`: lines of text files.
- `protos`, `values`: TensorFlow's messages, and tensors and attributes in them.

The package imports only `core`. Ops that read and write files, `io` and `tensorflow` import it.
"""
