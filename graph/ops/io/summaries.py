"""Summaries: values of a step for TensorBoard.

An op returns a serialized `Summary` message as a scalar string. `dt.summary.FileWriter` writes it to an event file. The message classes are
those of tensorboardX, which is loaded when the first kernel makes a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import FLOATS, Array, bool_, int8, int16, int32, int64, string, text_array, uint8, uint16
from ...core.errors import UnimplementedError, invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import compatible, text
from ...formats.png import png_of
from ...formats.values import tensor_proto

NUMBERS = (*FLOATS, int8, int16, int32, int64, uint8, uint16, bool_)

# TensorFlow's bin limits of histograms: from 1e-12 to 1e20, each 1.1 times the last, and the same below zero.
_POSITIVE = 1e-12 * 1.1 ** np.arange(774)
LIMITS = np.concatenate([[-np.finfo("f8").max], -_POSITIVE[::-1], [0.0], _POSITIVE, [np.finfo("f8").max]])


def messages() -> Any:
    """The message classes of tensorboardX. UnimplementedError if it is not installed."""
    try:
        from tensorboardX.proto import summary_pb2
    except ImportError:
        raise UnimplementedError.of(
            "Summaries need tensorboardX on the task that makes them: pip install 'dovetail[tensorboard]'"
        ) from None
    return summary_pb2


def _scalar_text(message: Any) -> Array:
    return text_array([message.SerializeToString()], ())


def _rule(dims: tuple[int | None, ...] | None) -> Any:
    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        (x,) = inputs
        typed_attr(attrs, "tag", str)
        if x.dtype.base not in NUMBERS:
            raise TypeError(f"only numbers can be summarized, not {x.dtype.base.name}")
        if dims is not None and not compatible(x.dims, dims):
            raise ValueError(f"needs shape {text(dims)}, not {text(x.dims)}")
        return [(string, ())]

    return infer


def _scalar(x: Array, *, tag: str) -> Array:
    if x.size != 1:
        raise invalid(f"Summary '{tag}' needs one number, not shape {x.shape}")
    pb = messages()
    return _scalar_text(pb.Summary(value=[pb.Summary.Value(tag=tag, simple_value=float(x.reshape(())))]))


def _histogram(x: Array, *, tag: str) -> Array:
    values = np.asarray(x, "f8").reshape(-1)
    if not np.isfinite(values).all():
        raise invalid(f"Summary '{tag}': there is a NaN or an infinity in the histogram")
    pb = messages()
    counts, _ = np.histogram(values, LIMITS)
    used = np.flatnonzero(counts)
    limits, kept = [], []
    if len(used):  # the bins that are not empty, the one before each of them, and one after the last
        shown = np.unique(np.concatenate([used - 1, used, used[-1:] + 1]).clip(0, len(counts) - 1))
        limits, kept = LIMITS[shown + 1].tolist(), counts[shown].tolist()
    histogram = pb.HistogramProto(
        min=values.min() if len(values) else 0.0, max=values.max() if len(values) else 0.0, num=len(values),
        sum=values.sum(), sum_squares=values @ values, bucket_limit=limits, bucket=kept,
    )  # fmt: skip
    return _scalar_text(pb.Summary(value=[pb.Summary.Value(tag=tag, histo=histogram)]))


def _as_pixels(image: Array) -> Array:
    """Scale floats to pixels as TensorFlow does: [0, max] to [0, 255], or 0 to 127 if any is negative. NaN and inf become red."""
    if image.dtype == np.uint8:
        return image
    x = np.asarray(image, "f4")
    bad = ~np.isfinite(x)
    low, high = (float(x[~bad].min()), float(x[~bad].max())) if (~bad).any() else (0.0, 0.0)
    if low < 0:
        largest = max(abs(low), abs(high))
        x = x * np.float32(127 / largest if largest else 0) + np.float32(128)
    else:
        x = x * np.float32(255 / high if high else 0)
    red = np.array([255, 0, 0, 255])[: x.shape[-1]]
    return np.where(bad.any(-1, keepdims=True), red, np.clip(x, 0, 255)).astype(np.uint8)


def _images(x: Array, *, tag: str, max_images: int) -> Array:
    if x.ndim != 4 or x.shape[3] not in (1, 3, 4):
        raise invalid(f"Summary '{tag}' needs images of shape [n, height, width, 1, 3 or 4], not {x.shape}")
    pb = messages()
    shown = x[:max_images]
    values = [
        pb.Summary.Value(
            tag=f"{tag}/image" if max_images == 1 else f"{tag}/image/{i}",
            image=pb.Summary.Image(
                height=x.shape[1],
                width=x.shape[2],
                colorspace=x.shape[3],
                encoded_image_string=png_of(_as_pixels(image)),
            ),
        )
        for i, image in enumerate(shown)
    ]
    return _scalar_text(pb.Summary(value=values))


def _tensor(x: Array, *, tag: str, serialized_summary_metadata: bytes) -> Array:
    from tensorboardX.proto.tensor_pb2 import TensorProto  # loads protobuf

    pb = messages()
    metadata = pb.SummaryMetadata.FromString(serialized_summary_metadata)
    value = TensorProto.FromString(tensor_proto(x).SerializeToString())
    return _scalar_text(pb.Summary(value=[pb.Summary.Value(tag=tag, metadata=metadata, tensor=value)]))


def _tensor_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "tag", str)
    typed_attr(attrs, "serialized_summary_metadata", bytes)
    return [(string, ())]


def _image_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if type(attrs.get("max_images")) is not int or attrs["max_images"] < 1:
        raise ValueError("attribute max_images must be a positive whole number")
    outputs: Sequence[Output] = _rule((None, None, None, None))(inputs, attrs)
    return outputs


def _merge_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("needs at least one summary")
    for t in inputs:
        if t.dtype.base is not string:
            raise TypeError(f"summaries are string tensors, not {t.dtype.base.name}")
    return [(string, ())]


def _merge(*summaries: Array) -> Array:
    pb = messages()
    merged, tags = pb.Summary(), set()
    for one in summaries:
        for data in np.asarray(one, object).reshape(-1):
            found = pb.Summary.FromString(data)
            for value in found.value:
                if value.tag in tags:
                    raise invalid(f"Duplicate tag {value.tag} found in summary inputs")
                tags.add(value.tag)
            merged.value.extend(found.value)
    return _scalar_text(merged)


for _name, _infer, _reference in (
    ("ScalarSummary", _rule(()), _scalar),
    ("HistogramSummary", _rule(None), _histogram),
    ("ImageSummary", _image_rule, _images),
    ("MergeSummary", _merge_rule, _merge),
    ("TensorSummaryV2", _tensor_rule, _tensor),
):
    define(_name, _infer, _reference, device_types=("CPU",))
