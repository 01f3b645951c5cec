"""Batch normalization as elementary nodes, which become a kernel together with what is around them, such as a residual sum and a ReLU.

While training, one kernel has the mean, the variance around it, and then the normalized image. The gradient's two sums are one pass over
the image and its gradient, and the gradient by the image is a second one. As in the references, statistics are float32 where the image is
of half precision. The divisor n - 1 of the returned variance comes from sizes, which may be known only at run time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.core.dtypes import DType, int32
from ...graph.core.graph import Node, Tensor
from ...graph.core.shape import element_count
from ..ir.nodes import inferred_node

BATCH_NORMS = frozenset(("FusedBatchNormV3", "FusedBatchNormGradV3"))


def fits(node: Node) -> bool:
    """Whether it is known that a node's image has elements, and that each vector has a number for each of its channels."""
    attrs, is_gradient = node.attrs, node.type == "FusedBatchNormGradV3"
    image, vectors = node.outputs[0].dims, node.inputs[1 + is_gradient : 5]
    if not is_gradient and attrs["is_training"] and attrs["exponential_avg_factor"] == 1.0:
        vectors = vectors[:2]
    if image is None or 0 in image:
        return False
    channels = image[1 if attrs["data_format"] == "NCHW" else 3]
    return channels is not None and all(v.dims == (channels,) for v in vectors)


def elementary_nodes(node: Node, may_be_dead: bool) -> Sequence[Node]:
    """The nodes that compute the outputs of a node of `BATCH_NORMS`."""
    make = _Maker(node)
    results = _gradients(make, *node.inputs) if node.type == "FusedBatchNormGradV3" else _normalized(make, *node.inputs)
    empty = [make.constant(np.zeros(0, t.dtype.np)) for t in node.outputs[len(results) :]]
    # The last nodes have the outputs as theirs, so consumers stay unchanged.
    results = [results[0], *[make("Identity", t) for t in (*results[1:], *empty)]]
    for old, new in zip(node.outputs, results, strict=True):
        new.op.outputs = (old,)
    return make.nodes


class _Maker:
    """Makes nodes that replace a `root`; an operand may be a number of the type of the first one."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes: list[Node] = []
        is_first = root.attrs["data_format"] == "NCHW"
        self.axes = self.constant(np.array((0, 2, 3) if is_first else (0, 1, 2), np.int32))
        self.along = self.constant(np.array((-1, 1, 1), np.int32)) if is_first else None

    def __call__(self, op: str, first: Tensor, *others: Tensor | float, **attrs: object) -> Tensor:
        dtype = first.dtype.base.np
        inputs = [t if isinstance(t, Tensor) else self.constant(np.array(t, dtype)) for t in (first, *others)]
        self.nodes.append(inferred_node(op, inputs, attrs, self.root))
        return self.nodes[-1].outputs[0]

    def constant(self, value: np.ndarray) -> Tensor:
        self.nodes.append(inferred_node("Const", (), {"value": value}, self.root))
        return self.nodes[-1].outputs[0]

    def over(self, op: str, x: Tensor) -> Tensor:
        """A sum or a mean for each channel."""
        return self(op, x, self.axes, keep_dims=False)

    def image(self, op: str, x: Tensor, vector: Tensor) -> Tensor:
        """An operation on an image and a number for each channel."""
        return self(op, x, vector if self.along is None else self("Reshape", vector, self.along))

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return x if x.dtype.base is dtype else self("Cast", x, DstT=dtype)


def _normalized(
    make: _Maker, x: Tensor, scale: Tensor, offset: Tensor, mean: Tensor, variance: Tensor
) -> Sequence[Tensor]:
    attrs, wide = make.root.attrs, scale.dtype.base
    values = make.cast(x, wide)
    used_mean = make.over("Mean", values) if attrs["is_training"] else mean
    centered = make.image("Sub", values, used_mean)
    used_variance = make.over("Mean", make("Square", centered)) if attrs["is_training"] else variance
    inverse = make("Rsqrt", make("AddV2", used_variance, attrs["epsilon"]))
    y = make.image("AddV2", make.image("Mul", centered, make("Mul", inverse, scale)), offset)
    y = make.cast(y, x.dtype.base)
    if not attrs["is_training"]:
        return y, mean, variance, mean, inverse
    new_mean, new_variance = used_mean, make("Mul", used_variance, _bessel(make, x, scale))
    factor = attrs["exponential_avg_factor"]
    if factor != 1.0:
        new_mean = make("AddV2", make("Mul", mean, 1 - factor), make("Mul", new_mean, factor))
        new_variance = make("AddV2", make("Mul", variance, 1 - factor), make("Mul", new_variance, factor))
    return y, new_mean, new_variance, used_mean, inverse


def _bessel(make: _Maker, x: Tensor, vector: Tensor) -> Tensor | float:
    """n / (n - 1), for n elements of a channel."""
    total, channels = element_count(x.dims), element_count(vector.dims)
    assert channels
    if total is not None:
        return total / max(total - channels, channels)
    count = make("Cast", make("Size", x, out_type=int32), DstT=vector.dtype.base)
    return make("RealDiv", count, make("Maximum", make("Sub", count, channels), channels))


def _gradients(
    make: _Maker, gradient: Tensor, x: Tensor, scale: Tensor, mean: Tensor, spread: Tensor, _: Tensor
) -> Sequence[Tensor]:
    """The gradients by the image, the scale and the offset. While training, `spread` is 1 / standard deviation, else the variance."""
    attrs, wide = make.root.attrs, scale.dtype.base
    inverse = spread if attrs["is_training"] else make("Rsqrt", make("AddV2", spread, attrs["epsilon"]))
    g = make.cast(gradient, wide)
    normal = make.image("Mul", make.image("Sub", make.cast(x, wide), mean), inverse)
    product = make("Mul", g, normal)
    for_offset, for_scale = make.over("Sum", g), make.over("Sum", product)
    if attrs["is_training"]:  # the mean and the variance depend on x, too
        through_variance = make.image("Mul", normal, make.over("Mean", product))
        g = make("Sub", make.image("Sub", g, make.over("Mean", g)), through_variance)
    for_x = make.image("Mul", g, make("Mul", scale, inverse))
    return make.cast(for_x, x.dtype.base), for_scale, for_offset
