"""Einstein summation of two operands as a matrix product.

    Einsum("bthd,bshd->bhts", q, k)  =  BatchMatMulV2(Transpose(q, [0, 2, 1, 3]), Transpose(k, [0, 2, 1, 3]), adj_y=True)

So it has the kernels and fusions of products: what follows is computed with it, and attention that is written this way is found.
Labels of an operand are batch, kept, or contracted. Those of each of the last two kinds become one axis. A factor that lies in the right
order, transposed or not, is taken as it is. Equations stay as they are that take a diagonal, sum over a label of one operand, broadcast,
or need two unknown sizes in one reshape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ....graph.core.dtypes import FLOATS
from ....graph.core.graph import Tensor
from ....graph.ops.linalg.einsum import resolve
from ...ir.nodes import PRODUCTS
from ...ir.symbolic_shape import Size, product
from .dsl import Match, Rule

Labels = Sequence[str]
Sizes = Mapping[str, Size]


def _as_product(m: Match) -> Tensor | None:
    operands = [m["x"], m["y"]]
    if any(t.dims is None or t.dtype.base not in FLOATS for t in operands):
        return None
    labels, output = resolve(m["e"], [t.dims for t in operands])
    sizes = _sizes(m, operands, labels)
    shared = set(labels[0]) & set(labels[1])
    # Each label is in both operands or in the output: nothing is summed over one operand alone.
    if sizes is None or len(set(output)) < len(output) or not set(sizes) <= shared | set(output):
        return None
    if [a for a in output if a not in shared][:1] == [a for a in output if a in labels[1] and a not in shared][:1]:
        operands, labels = operands[::-1], labels[::-1]  # the result lies as the product in that order does
    batch = [a for a in output if a in shared]
    contracted = [a for a in labels[1] if a in shared and a not in output]
    rows, columns = ([a for a in output if a in each and a not in shared] for each in labels)
    order = [*batch, *rows, *columns]
    first = _factor(m, operands[0], labels[0], (batch, rows, contracted), sizes)
    second = _factor(m, operands[1], labels[1], (batch, contracted, columns), sizes)
    if first is None or second is None or _unknown([sizes[a] for a in order]) > 1:
        return None
    op = "BatchMatMulV2" if batch else "MatMul"
    attrs = dict(zip(PRODUCTS[op], (first[1], second[1]), strict=True))
    made = _reshaped(m, m.make(op, (first[0], second[0]), attrs), [sizes[a] for a in order])
    return _transposed(m, made, [order.index(a) for a in output])


def _sizes(m: Match, operands: Sequence[Tensor], labels: Sequence[Labels]) -> Sizes | None:
    """The size of each label; None if a label is twice in an operand, or may have two sizes."""
    found: dict[str, Size] = {}
    for tensor, each in zip(operands, labels, strict=True):
        dims = m.sizes.dims(tensor)
        assert dims is not None
        if len(set(each)) < len(each) or any(found.get(a, d) != d for a, d in zip(each, dims, strict=True)):
            return None
        found |= dict(zip(each, dims, strict=True))
    return found


def _factor(
    m: Match, tensor: Tensor, labels: Labels, groups: Sequence[Labels], sizes: Sizes
) -> tuple[Tensor, bool] | None:
    """A factor of the product, with an axis for each batch label and one for each other group, and whether its last two are exchanged."""
    batch, *parts = groups
    turned = labels == [*batch, *parts[1], *parts[0]] != [*batch, *parts[0], *parts[1]]
    if turned:
        parts = parts[::-1]
    dims = [*(sizes[a] for a in batch), *(product(sizes[a] for a in part) for part in parts)]
    if len(dims) != len(labels) and _unknown(dims) > 1:
        return None
    made = _transposed(m, tensor, [labels.index(a) for a in (*batch, *parts[0], *parts[1])])
    return (_reshaped(m, made, dims) if len(dims) != len(labels) or not all(parts) else made), turned


def _unknown(dims: Sequence[Size]) -> int:
    return sum(not isinstance(d, int) for d in dims)


def _transposed(m: Match, tensor: Tensor, order: Sequence[int]) -> Tensor:
    if order == [*range(len(order))]:
        return tensor
    return m.make("Transpose", (tensor, m.constant(np.array(order, np.int32))), {})


def _reshaped(m: Match, tensor: Tensor, dims: Sequence[Size]) -> Tensor:
    if tensor.dims == tuple(dims):
        return tensor
    shape = [d if isinstance(d, int) else -1 for d in dims]
    return m.make("Reshape", (tensor, m.constant(np.array(shape, np.int32))), {})


einsum_rules = (Rule("Einstein summation as a product", "Einsum(x, y, equation=e)", _as_product),)
