"""Graphs as bytes and files, in this project's own format (`formats/record_format.py`).

    serialization   a graph as bytes, and back; what is read is not trusted
    meta_graph      a graph with its collections and variables

Sessions, savers and the runtime import this package. TensorFlow's formats are in graph/tensorflow.
"""
