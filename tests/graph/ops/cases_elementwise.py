"""Rows for arithmetic, functions, comparisons, logic and casts."""

from __future__ import annotations

import math

import numpy as np
from op_table import FLOATS, INTEGERS, NUMBERS, OpCase, ScriptCase, real, whole
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.math import arithmetic as a, cast as c, compare as b, compare as k, elementwise as m
from dovetail.graph.ops.math.clip import saturate_cast

SIGNED = ("int8", "int16", "int32", "int64")
BOOLS = np.array([[True, False, True], [False, False, True]])
STRINGS = np.array([b"a", b"bc", b""], object)
SPECIAL = np.array([0.5, np.nan, np.inf, -np.inf, 0.0])


def _broadcast(op, build, oracle, x=real, dtypes=("float32",), grad=True, **more):
    """Rows for each way in which two operands can meet."""
    shapes = [
        ("same", (2, 3), (2, 3)),
        ("scalar-right", (2, 3), ()),
        ("scalar-left", (), (3,)),
        ("lower-rank", (2, 3), (3,)),
        ("stretched", (2, 1, 3), (4, 1)),
        ("both", (3, 1), (1, 2)),
        ("ones", (1, 1), (1,)),
    ]
    return [
        OpCase(
            op,
            build,
            [x(*s, seed=1), x(*t, seed=2)],
            oracle,
            dtypes if label == "same" else dtypes[-1:],
            grad,
            label=label,
            **more,
        )
        for label, s, t in shapes
    ]


def _positive(*shape, seed=0):
    return real(*shape, low=0.3, high=3.0, seed=seed)


def _nonzero(*shape, seed=0):
    return np.where((x := whole(*shape, seed=seed)) == 0, 3, x)


def _count(*shape, seed=0):
    return whole(*shape, low=0, high=9, seed=seed)


def _small(*shape, seed=0):
    return whole(*shape, low=0, high=4, seed=seed)


def _unary(op, build, oracle, x=None, dtypes=FLOATS, grad=True, **more):
    return OpCase(op, build, [real(2, 3) if x is None else x], oracle, dtypes, grad, **more)


def _c_quotient(x, y):
    return np.array([int(math.trunc(i / j)) for i, j in zip(x.ravel(), y.ravel(), strict=True)], x.dtype).reshape(
        x.shape
    )


def _c_remainder(x, y):
    return np.array(
        [int(math.fmod(int(i), int(j))) for i, j in zip(x.ravel(), y.ravel(), strict=True)], x.dtype
    ).reshape(x.shape)


def _cast_gradient():
    """Float32 is too coarse for differences; but a cast there and back has the gradient 1, rounded on its
    way.
    """
    x = constant([1.0, 2.0, 3.0], "float64")
    (g,) = gradients(c.cast(x, "float32"), x, grad_ys=[[0.1, 1, 10]])
    assert g.dtype.name == "float64"
    np.testing.assert_array_equal(Interpreter(g.graph).run(g), np.array([0.1, 1, 10], "f").astype("d"))
    assert gradients(c.cast(c.cast(x, "int32"), "float64"), x) == [None]


def _no_gradient_where_none_comes_in():
    x = constant([0.0, np.inf, np.nan, -1.0, 0.0, 4.0])
    y = [a.sqrt(x), a.rsqrt(x), a.reciprocal(x)]
    (g,) = gradients(y, x, grad_ys=[[0, 0, 0, 0, 1, 1]] * 3)
    found = Interpreter(g.graph).run([g, *(gradients(z, x, grad_ys=[[0, 0, 0, 0, 1, 1]])[0] for z in y)])
    assert [row[:4].tolist() for row in found] == [[0, 0, 0, 0]] * 4
    np.testing.assert_array_equal(
        [row[4:] for row in found[1:]], [[np.inf, 1 / 4], [-np.inf, -1 / 16], [-np.inf, -1 / 16]]
    )


def _bitwise(f, x, y):
    return np.vectorize(lambda i, j: f(int(i), int(j)), otypes=[x.dtype])(x, y)


def _psi(x, order=0):
    """The polygamma function: its recurrence up to x + 100, and the asymptotic series there."""
    x = x.astype("d")
    y = x + 100
    steps = x[..., None] + np.arange(100)
    if order == 0:
        return np.log(y) - 1 / (2 * y) - 1 / (12 * y**2) + 1 / (120 * y**4) - (1 / steps).sum(-1)
    if order == 1:
        return 1 / y + 1 / (2 * y**2) + 1 / (6 * y**3) - 1 / (30 * y**5) + (1 / steps**2).sum(-1)
    return -1 / y**2 - 1 / y**3 - 1 / (2 * y**4) + 1 / (6 * y**6) - (2 / steps**3).sum(-1)


INSIDE = real(2, 3, low=-0.9, high=0.9)

CASES = [
    # --- arithmetic
    *_broadcast("AddV2", a.add, lambda x, y: x + y, x=_count, dtypes=NUMBERS),
    *_broadcast("Sub", a.subtract, lambda x, y: x - y),
    *_broadcast("Mul", a.multiply, lambda x, y: x * y),
    *_broadcast("RealDiv", a.divide, lambda x, y: x / y, dtypes=FLOATS),
    *_broadcast("DivNoNan", a.div_no_nan, lambda x, y: x / y),
    *_broadcast("MulNoNan", a.multiply_no_nan, lambda x, y: x * y),
    *_broadcast("SquaredDifference", a.squared_difference, lambda x, y: (x - y) ** 2, dtypes=FLOATS),
    *_broadcast("Minimum", a.minimum, lambda x, y: np.where(x < y, x, y)),
    *_broadcast("Maximum", a.maximum, lambda x, y: np.where(x > y, x, y)),
    *_broadcast("Pow", a.power, lambda x, y: np.exp(y * np.log(x)), x=_positive),
    *_broadcast("Atan2", m.atan2, lambda y, x: np.angle(x + 1j * y)),
    *_broadcast("FloorMod", a.floormod, lambda x, y: x - y * np.floor(x / y), grad=True),
    OpCase(
        "Sub",
        a.subtract,
        [_count(2, 3, seed=1), _count(2, 3, seed=2)],
        lambda x, y: x - y,
        NUMBERS,
        label="types",
    ),
    OpCase(
        "Mul",
        a.multiply,
        [_count(2, 3, seed=1), _count(2, 3, seed=2)],
        lambda x, y: x * y,
        NUMBERS,
        label="types",
    ),
    OpCase("AddV2", lambda x: x + x, [real(2, 3)], lambda x: 2 * x, grad=True, label="itself"),
    OpCase("Mul", lambda x: x * x, [real(2, 3)], lambda x: x**2, grad=True, label="itself"),
    OpCase(
        "Mul",
        lambda x: 2 * x * np.float64(1.5),
        [real(2, 3)],
        lambda x: 3 * x,
        ("float64",),
        True,
        label="numbers",
    ),
    OpCase(
        "DivNoNan",
        a.div_no_nan,
        [real(3), np.array([2.0, 0, -1])],
        lambda x, y: np.array([x[0] / 2, 0, -x[2]]),
        FLOATS,
        (0,),
    ),
    OpCase(
        "MulNoNan",
        a.multiply_no_nan,
        [np.array([1.5, -2, 3]), np.array([2.0, 0, 0])],
        lambda x, y: np.array([3.0, 0, 0]),
        FLOATS,
        (0, 1),
    ),
    OpCase(
        "AddN",
        lambda x, y, z: a.add_n([x, y, z]),
        [_count(2, 3, seed=i) for i in range(3)],
        lambda x, y, z: x + y + z,
        NUMBERS,
        True,
    ),
    OpCase(
        "RealDiv",
        a.truediv,
        [_count(2, 3, seed=1), _count(2, 3, seed=2) + 1],
        lambda x, y: x.astype("d") / y,
        INTEGERS,
        label="integers",
    ),
    OpCase(
        "FloorDiv",
        a.floordiv,
        [whole(2, 3, seed=1), _nonzero(2, 3, seed=2)],
        lambda x, y: np.floor(x.astype("d") / y).astype(x.dtype),
        SIGNED + FLOATS,
    ),
    OpCase(
        "FloorDiv",
        a.floordiv,
        [np.array([1.0, 0.3, np.inf, -1.0, 1.0]), np.array([0.1, 0.1, 2.0, np.inf, 0.0])],
        lambda x, y: np.array([10, 3, np.inf, -0.0, np.inf]),  # Python: 9, 2, nan, -1, nan
        ["float32"],
        label="floor of the quotient",
    ),
    OpCase(
        "FloorDiv",
        a.floordiv,
        [whole(2, 3, low=0, seed=1), whole(3, low=1, seed=2)],
        lambda x, y: np.floor(x.astype("d") / y).astype(x.dtype),
        INTEGERS,
        label="unsigned",
    ),
    OpCase(
        "FloorMod",
        a.floormod,
        [whole(2, 3, seed=1), _nonzero(2, 3, seed=2)],
        lambda x, y: (x - y * np.floor(x.astype("d") / y)).astype(x.dtype),
        SIGNED,
        label="integers",
    ),
    OpCase("TruncateDiv", a.truncatediv, [whole(2, 3, seed=1), _nonzero(2, 3, seed=2)], _c_quotient, SIGNED),
    OpCase(
        "TruncateDiv",
        a.truncatediv,
        [np.array([7.0, -7.0, -1.0, -5.0, np.inf]), np.array([2.0, 2.0, 4.0, -2.5, -2.0])],
        lambda x, y: np.array([3.0, -3.0, -0.0, 2.0, -np.inf]).astype(x.dtype),
        FLOATS,
        label="floats",
    ),
    OpCase("TruncateMod", a.truncatemod, [whole(2, 3, seed=1), _nonzero(2, 3, seed=2)], _c_remainder, SIGNED),
    *[
        OpCase(
            op,
            function,
            [np.array([-6e-8, 6e-8, 1.0, -0.5, -54.0]), np.array([2.0, -3.0, 0.1, -0.1, -4.15625])],
            lambda x, y, kind=kind, rounded=rounded: rounded((x / y).astype(as_dtype(kind).np).astype(x.dtype)),
            [kind],
            label="quotients rounded to a half type",
        )
        for kind in ("float16", "bfloat16")
        for op, function, rounded in (("FloorDiv", a.floordiv, np.floor), ("TruncateDiv", a.truncatediv, np.trunc))
    ],
    OpCase(
        "TruncateMod",
        a.truncatemod,
        [np.array([7.3, -7.3]), np.array([2.0, 3.1])],
        np.fmod,
        FLOATS,
        label="floats",
        grad=True,
    ),
    OpCase(
        "Pow",
        a.power,
        [whole(2, 3, low=-3, high=4), _small(3)],
        lambda x, y: np.multiply.reduce([np.where(y > i, x, 1) for i in range(4)]).astype(x.dtype),
        SIGNED,
        label="integers",
    ),
    OpCase("Pow", lambda x: x**3, [real(2, 3)], lambda x: x * x * x, FLOATS, True, label="cube-of-negative"),
    OpCase("Pow", lambda x: x**0, [np.array([0.0, -1, 2])], lambda x: np.ones(3), label="zeroth", grad=True),
    OpCase("Neg", a.negative, [whole(2, 3)], lambda x: 0 - x, SIGNED + FLOATS, True),
    OpCase("Abs", a.absolute, [_nonzero(2, 3)], lambda x: np.where(x < 0, 0 - x, x), SIGNED + FLOATS, True),
    OpCase(
        "Sign",
        a.sign,
        [np.array([-3.0, 0, 2, 5])],
        lambda x: (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype),
        SIGNED + FLOATS,
    ),
    OpCase("Sign", a.sign, [real(4)], lambda x: np.where(x > 0, 1, -1), grad=True, label="slope"),
    OpCase("Square", a.square, [_count(2, 3)], lambda x: x * x, NUMBERS, True),
    _unary("Sqrt", a.sqrt, lambda x: np.exp(np.log(x) / 2), _positive(2, 3)),
    _unary("Rsqrt", a.rsqrt, lambda x: np.exp(-np.log(x) / 2), _positive(2, 3)),
    _unary("Reciprocal", a.reciprocal, lambda x: 1 / x),
    ScriptCase(("Sqrt", "Rsqrt", "Reciprocal"), _no_gradient_where_none_comes_in, "masked-gradient"),
    # --- functions; the oracle takes another way to the value wherever there is one
    _unary("Exp", m.exp, lambda x: np.e ** x.astype("d")),
    _unary("Expm1", m.expm1, lambda x: np.e ** x.astype("d") - 1),
    _unary(
        "Expm1",
        m.expm1,
        lambda x: x,
        np.array([1e-9]),
        ("float32", "float64"),
        False,
        label="near-0",
        rtol=1e-6,
    ),
    _unary("Log", m.log, lambda x: np.log2(x) * math.log(2), _positive(2, 3)),
    _unary("Log1p", m.log1p, lambda x: np.log(1 + x.astype("d")), _positive(2, 3)),
    _unary(
        "Log1p",
        m.log1p,
        lambda x: x,
        np.array([1e-9]),
        ("float32", "float64"),
        False,
        label="near-0",
        rtol=1e-6,
    ),
    _unary("Sin", m.sin, lambda x: np.exp(1j * x).imag),
    _unary("Cos", m.cos, lambda x: np.exp(1j * x).real),
    _unary("Tan", m.tan, lambda x: np.sin(x) / np.cos(x), INSIDE),
    _unary("Asin", m.asin, lambda x: np.arctan2(x, np.sqrt(1 - x * x)), INSIDE),
    _unary("Acos", m.acos, lambda x: np.arctan2(np.sqrt(1 - x * x), x), INSIDE),
    _unary("Atan", m.atan, lambda x: np.arctan2(x, 1)),
    _unary("Sinh", m.sinh, lambda x: (np.exp(x) - np.exp(-x)) / 2),
    _unary("Cosh", m.cosh, lambda x: (np.exp(x) + np.exp(-x)) / 2),
    _unary("Tanh", m.tanh, lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1)),
    _unary("Asinh", m.asinh, lambda x: np.log(x + np.sqrt(x * x + 1))),
    _unary("Acosh", m.acosh, lambda x: np.log(x + np.sqrt(x * x - 1)), _positive(2, 3) + 1),
    _unary("Atanh", m.atanh, lambda x: np.log((1 + x) / (1 - x)) / 2, INSIDE),
    _unary("Sigmoid", m.sigmoid, lambda x: (np.tanh(x / 2) + 1) / 2),
    _unary(
        "Sigmoid",
        m.sigmoid,
        lambda x: np.array([0, 1.0]),
        np.array([-200.0, 200.0]),
        label="far-out",
        grad=False,
    ),
    _unary("Erf", m.erf, lambda x: np.vectorize(math.erf)(x)),
    _unary("Erfc", m.erfc, lambda x: np.vectorize(math.erfc)(x)),
    _unary("Lgamma", m.lgamma, lambda x: np.vectorize(math.lgamma)(x), _positive(2, 3)),
    _unary("Digamma", m.digamma, _psi, _positive(2, 3)),
    OpCase(
        "Digamma",
        m.digamma,
        [np.array([0.0, -0.0, -3.0, -np.inf, np.inf])],
        lambda x: np.where(x > 0, x, np.nan),
        FLOATS,
        label="poles",
    ),
    OpCase(
        "Polygamma",
        lambda x: m.polygamma(1.0, x),
        [_positive(2, 3)],
        lambda x: _psi(x, 1),
        ("float64", *FLOATS[:3]),
        True,
    ),
    OpCase("Polygamma", lambda x: m.polygamma(2.0, x), [_positive(3)], lambda x: _psi(x, 2), label="second"),
    OpCase("Polygamma", lambda x: m.polygamma(0.0, x), [_positive(3)], _psi, label="zeroth"),
    OpCase(
        "Polygamma",
        m.polygamma,
        [np.array([[1.0], [2.0]]), _positive(3)],
        lambda n, x: np.stack([_psi(x, 1), _psi(x, 2)]),
        grad=(1,),
        label="orders",
    ),
    # --- rounding and kinds of numbers
    _unary("Floor", m.floor, lambda x: np.vectorize(math.floor)(x), np.array([-1.5, -0.2, 0, 0.7, 2]), grad=False),
    _unary("Ceil", m.ceil, lambda x: np.vectorize(math.ceil)(x), np.array([-1.5, -0.2, 0, 0.7, 2]), grad=False),
    _unary("Round", m.round, lambda x: np.vectorize(round)(x), np.array([-1.5, -0.2, 0.5, 1.5, 2.7]), grad=False),
    _unary("Rint", m.rint, lambda x: np.vectorize(round)(x), np.array([-1.5, -0.2, 0.5, 1.5, 2.7]), grad=False),
    _unary("Trunc", m.trunc, lambda x: np.vectorize(int)(x), np.array([-1.5, -0.2, 0.5, 1.5, 2.7]), grad=False),
    _unary("IsNan", m.is_nan, lambda x: np.array([0, 1, 0, 0, 0], bool), SPECIAL, grad=False),
    _unary("IsInf", m.is_inf, lambda x: np.array([0, 0, 1, 1, 0], bool), SPECIAL, grad=False),
    _unary("IsFinite", m.is_finite, lambda x: np.array([1, 0, 0, 0, 1], bool), SPECIAL, grad=False),
    # --- comparisons
    *[
        OpCase(op, build, [_small(3, 4, seed=1), _small(4, seed=2)], oracle, NUMBERS)
        for op, build, oracle in [
            ("Equal", k.equal, lambda x, y: abs(x.astype("d") - y) < 0.5),
            ("NotEqual", k.not_equal, lambda x, y: abs(x.astype("d") - y) > 0.5),
            ("Less", k.less, lambda x, y: x.astype("d") - y < 0),
            ("LessEqual", k.less_equal, lambda x, y: ~(x.astype("d") - y > 0)),
            ("Greater", k.greater, lambda x, y: x.astype("d") - y > 0),
            ("GreaterEqual", k.greater_equal, lambda x, y: ~(x.astype("d") - y < 0)),
        ]
    ],
    OpCase("Equal", k.equal, [BOOLS, BOOLS[:1]], lambda x, y: ~(x ^ y), label="bool"),
    OpCase(
        "Equal",
        lambda s: k.equal(s, "bc"),
        [STRINGS],
        lambda s: np.array([False, True, False]),
        label="string",
    ),
    OpCase(
        "NotEqual",
        k.not_equal,
        [STRINGS, STRINGS[::-1]],
        lambda s, t: np.array([True, False, True]),
        label="string",
    ),
    OpCase(
        "Equal",
        k.equal,
        [SPECIAL, SPECIAL],
        lambda x, y: np.array([True, False, True, True, True]),
        label="nan",
    ),
    OpCase("Less", lambda x: k.less(1, x), [real(3)], lambda x: x > 1, label="number-left"),
    # --- choosing
    OpCase(
        "Select",
        k.where,
        [BOOLS, real(2, 3, seed=1), real(2, 3, seed=2)],
        lambda c, x, y: c * x + ~c * y,
        NUMBERS[:4],
        True,
    ),
    OpCase(
        "Select",
        k.where,
        [BOOLS[0], real(3, 2, seed=1), real(3, 2, seed=2)],
        lambda c, x, y: np.array([r if q else s for q, r, s in zip(c, x, y, strict=True)]),
        ("float64",),
        True,
        label="rows",
    ),
    OpCase(
        "Select",
        k.where,
        [np.array(False), real(3), real(3, seed=2)],
        lambda c, x, y: y,
        ("float64",),
        True,
        label="scalar",
    ),
    OpCase(
        "Select",
        k.where,
        [BOOLS, whole(2, 3, low=0), whole(2, 3, low=0, seed=2)],
        lambda c, x, y: c * x + ~c * y,
        INTEGERS,
        label="integers",
    ),
    OpCase(
        "SelectV2",
        k.where_v2,
        [BOOLS, real(2, 3, seed=1), real(2, 3, seed=2)],
        lambda c, x, y: c * x + ~c * y,
        FLOATS,
        True,
    ),
    OpCase(
        "SelectV2",
        k.where_v2,
        [BOOLS[0], real(2, 1, seed=1), real()],
        lambda c, x, y: c * x + ~c * y,
        grad=True,
        label="broadcast",
    ),
    OpCase(
        "SelectV2",
        lambda c, x: k.where_v2(c, x, 0),
        [BOOLS, real(3)],
        lambda c, x: c * x,
        grad=True,
        label="number",
    ),
    OpCase("Where", k.where, [BOOLS], lambda c: np.array([[0, 0], [0, 2], [1, 2]]), dynamic=True),
    OpCase("Where", k.where, [np.zeros((2, 2), bool)], lambda c: np.zeros((0, 2)), dynamic=True, label="none"),
    # --- logic and bits
    OpCase("LogicalAnd", b.logical_and, [BOOLS, BOOLS[0]], lambda x, y: x & y),
    OpCase("LogicalOr", b.logical_or, [BOOLS, BOOLS[0]], lambda x, y: x | y),
    OpCase("LogicalOr", b.logical_xor, [BOOLS, BOOLS[0]], lambda x, y: x ^ y, label="xor"),
    OpCase("LogicalNot", b.logical_not, [BOOLS], lambda x: x ^ True),
    OpCase(
        "BitwiseAnd",
        b.bitwise_and,
        [_count(2, 3, seed=1), _count(3, seed=2)],
        lambda x, y: _bitwise(int.__and__, x, y),
        INTEGERS,
    ),
    OpCase(
        "BitwiseOr",
        b.bitwise_or,
        [_count(2, 3, seed=1), _count(3, seed=2)],
        lambda x, y: _bitwise(int.__or__, x, y),
        INTEGERS,
    ),
    OpCase(
        "BitwiseXor",
        b.bitwise_xor,
        [_count(2, 3, seed=1), _count(3, seed=2)],
        lambda x, y: _bitwise(int.__xor__, x, y),
        INTEGERS,
    ),
    OpCase("Invert", b.invert, [_count(2, 3)], lambda x: (-1 - x.astype(int)).astype(x.dtype), INTEGERS),
    OpCase("LeftShift", b.left_shift, [_count(2, 3), _small(3)], lambda x, y: x * 2 ** y.astype(int), INTEGERS),
    OpCase(
        "RightShift",
        b.right_shift,
        [whole(2, 3), _small(3)],
        lambda x, y: np.floor(x / 2.0**y).astype(int),
        SIGNED,
    ),
    # --- casts
    OpCase(
        "Cast",
        lambda x: c.cast(x, "int32"),
        [np.array([-1.8, -0.2, 0, 1.8])],
        lambda x: np.array([-1, 0, 0, 1]),
        FLOATS,
        label="to-int",
    ),
    OpCase(
        "Cast",
        lambda x: c.cast(x, "bool"),
        [np.array([-1.5, 0, 2])],
        lambda x: np.array([True, False, True]),
        SIGNED + FLOATS,
        label="to-bool",
    ),
    OpCase("Cast", lambda x: c.cast(x, "float32"), [BOOLS], lambda x: np.where(x, 1, 0), label="from-bool"),
    OpCase("Cast", lambda x: c.cast(x, "float16"), [_count(2, 3)], lambda x: x, NUMBERS[1:], label="to-half"),
    OpCase(
        "Cast",
        lambda x: c.cast(x, "bfloat16"),
        [real(2, 3)],
        lambda x: x,
        ("float16", "float32", "float64"),
        label="to-bfloat",
    ),
    OpCase(
        "Cast",
        lambda x: c.cast(c.cast(x, "float32"), "float64"),
        [whole(2, 3)],
        lambda x: x,
        ("int64",),
        label="there-and-back",
    ),
    ScriptCase(("Cast",), _cast_gradient),
    OpCase(
        "Cast",
        lambda x: saturate_cast(x, "int8"),
        [np.array([-1e3, -128, 5, 127, 1e3])],
        lambda x: np.array([-128, -128, 5, 127, 127]),
        ("int16", "int32", "float32", "float64"),
        label="saturate",
    ),
    OpCase(
        "Cast",
        lambda x: saturate_cast(x, "int32"),
        [np.array([-1e20, 0, 1e20])],
        lambda x: np.array([-(2**31), 0, 2**31 - 128]),
        ("float32",),
        label="saturate-inexact",
    ),
    OpCase(
        "Cast",
        lambda x: saturate_cast(x, "uint8"),
        [np.array([-3.0, 300, 7])],
        lambda x: np.array([0, 255, 7]),
        ("int32", "float32", "bfloat16"),
        label="saturate-unsigned",
    ),
]
