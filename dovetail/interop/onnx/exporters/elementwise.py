"""Ops that work element by element."""

from __future__ import annotations

from ....graph.core.graph import Node
from ..messages import element_number
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_as

exports_as(
    Abs="Abs", Acos="Acos", Acosh="Acosh", AddN="Sum", AddV2="Add", Asin="Asin", Asinh="Asinh", Atan="Atan", Atanh="Atanh",
    BitwiseAnd="BitwiseAnd", BitwiseOr="BitwiseOr", BitwiseXor="BitwiseXor", Ceil="Ceil", Cos="Cos", Cosh="Cosh", Elu="Elu",
    Equal="Equal", Erf="Erf", Exp="Exp", Floor="Floor", Greater="Greater", GreaterEqual="GreaterOrEqual", Identity="Identity",
    EnsureShape="Identity", Invert="BitwiseNot", IsInf="IsInf", IsNan="IsNaN", Less="Less", LessEqual="LessOrEqual", Log="Log",
    LogicalAnd="And", LogicalNot="Not", LogicalOr="Or", Maximum="Max", Minimum="Min", Mul="Mul", Neg="Neg", Pow="Pow",
    PlaceholderWithDefault="Identity", PreventGradient="Identity", Reciprocal="Reciprocal", Relu="Relu", Rint="Round",
    Round="Round", SelectV2="Where", Selu="Selu", Sigmoid="Sigmoid", Sign="Sign", Sin="Sin", Sinh="Sinh", Softplus="Softplus",
    Softsign="Softsign", Sqrt="Sqrt", StopGradient="Identity", Sub="Sub", Tan="Tan", Tanh="Tanh", TruncateDiv="Div",
)  # fmt: skip


@exports("IdentityN")
def identities(w: Writer, node: Node) -> Names:
    """One node for each value."""
    return [w.emit("Identity", w.name(t)) for t in node.inputs]


@exports("RealDiv")
def real_div(w: Writer, node: Node) -> Names:
    """Of floating types; whole numbers were cast before."""
    return w.emit("Div", w.input(node, 0), w.input(node, 1))


@exports("DivNoNan")
def div_no_nan(w: Writer, node: Node) -> Names:
    """0 where the divisor is 0."""
    x, y, zero = w.input(node, 0), w.input(node, 1), w.like(0, node.inputs[1])
    return w.emit("Where", w.emit("Equal", y, zero), zero, w.emit("Div", x, y))


@exports("FloorDiv")
def floor_div(w: Writer, node: Node) -> Names:
    """Rounded down: whole numbers without what the division leaves."""
    x, y = w.input(node, 0), w.input(node, 1)
    if node.inputs[0].dtype.base.is_integer:
        return w.emit("Div", w.emit("Sub", x, w.emit("Mod", x, y)), y)
    return w.emit("Floor", w.emit("Div", x, y))


@exports("FloorMod")
def floor_mod(w: Writer, node: Node) -> Names:
    """With the divisor's sign."""
    x, y = w.input(node, 0), w.input(node, 1)
    if node.inputs[0].dtype.base.is_integer:
        return w.emit("Mod", x, y)
    return w.emit("Sub", x, w.emit("Mul", y, w.emit("Floor", w.emit("Div", x, y))))


@exports("TruncateMod")
def truncate_mod(w: Writer, node: Node) -> Names:
    """With the dividend's sign."""
    return w.emit("Mod", w.input(node, 0), w.input(node, 1), fmod=1)


@exports("NotEqual")
def not_equal(w: Writer, node: Node) -> Names:
    """Not equal."""
    return w.emit("Not", w.emit("Equal", w.input(node, 0), w.input(node, 1)))


@exports("Select")
def select(w: Writer, node: Node) -> Names:
    """A condition of rank 1 chooses rows."""
    condition, x, y = node.inputs
    name = w.name(condition)
    if condition.dims is None or x.dims is None:
        raise UnsupportedError("the rank of the condition is not known")
    if len(condition.dims) == 1 and len(x.dims) > 1:
        name = w.emit("Unsqueeze", name, w.int64s(range(1, len(x.dims))))
    return w.emit("Where", name, w.name(x), w.name(y))


@exports("Square")
def square(w: Writer, node: Node) -> Names:
    """x times x."""
    return w.emit("Mul", w.input(node, 0), w.input(node, 0))


@exports("SquaredDifference")
def squared_difference(w: Writer, node: Node) -> Names:
    """The square of a difference."""
    away = w.emit("Sub", w.input(node, 0), w.input(node, 1))
    return w.emit("Mul", away, away)


@exports("Rsqrt")
def rsqrt(w: Writer, node: Node) -> Names:
    """One over the root."""
    return w.emit("Reciprocal", w.emit("Sqrt", w.input(node, 0)))


@exports("Expm1")
def expm1(w: Writer, node: Node) -> Names:
    """exp(x) - 1; less exact near 0 than here."""
    return w.emit("Sub", w.emit("Exp", w.input(node, 0)), w.like(1, node.inputs[0]))


@exports("Log1p")
def log1p(w: Writer, node: Node) -> Names:
    """log(1 + x); less exact near 0 than here."""
    return w.emit("Log", w.emit("Add", w.input(node, 0), w.like(1, node.inputs[0])))


@exports("Erfc")
def erfc(w: Writer, node: Node) -> Names:
    """1 - erf(x)."""
    return w.emit("Sub", w.like(1, node.inputs[0]), w.emit("Erf", w.input(node, 0)))


@exports("IsFinite")
def is_finite(w: Writer, node: Node) -> Names:
    """Neither infinite nor no number."""
    x = w.input(node, 0)
    return w.emit("Not", w.emit("Or", w.emit("IsInf", x), w.emit("IsNaN", x)))


@exports("Trunc")
def trunc(w: Writer, node: Node) -> Names:
    """Towards zero."""
    x = w.input(node, 0)
    return w.emit("Mul", w.emit("Sign", x), w.emit("Floor", w.emit("Abs", x)))


@exports("Relu6")
def relu6(w: Writer, node: Node) -> Names:
    """Within 0 and 6."""
    return w.emit("Clip", w.input(node, 0), w.like(0, node.inputs[0]), w.like(6, node.inputs[0]))


@exports("LeakyRelu")
def leaky_relu(w: Writer, node: Node) -> Names:
    """A small slope below zero."""
    return w.emit("LeakyRelu", w.input(node, 0), alpha=float(node.attrs["alpha"]))


@exports("Silu")
def silu(w: Writer, node: Node) -> Names:
    """x * sigmoid(x)."""
    return w.emit("Mul", w.input(node, 0), w.emit("Sigmoid", w.input(node, 0)))


@exports("Cast")
def cast(w: Writer, node: Node) -> Names:
    """Between numbers and bools."""
    source, to = node.inputs[0].dtype.base, node.outputs[0].dtype.base
    if not all(t.is_bool or t.is_integer or t.is_floating for t in (source, to)):
        raise UnsupportedError(f"a cast from {source.name} to {to.name}")
    return w.emit("Cast", w.input(node, 0), to=element_number(to))


@exports("BiasAdd")
def bias_add(w: Writer, node: Node) -> Names:
    """One number for each channel: the last axis, or with NCHW the second one."""
    x, bias = node.inputs
    rank = w.rank(x)
    if node.attrs["data_format"] == "NCHW" and rank > 2:
        return w.emit("Add", w.name(x), w.emit("Unsqueeze", w.name(bias), w.int64s(range(1, rank - 1))))
    return w.emit("Add", w.name(x), w.name(bias))
