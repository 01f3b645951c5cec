"""Convolutions, and those from the result to the input."""

from __future__ import annotations

from typing import Any

from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat, split
from ....graph.ops.array.padding import pad
from ....graph.ops.array.shapes import reshape, shape, transpose
from ....graph.ops.nn.conv import conv2d, conv2d_transpose, depthwise_conv2d_native
from ....graph.ops.nn.dense import bias_add
from ..registry import Call, UnsupportedError, imports
from .windows import Windows, as_before, as_picture, windows_of


def _taps(call: Call, w: Tensor) -> tuple[int, ...]:
    """Sizes of a filter, which must be known."""
    taps = tuple(call.attr("kernel_shape") or call.dims(w, "the filter")[2:])
    if None in taps:
        raise UnsupportedError("the filter's size is known only when the graph runs")
    return taps


def _padding(windows: Windows) -> Any:
    return "SAME" if windows.pads is None else windows.explicit()


@imports("Conv")
def conv(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """In groups, too; a filter of the standard is `[out, in / groups, *taps]`."""
    windows = windows_of(call, x, _taps(call, w))
    groups, channels = call.attr("group", 1), call.dims(x)[1]
    images, filters = as_picture(x), as_picture(w)
    how: dict[str, Any] = {
        "strides": windows.strides, "padding": _padding(windows), "data_format": "NCHW", "dilations": windows.dilations,
    }  # fmt: skip
    if groups == 1:
        made = conv2d(images, transpose(filters, [2, 3, 1, 0]), **how)
    elif groups == channels and call.dims(w)[1] == 1:
        made = _depthwise(images, filters, groups, how)
    else:
        parts = zip(split(images, groups, 1), split(filters, groups, 0), strict=True)
        made = concat([conv2d(i, transpose(f, [2, 3, 1, 0]), **how) for i, f in parts], 1)
    made = as_before(made, x)
    return made if bias is None else bias_add(made, bias, data_format="NCHW")


def _depthwise(images: Tensor, filters: Tensor, groups: int, how: dict[str, Any]) -> Tensor:
    """Each channel under filters of its own: `[taps high, taps wide, channels, multiplier]` in the graph."""
    assert filters.dims is not None
    out, _, high, wide = filters.dims
    if out is None:
        raise UnsupportedError("the number of filters is known only when the graph runs")
    apart = reshape(filters, [groups, out // groups, high, wide])
    return depthwise_conv2d_native(images, transpose(apart, [2, 3, 0, 1]), **how)


@imports("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """A filter of the standard is `[in, out / groups, *taps]` here."""
    windows = windows_of(call, x, _taps(call, w))
    more = tuple(call.attr("output_padding") or (0,) * (len(call.dims(x)) - 2))
    wished = call.attr("output_shape")
    if len(more) == 1:
        more, wished = (0, *more), None if wished is None else [1, *wished[-1:]]
    elif wished is not None:
        wished = wished[-2:]
    groups, channels = call.attr("group", 1), call.dims(w)[1]
    images, filters = as_picture(x), as_picture(w)
    there = shape(images)
    cut, add, sizes = [], [], []
    for axis in (0, 1):
        (before, after), size = _cut(call, windows, axis, more[axis], wished)
        known = windows.sizes[axis]
        whole: Any = known if known is not None else there[2 + axis]
        full = whole * windows.strides[axis] + (windows.span(axis) - windows.strides[axis])
        # A window reaches at most `stride - 1` elements beyond the result; a larger requested output is padding.
        more_after = max(0, -after - (windows.strides[axis] - 1))
        cut.append([max(0, before), max(0, after)])
        add.append([max(0, -before), more_after])
        sizes.append(size if size is not None else full - max(0, before) - max(0, after) + max(0, -after) - more_after)
        if size is not None:
            sizes[-1] = size - max(0, -before) - more_after
    how: dict[str, Any] = {
        "strides": windows.strides, "padding": [[0, 0], [0, 0], *cut], "data_format": "NCHW", "dilations": windows.dilations,
    }  # fmt: skip
    parts = (
        [(images, filters)] if groups == 1 else zip(split(images, groups, 1), split(filters, groups, 0), strict=True)
    )
    made = [conv2d_transpose(i, transpose(f, [2, 3, 1, 0]), [there[0], channels, *sizes], **how) for i, f in parts]
    result = made[0] if groups == 1 else concat(made, 1)
    if any(any(a) for a in add):
        result = pad(result, [[0, 0], [0, 0], *add])
    result = as_before(result, x)
    return result if bias is None else bias_add(result, bias, data_format="NCHW")


def _cut(call: Call, windows: Windows, axis: int, more: int, wished: Any) -> tuple[tuple[int, int], int | None]:
    """How much of the full result is left out at either end (below 0: how much is added), and its size, if that is given."""
    how = call.attr("auto_pad", "NOTSET")
    size, stride, span = windows.sizes[axis], windows.strides[axis], windows.span(axis)
    if wished is None and not how.startswith("SAME"):
        before, after = windows.around(axis)
        return (before, after - more), None
    if size is None:
        raise UnsupportedError("output_shape or auto_pad for a size that is known only when the graph runs")
    to = wished[axis] if wished is not None else size * stride
    total = stride * (size - 1) + more + span - to
    if total < 0:
        return (0, total - more), to
    small, large = total // 2, total - total // 2
    before, after = (small, large) if how == "SAME_UPPER" else (large, small)
    return (before, after - more), to
