"""Special functions, made of other ops: Bessel functions, the beta function, polynomials, xlogy and xdivy, bincount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.build import TensorLike, convert
from ...core.default_graph import get_default_graph
from ...core.dtypes import FLOATS, as_dtype, float32, int32, int64
from ...core.graph import Node, Tensor
from ...core.scalar_math import special
from ..array.concat_stack import stack
from ..array.creation import ones_like, zeros_like
from ..array.identity_and_placeholders import Assert, with_dependencies
from ..array.scatter import scatter_nd
from ..array.segments import unsorted_segment_sum
from ..array.shapes import reshape, squeeze
from .arithmetic import add, div_no_nan, divide, maximum, multiply, sign, subtract, truediv
from .cast import cast
from .common import define_elementwise, unary
from .compare import equal, greater_equal, where_v2
from .elementwise import is_inf, lgamma, log
from .reduce import reduce_all, reduce_max, reduce_mean, reduce_sum
from .static_operands import need_rank, op_scope


def zero_fraction(value: TensorLike, name: str | None = None, dtype: Any = float32) -> Tensor:
    """The fraction of elements that are 0, a float32 scalar in [0, 1]."""
    with get_default_graph().name_scope(name or "zero_fraction"):
        found = convert(value, name="value")
        zeros = equal(found, convert(0, dtype=found.dtype.base))
        return reduce_mean(cast(zeros, float32))


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike | None = None,
    dtype: Any = int32,
    name: str | None = None,
    weights: TensorLike | None = None,
) -> Tensor:
    """The confusion matrix: entry (i, j) counts the examples of label i that were predicted as class j.

    Args:
        labels: the true classes, a vector of ints of 0 or more. `labels` or `predictions` may have a second axis of size 1.
        predictions: the predicted classes, a vector of the same size.
        num_classes: number of classes. None means the largest class that occurs, plus 1.
        dtype: element type of the result.
        name: name scope of the nodes.
        weights: the weight of each example. None means 1.

    Returns:
        `[num_classes, num_classes]`.

    Raises:
        ValueError: `labels` or `predictions` is not a vector.

    >>> confusion_matrix([0, 1, 1], [0, 1, 0])   # evaluates to [[1, 0], [1, 1]]
    """
    with get_default_graph().name_scope(name or "confusion_matrix"):
        given = [convert(labels, name="labels"), convert(predictions, name="predictions")]
        if all(x.dims is not None for x in given):
            ranks = [len(x.dims or ()) for x in given]
            for i, x in enumerate(given):
                given[i] = squeeze(x, [-1]) if ranks[i] == ranks[1 - i] + 1 else x
                need_rank(given[i].dims, 1, ("labels", "predictions")[i])
        truth, said = (cast(reshape(x, [-1]), int64) for x in given)
        if num_classes is None:
            size = add(maximum(reduce_max(said), reduce_max(truth)), 1)
        else:
            size = cast(convert(num_classes), int64)
        kind = as_dtype(dtype)
        each = cast(ones_like(said), kind) if weights is None else cast(reshape(convert(weights), [-1]), kind)
        return scatter_nd(stack([truth, said], 1), each, stack([size, size]))


def bincount(
    arr: TensorLike,
    weights: TensorLike | None = None,
    minlength: TensorLike | None = None,
    maxlength: TensorLike | None = None,
    dtype: Any = int32,
) -> Tensor:
    """How often each of the values 0, 1, 2, ... occurs in an array.

    Args:
        arr: non-negative ints, of any shape.
        weights: the weight of each value, of the same shape. None means 1.
        minlength: the least length of the result.
        maxlength: the greatest length of the result. Larger values are not counted.
        dtype: element type of the result if there are no weights.

    Returns:
        A vector. Its length is the largest value plus 1, within `minlength` and `maxlength`.

    Raises:
        InvalidArgumentError: in a step, a value or `maxlength` is negative.

    >>> bincount([0, 2, 2])   # evaluates to [1, 0, 2]
    """
    with get_default_graph().name_scope("bincount"):
        values = cast(reshape(convert(arr), [-1]), int32)
        check = Assert(reduce_all(greater_equal(values, 0)), ["Input arr must be non-negative, it is", values])
        values = with_dependencies([check], values)
        length = add(reduce_max(values), 1)
        length = maximum(length, 0)  # of no values at all, reduce_max gives the least int32
        if minlength is not None:
            length = maximum(length, cast(convert(minlength), int32))
        if weights is None:
            each = cast(ones_like(values), as_dtype(dtype))
        else:
            each = reshape(convert(weights), [-1])
        found = unsorted_segment_sum(each, values, length)
        if maxlength is None:
            return found
        most = cast(convert(maxlength), int32)
        check = Assert(greater_equal(most, 0), ["maxlength must be non-negative, it is", most])
        return found[: with_dependencies([check], most)]


def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * log(y), and 0 where x is 0."""
    with get_default_graph().name_scope(name or "xlogy"):
        a = convert(x)
        b = convert(y, dtype=a.dtype.base)
        return where_v2(_zero(a), zeros_like(a), multiply(a, log(_safe(a, b))))


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where x is 0."""
    with get_default_graph().name_scope(name or "xdivy"):
        a = convert(x)
        b = convert(y, dtype=a.dtype.base)
        return where_v2(_zero(a), zeros_like(a), truediv(a, _safe(a, b)))


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0."""
    with get_default_graph().name_scope(name or "reciprocal_no_nan"):
        a = convert(x)
        return div_no_nan(ones_like(a), a)


def _safe(x: Tensor, y: Tensor) -> Tensor:
    """y, and 1 where x is 0."""
    return where_v2(_zero(x), ones_like(y), y)


def _zero(x: Tensor) -> Tensor:
    return equal(x, convert(0, dtype=x.dtype.base))


def _bessel_i0e_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    x, y = node.inputs[0], node.outputs[0]
    return [multiply(grad, subtract(bessel_i1e(x), multiply(sign(x), y)))]


def _bessel_i1e_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    x, y = node.inputs[0], node.outputs[0]
    at_zero = equal(x, zeros_like(x))
    safe = where_v2(at_zero, ones_like(x), x)
    slope = subtract(bessel_i0e(safe), multiply(y, add(sign(safe), divide(1.0, safe))))
    return [multiply(grad, where_v2(at_zero, multiply(ones_like(x), 0.5), slope))]


def _bessel_i0_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    return [multiply(grad, bessel_i1(node.inputs[0]))]


def _bessel_i1_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    x, y = node.inputs[0], node.outputs[0]
    i0, at_zero = bessel_i0(x), equal(x, zeros_like(x))
    # The derivative is I0(x) - I1(x) / x. Where I0 overflows, the second term is dropped: inf - inf would be NaN.
    rest = divide(where_v2(is_inf(i0), zeros_like(y), y), where_v2(at_zero, ones_like(x), x))
    return [multiply(grad, where_v2(at_zero, multiply(ones_like(x), 0.5), subtract(i0, rest)))]


for _kind, _gradient in (
    ("i0", _bessel_i0_gradient), ("i1", _bessel_i1_gradient), ("i0e", _bessel_i0e_gradient), ("i1e", _bessel_i1e_gradient),
):  # fmt: skip
    define_elementwise(f"BesselI{_kind[1:]}", None, FLOATS, gradient=_gradient, flops=30.0, reference=special(_kind))


def bessel_i0e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) * I0(x), the modified Bessel function of order 0."""
    return unary("BesselI0e", x, name)


def bessel_i1e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) * I1(x), the modified Bessel function of order 1."""
    return unary("BesselI1e", x, name)


def bessel_i0(x: TensorLike, name: str | None = None) -> Tensor:
    """I0(x), the modified Bessel function of order 0. Large numbers overflow: see `bessel_i0e`."""
    return unary("BesselI0", x, name or "bessel_i0")


def bessel_i1(x: TensorLike, name: str | None = None) -> Tensor:
    """I1(x), the modified Bessel function of order 1. Large numbers overflow: see `bessel_i1e`."""
    return unary("BesselI1", x, name or "bessel_i1")


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """log(|Beta(x)|) along the last axis: sum(lgamma(x)) - lgamma(sum(x)).

    >>> lbeta([1.0, 2.0])   # evaluates to log(1/2)
    """
    with op_scope(name, "lbeta", x) as scope:
        given = convert(x, name="x")
        return subtract(reduce_sum(lgamma(given), -1), lgamma(reduce_sum(given, -1)), name=scope)


def polyval(coeffs: Sequence[TensorLike], x: TensorLike, name: str | None = None) -> Tensor:
    """The value of a polynomial at `x`, by Horner's rule: (a * x + b) * x + c for the coefficients [a, b, c].

    Args:
        coeffs: the coefficients, that of the highest power first. A list of tensors that broadcast against `x`.
        x: where to evaluate the polynomial.
        name: name scope of the nodes.

    Raises:
        ValueError: `coeffs` is not a list.

    >>> polyval([1.0, 0.0, -1.0], 3.0)   # evaluates to 8.0
    """
    if not isinstance(coeffs, (list, tuple)):
        raise ValueError(
            f"Argument coeffs must be list type found {type(coeffs).__name__}: the coefficients, highest power first"
        )
    with op_scope(name, "polyval", x, *coeffs):
        at = convert(x, name="x")
        if not coeffs:
            return zeros_like(at)
        found = convert(coeffs[0], at.dtype.base)
        for c in coeffs[1:]:
            found = add(convert(c, at.dtype.base), multiply(found, at))
        return found
