"""Einstein summation: products and sums written with labels of dimensions, `einsum("bij,bjk->bik", x, y)`.

A label that is missing from the output is summed over. An equation on two operands is a batched matrix product: its labels fall into four
groups, the dimensions of each group are merged into one, and `matmul` multiplies the results.

| group | in x | in y | in the output |
| --- | --- | --- | --- |
| batch | yes | yes | yes |
| contracted | yes | yes | no |
| left | yes | no | yes |
| right | no | yes | yes |

A label that is in one operand only and not in the output is summed first. A label that occurs twice in one operand takes the diagonal
first. A label that occurs twice in the output puts the result on a diagonal at the end. `...` stands for batch dimensions, which broadcast.
The gradient of an operand is an einsum of the output's gradient and the other operand, with the labels of the operand as output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_value
from ...core.dtypes import NUMBERS, Array, int32, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, define, typed_attr
from ...core.shape import Dims, broadcast, text
from ..array.concat_stack import concat, convert_alike
from ..array.creation import ones_like
from ..array.dynamic_partition import setdiff1d
from ..array.gather import gather
from ..array.ranges import range as range_
from ..array.shapes import rank, reshape, shape, transpose
from ..math.broadcasting import unbroadcast
from ..math.cast import cast
from ..math.common import allowed, same_type
from ..math.compare import less, where_v2
from ..math.reduce import reduce_prod
from ..math.static_operands import move_cost, normal_axis, op_scope

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ELLIPSIS = "..."

# --- equations ----------------------------------------------------------------------------------------------


def parse(equation: str, count: int) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand and of the output. An ellipsis is the label `...`.

    Raises:
        ValueError: the equation is malformed or not for `count` operands, or the output has a label that no operand has.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = [_labels(part, equation) for part in left.split(",")]
    if len(operands) != count:
        raise ValueError(f"equation '{equation}' is for {len(operands)} operands, not {count}")
    if arrow:
        output = _labels(right, equation)
    else:
        # Without an arrow: the labels that occur once, in alphabetical order, after the ellipsis.
        every = [label for labels in operands for label in labels]
        output = [_ELLIPSIS] * (_ELLIPSIS in every) + sorted(
            {x for x in every if x != _ELLIPSIS and every.count(x) == 1}
        )
    unknown = [x for x in output if not any(x in labels for labels in operands)]
    if unknown:
        raise ValueError(f"equation '{equation}': the output has '{unknown[0]}', which no operand has")
    return operands, output


def _labels(part: str, equation: str) -> list[str]:
    out: list[str] = []
    rest = part
    while rest:
        label = _ELLIPSIS if rest.startswith(_ELLIPSIS) else rest[0]
        if label != _ELLIPSIS and label not in _LETTERS:
            raise ValueError(f"equation '{equation}': '{label}' is not a label; labels are letters and '...'")
        out.append(label)
        rest = rest[len(label) :]
    if out.count(_ELLIPSIS) > 1:
        raise ValueError(f"equation '{equation}': an operand has '...' twice")
    return out


def write(operands: Sequence[Sequence[str]], output: Sequence[str]) -> str:
    """The equation for these labels."""
    return ",".join("".join(labels) for labels in operands) + "->" + "".join(output)


def _spelled_out(labels: Sequence[str], rank: int, unnamed: Sequence[str], shape: Any) -> list[str]:
    """A label for every dimension of an operand. `...` becomes the last few of `unnamed`."""
    if _ELLIPSIS not in labels:
        if len(labels) != rank:
            raise ValueError(
                f"labels '{''.join(labels)}' are for rank {len(labels)}, the operand has shape {text(shape)}"
            )
        return list(labels)
    hidden = rank - (len(labels) - 1)
    if hidden < 0:
        raise ValueError(
            f"labels '{''.join(labels)}' are for rank {len(labels) - 1} at least, the operand has shape {text(shape)}"
        )
    at = labels.index(_ELLIPSIS)
    return [*labels[:at], *unnamed[len(unnamed) - hidden :], *labels[at + 1 :]]


def resolve(equation: str, shapes: Sequence[Any]) -> tuple[list[list[str]], list[str]]:
    """The equation's labels with `...` replaced by the labels 0, 1, ..., aligned at the last dimension."""
    operands, output = parse(equation, len(shapes))
    hidden = max((len(s) - len(x) + 1 for x, s in zip(operands, shapes, strict=True) if _ELLIPSIS in x), default=0)
    unnamed = [str(i) for i in range(max(hidden, 0))]
    spelled = [_spelled_out(x, len(s), unnamed, s) for x, s in zip(operands, shapes, strict=True)]
    if _ELLIPSIS in output:
        at = output.index(_ELLIPSIS)
        output = [*output[:at], *unnamed, *output[at + 1 :]]
    return spelled, output


# --- the op: one or two operands ----------------------------------------------------------------------------


def _sizes(operands: list[list[str]], shapes: Sequence[Any], equation: str) -> dict[str, int | None]:
    """The size of each label. ValueError if sizes disagree. Labels of an ellipsis broadcast."""
    sizes: dict[str, int | None] = {}
    for labels, dims in zip(operands, shapes, strict=True):
        for label, size in zip(labels, dims, strict=True):
            if label not in sizes:
                sizes[label] = size
            elif label.isdigit():
                (sizes[label],) = broadcast((sizes[label],), (size,)) or (None,)
            elif size is not None and sizes[label] not in (size, None):
                raise ValueError(f"equation '{equation}': label '{label}' has sizes {sizes[label]} and {size}")
            elif size is not None:
                sizes[label] = size
    return sizes


def _einsum_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    equation = typed_attr(attrs, "equation", str)
    if "->" not in equation:
        raise TypeError(f"attr equation must have an arrow: {equation!r}")
    if len(inputs) not in (1, 2):
        raise ValueError(f"one or two operands are needed, not {len(inputs)}")
    dtype = allowed(same_type(inputs), NUMBERS)
    operands, output = parse(equation, len(inputs))
    if any(t.dims is None for t in inputs):
        return [(dtype, None if _ELLIPSIS in output else _known_sizes(operands, output, inputs))]
    shapes = [t.dims for t in inputs]
    operands, output = resolve(equation, shapes)
    sizes = _sizes(operands, shapes, equation)
    return [(dtype, tuple(sizes[x] for x in output))]


def _known_sizes(operands: list[list[str]], output: list[str], inputs: Sequence[Tensor]) -> Dims:
    """The sizes of the output that are known from operands of known rank without an ellipsis."""
    sizes: dict[str, int | None] = {}
    for labels, t in zip(operands, inputs, strict=True):
        if t.dims is not None and _ELLIPSIS not in labels and len(labels) == len(t.dims):
            sizes.update({x: d for x, d in zip(labels, t.dims, strict=True) if d is not None})
    return tuple(sizes.get(x) for x in output)


def _einsum(*inputs: Array, equation: str) -> Array:
    shapes = [np.shape(x) for x in inputs]
    try:
        operands, output = resolve(equation, shapes)
        sizes = _sizes(operands, shapes, equation)
    except ValueError as e:
        raise invalid(f"Cannot compute einsum of shapes {', '.join(map(text, shapes))}: {e}") from None
    dtype = inputs[0].dtype
    distinct = list(dict.fromkeys(output))
    parts = [
        _reduced(widened(x), labels, [y for j, y in enumerate(operands) if j != i], distinct)
        for i, (x, labels) in enumerate(zip(inputs, operands, strict=True))
    ]
    if len(parts) == 1:
        value, labels = parts[0]
    else:
        value, labels = _contract(*parts[0], *parts[1], distinct, sizes)
    value = np.transpose(value, [labels.index(x) for x in distinct])
    return _on_diagonals(value, distinct, output).astype(dtype, copy=False)


def _reduced(x: Array, labels: list[str], others: list[list[str]], output: list[str]) -> tuple[Array, list[str]]:
    """Take the diagonal over repeated labels of an operand, and sum over labels that only this operand has."""
    distinct = list(dict.fromkeys(labels))
    while len(labels) > len(distinct):
        twice = next(x for x in labels if labels.count(x) > 1)
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        x = np.diagonal(x, axis1=first, axis2=second)
        labels = [y for i, y in enumerate(labels) if i not in (first, second)] + [twice]
    alone = [i for i, y in enumerate(labels) if y not in output and not any(y in o for o in others)]
    if alone:
        x = x.sum(tuple(alone), dtype=x.dtype)
    return x, [y for i, y in enumerate(labels) if i not in alone]


def _contract(
    x: Array,
    x_labels: list[str],
    y: Array,
    y_labels: list[str],
    output: list[str],
    sizes: dict[str, int | None],
) -> tuple[Array, list[str]]:
    """The product of two operands with distinct labels, by one batched matrix product, and its labels."""
    shared = [a for a in x_labels if a in y_labels]
    batch = [a for a in shared if a in output]
    contracted = [a for a in shared if a not in output]
    left = [a for a in x_labels if a not in y_labels]
    right = [a for a in y_labels if a not in x_labels]

    def arranged(t: Array, labels: list[str], inner: list[str], outer: Sequence[str]) -> Array:
        t = np.transpose(t, [labels.index(a) for a in (*batch, *inner, *outer)])
        # A size of 1 may broadcast against the other operand. matmul broadcasts batches itself, other dimensions are repeated here.
        wanted = [*t.shape[: len(batch)], *(sizes[a] or 0 for a in (*inner, *outer))]
        t = np.broadcast_to(t, wanted)
        cut = len(batch)
        return t.reshape(
            *t.shape[:cut], math.prod(t.shape[cut : cut + len(inner)]), math.prod(t.shape[cut + len(inner) :])
        )

    product = np.matmul(arranged(x, x_labels, left, contracted), arranged(y, y_labels, contracted, right))
    dims = [*product.shape[: len(batch)], *(sizes[a] or 0 for a in (*left, *right))]
    return product.reshape(dims), [*batch, *left, *right]


def _on_diagonals(value: Array, labels: list[str], output: list[str]) -> Array:
    """Put a value with distinct labels on the diagonals of the labels that occur twice in the output, with zeros elsewhere."""
    if len(output) == len(labels):
        return value
    sizes = dict(zip(labels, value.shape, strict=True))
    out = np.zeros([sizes[x] for x in output], value.dtype)
    grids = np.ogrid[tuple(slice(sizes[x]) for x in labels)] if labels else ()
    out[tuple(grids[labels.index(x)] for x in output)] = value
    return out


def _einsum_cost(node: Node) -> Cost:
    """Two flops per combination of labels for two operands, one flop for one operand."""
    shapes = [t.dims for t in node.inputs]
    if any(s is None for s in shapes):
        return Cost(1.0, move_cost(node).bytes)
    operands, _ = resolve(node.attrs["equation"], shapes)
    sizes = _sizes(operands, shapes, node.attrs["equation"])
    return Cost(float(len(shapes)) * math.prod(s or 1 for s in sizes.values()), move_cost(node).bytes)


def _einsum_gradient(node: Node, grad: Any) -> Sequence[Any]:
    operands, output = parse(node.attrs["equation"], len(node.inputs))
    grad = convert(grad)
    out: list[Any] = []
    for i, (x, labels) in enumerate(zip(node.inputs, operands, strict=True)):
        others = [j for j in range(len(operands)) if j != i]
        tensors, terms = [grad, *(node.inputs[j] for j in others)], [output, *(operands[j] for j in others)]
        # Only the output is sure to have all dimensions that `...` has in x.
        seen = {a for term in terms for a in term if a != _ELLIPSIS or term is output}
        if not seen.issuperset(labels) or len(set(labels)) < len(labels):
            # x has a label that was summed over, or one twice. A factor of ones in the shape of x broadcasts the gradient to its shape.
            tensors.append(ones_like(x))
            terms.append(labels)
        back = einsum(write(terms, labels), *tensors)
        # Dimensions of an ellipsis may have been broadcast.
        out.append(unbroadcast(x, back, back, None)[0] if _ELLIPSIS in labels else back)
    return out


define("Einsum", _einsum_rule, _einsum, gradient=_einsum_gradient, cost=_einsum_cost)


def einsum(equation: str, *inputs: TensorLike, name: str | None = None, optimize: str = "greedy") -> Tensor:
    """Einstein summation.

    Args:
        equation: the labels of each operand, one letter per dimension, separated by commas; then `->` and the labels of the output. Labels
            that are missing from the output are summed over. `...` stands for batch dimensions, which broadcast. Without `->` the output
            has the labels that occur once, in alphabetical order.
        inputs: one or more operands, numbers of one type. More than two are contracted in pairs, the cheapest first.
        name: name scope of the nodes.
        optimize: accepted without effect.

    Raises:
        ValueError: the equation is malformed or does not fit the operands.

    >>> einsum("ij,jk->ik", a, b)   # matmul
    >>> einsum("i,j->ij", a, b)     # outer product
    """
    if len(inputs) == 1 and isinstance(inputs[0], (list, tuple)):
        inputs = tuple(inputs[0])
    if not inputs:
        raise ValueError("einsum needs at least one operand")
    operands, output = parse(equation, len(inputs))
    with op_scope(name, "einsum", *inputs):
        tensors = convert_alike(inputs, "inputs")
        while len(tensors) > 2:
            first, second = _cheapest_pair(tensors, operands)
            kept = [a for k, labels in enumerate(operands) if k not in (first, second) for a in labels] + output
            pair = [operands[first], operands[second]]
            result = [a for a in dict.fromkeys(pair[0] + pair[1]) if a in kept]
            joined = apply("Einsum", (tensors[first], tensors[second]), {"equation": write(pair, result)})
            tensors = [t for k, t in enumerate(tensors) if k not in (first, second)] + [joined]
            operands = [o for k, o in enumerate(operands) if k not in (first, second)] + [result]
        return apply("Einsum", tensors, {"equation": write(operands, output)})


def _cheapest_pair(tensors: list[Tensor], operands: list[list[str]]) -> tuple[int, int]:
    """The two operands whose product needs the fewest multiplications. Unknown sizes count as 64."""
    sizes: dict[str, int] = {}
    for t, labels in zip(tensors, operands, strict=True):
        if t.dims is not None and _ELLIPSIS not in labels and len(t.dims) == len(labels):
            sizes.update({a: d for a, d in zip(labels, t.dims, strict=True) if d is not None})

    def work(pair: tuple[int, int]) -> int:
        return math.prod(sizes.get(a, 64) for a in {*operands[pair[0]], *operands[pair[1]]})

    pairs = [(i, j) for i in range(len(tensors)) for j in range(i + 1, len(tensors))]
    return min(pairs, key=work)


def tensordot(a: TensorLike, b: TensorLike, axes: Any, name: str | None = None) -> Tensor:
    """Contract dimensions of two tensors: the sum of products over pairs of dimensions.

    Args:
        a: a tensor of numbers.
        b: a tensor of the same type.
        axes: an int n for the last n dimensions of `a` and the first n of `b`; or a pair of dimensions or of lists of them. The pair may be
            a tensor.
        name: name of the node.

    Returns:
        The remaining dimensions of `a`, followed by those of `b`.

    Raises:
        ValueError: the axes do not fit. InvalidArgumentError if only the step knows.
    """
    with op_scope(name, "Tensordot", a, b) as scope:
        x = convert(a, name="a")
        y = convert(b, name="b", prefer=x.dtype.base)
        if isinstance(axes, Tensor):
            known = static_value(axes)
            axes = axes if known is None else known.tolist()
        if x.dims is None or y.dims is None or isinstance(axes, Tensor):
            return _dynamic_tensordot(x, y, axes, scope)
        x_axes, y_axes = _axes_pair(axes, len(x.dims), len(y.dims))
        x_labels = list(_LETTERS[: len(x.dims)])
        y_labels = list(_LETTERS[len(x.dims) : len(x.dims) + len(y.dims)])
        for i, j in zip(x_axes, y_axes, strict=True):
            y_labels[j] = x_labels[i]
        output = [s for i, s in enumerate(x_labels) if i not in x_axes] + [
            s for j, s in enumerate(y_labels) if j not in y_axes
        ]
        return apply("Einsum", (x, y), {"equation": write([x_labels, y_labels], output)}, scope)


def _dynamic_tensordot(x: Tensor, y: Tensor, axes: Any, name: str) -> Tensor:
    """`tensordot` of tensors whose ranks or axes are not known statically, as a product of two matrices."""
    if isinstance(axes, Tensor):
        pair: list[Any] = [reshape(cast(axes[side], int32), [-1]) for side in (0, 1)]
    elif isinstance(axes, (int, np.integer)):
        pair = [range_(rank(x) - int(axes), rank(x)), range_(int(axes))]
    else:
        pair = [convert([int(i) for i in np.ravel(side)], int32) for side in axes]
    matrices, free_sizes = [], []
    for t, summed, is_left in ((x, pair[0], True), (y, pair[1], False)):
        count = rank(t)
        summed = where_v2(less(summed, 0), summed + count, summed)
        free = setdiff1d(range_(count), summed).out
        sizes = shape(t)
        outer, inner = gather(sizes, free), gather(sizes, summed)
        order = concat([free, summed] if is_left else [summed, free], 0)
        both = [reduce_prod(outer), reduce_prod(inner)]
        matrices.append(reshape(transpose(t, order), both if is_left else both[::-1]))
        free_sizes.append(outer)
    product = apply("MatMul", matrices, {"transpose_a": False, "transpose_b": False})
    return reshape(product, concat(free_sizes, 0), name)


def _axes_pair(axes: Any, rank_a: int, rank_b: int) -> tuple[list[int], list[int]]:
    if isinstance(axes, (int, np.integer)):
        if not 0 <= axes <= min(rank_a, rank_b):
            raise ValueError(
                f"axes must be from 0 to {min(rank_a, rank_b)} for ranks {rank_a} and {rank_b}, not {axes}"
            )
        return list(range(rank_a - int(axes), rank_a)), list(range(int(axes)))
    if len(axes) != 2:
        raise ValueError(f"axes must be a number or a pair, not {axes!r}")
    pair = [
        [normal_axis(int(i), rank) for i in np.ravel(side)] for side, rank in zip(axes, (rank_a, rank_b), strict=True)
    ]
    if len(pair[0]) != len(pair[1]) or any(len(set(side)) != len(side) for side in pair):
        raise ValueError(f"axes must name as many dimensions of a as of b, none of them twice: {axes!r}")
    return pair[0], pair[1]
