"""Element-wise ops."""

from __future__ import annotations

import numpy as np

from ....graph.core.dtypes import float64
from ....graph.core.graph import Node
from ..messages import element_number
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_as, exports_composed

# The importers of these ops do more than call a function of the graph, so they are not in `correspondences`.
exports_as(
    AddN="Sum", Elu="Elu", EnsureShape="Identity", IsInf="IsInf", Maximum="Max", Minimum="Min", PlaceholderWithDefault="Identity",
    Pow="Pow", PreventGradient="Identity", RealDiv="Div", Rint="Round", Selu="Selu", StopGradient="Identity",
)  # fmt: skip


def _squared(w: Writer, x: str) -> str:
    return w.emit("Mul", x, x)


def _truncated(w: Writer, x: str) -> str:
    return w.emit("Mul", w.emit("Sign", x), w.emit("Floor", w.emit("Abs", x)))


exports_composed(
    IdentityN=lambda w, node, *xs: [w.emit("Identity", x) for x in xs],
    IsFinite=lambda w, node, x: w.emit("Not", w.emit("Or", w.emit("IsInf", x), w.emit("IsNaN", x))),
    LeakyRelu=lambda w, node, x: w.emit("LeakyRelu", x, alpha=float(node.attrs["alpha"])),
    NotEqual=lambda w, node, x, y: w.emit("Not", w.emit("Equal", x, y)),
    Relu6=lambda w, node, x: w.emit("Clip", x, w.constant_like(0, node.inputs[0]), w.constant_like(6, node.inputs[0])),
    Rsqrt=lambda w, node, x: w.emit("Reciprocal", w.emit("Sqrt", x)),
    Silu=lambda w, node, x: w.emit("Mul", x, w.emit("Sigmoid", x)),
    Square=lambda w, node, x: _squared(w, x),
    SquaredDifference=lambda w, node, x, y: _squared(w, w.emit("Sub", x, y)),
    Trunc=lambda w, node, x: _truncated(w, x),
    TruncateMod=lambda w, node, x, y: w.emit("Mod", x, y, fmod=1),
)


@exports("DivNoNan", "MulNoNan")
def no_nan(w: Writer, node: Node) -> Names:
    """Exports a quotient or product that is 0 where the second operand is 0."""
    x, y, zero = w.input(node, 0), w.input(node, 1), w.constant_like(0, node.inputs[1])
    return w.emit("Where", w.emit("Equal", y, zero), zero, w.emit("Div" if node.type == "DivNoNan" else "Mul", x, y))


@exports("Expm1")
def expm1(w: Writer, node: Node) -> Names:
    """Exports exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which is also accurate near 0."""
    x, one, two = w.input(node, 0), w.constant_like(1, node.inputs[0]), w.constant_like(2, node.inputs[0])
    return w.emit("Mul", w.emit("Tanh", w.emit("Div", x, two)), w.emit("Add", w.emit("Exp", x), one))


@exports("Log1p")
def log1p(w: Writer, node: Node) -> Names:
    """Exports log(1 + x). The rounding error of 1 + x, divided by 1 + x, is added to the result."""
    x, one = w.input(node, 0), w.constant_like(1, node.inputs[0])
    near = w.emit("Clip", x, w.constant_like(-0.5, node.inputs[0]), one)  # elsewhere the error is negligible
    total = w.emit("Add", near, one)
    lost = w.emit("Sub", near, w.emit("Sub", total, one))
    return w.emit("Add", w.emit("Log", w.emit("Add", x, one)), w.emit("Div", lost, total))


# The coefficients of a polynomial in 2 t - 1 that approximates log(erfc(z) / t) + z**2 for z >= 0, where t = 2 / (2 + z). The error is
# at most 1e-14.
_LOG_ERFC = (
    -9.335083343869622e-11, -1.1890666584530652e-07, 1.6470847155777743e-07, 8.586632274339324e-07,
    -1.7247353429744613e-06, -2.361170386961034e-06, 8.96871071815099e-06, -3.9612457573205765e-07,
    -3.0434518644992832e-05, 3.205769559604515e-05, 7.150252867378816e-05, -0.0001744220947306999,
    -9.376285315475347e-05, 0.000673707849933184, -0.00014624198396825046, -0.0023458168154123723,
    0.0017589330482807952, 0.008824938912147513, -0.009872689338626606, -0.046895610244627,
    0.047343306841314846, 0.672643223977805, -0.6717940840566912,
)  # fmt: skip


@exports("Erfc")
def erfc(w: Writer, node: Node) -> Names:
    """Exports 1 - erf(x), with a small relative error also for large x. It is computed in float64, because x**2 is an exponent."""
    dtype = node.inputs[0].dtype.base
    x = w.input(node, 0) if dtype is float64 else w.cast(w.input(node, 0), float64)
    zero, one, two = (w.array(np.float64(n)) for n in (0, 1, 2))
    z = w.emit("Abs", x)
    t = w.emit("Div", two, w.emit("Add", z, two))
    s = w.emit("Sub", w.emit("Mul", t, two), one)
    log = w.array(np.float64(_LOG_ERFC[0]))
    for coefficient in _LOG_ERFC[1:]:
        log = w.emit("Add", w.emit("Mul", log, s), w.array(np.float64(coefficient)))
    above = w.emit("Mul", t, w.emit("Exp", w.emit("Sub", log, _squared(w, z))))
    made = w.emit("Where", w.emit("Less", x, zero), w.emit("Sub", two, above), above)
    return made if dtype is float64 else w.cast(made, dtype)


@exports("TruncateDiv")
def truncate_div(w: Writer, node: Node) -> Names:
    """Exports a division that rounds toward zero, as ONNX's `Div` does with integers."""
    made = w.emit("Div", w.input(node, 0), w.input(node, 1))
    return made if node.inputs[0].dtype.base.is_integer else _truncated(w, made)


@exports("FloorDiv")
def floor_div(w: Writer, node: Node) -> Names:
    """Exports a division that rounds down. ONNX divides integers toward zero, which is too large by 1 if the two remainders differ."""
    x, y = w.input(node, 0), w.input(node, 1)
    made, dtype = w.emit("Div", x, y), node.inputs[0].dtype.base
    if not dtype.is_integer:
        return w.emit("Floor", made)
    same = w.emit("Equal", w.emit("Mod", x, y), w.emit("Mod", x, y, fmod=1))
    return w.emit("Sub", made, w.cast(w.emit("Not", same), dtype))


@exports("FloorMod")
def floor_mod(w: Writer, node: Node) -> Names:
    """Exports a remainder that has the divisor's sign. ONNX's `Mod` of floats has the dividend's sign."""
    x, y = w.input(node, 0), w.input(node, 1)
    if node.inputs[0].dtype.base.is_integer:
        return w.emit("Mod", x, y)
    made, zero = w.emit("Mod", x, y, fmod=1), w.constant_like(0, node.inputs[0])
    wrong = w.emit("Less", w.emit("Mul", w.emit("Sign", made), w.emit("Sign", y)), zero)
    return w.emit("Where", wrong, w.emit("Add", made, y), made)


@exports("Select")
def select(w: Writer, node: Node) -> Names:
    """Exports `Select`. A condition of rank 1 selects rows."""
    condition, x, y = node.inputs
    name = w.name(condition)
    if condition.dims is None or x.dims is None:
        raise UnsupportedError("the rank of the condition is not known")
    if len(condition.dims) == 1 and len(x.dims) > 1:
        name = w.emit("Unsqueeze", name, w.int64s(range(1, len(x.dims))))
    return w.emit("Where", name, w.name(x), w.name(y))


@exports("Cast")
def cast(w: Writer, node: Node) -> Names:
    """Exports a cast between numbers and booleans."""
    source, to = node.inputs[0].dtype.base, node.outputs[0].dtype.base
    if not all(t.is_bool or t.is_integer or t.is_floating for t in (source, to)):
        raise UnsupportedError(f"a cast from {source.name} to {to.name}")
    return w.emit("Cast", w.input(node, 0), to=element_number(to))


@exports("BiasAdd")
def bias_add(w: Writer, node: Node) -> Names:
    """Exports the addition of one number per channel. Channels are the last axis, or the second one with NCHW."""
    x, bias = node.inputs
    rank = w.rank(x)
    if node.attrs["data_format"] == "NCHW" and rank > 2:
        return w.emit("Add", w.name(x), w.emit("Unsqueeze", w.name(bias), w.int64s(range(1, rank - 1))))
    return w.emit("Add", w.name(x), w.name(bias))
