"""Graphs and checkpoints as bytes and files, in this project's own formats.

    record_format            the records of a serialized graph
    serialize, deserialize   a graph as bytes, and back; what is read is not trusted
    meta_graph               a graph with its collections and variables
    checkpoints              shards of tensors and a manifest; reading also TensorFlow's
    atomic_files             files that are replaced whole or not at all

Sessions, savers and the runtime import this package. TensorFlow's formats are in graph/tensorflow.
"""
