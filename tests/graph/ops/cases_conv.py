"""Convolutions and pooling against their definitions, as loops over positions and taps, and against SciPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.signal
from op_table import FLOATS, NUMBERS, OpCase, ScriptCase, interpreted, real

from dovetail.compat.tf1.ops import nn_functions
from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError, UnimplementedError
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.nn import conv, pooling

Pads = tuple[tuple[int, int], tuple[int, int]]


class Setting:
    """One choice of strides, dilations and padding, and where each tap of each position falls."""

    def __init__(
        self,
        label: str,
        strides: tuple[int, int] = (1, 1),
        dilations: tuple[int, int] = (1, 1),
        padding: str | Pads = "VALID",
        data_format: str = "NHWC",
    ) -> None:
        self.label = label
        self.strides = strides
        self.dilations = dilations
        self.padding = padding
        self.data_format = data_format

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `conv2d`."""
        padding: Any = self.padding
        if not isinstance(padding, str):
            high, wide, none = list(padding[0]), list(padding[1]), [0, 0]
            padding = [none, none, high, wide] if self.data_format == "NCHW" else [none, high, wide, none]
        return {
            "strides": self.strides,
            "dilations": self.dilations,
            "padding": padding,
            "data_format": self.data_format,
        }

    @property
    def attrs(self) -> dict[str, Any]:
        """The attrs of the nodes."""
        image = self.image(np.zeros((1, 9, 9, 1), np.float32))
        return dict(conv.conv2d(image, np.ones((1, 1, 1, 1), np.float32), **self.arguments).op.attrs)

    def geometry(self, length: int, taps: int, axis: int) -> tuple[int, int]:
        """(positions, pixels of padding in front) along one axis."""
        s, span = self.strides[axis], (taps - 1) * self.dilations[axis] + 1
        if self.padding == "SAME":
            count = int(np.ceil(length / s))
            return count, max((count - 1) * s + span - length, 0) // 2
        before, after = (0, 0) if self.padding == "VALID" else self.padding[axis]  # type: ignore[misc]
        return int(np.floor((length + before + after - span) / s)) + 1, int(before)

    def taps(self, image: tuple[int, ...], size: tuple[int, ...]) -> Iterator[tuple[int, int, int, int, int, int]]:
        """All (row, column, i, j, y, x): tap (i, j) of that position is the pixel (y, x), which is inside."""
        (rows, top), (columns, left) = (self.geometry(image[a], size[a], a) for a in (0, 1))
        for r, c, i, j in np.ndindex(rows, columns, size[0], size[1]):
            y = r * self.strides[0] + i * self.dilations[0] - top
            x = c * self.strides[1] + j * self.dilations[1] - left
            if 0 <= y < image[0] and 0 <= x < image[1]:
                yield r, c, i, j, y, x

    def shape(self, x: Any, size: tuple[int, ...]) -> tuple[int, int]:
        """(rows, columns) of the result."""
        return self.geometry(x.shape[1], size[0], 0)[0], self.geometry(x.shape[2], size[1], 1)[0]

    def image(self, x: Any) -> Any:
        """An NHWC image in this setting's layout."""
        return np.moveaxis(x, 3, 1).copy() if self.data_format == "NCHW" else x

    def nhwc(self, x: Any) -> Any:
        """And back."""
        return np.moveaxis(x, 1, 3) if self.data_format == "NCHW" else x


SETTINGS = [
    Setting("VALID"),
    Setting("SAME", padding="SAME"),
    Setting("SAME strided", (2, 3), padding="SAME"),
    Setting("VALID strided", (3, 2)),
    Setting("dilated", dilations=(2, 1), padding="SAME"),
    Setting("dilated VALID", dilations=(1, 2)),
    Setting("explicit", (2, 1), padding=((1, 2), (0, 3))),
    Setting("NCHW", (2, 1), padding="SAME", data_format="NCHW"),
    Setting("NCHW explicit", (1, 2), (1, 2), ((0, 1), (2, 0)), "NCHW"),
]
SIZE = (3, 2)
X = real(2, 5, 6, 3)


# --- convolutions -------------------------------------------------------------------------------------------


def _conv(s: Setting, depthwise: bool) -> Callable[[Any, Any], Any]:
    def oracle(x: Any, w: Any) -> Any:
        x = s.nhwc(x)
        channels = x.shape[3] * w.shape[3] if depthwise else w.shape[3]
        y = np.zeros((x.shape[0], *s.shape(x, w.shape), channels))
        for r, c, i, j, py, px in s.taps(x.shape[1:3], w.shape):
            if depthwise:
                y[:, r, c] += (x[:, py, px, :, None] * w[i, j]).reshape(len(x), -1)
            else:
                y[:, r, c] += x[:, py, px] @ w[i, j]
        return s.image(y)

    return oracle


def _conv_input(s: Setting, depthwise: bool) -> Callable[[Any, Any], Any]:
    def oracle(w: Any, g: Any) -> Any:
        g = s.nhwc(g)
        x = np.zeros(X.shape)
        for r, c, i, j, py, px in s.taps(x.shape[1:3], w.shape):
            if depthwise:
                x[:, py, px] += (g[:, r, c].reshape(len(x), *w.shape[2:]) * w[i, j]).sum(-1)
            else:
                x[:, py, px] += g[:, r, c] @ w[i, j].T
        return s.image(x)

    return oracle


def _conv_filter(s: Setting, depthwise: bool, shape: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    def oracle(x: Any, g: Any) -> Any:
        x, g = s.nhwc(x), s.nhwc(g)
        w = np.zeros(shape)
        for r, c, i, j, py, px in s.taps(x.shape[1:3], shape):
            if depthwise:
                w[i, j] += np.einsum("nc,ncm->cm", x[:, py, px], g[:, r, c].reshape(len(x), *shape[2:]))
            else:
                w[i, j] += x[:, py, px].T @ g[:, r, c]
        return w

    return oracle


def _conv_rows(s: Setting, depthwise: bool) -> list[OpCase]:
    forward = "DepthwiseConv2dNative" if depthwise else "Conv2D"
    call: Any = conv.depthwise_conv2d if depthwise else conv.conv2d
    shape = (*SIZE, 3, 2)
    w = real(*shape, seed=1)
    g = s.image(real(2, *s.shape(X, SIZE), 6 if depthwise else 2, seed=2))
    x = s.image(X)

    def backprop(op: str, sizes: Any, at: int) -> Callable[..., Any]:
        def build(*inputs: Any) -> Any:
            operands = list(inputs)
            operands.insert(at, constant(sizes))
            return apply(op, operands, s.attrs)

        return build

    types = FLOATS if s.label == "VALID" else ("float32",)
    # Shapes are inferred alike in all settings: two are enough to see the unknown ones.
    unknown = ("dims", "rank") if s.label in ("VALID", "SAME") else ()
    return [
        OpCase(
            forward,
            lambda x, w: call(x, w, **s.arguments),
            [x, w],
            _conv(s, depthwise),
            types,
            grad=True,
            unknown=unknown,
            label=s.label,
            rtol=1e-4,
        ),
        OpCase(
            forward + "BackpropInput",
            backprop(forward + "BackpropInput", x.shape, 0),
            [w, g],
            _conv_input(s, depthwise),
            types,
            grad=True,
            unknown=unknown,
            label=s.label,
            rtol=1e-4,
        ),
        OpCase(
            forward + "BackpropFilter",
            backprop(forward + "BackpropFilter", shape, 1),
            [x, g],
            _conv_filter(s, depthwise, shape),
            types,
            grad=True,
            unknown=unknown,
            label=s.label,
            rtol=1e-4,
        ),
    ]


def _correlated(x: Any, w: Any) -> Any:
    """`conv2d` with SAME padding and an odd filter, by SciPy."""
    return (
        np.stack(
            [
                sum(scipy.signal.correlate2d(image[..., k], w[..., k, o], "same") for k in range(w.shape[2]))
                for image in x
                for o in range(w.shape[3])
            ]
        )
        .reshape(len(x), w.shape[3], *x.shape[1:3])
        .transpose(0, 2, 3, 1)
    )


def _sequences(x: Any, w: Any) -> Any:
    return np.stack(
        [
            [
                sum(scipy.signal.correlate(s[:, k], w[:, k, o], "valid") for k in range(w.shape[1]))
                for o in range(w.shape[2])
            ]
            for s in x
        ]
    ).transpose(0, 2, 1)


OTHERS = [
    OpCase(
        "Conv2D",
        lambda x, w: conv.conv2d(x, w, 1, "SAME"),
        [real(2, 5, 4, 2), real(3, 5, 2, 2)],
        _correlated,
        label="SciPy",
        rtol=1e-4,
    ),
    OpCase(
        "Conv2D",
        lambda x, w: conv.conv1d(x, w, 1, "VALID"),
        [real(2, 7, 3), real(3, 3, 2)],
        _sequences,
        grad=True,
        unknown=("dims",),
        label="conv1d",
        rtol=1e-4,
    ),
    OpCase(
        "Conv2D",
        lambda x, w: conv.conv1d(x, w, 2, "VALID", data_format="NCW"),
        [real(2, 3, 7), real(3, 3, 2)],
        lambda x, w: np.moveaxis(_sequences(np.moveaxis(x, 1, 2), w)[:, ::2], 1, 2),
        unknown=("dims",),
        label="conv1d NCW strided",
        rtol=1e-4,
    ),
    OpCase(
        "Conv2DBackpropInput",
        lambda y, w: conv.conv2d_transpose(y, w, X.shape, (2, 3), "SAME"),
        [real(2, 3, 2, 2), real(*SIZE, 3, 2)],
        lambda y, w: _conv_input(SETTINGS[2], False)(w, y),
        grad=True,
        label="transpose",
        rtol=1e-4,
    ),
    OpCase(
        "Conv2D",
        lambda x, w: nn_functions.atrous_conv2d(x, w, 2, "VALID"),
        [X, real(2, 2, 3, 2)],
        lambda x, w: _conv(Setting("", dilations=(2, 2)), False)(x, w),
        label="atrous",
        rtol=1e-4,
    ),
    OpCase(
        "DepthwiseConv2dNative",
        lambda x, d, p: conv.separable_conv2d(x, d, p, 1, "VALID"),
        [X, real(*SIZE, 3, 2), real(1, 1, 6, 4)],
        lambda x, d, p: _conv(SETTINGS[0], True)(x, d) @ p[0, 0],
        grad=True,
        unknown=("dims",),
        label="separable",
        rtol=1e-4,
    ),
]


# --- pooling ------------------------------------------------------------------------------------------------


def _windows(s: Setting, x: Any) -> dict[tuple[int, int], list[tuple[int, int]]]:
    seen: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for r, c, _, _, py, px in s.taps(x.shape[1:3], SIZE):
        seen.setdefault((r, c), []).append((py, px))
    return seen


def _max(s: Setting) -> Callable[..., Any]:
    def oracle(x: Any) -> Any:
        x = s.nhwc(x)
        y = np.zeros((len(x), *s.shape(x, SIZE), x.shape[3]))
        for (r, c), pixels in _windows(s, x).items():
            y[:, r, c] = np.max([x[:, py, px] for py, px in pixels], 0)
        return s.image(y)

    return oracle


def _mean(s: Setting) -> Callable[..., Any]:
    def oracle(x: Any) -> Any:
        x = s.nhwc(x).astype(np.float64)
        y = np.zeros((len(x), *s.shape(x, SIZE), x.shape[3]))
        for (r, c), pixels in _windows(s, x).items():
            y[:, r, c] = np.mean([x[:, py, px] for py, px in pixels], 0)
        return s.image(y)

    return oracle


def _winners(s: Setting, x: Any) -> Iterator[tuple[int, int, int, int, int, int]]:
    """All (n, channel, row, column, y, x): that pixel is the first largest of its window."""
    for (r, c), pixels in _windows(s, x).items():
        for n, k in np.ndindex(x.shape[0], x.shape[3]):
            values = [x[n, py, px, k] for py, px in pixels]
            yield n, k, r, c, *pixels[values.index(max(values))]


def _max_grad(s: Setting) -> Callable[..., Any]:
    def oracle(x: Any, y: Any, g: Any) -> Any:
        x, g = s.nhwc(x), s.nhwc(g)
        out = np.zeros(x.shape)
        for n, k, r, c, py, px in _winners(s, x):
            out[n, py, px, k] += g[n, r, c, k]
        return s.image(out)

    return oracle


def _max_grad_grad(s: Setting) -> Callable[..., Any]:
    def oracle(x: Any, y: Any, g: Any) -> Any:
        x, g = s.nhwc(x), s.nhwc(g)
        out = np.zeros(s.nhwc(y).shape)
        for n, k, r, c, py, px in _winners(s, x):
            out[n, r, c, k] = g[n, py, px, k]
        return s.image(out)

    return oracle


def _choices() -> None:
    """The taps that windows choose, and the gradients that go there."""
    for s in POOLINGS:
        tied = _ties(X.shape, 1)
        attrs = {k: v for k, v in s.attrs.items() if k != "dilations"}
        attrs["ksize"] = (1, 1, *SIZE) if s.data_format == "NCHW" else (1, *SIZE, 1)
        place = {(r, c, y, x): i * SIZE[1] + j for r, c, i, j, y, x in s.taps(X.shape[1:3], SIZE)}
        want = np.zeros((len(X), *s.shape(X, SIZE), X.shape[3]), np.int32)
        for n, k, r, c, py, px in _winners(s, tied):
            want[n, r, c, k] = place[r, c, py, px]
        choice = apply("MaxPoolChoice", (constant(s.image(tied), "float32"),), attrs)
        np.testing.assert_array_equal(interpreted(choice), s.image(want))
        slopes = s.image(real(*want.shape, seed=3)).astype(np.float32)
        sent = apply(
            "MaxPoolChoiceGrad", (constant(s.image(tied).shape), constant(s.image(want)), constant(slopes)), attrs
        )
        assert sent.dims == s.image(tied).shape
        np.testing.assert_allclose(interpreted(sent), _max_grad(s)(s.image(tied), None, slopes), rtol=1e-6, atol=1e-6)


def _mean_grad(s: Setting) -> Callable[..., Any]:
    def oracle(g: Any) -> Any:
        g = s.nhwc(g)
        out = np.zeros(X.shape)
        for (r, c), pixels in _windows(s, out).items():
            for py, px in pixels:
                out[:, py, px] += g[:, r, c] / len(pixels)
        return s.image(out)

    return oracle


def _ties(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 3, shape).astype(np.float64)


def _pool_rows(s: Setting) -> list[OpCase]:
    arguments = {k: v for k, v in s.arguments.items() if k != "dilations"}
    ksize = (1, 1, *SIZE) if s.data_format == "NCHW" else (1, *SIZE, 1)

    def attrs() -> dict[str, Any]:
        return {k: v for k, v in s.attrs.items() if k != "dilations"} | {"ksize": ksize}

    x, y = s.image(X), s.image(real(2, *s.shape(X, SIZE), 3, seed=3))
    tied = s.image(_ties(X.shape, 1))
    first = s.label == "VALID"
    unknown = ("dims", "rank") if s.label in ("VALID", "SAME") else ()
    explicit = not isinstance(s.padding, str)
    rows = [
        OpCase(
            "MaxPool",
            lambda x: pooling.max_pool(x, SIZE, **arguments),
            [x],
            _max(s),
            FLOATS if first else ("float32",),
            grad=True,
            unknown=unknown,
            label=s.label,
        ),
        OpCase(
            "MaxPool",
            lambda x: pooling.max_pool(x, SIZE, **arguments),
            [tied],
            _max(s),
            NUMBERS if first else ("int32",),
            label=f"{s.label} ties",
        ),
        OpCase(
            "MaxPoolGrad",
            lambda x, y, g: apply("MaxPoolGrad", (x, y, g), attrs()),
            [tied, y, y],
            _max_grad(s),
            FLOATS if first else ("float32",),
            grad=(2,),
            unknown=unknown,
            label=s.label,
        ),
        OpCase(
            "MaxPoolGradGrad",
            lambda x, y, g: apply("MaxPoolGradGrad", (x, y, g), attrs()),
            [tied, y, x],
            _max_grad_grad(s),
            FLOATS if first else ("float32",),
            grad=(2,),
            unknown=unknown,
            label=s.label,
        ),
    ]
    if explicit and any(p >= k for pair, k in zip(s.padding, SIZE, strict=True) for p in pair):  # type: ignore[union-attr]
        return []  # windows of padding alone are refused
    rows += [
        OpCase(
            "AvgPool",
            lambda x: pooling.avg_pool(x, SIZE, **arguments),
            [x],
            _mean(s),
            FLOATS if first else ("float32",),
            grad=True,
            unknown=unknown,
            label=s.label,
        ),
        OpCase(
            "AvgPoolGrad",
            lambda g: apply("AvgPoolGrad", (constant(x.shape), g), attrs()),
            [y],
            _mean_grad(s),
            FLOATS if first else ("float32",),
            grad=True,
            unknown=unknown,
            label=s.label,
        ),
    ]
    return rows


POOLINGS = [
    *(s for s in SETTINGS if "dilated" not in s.label and "explicit" not in s.label),
    Setting("explicit", (2, 1), padding=((1, 2), (0, 1))),
    Setting("NCHW explicit", (1, 2), padding=((2, 0), (1, 1)), data_format="NCHW"),
]


# --- edges and errors ---------------------------------------------------------------------------------------


def _edges() -> None:
    # A stride larger than the window: pixels that nobody sees get no gradient.
    x = constant(real(1, 7, 7, 1), "float64")
    w = constant(real(1, 1, 1, 1, seed=1), "float64")
    (g,) = gradients(conv.conv2d(x, w, 3, "VALID"), [x])
    assert (interpreted(g)[0, :, :, 0] != 0).sum() == 9
    # No images, and images without pixels.
    none = conv.conv2d(placeholder("float32", [None, 4, 4, 3]), constant(real(2, 2, 3, 5), "float32"), 1, "SAME")
    assert none.dims == (None, 4, 4, 5)
    assert interpreted(none, {none.op.inputs[0]: np.zeros((0, 4, 4, 3))}).shape == (0, 4, 4, 5)
    empty = conv.conv2d(np.zeros((2, 0, 4, 3), np.float32), real(2, 2, 3, 5), 1, "SAME")
    assert interpreted(empty).shape == (2, 0, 4, 5)
    # All pixels below zero: padding must not win.
    low = pooling.max_pool(np.full((1, 3, 3, 1), -5, np.int8), 2, 2, "SAME")
    assert (interpreted(low) == -5).all()


def _unknown_shapes() -> None:
    x = placeholder("float32")
    y = conv.conv2d(x, constant(real(3, 3, 2, 4), "float32"), 2, "SAME")
    assert y.dims == (None, None, None, 4)
    pooled = pooling.max_pool(placeholder("float32", [8, None, 28, 3]), 2, 2, "VALID")
    assert pooled.dims == (8, None, 14, 3)
    sizes = placeholder("int32", [4])
    back = conv.conv2d_transpose(y, constant(real(3, 3, 2, 4), "float32"), sizes, 2)
    assert back.dims == (None, None, None, 2)
    with pytest.raises(InvalidArgumentError, match="the gradient has shape"):
        interpreted(back, {y: np.zeros((1, 2, 2, 4)), sizes: [1, 9, 4, 2]})
    assert interpreted(back, {y: np.zeros((1, 2, 2, 4)), sizes: [1, 3, 4, 2]}).shape == (1, 3, 4, 2)


def _names() -> None:
    x, w = constant(real(1, 4, 4, 2), "float32"), constant(real(2, 2, 2, 2), "float32")
    d = constant(real(2, 2, 2, 1), "float32")
    p = constant(real(1, 1, 2, 3), "float32")
    nodes = [
        conv.conv2d(x, w, [1, 1, 1, 1], "SAME"),
        pooling.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        pooling.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
        conv.depthwise_conv2d(x, d, [1, 1, 1, 1], "SAME"),
        conv.conv2d_transpose(x, w, [1, 4, 4, 2], 1),
        conv.separable_conv2d(x, d, p, 1, "SAME"),
    ]
    assert [n.op.name for n in nodes] == [
        "Conv2D",
        "MaxPool",
        "AvgPool",
        "depthwise",
        "conv2d_transpose",
        "separable_conv2d",
    ]
    assert "separable_conv2d/depthwise" in get_default_graph()


def _costs() -> None:
    x = placeholder("float32", [8, 28, 28, 16])
    w = constant(np.zeros((3, 3, 16, 32), np.float32))
    y = conv.conv2d(x, w, 1, "SAME")
    flops = 2 * 8 * 28 * 28 * 32 * 9 * 16
    grads = gradients(y, [x, w])
    assert [t.op.opdef.cost_of(t.op).flops for t in (y, *grads)] == [flops] * 3
    assert y.op.opdef.cost_of(y.op).bytes == 4 * (8 * 28 * 28 * (16 + 32) + 9 * 16 * 32)
    d = conv.depthwise_conv2d(x, np.zeros((3, 3, 16, 2), np.float32), 1, "SAME")
    assert d.op.opdef.cost_of(d.op).flops == 2 * 8 * 28 * 28 * 32 * 9
    pooled = pooling.max_pool(x, 2, 2, "VALID")
    assert pooled.op.opdef.cost_of(pooled.op).flops == 8 * 28 * 28 * 16


def _errors() -> None:
    x, w = constant(real(1, 4, 5, 2), "float32"), constant(real(3, 3, 2, 2), "float32")
    before = len(get_default_graph())
    y = constant(real(1, 4, 5, 4), "float32")
    high = constant(real(5, 1, 2, 2), "float32")
    one_side, below = [[0, 0], [2, 0], [0, 0], [0, 0]], [[0, 0], [1, -1], [0, 0], [0, 0]]
    batches = [[1, 0], [0, 0], [0, 0], [0, 0]]
    over_batches = "over batches and channels must be 1"
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: conv.conv2d(y, w, 1, "SAME"), "input channels must agree: 4 against 2"),
        (lambda: conv.conv2d(x, high, 1, "VALID"), "spans 5 pixels of height, the padded image has 4"),
        (lambda: conv.conv2d(x, w, 1, "FULL"), "padding must be 'SAME', 'VALID'"),
        (lambda: conv.conv2d(x, w, 1), "padding must be given"),
        (lambda: conv.conv2d(x, w, [2, 1, 1, 1], "SAME"), f"strides {over_batches}"),
        (lambda: conv.conv2d(x, w, 0, "SAME"), "strides must be 4 numbers of 1 or more"),
        (lambda: conv.conv2d(x, w, [1, 1, 1], "SAME"), "strides must be 1, 2 or 4 numbers"),
        (lambda: conv.conv2d(x, w, 1, below), "explicit_paddings must be 8 numbers of 0 or more"),
        (lambda: conv.conv2d(x, w, 1, batches), "batches and channels cannot be padded"),
        (lambda: conv.conv2d(x, w, 1, [[1, 0], [0, 0]]), "four pairs"),
        (lambda: conv.conv2d(x, w, 1, "SAME", data_format="HWC"), "data_format must be 'NHWC' or"),
        (lambda: conv.conv2d(x, w, 1, "SAME", filters=w), "Give the filter once"),
        (lambda: conv.conv2d(placeholder("float32", [4, 4]), w, 1, "SAME"), "the image: Shape must be rank 4"),
        (lambda: conv.conv2d_transpose(x, w, [1, 9, 5, 2], 1), "the gradient has shape"),
        (lambda: conv.conv2d_transpose(x, w, [9, 5, 2], 1), "must hold four sizes, not 3"),
        (lambda: conv.separable_conv2d(x, w, w, 1, "SAME"), "must have one tap"),
        (lambda: pooling.max_pool(x, 2, None, "SAME"), "strides must be given"),
        (lambda: pooling.max_pool(x, 2, 1, one_side), "must be smaller than the window"),
        (lambda: pooling.avg_pool(x, 6, 1, "VALID"), "spans 6 pixels of height"),
        (lambda: conv.conv1d(x, w, 1, "SAME", data_format="CWN"), "data_format must be 'NWC' or 'NCW'"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(UnimplementedError, match="exactly one of pooling across depth or"):
        pooling.max_pool(x, [1, 2, 2, 2], 1, "SAME")
    with pytest.raises(TypeError, match="one element type, not float32 and float64"):
        conv.conv2d(x, constant(real(3, 3, 2, 2), "float64"), 1, "SAME")
    with pytest.raises(TypeError, match="int32 is not supported"):
        conv.conv2d(constant(np.ones((1, 4, 4, 2), np.int32)), constant(np.ones((1, 1, 2, 2), np.int32)), 1, "SAME")
    assert not any(n.type in ("Conv2D", "MaxPool", "AvgPool") for n in get_default_graph().nodes[before:])


CASES = [
    *(row for s in SETTINGS for depthwise in (False, True) for row in _conv_rows(s, depthwise)),
    *OTHERS,
    *(row for s in POOLINGS for row in _pool_rows(s)),
    ScriptCase(("MaxPoolChoice", "MaxPoolChoiceGrad"), _choices, "taps that poolings choose"),
    ScriptCase(("Conv2D",), _edges, "conv edges"),
    ScriptCase(("Conv2D",), _unknown_shapes, "conv unknown shapes"),
    ScriptCase(("Conv2D",), _names, "conv names"),
    ScriptCase(("Conv2D",), _costs, "conv costs"),
    ScriptCase((), _errors, "conv errors"),
]
