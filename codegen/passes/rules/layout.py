"""Rules that remove transposes and casts, or merge them into a neighbour. All of them are exact."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....graph.core.graph import Tensor
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


def _moves_nothing(m: Match) -> Tensor | None:
    p = _permutation(m, "p")
    return m["x"] if p == list(range(len(p or ()))) else None


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


arranging_rules = (
    Rule("identity", "{Identity(x), StopGradient(x), PreventGradient(x)}", "x"),
    Rule("transpose that moves nothing", "Transpose(x, (p := Const()))", _moves_nothing),
    Rule("transpose twice", "Transpose(Transpose(x, p), q)", _transposed_twice),
    *(_into_product(op, flags, which) for op, flags in PRODUCTS.items() for which in (0, 1)),
)

rows_out_of_product = Rule(
    "transpose by rows behind BatchMatMulV2",
    "Transpose((product := BatchMatMulV2(x, y, adj_x=a, adj_y=b)), p)",
    _rows_out_of_product,
)
"""For a walk that counts how often a tensor is taken."""
