"""Nodes that create summaries, under TensorFlow 1's names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...distribute.context import get_replica_context
from ...graph.core.build import TensorLike, apply, convert
from ...graph.core.default_graph import GraphKeys, get_default_graph
from ...graph.core.dtypes import string
from ...graph.core.graph import Tensor
from ...graph.ops.io import summaries as _summaries  # noqa: F401  (defines the ops)

_TEXT_PLUGIN = b"\n\x06\n\x04text"
"""A `SummaryMetadata` whose plugin is "text", as bytes: to make one takes tensorboardX."""


def scalar(
    name: str, tensor: TensorLike, collections: Sequence[str] | None = None, family: str | None = None
) -> Tensor:
    """A summary of a scalar, which TensorBoard plots over steps.

    Args:
        name: name of the node; its full name is the tag.
        tensor: a scalar.
        collections: collections to add the summary to; None: the collection that `merge_all` uses.
        family: prefix of the tag.

    Returns:
        A string scalar: a serialized `Summary`.
    """
    return _summary("ScalarSummary", name, tensor, collections, family, {})


def histogram(
    name: str, values: TensorLike, collections: Sequence[str] | None = None, family: str | None = None
) -> Tensor:
    """A summary of the distribution of values.

    Args:
        name: as in `scalar`.
        values: a tensor of any shape.
        collections: as in `scalar`.
        family: as in `scalar`.

    Raises:
        InvalidArgumentError: in a step, if a value is NaN or infinite.
    """
    return _summary("HistogramSummary", name, values, collections, family, {})


def image(
    name: str,
    tensor: TensorLike,
    max_outputs: int = 3,
    collections: Sequence[str] | None = None,
    family: str | None = None,
) -> Tensor:
    """A summary of the first images of a batch.

    Args:
        name: as in `scalar`.
        tensor: images of the shape [n, height, width, channels] with 1, 3 or 4 channels. The values are uint8, or floats, which are
            scaled to the range of bytes.
        max_outputs: maximum number of images.
        collections: as in `scalar`.
        family: as in `scalar`.
    """
    return _summary("ImageSummary", name, tensor, collections, family, {"max_images": int(max_outputs)})


def tensor_summary(
    name: str,
    tensor: TensorLike,
    summary_description: str | None = None,
    collections: Sequence[str] | None = None,
    summary_metadata: Any = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """A summary of a tensor of any type and shape, for plugins of TensorBoard.

    Args:
        name: as in `scalar`.
        tensor: the tensor.
        summary_description: a description, which is added to `summary_metadata`.
        collections: as in `scalar`.
        summary_metadata: a `SummaryMetadata` that names the plugin.
        family: as in `scalar`.
        display_name: a name, which is added to `summary_metadata`.
    """
    if summary_metadata is None and not (summary_description or display_name):
        metadata = b""
    else:
        whole = summary_metadata if summary_metadata is not None else _summaries.messages().SummaryMetadata()
        if summary_description is not None:
            whole.summary_description = summary_description
        if display_name is not None:
            whole.display_name = display_name
        metadata = whole.SerializeToString()
    return _summary("TensorSummaryV2", name, tensor, collections, family, {"serialized_summary_metadata": metadata})


def text(name: str, tensor: TensorLike, collections: Sequence[str] | None = None) -> Tensor:
    """A summary of text, which TensorBoard shows as Markdown: a vector as a column, a matrix as a table.

    Args:
        name: as in `scalar`.
        tensor: strings.
        collections: as in `scalar`.

    Raises:
        ValueError: the tensor has no strings.
    """
    given = convert(tensor, name="values")
    if given.dtype.base is not string:
        raise ValueError(f"Expected tensor {given.name} to have dtype string, got {given.dtype.name}: use dt.as_string")
    return _summary("TensorSummaryV2", name, given, collections, None, {"serialized_summary_metadata": _TEXT_PLUGIN})


def _summary(
    op: str,
    name: str,
    tensor: TensorLike,
    collections: Sequence[str] | None,
    family: str | None,
    attrs: dict[str, Any],
) -> Tensor:
    replica = get_replica_context()
    if replica is not None and replica.replica_id_in_sync_group:
        return convert("")  # only the first replica writes a summary
    clean = re.sub(r"[^-/\w.]", "_", name).lstrip("/")
    value = convert(tensor, name="values")
    graph = value.graph
    with graph.op_scope(f"{family}/{clean}" if family else clean) as scope:
        # A name that ends in "/", as `scope` does, is used without a prefix.
        tag = f"{family}/{scope.rstrip('/')}" if family else scope.rstrip("/")
        found = apply(op, (value,), {"tag": tag, **attrs}, scope)
    graph.add_to_collections([GraphKeys.SUMMARIES] if collections is None else collections, found)
    return found


def merge(inputs: Sequence[Any], collections: Sequence[str] | None = None, name: str | None = None) -> Tensor:
    """Merge several summaries into one. The step fails with InvalidArgumentError if two have the same tag."""
    found = apply("MergeSummary", tuple([convert(x) for x in inputs]), None, name)
    found.graph.add_to_collections(collections or [], found)
    return found


def merge_all(key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None) -> Tensor | None:
    """Merge all summaries in a collection of the default graph into one. Returns None if there are none."""
    kept = get_default_graph().get_collection(key, scope)
    return merge(kept, name=name) if kept else None
