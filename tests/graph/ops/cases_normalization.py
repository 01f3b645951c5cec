"""Biases and normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_table import FLOATS, NUMBERS, OpCase, ScriptCase, interpreted, op_of, real, whole

from dovetail import nn
from dovetail.graph.core.build import constant, make, placeholder
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.nn import normalization

# --- bias ---------------------------------------------------------------------------------------------------

BIAS = [
    OpCase("BiasAdd", nn.bias_add, [whole(2, 3), whole(3, seed=1)], lambda x, b: x + b, NUMBERS, grad=True),
    OpCase(
        "BiasAdd",
        lambda x, b: nn.bias_add(x, b, data_format="NCHW"),
        [real(2, 3, 2, 2), real(3)],
        lambda x, b: x + b[:, None, None],
        grad=True,
        label="NCHW",
    ),
    OpCase(
        "BiasAdd",
        lambda x, b: nn.bias_add(x, b, data_format="NC..."),
        [real(2, 3), real(3)],
        lambda x, b: x + b,
        grad=True,
        label="NC...",
    ),
    OpCase(
        "BiasAddGrad",
        op_of("BiasAddGrad", data_format="NHWC"),
        [real(2, 2, 3)],
        lambda g: g.sum((0, 1)),
        FLOATS,
        grad=True,
    ),
    OpCase(
        "BiasAddGrad",
        op_of("BiasAddGrad", data_format="NCHW"),
        [real(2, 3, 2, 2)],
        lambda g: g.sum((0, 2, 3)),
        grad=True,
        label="NCHW",
    ),
    OpCase(
        "BiasAdd",
        nn.xw_plus_b,
        [real(2, 3), real(3, 4), real(4)],
        lambda x, w, b: x @ w + b,
        grad=True,
        label="xw_plus_b",
    ),
    OpCase(
        "Relu",
        nn.relu_layer,
        [real(2, 3), real(3, 4), real(4)],
        lambda x, w, b: np.maximum(x @ w + b, 0),
        grad=True,
        label="relu_layer",
    ),
]


def _bias_errors() -> None:
    with pytest.raises(ValueError, match="not compatible"):
        nn.bias_add(constant([[1.0, 2.0]]), constant([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="at least rank 2"):
        nn.bias_add(constant([1.0]), [1.0])
    with pytest.raises(ValueError, match="of the form 'N...C' or 'NC...', not 'CHW'"):
        nn.bias_add(constant([[1.0]]), [1.0], data_format="CHW")
    assert nn.bias_add(placeholder("float32", [None, None]), constant([1.0, 2.0])).dims == (None, 2)


# --- norms and normalisation --------------------------------------------------------------------------------

IMAGES = real(2, 3, 4, 2)
CHANNELS = [real(2, low=0.5, high=1.9), real(2, seed=1)]
STATISTICS = [real(2, seed=2), real(2, low=0.5, high=1.9, seed=3)]


def _moments(x: Any, axes: Any) -> Any:
    return x.mean(axes), x.var(axes)


def _normal(x: Any, mean: Any, variance: Any, scale: Any, offset: Any, epsilon: float) -> Any:
    return (x - mean) / np.sqrt(variance + epsilon) * scale + offset


def _fused(*, layout: str = "NHWC", training: bool, factor: float = 1.0, with_statistics: bool = True) -> Any:
    def build(x: Any, scale: Any, offset: Any, mean: Any = None, variance: Any = None) -> Any:
        return list(
            nn.fused_batch_norm(x, scale, offset, mean, variance, 0.01, layout, training, exponential_avg_factor=factor)
        )

    return build


def _fused_oracle(layout: str, training: bool, factor: float = 1.0) -> Any:
    def oracle(x: Any, scale: Any, offset: Any, *given: Any) -> Any:
        last = np.moveaxis(x, 1, -1) if layout == "NCHW" else x
        mean, variance = (last.mean((0, 1, 2)), last.var((0, 1, 2))) if training else given
        y = _normal(last, mean, variance, scale, offset, 0.01)
        y = np.moveaxis(y, -1, 1) if layout == "NCHW" else y
        if not training:
            return [y, *given]
        out = [mean, last.var((0, 1, 2), ddof=1)]
        if factor != 1:
            out = [(1 - factor) * g + factor * o for g, o in zip(given, out, strict=True)]
        return [y, *out]

    return oracle


def _fused_grad(layout: str, training: bool) -> Any:
    def build(g: Any, x: Any, scale: Any, mean: Any, inverse: Any) -> Any:
        attrs = {"epsilon": 0.01, "data_format": layout, "is_training": training}
        nothing = constant(np.zeros(0), scale.dtype)
        return list(make("FusedBatchNormGradV3", (g, x, scale, mean, inverse, nothing), attrs).outputs[:3])

    return build


def _fused_grad_oracle(layout: str, training: bool) -> Any:
    """By differences of the forward formula along the direction of each output: in float64."""

    def oracle(g: Any, x: Any, scale: Any, mean: Any, spread: Any) -> Any:
        inverse = spread if training else (spread + spread.dtype.type(0.01)) ** -0.5
        x, g = (np.moveaxis(a, 1, -1) if layout == "NCHW" else a for a in (x, g))
        normal = (x - mean) * inverse
        for_x = g * scale * inverse
        if training:  # the projection that removes what mean and variance absorb
            for_x = for_x - for_x.mean((0, 1, 2)) - normal * (for_x * normal).mean((0, 1, 2))
        for_x = np.moveaxis(for_x, -1, 1) if layout == "NCHW" else for_x
        return [for_x, (g * normal).sum((0, 1, 2)), g.sum((0, 1, 2))]

    return oracle


def _statistics_of(x: Any) -> list[Any]:
    return [x.mean((0, 1, 2)), 1 / np.sqrt(x.var((0, 1, 2)) + 0.01)]


NCHW = np.moveaxis(IMAGES, -1, 1).copy()

NORMALIZATION = [
    OpCase("L2Loss", nn.l2_loss, [real(2, 3)], lambda x: np.sum(x**2) / 2, FLOATS, grad=True),
    OpCase(
        "Rsqrt",
        nn.l2_normalize,
        [real(2, 3)],
        lambda x: x / np.linalg.norm(x),
        ("float32", "float64"),
        grad=True,
        label="l2_normalize",
    ),
    OpCase(
        "Rsqrt",
        lambda x: nn.l2_normalize(x, axis=-1),
        [real(2, 3)],
        lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
        grad=True,
        label="l2_normalize axis",
    ),
    OpCase(
        "SquaredDifference",
        lambda x: list(nn.moments(x, [0, 2])),
        [real(2, 3, 4)],
        lambda x: _moments(x, (0, 2)),
        FLOATS,
        grad=True,
        unknown=("dims",),
        label="moments",
    ),
    OpCase(
        "SquaredDifference",
        lambda x: list(nn.moments(x, 1, keep_dims=True)),
        [real(2, 3)],
        lambda x: [a[:, None] for a in _moments(x, 1)],
        grad=True,
        label="moments kept",
    ),
    OpCase(
        "Rsqrt",
        lambda x, m, v, o, s: nn.batch_normalization(x, m, v, o, s, 0.01),
        [real(4, 2), *STATISTICS, *CHANNELS[::-1]],
        lambda x, m, v, o, s: _normal(x, m, v, s, o, 0.01),
        ("float32", "float64"),
        grad=True,
        label="batch_normalization",
    ),
    OpCase(
        "Rsqrt",
        lambda x, m, v: nn.batch_normalization(x, m, v, None, None, 0.01),
        [real(4, 2), *STATISTICS],
        lambda x, m, v: _normal(x, m, v, 1, 0, 0.01),
        grad=True,
        label="batch_normalization plain",
    ),
    OpCase(
        "Rsqrt",
        lambda x, g, b: nn.layer_norm(x, g, b, epsilon=0.01),
        [real(3, 4), real(4, seed=1), real(4, seed=2)],
        lambda x, g, b: _normal(x, x.mean(1, keepdims=True), x.var(1, keepdims=True), g, b, 0.01),
        ("float32", "float64"),
        grad=True,
        label="layer_norm",
    ),
    OpCase(
        "FusedBatchNormV3",
        _fused(training=True),
        [IMAGES, *CHANNELS],
        _fused_oracle("NHWC", True),
        ("float32", "float64"),
        grad=True,
    ),
    OpCase(
        "FusedBatchNormV3",
        _fused(training=True, layout="NCHW"),
        [NCHW, *CHANNELS],
        _fused_oracle("NCHW", True),
        grad=True,
        label="NCHW",
    ),
    OpCase(
        "FusedBatchNormV3",
        _fused(training=True, factor=0.25),
        [IMAGES, *CHANNELS, *STATISTICS],
        _fused_oracle("NHWC", True, 0.25),
        grad=True,
        label="moving average",
    ),
    *(
        OpCase(
            "FusedBatchNormV3",
            _fused(training=False, layout=layout),
            [x, *CHANNELS, *STATISTICS],
            _fused_oracle(layout, False),
            grad=True,
            label=f"inference {layout}",
        )
        for layout, x in (("NHWC", IMAGES), ("NCHW", NCHW))
    ),
    OpCase(
        "FusedBatchNormGradV3",
        _fused_grad("NHWC", False),
        [real(2, 3, 4, 2, seed=9), IMAGES, CHANNELS[0], *STATISTICS],
        _fused_grad_oracle("NHWC", False),
        ("float32", "float64"),
        grad=True,
        label="inference",
    ),
    *(
        OpCase(
            "FusedBatchNormGradV3",
            _fused_grad(layout, True),
            [
                np.moveaxis(real(2, 3, 4, 2, seed=9), -1, 1) if layout == "NCHW" else real(2, 3, 4, 2, seed=9),
                x,
            ]
            + [CHANNELS[0], *_statistics_of(IMAGES)],
            _fused_grad_oracle(layout, True),
            ("float32", "float64"),
            label=f"training {layout}",
        )
        for layout, x in (("NHWC", IMAGES), ("NCHW", NCHW))
    ),
]


def _second_derivatives() -> None:
    """Gradients of gradients, where the statistics move with x: against differences of the first gradient."""
    rng = np.random.default_rng(4)
    for layout, shape in (("NHWC", (2, 2, 2, 3)), ("NCHW", (2, 3, 2, 2))):
        at = rng.normal(size=shape)
        weight, direction = rng.normal(size=shape), rng.normal(size=shape)
        x = placeholder("float64", shape)
        scale = constant([0.5, 1.0, -1.5], "float64")
        y = nn.fused_batch_norm(x, scale, [0.0, 0.0, 0.0], data_format=layout, epsilon=0.01).y
        (first,) = gradients(y * y, [x], grad_ys=weight)
        (second,) = gradients(first, [x], grad_ys=direction)
        up, down = (interpreted(first, {x: at + d * direction}) for d in (1e-5, -1e-5))
        # A Hessian is symmetric: the gradient of <first, direction> is the change of first along it.
        np.testing.assert_allclose(interpreted(second, {x: at}), (up - down) / 2e-5, rtol=1e-5, atol=1e-6)
    x = placeholder("float64", [3, 4])
    at, direction = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    (first,) = gradients(nn.moments(x, [0])[1] ** 2.0, [x])
    (second,) = gradients(first, [x], grad_ys=direction)
    up, down = (interpreted(first, {x: at + d * direction}) for d in (1e-5, -1e-5))
    np.testing.assert_allclose(interpreted(second, {x: at}), (up - down) / 2e-5, rtol=1e-5, atol=1e-6)


def _half_batch_norm() -> None:
    x = (real(8, 4, 4, 3) * 100 + 2000).astype(np.float16)  # squares overflow float16
    half = placeholder("float16", x.shape)
    out = nn.fused_batch_norm(half, [1.0, 2.0, 3.0], [0.0, 0.0, 1.0])
    assert [t.dtype.name for t in out] == ["float16", "float32", "float32"]
    y, mean, variance = interpreted(list(out), {half: x})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, wide.var((0, 1, 2), ddof=1), rtol=1e-4)
    expected = _normal(wide, wide.mean((0, 1, 2)), wide.var((0, 1, 2)), [1, 2, 3], [0, 0, 1], 0.001)
    np.testing.assert_allclose(y, expected, rtol=3e-3, atol=3e-3)
    (grad,) = gradients(out.y, [half])
    assert grad.dtype.name == "float16"
    np.testing.assert_allclose(interpreted(grad, {half: x}), np.zeros(x.shape), atol=1e-4)


def _batch_norm_errors() -> None:
    x = placeholder("float32", [None, 2, 2, 3])
    with pytest.raises(ValueError, match="mean and variance are needed"):
        nn.fused_batch_norm(x, [1.0] * 3, [0.0] * 3, is_training=False)
    with pytest.raises(ValueError, match="not compatible"):
        nn.fused_batch_norm(x, [1.0] * 2, [0.0] * 3)
    with pytest.raises(ValueError, match="data_format must be 'NHWC' or 'NCHW', not 'NDHWC'"):
        nn.fused_batch_norm(x, [1.0] * 3, [0.0] * 3, data_format="NDHWC")
    with pytest.raises(ValueError, match="must be rank 4"):
        nn.fused_batch_norm(placeholder("float32", [2, 3]), [1.0] * 3, [0.0] * 3)
    with pytest.raises(TypeError, match="requested dtype float32 for Tensor with dtype float64"):
        nn.fused_batch_norm(x, constant([1.0] * 3, "float64"), [0.0] * 3)
    assert normalization.FusedBatchNorm._fields == ("y", "batch_mean", "batch_variance")


CASES = [
    *BIAS,
    *NORMALIZATION,
    *(
        ScriptCase((), script, script.__name__.strip("_").replace("_", " "))
        for script in (_bias_errors, _second_derivatives, _half_batch_norm, _batch_norm_errors)
    ),
]
