"""Summaries for TensorBoard: nodes that create them, and writers of event files (`dt.summary`).

- `nodes`: the nodes. `writer`: the writers, which use tensorboardX (`pip install 'dovetail[tensorboard]'`) and load it when needed.

`train` and `compat` may import it.
"""

from typing import Any

from ...graph.ops.io.summaries import messages
from .nodes import histogram, image, merge, merge_all, scalar, tensor_summary, text
from .writer import FileWriter, FileWriterCache

_MESSAGES = ("Event", "Summary", "SummaryMetadata")


def __getattr__(name: str) -> Any:
    """tensorboardX's messages, loaded when they are used."""
    if name not in _MESSAGES:
        raise AttributeError(f"module 'dovetail.summary' has no attribute {name!r}")

    if name != "Event":
        return getattr(messages(), name)
    from tensorboardX.proto import event_pb2

    return event_pb2.Event


__all__ = [
    "FileWriter",
    "FileWriterCache",
    "histogram",
    "image",
    "merge",
    "merge_all",
    "scalar",
    "tensor_summary",
    "text",
]
