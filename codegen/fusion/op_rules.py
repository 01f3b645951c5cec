"""Lowering rules from ops to loop IR, one for every op that can be part of a fused kernel.

Elementwise ops need no rule of their own: their scalar body is called once with symbolic operands (`tracer.py`). Reductions and
the softmax family have one rule each, equivalent to their NumPy reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...graph.core.dtypes import bfloat16, float16, int32, int64
from ...graph.core.graph import Node, Tensor
from ..ir.index_maps import LOOKUPS, REDUCTIONS, VIEWS
from ..ir.loop_nest import NotFusibleError, Scan
from ..ir.windows import WINDOW_OPS
from .table_loops import first_extreme, in_range
from .tracer import Symbol, SymbolicMath, literal

Rule = Callable[..., "Symbol | tuple[Symbol, ...]"]
"""(node, values of its inputs, then positions or a gathered element if its index maps ask for one) -> value of the output, or several."""

_math = SymbolicMath()


def _scalar_rule(node: Node, *inputs: Symbol) -> Symbol:
    op = node.opdef
    assert op.scalar is not None
    result = op.scalar(_math, *inputs, **op.kernel_attrs(node.attrs))
    return result if isinstance(result, Symbol) else literal(inputs[0].builder, result, node.outputs[0].dtype.base)


def _same(node: Node, *inputs: Symbol) -> Symbol:
    return inputs[0]


def _reduction(kind: str) -> Rule:
    return lambda node, x: x.reduced(kind)


def _mean(node: Node, x: Symbol) -> Any:
    if not x.type.is_floating:
        raise NotFusibleError("the mean of integers stays with NumPy, which checks for an empty one")
    return x.reduced("sum") / Symbol(x.builder, x.builder.count(x.type))


def _softmax(node: Node, x: Symbol) -> Any:
    e = _math.exp(x - x.reduced("max"))
    return e / e.reduced("sum")


def _log_softmax(node: Node, x: Symbol) -> Any:
    shifted = x - x.reduced("max")
    return shifted - _math.log(_math.exp(shifted).reduced("sum"))


def _cross_entropy(node: Node, logits: Symbol, y: Symbol) -> tuple[Symbol, ...]:
    log_p = _log_softmax(node, logits)
    loss = -_math.where(y == 0.0, 0.0, y * log_p).reduced("sum")
    return loss, _math.exp(log_p) * y.reduced("sum") - y


def _sparse_cross_entropy(node: Node, logits: Symbol, label: Symbol, position: Symbol) -> tuple[Symbol, ...]:
    """A label out of range that no earlier check refused has the loss and the gradient NaN."""
    log_p = _log_softmax(node, logits)
    label = _math.cast(label, int64)
    there = in_range(label, Symbol(logits.builder, logits.builder.count(int64)))
    found = label == position
    zero = _math.where(there, SymbolicMath.full_like(logits, 0.0), math.nan)
    loss = -_math.where(found, log_p, zero).reduced("sum")
    return loss, _math.exp(log_p) - _math.where(found, 1.0, zero)


def _in_top_k(node: Node, x: Symbol, label: Symbol, k: Symbol, position: Symbol) -> Any:
    """No row that has a number which is not finite has a label among its largest, nor has any row one out of range."""
    label = _math.cast(label, int64)
    own = _math.where(label == position, x, 0.0).reduced("sum")
    larger = _math.cast(_math.cast(x > own, int32).reduced("sum"), int64)
    there = in_range(label, Symbol(x.builder, x.builder.count(int64)))
    return there & _math.isfinite(x).reduced("all") & (larger < _math.cast(k, int64))


def _band(node: Node, x: Symbol, lower: Symbol, upper: Symbol, row: Symbol, column: Symbol) -> Symbol:
    """Negative numbers of diagonals: all."""
    lower, upper = _math.cast(lower, int64), _math.cast(upper, int64)
    return _math.where(((lower < 0) | (column >= row - lower)) & ((upper < 0) | (column - row <= upper)), x, 0)


def _scan(kind: str) -> Rule:
    return lambda node, x: x.scanned(Scan(kind, bool(node.attrs["reverse"]), bool(node.attrs["exclusive"])))


def _drawn(node: Node, *inputs: Symbol) -> Symbol:
    """Random numbers; for a narrow type, the leading bits of the float32 numbers."""
    number, dtype = inputs[-1], node.outputs[0].dtype
    if number.type is dtype:
        return number
    bits = {float16: 11, bfloat16: 8}[dtype]
    return _math.cast(_math.floor(number * 2.0**bits) * 2.0**-bits, dtype)


_rules: dict[str, Rule] = {
    **dict.fromkeys(VIEWS, _same),
    "ZerosLike": lambda node, x: SymbolicMath.full_like(x, 0),
    "OnesLike": lambda node, x: SymbolicMath.full_like(x, 1),
    "BiasAdd": lambda node, x, bias: x + bias,
    "BiasAddGrad": _reduction("sum"),
    "Select": lambda node, condition, a, b: _math.where(condition, a, b),
    **{op: _reduction(op.lower()) for op in REDUCTIONS},
    "Mean": _mean,
    "L2Loss": lambda node, x: (x * x).reduced("sum") / 2.0,
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "SoftmaxCrossEntropyWithLogits": _cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": _sparse_cross_entropy,
    "InTopKV2": _in_top_k,
    "MatrixBandPart": _band,
    "OneHot": lambda node, index, on, off, position: _math.where(_math.cast(index, int64) == position, on, off),
    "ArgMax": lambda node, x, position: first_extreme("max", x, position, node.outputs[0].dtype),
    "ArgMin": lambda node, x, position: first_extreme("min", x, position, node.outputs[0].dtype),
    **dict.fromkeys(LOOKUPS, lambda node, *inputs: inputs[-1]),
    "Cumsum": _scan("sum"),
    "Cumprod": _scan("prod"),
    "UnsortedSegmentSum": _same,
    "UniformOfStream": _drawn,
    "NormalOfStream": _drawn,
}


def rule_of(node: Node, is_view: bool = False) -> Rule:
    """The lowering rule of a node to loop IR. A node that `is_view` only passes its input on.

    Raises:
        NotFusibleError: the node has none.
    """
    if is_view or node.opdef.places is not None or node.type in WINDOW_OPS:
        return _same
    rule = _rules.get(node.type)
    if rule is None and node.opdef.scalar is not None:
        rule = _scalar_rule
    if rule is None:
        raise NotFusibleError(f"{node.type} has no loop nest")
    return rule


def has_rule(step: object) -> bool:
    """Whether a step is a node that may be in a kernel."""
    try:
        return isinstance(step, Node) and rule_of(step) is not None
    except NotFusibleError:
        return False


def constant_of(tensor: Tensor) -> bool | int | float | None:
    """The value of a tensor that is a constant of one element, else None."""
    if tensor.op.type != "Const":
        return None
    array = np.asarray(tensor.op.attrs["value"])
    return array.reshape(()).item() if array.size == 1 and array.dtype.kind in "fiub" else None
