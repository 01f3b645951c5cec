"""Element-wise ops."""

from __future__ import annotations

from ....graph.core.graph import Node
from ..messages import element_number
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_as, exports_composed

# Whose importers do more than call a function of the graph: see also `correspondences`.
exports_as(
    AddN="Sum", Elu="Elu", EnsureShape="Identity", IsInf="IsInf", Maximum="Max", Minimum="Min", PlaceholderWithDefault="Identity",
    Pow="Pow", PreventGradient="Identity", RealDiv="Div", Rint="Round", Selu="Selu", StopGradient="Identity", TruncateDiv="Div",
)  # fmt: skip


def _squared(w: Writer, x: str) -> str:
    return w.emit("Mul", x, x)


exports_composed(
    Erfc=lambda w, node, x: w.emit("Sub", w.like(1, node.inputs[0]), w.emit("Erf", x)),
    IdentityN=lambda w, node, *xs: [w.emit("Identity", x) for x in xs],
    IsFinite=lambda w, node, x: w.emit("Not", w.emit("Or", w.emit("IsInf", x), w.emit("IsNaN", x))),
    LeakyRelu=lambda w, node, x: w.emit("LeakyRelu", x, alpha=float(node.attrs["alpha"])),
    NotEqual=lambda w, node, x, y: w.emit("Not", w.emit("Equal", x, y)),
    Relu6=lambda w, node, x: w.emit("Clip", x, w.like(0, node.inputs[0]), w.like(6, node.inputs[0])),
    Rsqrt=lambda w, node, x: w.emit("Reciprocal", w.emit("Sqrt", x)),
    Silu=lambda w, node, x: w.emit("Mul", x, w.emit("Sigmoid", x)),
    Square=lambda w, node, x: _squared(w, x),
    SquaredDifference=lambda w, node, x, y: _squared(w, w.emit("Sub", x, y)),
    Trunc=lambda w, node, x: w.emit("Mul", w.emit("Sign", x), w.emit("Floor", w.emit("Abs", x))),
    TruncateMod=lambda w, node, x, y: w.emit("Mod", x, y, fmod=1),
)


@exports("DivNoNan")
def div_no_nan(w: Writer, node: Node) -> Names:
    """Exports a division whose result is 0 where the divisor is 0."""
    x, y, zero = w.input(node, 0), w.input(node, 1), w.like(0, node.inputs[1])
    return w.emit("Where", w.emit("Equal", y, zero), zero, w.emit("Div", x, y))


@exports("Expm1")
def expm1(w: Writer, node: Node) -> Names:
    """Exports exp(x) - 1 as tanh(x / 2) * (exp(x) + 1), which is exact near 0, too."""
    x, one, two = w.input(node, 0), w.like(1, node.inputs[0]), w.like(2, node.inputs[0])
    return w.emit("Mul", w.emit("Tanh", w.emit("Div", x, two)), w.emit("Add", w.emit("Exp", x), one))


@exports("Log1p")
def log1p(w: Writer, node: Node) -> Names:
    """Exports log(1 + x). What the sum 1 + x loses of a small x is added, divided by the logarithm's slope."""
    x, one = w.input(node, 0), w.like(1, node.inputs[0])
    near = w.emit("Clip", x, w.like(-0.5, node.inputs[0]), one)  # elsewhere the loss does not matter
    total = w.emit("Add", near, one)
    lost = w.emit("Sub", near, w.emit("Sub", total, one))
    return w.emit("Add", w.emit("Log", w.emit("Add", x, one)), w.emit("Div", lost, total))


@exports("FloorDiv")
def floor_div(w: Writer, node: Node) -> Names:
    """Exports a division that rounds down. ONNX divides integers toward zero: one too large where the two remainders differ."""
    x, y = w.input(node, 0), w.input(node, 1)
    made, dtype = w.emit("Div", x, y), node.inputs[0].dtype.base
    if not dtype.is_integer:
        return w.emit("Floor", made)
    same = w.emit("Equal", w.emit("Mod", x, y), w.emit("Mod", x, y, fmod=1))
    return w.emit("Sub", made, w.cast(w.emit("Not", same), dtype))


@exports("FloorMod")
def floor_mod(w: Writer, node: Node) -> Names:
    """Exports a remainder that has the divisor's sign. ONNX's `Mod` of floats has the dividend's."""
    x, y = w.input(node, 0), w.input(node, 1)
    if node.inputs[0].dtype.base.is_integer:
        return w.emit("Mod", x, y)
    made, zero = w.emit("Mod", x, y, fmod=1), w.like(0, node.inputs[0])
    wrong = w.emit("Less", w.emit("Mul", w.emit("Sign", made), w.emit("Sign", y)), zero)
    return w.emit("Where", wrong, w.emit("Add", made, y), made)


@exports("Select")
def select(w: Writer, node: Node) -> Names:
    """Exports `Select`, whose condition may have rank 1 and then selects rows."""
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
    """Adds one number per channel: along the last axis, or along the second one with NCHW."""
    x, bias = node.inputs
    rank = w.rank(x)
    if node.attrs["data_format"] == "NCHW" and rank > 2:
        return w.emit("Add", w.name(x), w.emit("Unsqueeze", w.name(bias), w.int64s(range(1, rank - 1))))
    return w.emit("Add", w.name(x), w.name(bias))
