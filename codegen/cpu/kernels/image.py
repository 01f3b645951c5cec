"""Convolutions on CPUs: how each op's arrays are prepared for the loops.

Each kernel is a function like the op's reference. It brings the arrays into the form of the loops: channels last, padding added, filters in
panels. `conv` and `contraction` cut them into units of work; `contraction_source` and `conv_filter_source` have the loops.

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
from ....graph.ops.nn.conv_geometry import Window, channels_last, nhwc, window_of
from ..emit.instantiate import text_of
from ..jit import Function
from ..native.recorder import Recorder
from ..work_ranges import ranges_of
from .contraction import FUNCTIONS, NS_PER_FLOP
from .conv import FILTER_FUNCTIONS, as_layout, convolve, filter_gradient, phases_of

Array: TypeAlias = np.ndarray[Any, Any]

_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
_NS_PER_PART = 0.5  # of adding up the parts of pixels
_FEW = 8  # channels that fill half a tile
_SIGNATURES = {**FUNCTIONS, **FILTER_FUNCTIONS}


def _fits(dims: Sequence[int], expected: Sequence[int | None]) -> bool:
    return tuple(dims) == tuple(expected) and math.prod(dims) > 0


@dataclass(frozen=True, slots=True)
class ImageKernels:
    """The kernels.

    Attributes:
        functions: the compiled ones, by name. threads: how many one kernel may use. recorder: records their calls.
    """

    functions: Mapping[str, Function]
    threads: int
    recorder: Recorder

    def conv(self, attrs: Any, x: Array, w: Array) -> Array | None:
        """`Conv2D`."""
        image, window = channels_last(x, attrs["data_format"]), window_of(attrs, w.shape[:2])
        count = (window.positions(0, image.shape[1]) or 0, window.positions(1, image.shape[2]) or 0)
        if image.shape[3] != w.shape[2] or 0 in (x.size, w.size, *count):
            return None
        y = self.recorder.empty((image.shape[0], *count, w.shape[3]), x.dtype)
        pads = (window.pads(0, image.shape[1])[0], window.pads(1, image.shape[2])[0])
        own = self.recorder.ordered(w)
        convolve(
            self.recorder, self.functions["contract"], self.threads, self.recorder.ordered(image), own, y, count,
            taps=own, strides=window.strides, dilations=window.dilations, begin=(-pads[0], -pads[1]),
        )  # fmt: skip
        return as_layout(self.recorder, y, attrs["data_format"])

    def conv_input(self, attrs: Any, sizes: Array, w: Array, grad: Array) -> Array | None:
        """`Conv2DBackpropInput`."""
        y, window = channels_last(grad, attrs["data_format"]), window_of(attrs, w.shape[:2])
        n, height, width, inner = (int(d or 0) for d in nhwc(tuple(sizes.tolist()), attrs["data_format"]))
        expected = (n, window.positions(0, height), window.positions(1, width), w.shape[3])
        if not _fits(y.shape, expected) or inner != w.shape[2] or inner * height * width == 0:
            return None
        if inner > _FEW and window.strides != (1, 1) and window.dilations != (1, 1):
            return None
        x = self.recorder.empty((n, height, width, inner), grad.dtype)
        own, y = self.recorder.ordered(w), self.recorder.ordered(y)
        if inner <= _FEW:
            self._overlay(window, y, own, x)
            return as_layout(self.recorder, x, attrs["data_format"])
        if any(window.strides[i] > window.span(i) for i in range(2)):
            self.recorder.clear(x)  # there are pixels that no tap meets
        turned = own.transpose(0, 1, 3, 2)
        for p in phases_of(window, (height, width)):
            convolve(
                self.recorder, self.functions["contract"], self.threads, y, own, x, p.count,
                taps=turned[p.taps], dilations=window.dilations, begin=p.begin, to=p.to, apart=window.strides,
            )  # fmt: skip
        return as_layout(self.recorder, x, attrs["data_format"])

    def _overlay(self, window: Window, y: Array, w: Array, x: Array) -> None:
        """For images with fewer channels than a tile: products of pixels and all taps, whose parts are added up (col2im)."""
        n, height, width, inner = x.shape
        pads = (window.pads(0, height)[0], window.pads(1, width)[0])
        arguments = (
            y.ravel(), w.ravel(), x.ravel(), (height, width, inner), y.shape[1:],
            (*window.taps, *window.strides, *pads), window.dilations,
        )  # fmt: skip
        time = y.size * w.size // w.shape[3] * (2 * NS_PER_FLOP + _NS_PER_PART / w.shape[3])
        self.recorder.share(self.functions["overlay"], arguments, ranges_of(n, time, self.threads), self.threads)

    def conv_filter(self, attrs: Any, x: Array, sizes: Array, grad: Array) -> Array | None:
        """`Conv2DBackpropFilter`."""
        image, y = (channels_last(a, attrs["data_format"]) for a in (x, grad))
        high, wide, inner, channels = sizes.tolist()
        if min(high, wide) < 1:
            return None
        window = window_of(attrs, (high, wide))
        expected = (image.shape[0], window.positions(0, image.shape[1]), window.positions(1, image.shape[2]), channels)
        if not _fits(y.shape, expected) or inner != image.shape[3] or x.size == 0:
            return None
        return filter_gradient(self.recorder, self.functions["convolve_filter"], self.threads, window, image, y)


OPS: dict[str, tuple[str, str, str]] = {
    "Conv2D": ("conv", "contraction_source", "contract"),
    "Conv2DBackpropInput": ("conv_input", "contraction_source", "contract overlay"),
    "Conv2DBackpropFilter": ("conv_filter", "conv_filter_source", "convolve_filter"),
}
"""For each op: the method that runs it, and its functions and their file."""

KNOWN_INPUTS = {"Conv2DBackpropInput": 0, "Conv2DBackpropFilter": 1}
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

    def call(compiled: Any, recorder: Recorder, *inputs: Array) -> Array | None:
        each = compiled if isinstance(compiled, tuple) else (compiled,)
        kernels = ImageKernels(dict(zip(names, each, strict=True)), threads, recorder)
        made: Array | None = getattr(kernels, method)(node.attrs, *inputs)
        return made

    return text_of(f"kernels/{file}", {name: _SIGNATURES[name] for name in names}, dtype.name), call
