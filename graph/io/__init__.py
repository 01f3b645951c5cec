"""Graphs as bytes and files, in Dovetail's format (`formats/record_format.py`).

    serialization   writes and reads graphs. Data that are read are not trusted
    meta_graph      writes and reads graphs with their collections and variables

Sessions, savers and the runtime import this package. TensorFlow's formats are in graph/tensorflow.
"""
