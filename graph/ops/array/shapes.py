"""Shape ops: shape, size and rank; reshape, expand_dims, squeeze, broadcast_to, transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert
from ...core.constant_value import static_dims, static_value
from ...core.dtypes import Array, as_dtype, int32
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define
from ...core.operators import operators
from ...core.places import Place, Places
from ...core.shape import (
    VALUE_RANK,
    Dims,
    as_dims,
    broadcast,
    compatible,
    element_count,
    is_static,
    merge,
    of_rank,
    text,
)
from ...tensors.sparse_tensor import SparseTensor, is_sparse
from ..math.cast import cast
from ..math.static_operands import (
    Index,
    apply_op,
    dims_of,
    index_operand,
    index_type_attr,
    move_cost,
    need_index,
    no_cost,
    normal_axis,
    one_of,
    op_scope,
    static_int,
    static_ints,
    write_cost,
)
from .ranges import range as range_

# --- shape, size, rank --------------------------------------------------------------------------------------


def _shape_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    return [(index_type_attr(attrs, "out_type"), (None,) if x.dims is None else (len(x.dims),))]


def _size_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (_,) = inputs
    return [(index_type_attr(attrs, "out_type"), ())]


def _rank_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (_,) = inputs
    return [(int32, ())]


for _op, _rule, _answer in (
    ("Shape", _shape_rule, lambda x, *, out_type: np.array(np.shape(x), out_type.np)),
    ("Size", _size_rule, lambda x, *, out_type: np.array(np.size(x), out_type.np)),
    ("Rank", _rank_rule, lambda x: np.array(np.ndim(x), np.int32)),
):
    define(_op, _rule, _answer, cost=no_cost, traits=Trait.METADATA)


def shape(input: TensorLike, name: str | None = None, out_type: Any = int32) -> Tensor:
    """The shape of a tensor: a vector of `out_type` (int32 or int64). A Const if the static shape is complete."""
    if is_sparse(input):
        sizes: Tensor = cast(SparseTensor.from_value(input).dense_shape, out_type)
        return sizes
    with op_scope(name, "Shape", input) as scope:
        x = convert(input, name="input")
        dtype = as_dtype(out_type)
        if is_static(x.dims):
            return constant(np.array(x.dims, dtype.np), name=scope)
        return apply("Shape", (x,), {"out_type": dtype}, scope)


def size(input: TensorLike, name: str | None = None, out_type: Any = int32) -> Tensor:
    """The number of elements of a tensor: a scalar of `out_type` (int32 or int64). A Const if the static shape is complete."""
    if is_sparse(input):
        sizes = SparseTensor.from_value(input).dense_shape
        product = apply("Prod", (sizes, constant(np.zeros(1, np.int32))), {"keep_dims": False})
        count: Tensor = cast(product, out_type)
        return count
    with op_scope(name, "Size", input) as scope:
        x = convert(input, name="input")
        dtype = as_dtype(out_type)
        known = element_count(x.dims)
        if known is not None:
            return constant(np.array(known, dtype.np), name=scope)
        return apply("Size", (x,), {"out_type": dtype}, scope)


def size_of(x: Tensor, axis: int) -> Any:
    """The size of an axis: an int if it is known statically, or else a scalar tensor."""
    known = x.dims[axis] if x.dims is not None else None
    return shape(x)[axis] if known is None else known


def sizes_of(x: Tensor) -> list[Any]:
    """The sizes of all axes of a tensor of known rank: ints where they are known statically, scalar tensors elsewhere."""
    dynamic = None if is_static(x.dims) else shape(x)
    return [dynamic[i] if d is None and dynamic is not None else d for i, d in enumerate(x.dims or ())]


def rank(input: TensorLike, name: str | None = None) -> Tensor:
    """The rank of a tensor: an int32 scalar. A Const if it is known statically."""
    if is_sparse(input):
        return size(SparseTensor.from_value(input).dense_shape, name)
    with op_scope(name, "Rank", input) as scope:
        x = convert(input, name="input")
        if x.dims is not None:
            return constant(np.array(len(x.dims), np.int32), name=scope)
        return apply("Rank", (x,), None, scope)


# --- reshape ------------------------------------------------------------------------------------------------


def _reshape_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, wanted = inputs
    need_index(wanted, "shape", 1)
    # A computed shape is checked in the step: `static_dims` does not distinguish -1 from unknown.
    exact = static_ints(wanted) if wanted.op.type == "Const" else None
    if exact is not None and (min(exact, default=0) < -1 or exact.count(-1) > 1):
        raise ValueError(f"shape {exact} must hold sizes, and -1 at most once")
    dims = static_dims(wanted)
    count = element_count(x.dims)
    if dims is None or count is None:
        return [(x.dtype.base, dims)]
    known = math.prod(d for d in dims if d is not None)
    unknown = dims.count(None)
    if (unknown == 0 and known != count) or (unknown == 1 and known and count % known):
        raise ValueError(f"cannot reshape a tensor with {count} elements to shape {text(dims)}, which needs "
                         + (f"{known}" if unknown == 0 else f"a multiple of {known}"))  # fmt: skip
    if unknown == 1 and known:
        dims = tuple(count // known if d is None else d for d in dims)
    return [(x.dtype.base, dims)]


def _reshape(x: Array, wanted: Array) -> Array:
    sizes = dims_of(wanted)
    if min(sizes, default=0) < -1:  # NumPy treats any negative size as -1
        raise invalid(f"Cannot reshape to {sizes}: it must hold sizes, and -1 at most once")
    if not x.size and 0 in sizes and -1 in sizes:
        # NumPy cannot infer the -1 if there are zeros. Each 0 of the new shape stands for one of the old, so the other sizes determine it.
        rest = math.prod(d for d in x.shape if d) // math.prod(s for s in sizes if s > 0)
        rest = 0 if x.shape.count(0) > sizes.count(0) else rest
        sizes = [rest if s == -1 else s for s in sizes]
    try:
        return np.reshape(x, sizes)
    except ValueError:
        why = f": a value has at most {VALUE_RANK} dimensions, not {len(sizes)}" if len(sizes) > VALUE_RANK else ""
        raise invalid(
            f"Cannot reshape a tensor of shape {text(x.shape)}, with {x.size} elements, to {sizes}{why}"
        ) from None


def _back_to_input_shape(node: Node, grad: Any) -> list[Any]:
    """The gradient rule of ops that only change the shape of their first input: the gradient, reshaped back."""
    return [reshape(grad, shape(node.inputs[0])), *[None] * (len(node.inputs) - 1)]


define("Reshape", _reshape_rule, _reshape, gradient=_back_to_input_shape, cost=no_cost)


def reshape(tensor: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """The same elements in row-major order, in another shape.

    Args:
        tensor: a tensor of any type and shape.
        shape: the new shape, an int32 or int64 vector. One size may be -1, and is inferred from the number of elements.
        name: name of the node.

    Raises:
        ValueError: the numbers of elements differ. InvalidArgumentError if only the step knows.

    >>> reshape([1, 2, 3, 4], [2, -1])   # evaluates to [[1, 2], [3, 4]]
    """
    return apply_op("Reshape", name, tensor=tensor, shape=Index(shape))


def reshape_to(x: Tensor, sizes: Sequence[Any], name: str | None = None) -> Tensor:
    """`reshape` to sizes that are ints or scalar tensors. A single tensor among them is replaced by -1."""
    unknown = [i for i, v in enumerate(sizes) if not isinstance(v, int)]
    return reshape(x, [-1 if [i] == unknown else v for i, v in enumerate(sizes)], name)


def with_rank(x: Tensor, rank: int) -> Tensor:
    """`x`, or an Identity of it with static rank `rank` if its rank is unknown."""
    if x.dims is None:
        x = apply("Identity", (x,))
        x.set_shape([None] * rank)
    return x


# --- dimensions of size 1 -----------------------------------------------------------------------------------


def _expand_dims_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, dim = inputs
    need_index(dim, "dim")
    if x.dims is None:
        return [(x.dtype.base, None)]
    new_rank = len(x.dims) + 1
    axis = static_int(dim)
    if axis is None:
        return [(x.dtype.base, (None,) * new_rank)]
    at = normal_axis(axis, new_rank)
    return [(x.dtype.base, (*x.dims[:at], 1, *x.dims[at:]))]


define(
    "ExpandDims",
    _expand_dims_rule,
    lambda x, dim: np.expand_dims(x, int(np.reshape(dim, ()))),
    gradient=_back_to_input_shape,
    cost=no_cost,
)


def expand_dims(input: TensorLike, axis: TensorLike = None, name: str | None = None, dim: TensorLike = None) -> Tensor:
    """Insert a dimension of size 1.

    Args:
        input: a tensor.
        axis: the position of the new dimension. -1 means at the end.
        name: name of the node.
        dim: old name of `axis`.
    """
    axis = one_of(axis, dim, "axis", "dim")
    if axis is None:
        raise ValueError("expand_dims needs an axis")
    return apply_op("ExpandDims", name, input=input, dim=Index(axis))


def _squeeze_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    axes = attrs.get("squeeze_dims")
    if not isinstance(axes, (tuple, list)) or not all(isinstance(a, int) for a in axes):
        raise TypeError(f"squeeze_dims must be a list of ints, not {axes!r}")
    if x.dims is None or (not axes and None in x.dims):
        return [(x.dtype.base, None)]
    gone = {normal_axis(a, len(x.dims)) for a in axes} or {i for i, d in enumerate(x.dims) if d == 1}
    for i in sorted(gone):
        if x.dims[i] not in (1, None):
            raise ValueError(f"cannot squeeze dimension {i}: its size is {x.dims[i]}, not 1")
    return [(x.dtype.base, tuple(d for i, d in enumerate(x.dims) if i not in gone))]


def _squeeze(x: Array, *, squeeze_dims: tuple[int, ...]) -> Array:
    try:
        return np.squeeze(x, tuple(squeeze_dims) or None)
    except ValueError:
        raise invalid(
            f"Cannot squeeze dimensions {list(squeeze_dims)} of shape {text(x.shape)}: all must have size 1"
        ) from None


define("Squeeze", _squeeze_rule, _squeeze, gradient=_back_to_input_shape, cost=no_cost)


def squeeze(input: TensorLike, axis: Any = None, name: str | None = None, squeeze_dims: Any = None) -> Tensor:
    """Remove dimensions of size 1.

    Args:
        input: a tensor.
        axis: the dimensions to remove, an int or a list of ints. None means all of size 1.
        name: name of the node.
        squeeze_dims: old name of `axis`.

    Raises:
        ValueError: a dimension in `axis` has another size. InvalidArgumentError if only the step knows.
    """
    axis = one_of(axis, squeeze_dims, "axis", "squeeze_dims")
    axes = () if axis is None else tuple(int(a) for a in np.ravel(axis))
    return apply_op("Squeeze", name, {"squeeze_dims": axes}, input=input)


# --- broadcasting -------------------------------------------------------------------------------------------


def _broadcast_to_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, wanted = inputs
    need_index(wanted, "shape", 1)
    dims = static_dims(wanted)
    known = dims is not None and x.dims is not None
    if known and (len(x.dims) > len(dims) or not compatible(broadcast(x.dims, dims), dims)):  # type: ignore[arg-type]
        raise ValueError(f"shape {text(x.dims)} cannot be broadcast to {text(dims)}")
    return [(x.dtype.base, dims)]


def _broadcast_to(x: Array, wanted: Array) -> Array:
    sizes = dims_of(wanted)
    try:
        return np.broadcast_to(x, sizes)
    except ValueError:
        raise invalid(f"Shape {text(x.shape)} cannot be broadcast to {sizes}") from None


define("BroadcastTo", _broadcast_to_rule, _broadcast_to, cost=move_cost)


def broadcast_to(input: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """Broadcast a tensor to `shape`, by NumPy's rules."""
    return apply_op("BroadcastTo", name, input=input, shape=Index(shape))


def _ensure_shape_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    return [(x.dtype.base, merge(x.dims, as_dims(attrs.get("shape"))))]


def _ensure_shape(x: Array, *, shape: Dims) -> Array:
    if not compatible(x.shape, as_dims(shape)):
        raise invalid(f"The value has shape {text(x.shape)}; ensure_shape asks for {text(shape)}")
    return x


define("EnsureShape", _ensure_shape_rule, _ensure_shape, gradient=lambda node, grad: [grad], cost=no_cost)


def ensure_shape(x: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """`x` with the static shape `shape`, which is checked in each step. InvalidArgumentError if it does not match."""
    return apply_op("EnsureShape", name, {"shape": as_dims(shape)}, input=x)


# --- order of dimensions ------------------------------------------------------------------------------------


def _transpose_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, perm = inputs
    need_index(perm, "perm", 1)
    order = static_ints(perm)
    if order is None:
        count = len(x.dims) if x.dims is not None else perm.dims[0] if perm.dims else None
        return [(x.dtype.base, of_rank(count))]
    if sorted(order) != list(range(len(order))) or (x.dims is not None and len(order) != len(x.dims)):
        of = "" if x.dims is None else f" of the {len(x.dims)} dimensions of {text(x.dims)}"
        raise ValueError(f"perm {order} is not a permutation{of}")
    return [(x.dtype.base, (None,) * len(order) if x.dims is None else tuple(x.dims[i] for i in order))]


def _transpose(x: Array, perm: Array) -> Array:
    order = dims_of(perm)
    if sorted(order) != list(range(x.ndim)):
        raise invalid(f"perm {order} is not a permutation of the {x.ndim} dimensions of {text(x.shape)}")
    return np.transpose(x, order)


def _transpose_places(node: Node) -> Sequence[Places | None] | None:
    order = static_ints(node.inputs[1])
    return None if order is None else [tuple(Place(order.index(d)) for d in range(len(order)))]


define(
    "Transpose",
    _transpose_rule,
    _transpose,
    places=_transpose_places,
    gradient=lambda node, grad: [transpose(grad, invert_permutation(node.inputs[1])), None],
    cost=move_cost,
)


def transpose(
    a: TensorLike, perm: TensorLike = None, name: str | None = "transpose", conjugate: bool = False
) -> Tensor:
    """Permute the dimensions of a tensor: dimension `i` of the result is dimension `perm[i]` of `a`.

    Args:
        a: a tensor.
        perm: the permutation. None means the dimensions in reverse order.
        name: name of the node.
        conjugate: has no effect on real types.

    Raises:
        ValueError: `perm` is not a permutation of the dimensions.
        TypeError: the complex conjugate of a complex type is requested.
    """
    with op_scope(name, "transpose", a, perm) as scope:
        x = convert(a, name="a")
        if perm is not None:
            order = index_operand(perm, "perm")
        elif x.dims is not None:
            order = constant(np.arange(len(x.dims) - 1, -1, -1, dtype=np.int32), name="perm")
        else:
            last = rank(x) - 1
            order = range_(last, -1, -1)
        if conjugate and x.dtype.is_complex:
            raise TypeError(f"Complex conjugates are not supported: {x!r}")
        return apply("Transpose", (x, order), None, scope)


def _invert_permutation_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    need_index(x, "a permutation", 1)
    return [(x.dtype.base, x.dims)]


def _invert_permutation(x: Array) -> Array:
    inverse = np.full(x.size, -1, x.dtype)
    inside = x[(x >= 0) & (x < x.size)]
    inverse[inside] = np.arange(x.size, dtype=x.dtype)[: inside.size]
    if inside.size < x.size or -1 in inverse:
        raise invalid(f"{x.tolist()} is not a permutation of 0 to {x.size - 1}")
    return inverse


define("InvertPermutation", _invert_permutation_rule, _invert_permutation, cost=write_cost)


def invert_permutation(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse `y` of a permutation `x` of 0 to n - 1: `y[x[i]] == i`. A Const if `x` is known statically."""
    with op_scope(name, "InvertPermutation", x) as scope:
        tensor = index_operand(x, "x")
        order = static_value(tensor)
        if order is not None:
            _invert_permutation_rule([tensor], {})
            return constant(_invert_permutation(np.asarray(order)), name=scope)
        return apply("InvertPermutation", (tensor,), None, scope)


operators.update({"reshape": reshape, "transpose": transpose})
