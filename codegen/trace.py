"""From nodes to loops: every op that can be part of a fused kernel, in terms of the loop IR.

Elementwise ops need nothing of their own here: their scalar body is called once, with symbols in the place of numbers, and what
it does to them is written down. Reductions and the softmax family have a rule each, which says the same as their reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..graph.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ..graph.node import Node
from .loops import COSTLY, FLOAT32_ONLY, LoopsBuilder, Scan

SUPPORTED = (float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_, float16, bfloat16)
"""Element types of fused kernels. Narrow floats are computed in float32 and rounded once, at the end of each kernel."""

GPU_SUPPORTED = SUPPORTED
"""Those of GPUs."""
_MOST_POWERS = 4  # x ** n is written as a product up to here: within 2 units in the last place of the power


class NotFusibleError(Exception):
    """The node cannot be part of a fused kernel; says why."""


# --- scalar bodies ---------------------------------------------------------------------------------------------------


class Symbol:
    """A number that is not known yet, in a scalar body. Arithmetic on it makes loop IR."""

    __slots__ = ("builder", "number")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: LoopsBuilder, number: int) -> None:
        self.builder = builder
        self.number = number

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.builder.dtype(self.number)

    def _with(self, op: str, other: Any, swapped: bool = False) -> Symbol:
        a, b = (other, self) if swapped else (self, other)
        return _binary(op, a, b)

    def __add__(self, other: Any) -> Symbol:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Symbol:
        return self._with("add", other, True)

    def __sub__(self, other: Any) -> Symbol:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Symbol:
        return self._with("sub", other, True)

    def __mul__(self, other: Any) -> Symbol:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Symbol:
        return self._with("mul", other, True)

    def __truediv__(self, other: Any) -> Symbol:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return self._with("div", other, True)

    def __floordiv__(self, other: Any) -> Symbol:
        raise NotFusibleError("division with a remainder stays with NumPy, which checks for zero")

    __rfloordiv__ = __mod__ = __rmod__ = __floordiv__

    def __lshift__(self, other: Any) -> Symbol:
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Symbol:
        return self._with("shr", other)

    def __and__(self, other: Any) -> Symbol:
        return self._with("and" if self.dtype is bool_ else "bitand", other)

    def __or__(self, other: Any) -> Symbol:
        return self._with("or" if self.dtype is bool_ else "bitor", other)

    def __xor__(self, other: Any) -> Symbol:
        return self._with("xor" if self.dtype is bool_ else "bitxor", other)

    def __lt__(self, other: Any) -> Symbol:
        return self._with("lt", other)

    def __le__(self, other: Any) -> Symbol:
        return self._with("le", other)

    def __gt__(self, other: Any) -> Symbol:
        return self._with("gt", other)

    def __ge__(self, other: Any) -> Symbol:
        return self._with("ge", other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._with("eq", other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return self._with("ne", other)

    def __neg__(self) -> Symbol:
        return _unary("neg", self)

    def __invert__(self) -> Symbol:
        return _unary("not" if self.dtype is bool_ else "invert", self)

    def __bool__(self) -> bool:
        raise NotFusibleError("its scalar body has an `if`")


def _same_type(builder: LoopsBuilder, a: Any, b: Any) -> tuple[Symbol, Symbol]:
    """Both as symbols of one type; a Python number takes the other's."""
    if not isinstance(a, Symbol):
        a = _literal(builder, a, b.dtype)
    if not isinstance(b, Symbol):
        b = _literal(builder, b, a.dtype)
    if a.dtype is not b.dtype:
        raise NotFusibleError(f"its scalar body mixes {a.dtype.name} and {b.dtype.name}")
    return a, b


def _literal(builder: LoopsBuilder, value: Any, dtype: DType) -> Symbol:
    if isinstance(value, float) and not dtype.is_floating:
        raise NotFusibleError(f"its scalar body mixes {dtype.name} and fractions")
    return Symbol(builder, builder.constant(_python_number(value, dtype), dtype))


def _python_number(value: Any, dtype: DType) -> bool | int | float:
    """The number that `value` is in a type: 0.1 is another one in float32."""
    number: bool | int | float = np.asarray(value, dtype.np).item()
    return number


def _binary(op: str, a: Any, b: Any) -> Symbol:
    builder = (a if isinstance(a, Symbol) else b).builder
    x, y = _same_type(builder, a, b)
    if op == "div" and not x.dtype.is_floating:
        raise NotFusibleError("division of integers stays with NumPy, which checks for zero")
    return Symbol(builder, builder.apply(op, x.number, y.number))


def _unary(op: str, x: Symbol) -> Symbol:
    if op in FLOAT32_ONLY:
        _check_precision(op, x)
    return Symbol(x.builder, x.builder.apply(op, x.number))


def _check_precision(op: str, x: Symbol) -> None:
    if x.dtype is float64 or not x.dtype.is_floating:
        raise NotFusibleError(f"{op} of {x.dtype.name} stays with NumPy")


class SymbolicMath:
    """The math namespace that scalar bodies get here: see `graph.scalar_math` for what each function means."""

    def __getattr__(self, name: str) -> Any:
        op = {"logical_and": "and", "logical_or": "or", "logical_xor": "xor", "logical_not": "not"}.get(name, name)
        if op in ("and", "or", "xor", "minimum", "maximum"):
            return lambda a, b: _binary(op, a, b)
        if op in COSTLY or op in (
            "sqrt",
            "floor",
            "ceil",
            "round",
            "trunc",
            "abs",
            "sign",
            "not",
            "isnan",
            "isinf",
            "isfinite",
        ):
            return lambda x: _unary(op, x)
        raise NotFusibleError(f"{name} has no vectorised form")

    @staticmethod
    def where(condition: Symbol, a: Any, b: Any) -> Symbol:
        """`a` where the condition holds, else `b`."""
        x, y = _same_type(condition.builder, a, b)
        return Symbol(x.builder, x.builder.apply("select", condition.number, x.number, y.number))

    @staticmethod
    def full_like(x: Symbol, value: Any) -> Symbol:
        """A number of x's type."""
        return _literal(x.builder, value, x.dtype)

    @staticmethod
    def rsqrt(x: Symbol) -> Symbol:
        """1 / sqrt(x)."""
        return 1 / _unary("sqrt", x)

    @staticmethod
    def cast(x: Symbol, dtype: DType) -> Symbol:
        """x as another type."""
        if x.dtype is dtype:
            return x
        if dtype not in GPU_SUPPORTED:
            raise NotFusibleError(f"{dtype.name} stays with NumPy")
        if x.dtype.is_floating and not (dtype.is_floating or dtype in (bool_, int32, int64)):
            raise NotFusibleError(f"what does not fit {dtype.name} becomes what NumPy makes of it")
        return Symbol(x.builder, x.builder.apply("cast", x.number, dtype=dtype))

    @staticmethod
    def pow(x: Symbol, y: Symbol) -> Symbol:
        """x ** y; a product for small whole y that are known."""
        n = y.builder.constant_of(y.number) if isinstance(y, Symbol) else y
        if n is None or not 1 <= n <= _MOST_POWERS or n != int(n):
            _check_precision("pow", x)
            return _binary("pow", x, y)
        product = x
        for _ in range(int(n) - 1):
            product = product * x
        return product


_math = SymbolicMath()


# --- ops -------------------------------------------------------------------------------------------------------------

Rule = Callable[[LoopsBuilder, Node, Sequence[int]], Sequence[int]]
"""(builder, node, values of the inputs, and then of what the node's pattern asks for beside: a position, or an element of a row
that is looked up) -> values of the outputs."""


def _scalar_rule(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    op = node.opdef
    assert op.scalar is not None
    result = op.scalar(_math, *[Symbol(builder, i) for i in inputs], **op.kernel_attrs(node.attrs))
    if not isinstance(result, Symbol):
        result = _literal(builder, result, node.outputs[0].dtype.base)
    return [result.number]


def _same(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0]]


def _constant(value: int) -> Rule:
    return lambda builder, node, inputs: [
        builder.constant(_python_number(value, node.outputs[0].dtype), node.outputs[0].dtype)
    ]


def _add(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [builder.apply("add", inputs[0], inputs[1])]


def _select(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [builder.apply("select", *inputs)]


def _reduction(kind: str) -> Rule:
    return lambda builder, node, inputs: [builder.reduce(kind, inputs[0])]


def _mean(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    dtype = builder.dtype(inputs[0])
    if not dtype.is_floating:
        raise NotFusibleError("the mean of integers stays with NumPy, which checks for an empty one")
    return [builder.apply("div", builder.reduce("sum", inputs[0]), builder.count(dtype))]


def _l2_loss(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    total = builder.reduce("sum", builder.apply("mul", inputs[0], inputs[0]))
    return [builder.apply("div", total, builder.constant(2.0, builder.dtype(total)))]


def _softmax(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    (x,) = inputs
    e = builder.apply("exp", builder.apply("sub", x, builder.reduce("max", x)))
    return [builder.apply("div", e, builder.reduce("sum", e))]


def _layer_norm(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    x, *affine = inputs
    apply, dtype = builder.apply, builder.dtype(x)
    centred = apply("sub", x, apply("div", builder.reduce("sum", x), builder.count(dtype)))
    variance = apply("div", builder.reduce("sum", apply("mul", centred, centred)), builder.count(dtype))
    root = apply("sqrt", apply("add", variance, builder.constant(_python_number(node.attrs["epsilon"], dtype), dtype)))
    y = apply("mul", centred, apply("div", builder.constant(1.0, dtype), root))
    return [apply("add", apply("mul", y, affine[0]), affine[1]) if affine else y]


def _log_softmax_of(builder: LoopsBuilder, x: int) -> int:
    shifted = builder.apply("sub", x, builder.reduce("max", x))
    return builder.apply("sub", shifted, builder.apply("log", builder.reduce("sum", builder.apply("exp", shifted))))


def _log_softmax(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [_log_softmax_of(builder, inputs[0])]


def _cross_entropy(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    logits, y = inputs
    apply = builder.apply
    log_p = _log_softmax_of(builder, logits)
    zero = builder.constant(0.0, builder.dtype(y))
    cost = apply("select", apply("eq", y, zero), zero, apply("mul", y, log_p))
    loss = apply("neg", builder.reduce("sum", cost))
    return [loss, apply("sub", apply("mul", apply("exp", log_p), builder.reduce("sum", y)), y)]


def _sparse_cross_entropy(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    logits, label, position = inputs
    apply, dtype = builder.apply, builder.dtype(logits)
    log_p = _log_softmax_of(builder, logits)
    zero, one = builder.constant(0.0, dtype), builder.constant(1.0, dtype)
    found = apply("eq", _as_position(builder, label), position)
    loss = apply("neg", builder.reduce("sum", apply("select", found, log_p, zero)))
    return [loss, apply("sub", apply("exp", log_p), apply("select", found, one, zero))]


def _one_hot(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    index, on, off, position = inputs
    return [builder.apply("select", builder.apply("eq", _as_position(builder, index), position), on, off)]


def _looked_up(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[-1]]


def _scan(kind: str) -> Rule:
    return lambda builder, node, inputs: [
        builder.scan(Scan(kind, bool(node.attrs["reverse"]), bool(node.attrs["exclusive"])), inputs[0])
    ]


def _drawn(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    """The numbers; in a narrow type, the first bits of those of float32."""
    number, dtype = inputs[-1], node.outputs[0].dtype
    if builder.dtype(number) is dtype:
        return [number]
    bits = {float16: 11, bfloat16: 8}[dtype]
    scale, back = (builder.constant(s, float32) for s in (2.0**bits, 2.0**-bits))
    whole = builder.apply("floor", builder.apply("mul", number, scale))
    return [builder.apply("cast", builder.apply("mul", whole, back), dtype=dtype)]


def _as_position(builder: LoopsBuilder, number: int) -> int:
    return number if builder.dtype(number) is int64 else builder.apply("cast", number, dtype=int64)


def _extreme(kind: str) -> Rule:
    """The first place of the largest or smallest element, or of a NaN."""

    def rule(builder: LoopsBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
        x, position = inputs
        apply, dtype = builder.apply, builder.dtype(inputs[0])
        if dtype is bool_:
            raise NotFusibleError("places of truth values stay with NumPy")
        found = apply("eq", x, builder.reduce(kind, x))
        if dtype.is_floating:
            found = apply("or", found, apply("isnan", x))
        nowhere = builder.constant(int(int64.max), int64)
        place = builder.reduce("min", apply("select", found, position, nowhere))
        made = node.outputs[0].dtype
        return [place if made is int64 else apply("cast", place, dtype=made)]

    return rule


_rules: dict[str, Rule] = {
    "Identity": _same,
    "StopGradient": _same,
    "PreventGradient": _same,
    "ExpandDims": _same,
    "Squeeze": _same,
    "Reshape": _same,
    "BroadcastTo": _same,
    "ZerosLike": _constant(0),
    "OnesLike": _constant(1),
    "BiasAdd": _add,
    "BiasAddGrad": _reduction("sum"),
    "Select": _select,
    "Sum": _reduction("sum"),
    "Mean": _mean,
    "Prod": _reduction("prod"),
    "Max": _reduction("max"),
    "Min": _reduction("min"),
    "Any": _reduction("any"),
    "All": _reduction("all"),
    "L2Loss": _l2_loss,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "LayerNorm": _layer_norm,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "OneHot": _one_hot,
    "ArgMax": _extreme("max"),
    "ArgMin": _extreme("min"),
    "GatherV2": _looked_up,
    "ResourceGather": _looked_up,
    "Cumsum": _scan("sum"),
    "Cumprod": _scan("prod"),
    "UnsortedSegmentSum": _same,
    "UniformOfStream": _drawn,
    "NormalOfStream": _drawn,
}


def rule_of(node: Node, is_view: bool = False) -> Rule:
    """How to write a node in loop IR; one that `is_view` only passes its input on.

    Raises:
        NotFusibleError: it cannot be.
    """
    if is_view:
        return _same
    rule = _rules.get(node.type)
    if rule is None and node.opdef.scalar is not None:
        rule = _scalar_rule
    if rule is None:
        raise NotFusibleError(f"{node.type} has no loop form")
    return rule


def check_types(node: Node, types: Sequence[DType] = SUPPORTED) -> None:
    """Raise `NotFusibleError` when a kernel cannot have the node's element types."""
    for t in (*node.inputs, *node.outputs):
        if t.dtype not in types:
            raise NotFusibleError(
                f"{t.dtype.name} stays with NumPy" if not t.dtype.is_ref else "it takes a variable's place"
            )


def number_of(value: Any) -> bool | int | float | None:
    """The Python number that a constant of one element is; None when it has more."""
    array = np.asarray(value)
    return array.reshape(()).item() if array.size == 1 and array.dtype.kind in "fiub" else None
