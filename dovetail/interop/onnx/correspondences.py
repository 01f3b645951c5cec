"""The ops that the ONNX standard and the graph define with the same inputs, in one table for import and export."""

from __future__ import annotations

from ...api.ops import math, nn
from ...graph.ops.array.identity_and_placeholders import identity
from ...graph.ops.math import compare as logic
from ...graph.ops.math.compare import where_v2
from .registry import imports_as
from .writing import exports_as

for _theirs, _mine, _function in (
    ("Abs", "Abs", math.abs), ("Acos", "Acos", math.acos), ("Acosh", "Acosh", math.acosh), ("Add", "AddV2", math.add),
    ("And", "LogicalAnd", math.logical_and), ("Asin", "Asin", math.asin), ("Asinh", "Asinh", math.asinh),
    ("Atan", "Atan", math.atan), ("Atanh", "Atanh", math.atanh), ("BitwiseAnd", "BitwiseAnd", logic.bitwise_and),
    ("BitwiseNot", "Invert", logic.invert), ("BitwiseOr", "BitwiseOr", logic.bitwise_or),
    ("BitwiseXor", "BitwiseXor", logic.bitwise_xor), ("Ceil", "Ceil", math.ceil), ("Cos", "Cos", math.cos),
    ("Cosh", "Cosh", math.cosh), ("Equal", "Equal", math.equal), ("Erf", "Erf", math.erf), ("Exp", "Exp", math.exp),
    ("Floor", "Floor", math.floor), ("Greater", "Greater", math.greater),
    ("GreaterOrEqual", "GreaterEqual", math.greater_equal), ("Identity", "Identity", identity),
    ("IsNaN", "IsNan", math.is_nan), ("Less", "Less", math.less), ("LessOrEqual", "LessEqual", math.less_equal),
    ("Log", "Log", math.log), ("Mul", "Mul", math.multiply), ("Neg", "Neg", math.negative),
    ("Not", "LogicalNot", math.logical_not), ("Or", "LogicalOr", math.logical_or),
    ("Reciprocal", "Reciprocal", math.reciprocal), ("Relu", "Relu", nn.relu), ("Round", "Round", math.round),
    ("Sigmoid", "Sigmoid", math.sigmoid), ("Sign", "Sign", math.sign), ("Sin", "Sin", math.sin),
    ("Sinh", "Sinh", math.sinh), ("Softplus", "Softplus", math.softplus), ("Softsign", "Softsign", math.softsign),
    ("Sqrt", "Sqrt", math.sqrt), ("Sub", "Sub", math.subtract), ("Tan", "Tan", math.tan), ("Tanh", "Tanh", math.tanh),
    ("Where", "SelectV2", where_v2),
):  # fmt: skip
    imports_as(_function, _theirs)
    exports_as(**{_mine: _theirs})

imports_as(math.logical_xor, "Xor")  # import only: the graph composes it from other ops
