"""Convolutions and poolings of images on CPUs: how each op's arrays are prepared for the loops.

Each kernel is a function like the op's reference. It brings the arrays into the form of the loops: channels last, padding added, filters in
panels. `conv` cuts convolutions into units of work; `conv_source`, `conv_filter_source` and `pool_source` have the loops.

The gradient of a convolution by its image is a convolution of the result's gradient with the filter rotated by 180 degrees. With
strides, the image's pixels fall into as many phases as there are strides, and each phase is a convolution of its own, with the
taps that meet such a pixel (`conv.phases_of`).

A kernel returns None for cases that it does not support (no elements, dilations together with strides). The reference computes these,
and also raises the errors for shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import Window, channels_last, height_and_width, nhwc, window_of
from ..emit.instantiate import text_of
from ..jit import Function
from ..native.recorder import EAGER, Executor
from ..thread_pool import ranges_of
from .conv import (
    FILTER_FUNCTIONS,
    FUNCTIONS as CONVOLUTION_FUNCTIONS,
    Phase,
    as_layout,
    convolve,
    filter_gradient,
    padded,
    phases_of,
    repeated,
    windowed,
)
from .gemm import NS_PER_FLOP

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
_NS_PER_TAP = 0.5  # of pooling
_NS_PER_PART = 0.5  # of adding up the parts of pixels
_FEW = 8  # channels that fill half a tile
_NS_PER_PRODUCT = 0.15  # of a convolution of each channel by itself
_CHANNELS = 32  # of a unit of a filter's gradient, each channel by itself

# For each function of these files, its arguments before the range: see `instantiate`.
_SIGNATURES = {
    **CONVOLUTION_FUNCTIONS,
    **FILTER_FUNCTIONS,
    "depthwise": ("rrw", (3, 3, 3, 2, 2, 2)),
    "depthwise_filter": ("rrw", (3, 4, 3, 2)),
    "max_pool": ("rw", (3, 2, 6)),
    "max_pool_grad": ("rrw", (3, 2, 6)),
    "avg_pool": ("rw", (3, 2, 6)),
    "avg_pool_grad": ("rw", (3, 2, 6)),
}


def _fits(dims: Sequence[int], expected: Sequence[int | None]) -> bool:
    return tuple(dims) == tuple(expected) and math.prod(dims) > 0


@dataclass(frozen=True, slots=True)
class ImageKernels:
    """The kernels.

    Attributes:
        functions: the compiled ones, by name. threads: how many one kernel may use. executor: runs or records them.
    """

    functions: Mapping[str, Function]
    threads: int
    executor: Executor

    def _share(self, name: str, arguments: Sequence[Any], length: int, nanoseconds: float) -> None:
        ranges = ranges_of(length, nanoseconds, self.threads)
        self.executor.share(self.functions[name], arguments, ranges, self.threads)

    # --- convolutions ----------------------------------------------------------------------------------------------

    def conv(self, attrs: Any, x: Array, w: Array) -> Array | None:
        """`Conv2D`."""
        image, window = channels_last(x, attrs["data_format"]), window_of(attrs, w.shape[:2])
        count = (window.positions(0, image.shape[1]) or 0, window.positions(1, image.shape[2]) or 0)
        if image.shape[3] != w.shape[2] or 0 in (x.size, w.size, *count):
            return None
        y = self.executor.empty((image.shape[0], *count, w.shape[3]), x.dtype)
        pads = (window.pads(0, image.shape[1])[0], window.pads(1, image.shape[2])[0])
        own = self.executor.ordered(w)
        convolve(
            self.executor, self.functions["convolve"], self.threads, self.executor.ordered(image), own, y, count,
            taps=own, strides=window.strides, dilations=window.dilations, begin=(-pads[0], -pads[1]),
        )  # fmt: skip
        return as_layout(self.executor, y, attrs["data_format"])

    def _each_channel(
        self,
        x: Array,
        w: Array,
        y: Array,
        count: tuple[int, int],
        *,
        strides: tuple[int, int] = (1, 1),
        dilations: tuple[int, int] = (1, 1),
        begin: tuple[int, int] = (0, 0),
        to: tuple[int, int] = (0, 0),
        apart: tuple[int, int] = (1, 1),
    ) -> None:
        """As `_convolve`, each channel with filters of its own: w is `[high, wide, channels, 1]`."""
        high, wide, channels, _ = w.shape
        row, y_row = x.shape[2] * channels, y.shape[2] * channels
        arguments = (
            x.ravel(), self.executor.ordered(w).ravel(), y.ravel(), (*count, channels),
            (x.shape[1] * row, strides[0] * row, strides[1] * channels),
            (y.shape[1] * y_row, apart[0] * y_row, apart[1] * channels),
            (high, wide), (dilations[0] * row, dilations[1] * channels),
            (begin[0] * row + begin[1] * channels, to[0] * y_row + to[1] * channels),
        )  # fmt: skip
        rows = x.shape[0] * count[0]
        self._share("depthwise", arguments, rows, rows * count[1] * w.size * _NS_PER_PRODUCT)

    def depthwise(self, attrs: Any, x: Array, w: Array) -> Array | None:
        """`DepthwiseConv2dNative`."""
        image, window = channels_last(x, attrs["data_format"]), window_of(attrs, w.shape[:2])
        count = (window.positions(0, image.shape[1]) or 0, window.positions(1, image.shape[2]) or 0)
        if image.shape[3] != w.shape[2] or 0 in (x.size, w.size, *count):
            return None
        y = self.executor.empty((image.shape[0], *count, w.shape[2] * w.shape[3]), x.dtype)
        seen, own = (
            repeated(self.executor, windowed(self.executor, image, window, self.threads), w.shape[3]),
            self.executor.ordered(w).reshape(*w.shape[:2], -1, 1),
        )
        self._each_channel(seen, own, y, count, strides=window.strides, dilations=window.dilations)
        return as_layout(self.executor, y, attrs["data_format"])

    def depthwise_input(self, attrs: Any, sizes: Array, w: Array, grad: Array) -> Array | None:
        """`DepthwiseConv2dNativeBackpropInput`."""
        each = self.executor.ordered(w).reshape(*w.shape[:2], -1, 1)
        n, height, width, inner = (int(d or 0) for d in nhwc(tuple(sizes.tolist()), attrs["data_format"]))
        if inner != w.shape[2]:
            return None
        wide = np.array([n, height, width, each.shape[2]])
        found = self._phases(attrs, wide, each, grad, each.shape[2])
        if found is None:
            return None
        x, y, window, phases = found
        # Zeros around y, so that each phase finds what its taps ask for.
        before = tuple(max(0, *(-p.begin[i] for p in phases)) for i in range(2))
        after = tuple(max(p.begin[i] + p.count[i] + p.spans[i] - 1 for p in phases) for i in range(2))
        seen = padded(self.executor, y, before, (before[0] + after[0], before[1] + after[1]), self.threads)  # type: ignore[arg-type]
        for p in phases:
            self._each_channel(
                seen, each[p.taps], x, p.count, dilations=window.dilations,
                begin=(before[0] + p.begin[0], before[1] + p.begin[1]), to=p.to, apart=window.strides,
            )  # fmt: skip
        if w.shape[3] != 1:
            x = self.executor.added(x.reshape(n, height, width, inner, w.shape[3]), -1)
        return as_layout(self.executor, x, attrs["data_format"])

    def conv_input(self, attrs: Any, sizes: Array, w: Array, grad: Array) -> Array | None:
        """`Conv2DBackpropInput`."""
        wide = np.array(nhwc(tuple(sizes.tolist()), attrs["data_format"]))
        if w.shape[2] <= _FEW:
            return self._few_channels(attrs, wide, w, grad)
        found = self._phases(attrs, wide, w, grad, w.shape[3])
        if found is None:
            return None
        x, y, window, phases = found
        own = self.executor.ordered(w)
        turned, y = own.transpose(0, 1, 3, 2), self.executor.ordered(y)
        for p in phases:
            convolve(
                self.executor, self.functions["convolve"], self.threads, y, own, x, p.count,
                taps=turned[p.taps], dilations=window.dilations, begin=p.begin, to=p.to, apart=window.strides,
            )  # fmt: skip
        return as_layout(self.executor, x, attrs["data_format"])

    def _few_channels(self, attrs: Any, sizes: Array, w: Array, grad: Array) -> Array | None:
        """The same for images with fewer channels than a tile: products of pixels and all taps, whose parts are added up (col2im)."""
        y, window = channels_last(grad, attrs["data_format"]), window_of(attrs, w.shape[:2])
        n, height, width, inner = (int(d or 0) for d in sizes.tolist())
        expected = (n, window.positions(0, height), window.positions(1, width), w.shape[3])
        if not _fits(y.shape, expected) or inner != w.shape[2] or inner * height * width == 0:
            return None
        x = self.executor.empty((n, height, width, inner), grad.dtype)
        pads = (window.pads(0, height)[0], window.pads(1, width)[0])
        arguments = (
            self.executor.ordered(y).ravel(), self.executor.ordered(w).ravel(), x.ravel(), (height, width, inner), y.shape[1:],
            (*window.taps, *window.strides, *pads), window.dilations,
        )  # fmt: skip
        time = y.size * w.size // w.shape[3] * (2 * NS_PER_FLOP + _NS_PER_PART / w.shape[3])
        self._share("overlay", arguments, n, time)
        return as_layout(self.executor, x, attrs["data_format"])

    def _phases(
        self, attrs: Any, sizes: Array, w: Array, grad: Array, channels: int
    ) -> tuple[Array, Array, Window, list[Phase]] | None:
        """The gradient for an image of these sizes `[n, h, w, c]`, from one with `channels` channels, and its kernel's parameters."""
        y, window = channels_last(grad, attrs["data_format"]), window_of(attrs, w.shape[:2])
        n, height, width, inner = (int(d or 0) for d in sizes.tolist())
        expected = (n, window.positions(0, height), window.positions(1, width), channels)
        if not _fits(y.shape, expected) or inner != w.shape[2] or inner * height * width == 0:
            return None
        if window.strides != (1, 1) and window.dilations != (1, 1):
            return None
        x = self.executor.empty((n, height, width, inner), grad.dtype)
        if any(window.strides[i] > window.span(i) for i in range(2)):
            self.executor.clear(x)  # there are pixels that no tap meets
        return x, y, window, phases_of(window, (height, width))

    def _of_filter(
        self, attrs: Any, x: Array, dims: Sequence[int], channels: int, grad: Array
    ) -> tuple[Array, Array, Window] | None:
        """The image, the result's gradient with so many channels, and the windows, for the gradient by a filter of shape `dims`."""
        image, y = (channels_last(a, attrs["data_format"]) for a in (x, grad))
        if min(dims[:2]) < 1:
            return None
        window = window_of(attrs, (dims[0], dims[1]))
        expected = (image.shape[0], window.positions(0, image.shape[1]), window.positions(1, image.shape[2]), channels)
        fits = _fits(y.shape, expected) and dims[2] == image.shape[3] and x.size > 0
        return (image, y, window) if fits else None

    def conv_filter(self, attrs: Any, x: Array, sizes: Array, grad: Array) -> Array | None:
        """`Conv2DBackpropFilter`."""
        dims = sizes.tolist()
        found = self._of_filter(attrs, x, dims, dims[3], grad)
        if found is None:
            return None
        image, y, window = found
        return filter_gradient(self.executor, self.functions["convolve_filter"], self.threads, window, image, y)

    def depthwise_filter(self, attrs: Any, x: Array, sizes: Array, grad: Array) -> Array | None:
        """`DepthwiseConv2dNativeBackpropFilter`."""
        high, wide, inner, times = dims = sizes.tolist()
        found = self._of_filter(attrs, x, dims, inner * times, grad)
        if found is None:
            return None
        image, y, window = found
        seen = repeated(self.executor, windowed(self.executor, image, window, self.threads), times)
        row = seen.shape[2] * inner * times
        w = self.executor.empty((high, wide, inner, times), x.dtype)
        arguments = (
            seen.ravel(), self.executor.ordered(y).ravel(), w.ravel(), (high, wide, inner * times),
            (*y.shape[:3], _CHANNELS),
            (seen.shape[1] * row, window.strides[0] * row, window.strides[1] * inner * times),
            (window.dilations[0] * row, window.dilations[1] * inner * times),
        )  # fmt: skip
        units = high * -(-inner * times // _CHANNELS)
        self._share("depthwise_filter", arguments, units, y.size * high * wide * _NS_PER_PRODUCT)
        return w

    # --- pooling ---------------------------------------------------------------------------------------------------

    def _pool(self, name: str, attrs: Any, arrays: Sequence[Array], out: Array, of: Array) -> None:
        """`of`: the image, or what has its shape."""
        window = window_of(attrs, height_and_width(attrs, "ksize"))
        count = tuple(window.positions(i, of.shape[1 + i]) or 0 for i in range(2))
        pads = (window.pads(0, of.shape[1])[0], window.pads(1, of.shape[2])[0])
        arguments = (
            *(self.executor.ordered(a).ravel() for a in arrays), out.ravel(), of.shape[1:], count,
            (*window.taps, *window.strides, *pads),
        )  # fmt: skip
        work = of.shape[0] * math.prod(count) * of.shape[3] * math.prod(window.taps) * _NS_PER_TAP
        self._share(name, arguments, of.shape[0], work)

    def _pooled(self, attrs: Any, image: Sequence[int]) -> tuple[int, ...]:
        window = window_of(attrs, height_and_width(attrs, "ksize"))
        return (image[0], window.positions(0, image[1]) or 0, window.positions(1, image[2]) or 0, image[3])

    def max_pool(self, attrs: Any, x: Array, *, name: str = "max_pool") -> Array | None:
        """`MaxPool`."""
        image = channels_last(x, attrs["data_format"])
        shape = self._pooled(attrs, image.shape)
        if 0 in (x.size, *shape):
            return None
        y = self.executor.empty(shape, x.dtype)
        self._pool(name, attrs, [image], y, image)
        return as_layout(self.executor, y, attrs["data_format"])

    def avg_pool(self, attrs: Any, x: Array) -> Array | None:
        """`AvgPool`."""
        return self.max_pool(attrs, x, name="avg_pool")

    def max_pool_grad(self, attrs: Any, x: Array, y: Array, grad: Array) -> Array | None:
        """`MaxPoolGrad`."""
        image, g = (channels_last(a, attrs["data_format"]) for a in (x, grad))
        if not _fits(g.shape, self._pooled(attrs, image.shape)) or x.size == 0:
            return None
        out = self.executor.empty(image.shape, x.dtype)
        self._pool("max_pool_grad", attrs, [image, g], out, out)
        return as_layout(self.executor, out, attrs["data_format"])

    def avg_pool_grad(self, attrs: Any, sizes: Array, grad: Array) -> Array | None:
        """`AvgPoolGrad`."""
        g = channels_last(grad, attrs["data_format"])
        shape = tuple(int(d or 0) for d in nhwc(tuple(sizes.tolist()), attrs["data_format"]))
        if not _fits(g.shape, self._pooled(attrs, shape)) or 0 in shape:
            return None
        out = self.executor.empty(shape, grad.dtype)
        self._pool("avg_pool_grad", attrs, [g], out, out)
        return as_layout(self.executor, out, attrs["data_format"])


OPS: dict[str, tuple[str, str, str]] = {
    "Conv2D": ("conv", "conv_source", "convolve"),
    "Conv2DBackpropInput": ("conv_input", "conv_source", "convolve overlay"),
    "Conv2DBackpropFilter": ("conv_filter", "conv_filter_source", "convolve_filter"),
    "DepthwiseConv2dNative": ("depthwise", "pool_source", "depthwise"),
    "DepthwiseConv2dNativeBackpropInput": ("depthwise_input", "pool_source", "depthwise"),
    "DepthwiseConv2dNativeBackpropFilter": ("depthwise_filter", "pool_source", "depthwise_filter"),
    "MaxPool": ("max_pool", "pool_source", "max_pool"),
    "MaxPoolGrad": ("max_pool_grad", "pool_source", "max_pool_grad"),
    "AvgPool": ("avg_pool", "pool_source", "avg_pool"),
    "AvgPoolGrad": ("avg_pool_grad", "pool_source", "avg_pool_grad"),
}
"""For each op: the method that runs it, and its functions and their file."""

CONVOLUTIONS = frozenset(op for op in OPS if op.startswith("Conv2D"))
DEPTHWISE = frozenset(op for op in OPS if op.startswith("Depthwise"))
POOLING = frozenset(OPS) - CONVOLUTIONS - DEPTHWISE

KNOWN_INPUTS = {"Conv2DBackpropInput": 0, "Conv2DBackpropFilter": 1, "DepthwiseConv2dNativeBackpropInput": 0,
        "DepthwiseConv2dNativeBackpropFilter": 1, "AvgPoolGrad": 0}  # fmt: skip
"""The input whose value is read: it has the sizes of the result."""


def image_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]] | None:
    """For a node that has a kernel here: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work.
    """
    found = OPS.get(node.type)
    if found is None:
        return None
    dtype = node.outputs[0].dtype.base
    if dtype.np not in _TYPES:
        return None
    method, file, functions = found
    names = functions.split()
    if node.type == "Conv2DBackpropInput":
        dims = node.inputs[1].dims
        if dims is not None and dims[2] is not None:  # one of them does it, and each takes long to compile
            names = [names[dims[2] <= _FEW]]

    def call(compiled: Any, *inputs: Array, executor: Executor = EAGER) -> Array | None:
        each = compiled if isinstance(compiled, tuple) else (compiled,)
        kernels = ImageKernels(dict(zip(names, each, strict=True)), threads, executor)
        made: Array | None = getattr(kernels, method)(node.attrs, *inputs)
        return made

    return text_of(f"kernels/{file}", {name: _SIGNATURES[name] for name in names}, dtype.name), call
