"""Rules that remove reshapes, transposes and casts, or merge them into a neighbour. All of them are exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import DType
from ....graph.core.graph import Tensor
from ....graph.core.shape import is_static
from ...ir.nodes import PRODUCTS
from .dsl import Match, Rule


def permutation_of(m: Match, tensor: Tensor) -> list[int] | None:
    """The axis order in a constant tensor, counted from the front; None if it is not a constant."""
    node = m.look(tensor)
    if node is None or node.opdef.name != "Const":
        return None
    value = node.attrs["value"]
    return [int(i) % max(len(value), 1) for i in value]


def _permutation(m: Match, name: str) -> list[int] | None:
    return permutation_of(m, m[name])


def _moves_nothing(m: Match) -> bool:
    p = _permutation(m, "p")
    return p is not None and p == list(range(len(p)))


def _transposed_twice(m: Match) -> Tensor | None:
    p, q = _permutation(m, "p"), _permutation(m, "q")
    if p is None or q is None or len(p) != len(q):
        return None
    order = np.array([p[i] for i in q], m.value("q").dtype)
    return m.make("Transpose", (m["x"], m.constant(order)), {})


def _exchanged(order: Sequence[int]) -> list[int]:
    """An axis order after exchanging axes rank - 2 and rank - 1."""
    rank = len(order)
    return [{rank - 1: rank - 2, rank - 2: rank - 1}.get(axis, axis) for axis in order]


def _into_product(op: str, flags: tuple[str, str], which: int) -> Rule:
    """MatMul(Transpose(x), y) = MatMul(x, y, transpose_a=True).

    The transpose breaks up x's rows. If it moves other axes too, another transpose remains, which moves whole rows of memory. Heads of
    attention are often transposed twice for a product, in one order for good.
    """

    def make(m: Match) -> Tensor | None:
        p = _permutation(m, "p")
        if p is None or len(p) < 2 or p[-2] != len(p) - 1:
            return None
        order = [*p[:-2], p[-1], p[-2]]
        x = m["x"]
        if order != [*range(len(p))]:
            x = m.make("Transpose", (x, m.constant(np.array(order, m.value("p").dtype))), {})
        attrs = {flags[0]: m["a"], flags[1]: m["b"]}
        attrs[flags[which]] = not attrs[flags[which]]
        return m.make(op, (m["y"], x) if which else (x, m["y"]), attrs)

    operands = "y, Transpose(x, p)" if which else "Transpose(x, p), y"
    return Rule(f"transpose into {op}", f"{op}({operands}, {flags[0]}=a, {flags[1]}=b)", make)


def _rows_out_of_product(m: Match) -> Tensor | None:
    """Transpose(a b, p) = Transpose(bᵗ aᵗ, q), where p breaks up the product's rows and q does not; the product has no other consumer."""
    p = _permutation(m, "p")
    if p is None or len(p) < 3 or p[-1] != len(p) - 2 or m.uses(m["product"]) != 1:
        return None
    product = m.make("BatchMatMulV2", (m["y"], m["x"]), {"adj_x": not m["b"], "adj_y": not m["a"]}, m["product"].op)
    return m.make("Transpose", (product, m.constant(np.array(_exchanged(p), m.value("p").dtype))), {})


def _same_static_shape(m: Match) -> bool:
    """The shape is known before run time. A shape given at run time may not fit, which must be reported."""
    dims = m["x"].dims
    return is_static(dims) and dims == m.root.outputs[0].dims and static_value(m["s"]) is not None


def _cannot_fail(m: Match) -> bool:
    """The shapes are known before run time, so the inner reshape cannot fail."""
    inner = m["inner"].op
    known = inner.type != "Reshape" or static_value(inner.inputs[1]) is not None
    return known and is_static(m["x"].dims) and is_static(m["inner"].dims)


def _same_type(m: Match) -> bool:
    return bool(m["x"].dtype.base is m["d"])


def _holds_all(wide: DType, narrow: DType) -> bool:
    """Whether each value of one type is a value of the other."""
    if narrow.is_bool:
        return wide.is_integer or wide.is_floating or wide.is_bool
    if narrow.is_integer and wide.is_integer:
        return bool(int(wide.min) <= int(narrow.min) and int(narrow.max) <= int(wide.max))
    if narrow.is_integer and wide.is_floating:
        return bool(int(narrow.max) <= 1 << _digits(wide) and _whole_range(wide, narrow))
    return narrow.is_floating and wide.is_floating and bool(np.can_cast(narrow.np, wide.np, "safe"))


def _digits(dtype: DType) -> int:
    """Bits of a floating type's significand."""
    return {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(dtype.name, 0)


def _whole_range(wide: DType, narrow: DType) -> bool:
    return -int(narrow.min) <= 1 << _digits(wide) and int(narrow.max) <= 60000


def _cast_twice(m: Match) -> Tensor | None:
    """Cast(Cast(x, B), C) = Cast(x, C) where B holds every value that x may have."""
    source, between, target = m["x"].dtype.base, m["b"], m["c"]
    if not _holds_all(between, source) or not (target.is_floating or not source.is_floating):
        return None  # casting a float out of an integer's range may depend on the source type
    if target is source:
        x: Tensor = m["x"]
        return x
    return m.make("Cast", (m["x"],), {"DstT": target})


def _from_the_front(m: Match) -> Tensor | None:
    """Axes counted from the end as those counted from the front, so that equal reductions look equal."""
    axes, dims = m.value("axes"), m["x"].dims
    if axes is None or dims is None or not np.any(axes < 0) or np.any(axes < -len(dims)):
        return None
    return m.make(
        m.root.type, (m["x"], m.constant(np.where(axes < 0, axes + len(dims), axes).astype(axes.dtype))), m.root.attrs
    )


arranging_rules = (
    Rule(
        "axes from the front",
        "{" + ", ".join(f"{op}(x, (axes := Const()))" for op in ("Sum", "Mean", "Max", "Min", "Prod")) + "}",
        _from_the_front,
    ),
    Rule("identity", "{Identity(x), StopGradient(x), PreventGradient(x)}", "x"),
    Rule("transpose that moves nothing", "Transpose(x, (p := Const()))", "x", _moves_nothing),
    Rule("transpose twice", "Transpose(Transpose(x, p), q)", _transposed_twice),
    *(_into_product(op, flags, which) for op, flags in PRODUCTS.items() for which in (0, 1)),
    Rule("reshape to the same shape", "{Reshape(x, s), BroadcastTo(x, s)}", "x", _same_static_shape),
    Rule(
        "reshape twice",
        "Reshape((inner := {Reshape(x, r), ExpandDims(x, r), Squeeze(x)}), s)",
        "Reshape(x, s)",
        _cannot_fail,
    ),
    Rule("cast to the same type", "Cast(x, DstT=d)", "x", _same_type),
    Rule("cast of a cast", "Cast(Cast(x, DstT=b), DstT=c)", _cast_twice),
    Rule("sum of one", "AddN(x)", "x"),
)

rows_out_of_product = Rule(
    "transpose by rows behind BatchMatMulV2",
    "Transpose((product := BatchMatMulV2(x, y, adj_x=a, adj_y=b)), p)",
    _rows_out_of_product,
)
"""For a walk that counts how often a tensor is taken."""
