"""Summaries for TensorBoard: nodes that make them, and writers that put them into event files (`dt.summary`).

Event files are written by tensorboardX (`pip install 'dovetail[tensorboard]'`), which is loaded by the first writer.
"""

from .nodes import histogram, image, merge, merge_all, scalar
from .writer import FileWriter, FileWriterCache

__all__ = ["FileWriter", "FileWriterCache", "histogram", "image", "merge", "merge_all", "scalar"]
