"""Lowering rules from ops to loop IR, one for every op that can be part of a fused kernel.

Elementwise ops need no rule of their own: their scalar body is called once with symbolic operands (`tracer.py`). Reductions and
the softmax family have one rule each, equivalent to their NumPy reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph.core.dtypes import bfloat16, float16, float32, int64
from ...graph.core.graph import Node, Tensor
from ..ir.index_maps import VIEWS
from ..ir.legality import NotFusibleError
from ..ir.loop_nest import LoopNestBuilder, Scan
from .row_loops import first_extreme
from .tracer import Symbol, SymbolicMath, literal, python_number

Rule = Callable[[LoopNestBuilder, Node, Sequence[int]], Sequence[int]]
"""(builder, node, values of the inputs, and then of what the node's pattern asks for beside: a position, or an element of a row
that is looked up) -> values of the outputs."""


def _scalar_rule(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    op = node.opdef
    assert op.scalar is not None
    result = op.scalar(SymbolicMath(), *[Symbol(builder, i) for i in inputs], **op.kernel_attrs(node.attrs))
    if not isinstance(result, Symbol):
        result = literal(builder, result, node.outputs[0].dtype.base)
    return [result.number]


def _same(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0]]


def _constant(value: int) -> Rule:
    return lambda builder, node, inputs: [
        builder.constant(python_number(value, node.outputs[0].dtype), node.outputs[0].dtype)
    ]


def _add(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [builder.apply("add", inputs[0], inputs[1])]


def _select(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [builder.apply("select", *inputs)]


def _reduction(kind: str) -> Rule:
    return lambda builder, node, inputs: [builder.reduce(kind, inputs[0])]


def _mean(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    dtype = builder.dtype(inputs[0])
    if not dtype.is_floating:
        raise NotFusibleError("the mean of integers stays with NumPy, which checks for an empty one")
    return [builder.apply("div", builder.reduce("sum", inputs[0]), builder.count(dtype))]


def _l2_loss(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    total = builder.reduce("sum", builder.apply("mul", inputs[0], inputs[0]))
    return [builder.apply("div", total, builder.constant(2.0, builder.dtype(total)))]


def _softmax(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    (x,) = inputs
    e = builder.apply("exp", builder.apply("sub", x, builder.reduce("max", x)))
    return [builder.apply("div", e, builder.reduce("sum", e))]


def _log_softmax_of(builder: LoopNestBuilder, x: int) -> int:
    shifted = builder.apply("sub", x, builder.reduce("max", x))
    return builder.apply("sub", shifted, builder.apply("log", builder.reduce("sum", builder.apply("exp", shifted))))


def _log_softmax(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [_log_softmax_of(builder, inputs[0])]


def _cross_entropy(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    logits, y = inputs
    apply = builder.apply
    log_p = _log_softmax_of(builder, logits)
    zero = builder.constant(0.0, builder.dtype(y))
    cost = apply("select", apply("eq", y, zero), zero, apply("mul", y, log_p))
    loss = apply("neg", builder.reduce("sum", cost))
    return [loss, apply("sub", apply("mul", apply("exp", log_p), builder.reduce("sum", y)), y)]


def _sparse_cross_entropy(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    """The loss of a label out of range that no earlier check refused is NaN, and so is its gradient."""
    logits, label, position = inputs
    apply, dtype = builder.apply, builder.dtype(logits)
    log_p = _log_softmax_of(builder, logits)
    label = builder.cast(label, int64)
    there = apply("and", apply("ge", label, builder.constant(0, int64)), apply("lt", label, builder.count(int64)))
    zero = apply("select", there, builder.constant(0.0, dtype), builder.constant(float("nan"), dtype))
    one = builder.constant(1.0, dtype)
    found = apply("eq", label, position)
    loss = apply("neg", builder.reduce("sum", apply("select", found, log_p, zero)))
    return [loss, apply("sub", apply("exp", log_p), apply("select", found, one, zero))]


def _one_hot(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    index, on, off, position = inputs
    return [builder.apply("select", builder.apply("eq", builder.cast(index, int64), position), on, off)]


def _looked_up(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[-1]]


def _scan(kind: str) -> Rule:
    return lambda builder, node, inputs: [
        builder.scan(Scan(kind, bool(node.attrs["reverse"]), bool(node.attrs["exclusive"])), inputs[0])
    ]


def _drawn(builder: LoopNestBuilder, node: Node, inputs: Sequence[int]) -> Sequence[int]:
    """Random numbers; for a narrow type, the leading bits of the float32 numbers."""
    number, dtype = inputs[-1], node.outputs[0].dtype
    if builder.dtype(number) is dtype:
        return [number]
    bits = {float16: 11, bfloat16: 8}[dtype]
    scale, back = (builder.constant(s, float32) for s in (2.0**bits, 2.0**-bits))
    whole = builder.apply("floor", builder.apply("mul", number, scale))
    return [builder.cast(builder.apply("mul", whole, back), dtype)]


def _extreme(kind: str) -> Rule:
    """Argmax or argmin: the first position of the largest or smallest element, or of a NaN."""

    return lambda builder, node, inputs: [first_extreme(builder, kind, inputs[0], inputs[1], node.outputs[0].dtype)]


_rules: dict[str, Rule] = {
    **dict.fromkeys(VIEWS, _same),
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
    """The lowering rule of a node to loop IR. A node that `is_view` only passes its input on.

    Raises:
        NotFusibleError: the node has none.
    """
    if is_view:
        return _same
    rule = _rules.get(node.type)
    if rule is None and node.opdef.scalar is not None:
        rule = _scalar_rule
    if rule is None:
        raise NotFusibleError(f"{node.type} has no loop nest")
    return rule


def constant_of(tensor: Tensor) -> bool | int | float | None:
    """The value of a tensor that is a constant of one element, else None."""
    if tensor.op.type != "Const":
        return None
    array = np.asarray(tensor.op.attrs["value"])
    return array.reshape(()).item() if array.size == 1 and array.dtype.kind in "fiub" else None
