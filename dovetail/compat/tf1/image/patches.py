"""Patches of images under a sliding window, as rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert
from ....graph.core.constant_value import static_dims
from ....graph.core.dtypes import Array
from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import Attrs, Output, define
from ....graph.core.shape import Dims
from ....graph.ops.array.shapes import shape
from ....graph.ops.math.common import same_type
from ....graph.ops.math.static_operands import dims_of, move_cost, need_index, need_rank, op_scope
from ....graph.ops.nn.conv_geometry import (
    Window,
    four,
    height_and_width,
    image_dims,
    overlay,
    padding_attrs,
    patches,
    window_of,
)


def _window(attrs: Attrs) -> Window:
    return window_of(attrs, height_and_width(attrs, "ksizes"))


def _patch_dims(x: Tensor, window: Window) -> Dims:
    n, h, w, c = image_dims(x, "NHWC", "images")
    rows, columns = window.positions(0, h), window.positions(1, w)
    return n, rows, columns, None if c is None else c * window.taps[0] * window.taps[1]


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    return [(x.dtype.base, _patch_dims(x, _window(attrs)))]


def _extract(x: Array, **attrs: Any) -> Array:
    found = patches(x, _window(attrs))  # [n, rows, columns, c, taps high, taps wide]
    n, rows, columns, c, high, wide = found.shape
    return np.ascontiguousarray(found.transpose(0, 1, 2, 4, 5, 3)).reshape(n, rows, columns, high * wide * c)


def _back_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    grad, whole = inputs
    need_rank(grad.dims, 4, "the gradient")
    need_index(whole, "the shape of the images")
    return [(same_type((grad,)), static_dims(whole))]


def _put_back(grad: Array, whole: Array, **attrs: Any) -> Array:
    window = _window(attrs)
    _, height, width, c = dims_of(whole)
    n, rows, columns, _ = grad.shape
    parts = grad.reshape(n, rows, columns, *window.taps, c).transpose(0, 1, 2, 5, 3, 4)
    return overlay(parts, height, width, window)


def _gradient(node: Node, grad: Any) -> Sequence[Any]:
    return [apply("ExtractImagePatchesBackprop", (convert(grad), shape(node.inputs[0])), dict(node.attrs))]


define("ExtractImagePatches", _rule, _extract, gradient=_gradient, cost=move_cost)
define(
    "ExtractImagePatchesBackprop",
    _back_rule,
    _put_back,
    gradient=lambda node, grad: [apply("ExtractImagePatches", (convert(grad),), dict(node.attrs)), None],
    cost=move_cost,
)


def extract_image_patches(
    images: TensorLike,
    ksizes: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    rates: Sequence[int] | None = None,
    padding: str | None = None,
    name: str | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """What a window sees at each of its positions, as one row of numbers.

    Args:
        images: [batch, height, width, channels].
        ksizes (`sizes`): [1, taps high, taps wide, 1].
        strides: [1, down, across, 1].
        rates: [1, down, across, 1], the distances between neighbouring taps.
        padding: "SAME" or "VALID".

    Returns:
        [batch, rows, columns, taps high * taps wide * channels].
    """
    taps = ksizes if ksizes is not None else sizes
    if taps is None or strides is None or rates is None or padding is None:
        raise TypeError("extract_image_patches needs ksizes, strides, rates and padding")
    with op_scope(name, "ExtractImagePatches", images) as scope:
        attrs = {
            "ksizes": four(taps, "ksizes", "NHWC"),
            "strides": four(strides, "strides", "NHWC"),
            "dilations": four(rates, "rates", "NHWC"),
            "data_format": "NHWC",
            **padding_attrs(padding),
        }
        return apply("ExtractImagePatches", (convert(images, name="images"),), attrs, scope)


explain_members(sys.modules[__name__])
