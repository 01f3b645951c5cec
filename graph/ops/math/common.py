"""Shape and type rules that many ops share, and helpers to define elementwise ops."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from ...core.build import TensorLike, apply, convert, convert_pair, graph_of
from ...core.dtypes import DType, uint8
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, GradientRule, OpDef, Output, Trait, default_cost, define, size
from ...core.scalar_math import reference_of
from ...core.shape import broadcast
from ...tensors.sparse_tensor import SparseTensor


def same_type(inputs: Sequence[Tensor]) -> DType:
    """The element type of all inputs. TypeError if they differ."""
    first = inputs[0].dtype.base
    for t in inputs[1:]:
        if t.dtype.base is not first:
            raise TypeError(
                f"operands must have one element type, not {first.name} and {t.dtype.base.name}; use dt.cast"
            )
    return first


def allowed(dtype: DType, types: tuple[DType, ...]) -> DType:
    """`dtype`. TypeError if it is not among `types`."""
    for known in types:  # each type is one object, and this is faster than `in`, which compares
        if known is dtype:
            return dtype
    raise TypeError(f"element type {dtype.name} is not supported; supported: {', '.join(t.name for t in types)}")


_LAYOUTS = {
    1: {"NWC": "NHWC", "NCW": "NCHW", "NHWC": "NHWC", "NCHW": "NCHW"},
    2: {"NHWC": "NHWC", "NCHW": "NCHW"},
    3: {"NDHWC": "NHWC", "NCDHW": "NCHW"},
}


def layout_of(data_format: object, axes: int = 2) -> str:
    """The layout for images that corresponds to a `data_format`: "NHWC" if channels are the last axis, "NCHW" if they are the second.

    Args:
        data_format: a name such as "NDHWC". With one spatial axis, "NHWC" and "NCHW" are accepted, too.
        axes: number of spatial axes, 1 to 3.

    Raises:
        ValueError: an unknown name.
    """
    names = _LAYOUTS[axes]
    if not isinstance(data_format, str) or data_format not in names:
        last, first, *_ = names
        raise ValueError(f"data_format must be '{last}' or '{first}', not {data_format!r}")
    return names[data_format]


def need_floats(x: Tensor, what: str, taker: str) -> None:
    """TypeError if `x`, the argument `what` of the function `taker`, is of an integer type, for which `taker` would round."""
    given = x.dtype.base
    if not (given.is_floating or given.is_complex):
        raise TypeError(
            f"{what} is {given.name}, and {taker} takes floats: {x!r}. Convert it: dt.cast(x, dt.float32)"
            + (" / 255, for images" if given is uint8 else "")
        )


def unary_rule(
    types: tuple[DType, ...], result: DType | None = None
) -> Callable[[Sequence[Tensor], Attrs], Sequence[Output]]:
    """The shape rule of a unary elementwise op: the input's shape, with the element type `result` or else the input's."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        (x,) = inputs
        dtype = allowed(x.dtype.base, types)
        return [(result or dtype, x.dims)]

    return infer


def broadcast_rule(
    types: tuple[DType, ...], result: DType | None = None
) -> Callable[[Sequence[Tensor], Attrs], Sequence[Output]]:
    """The shape rule of an elementwise op of several inputs, which broadcast. The element type is `result`, or else theirs."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        dtype = allowed(same_type(inputs), types)
        dims = inputs[0].dims
        for t in inputs[1:]:
            if t.dims != dims:
                dims = broadcast(dims, t.dims)
        return [(result or dtype, dims)]

    return infer


def define_elementwise(
    name: str,
    scalar: Callable[..., Any] | None,
    types: tuple[DType, ...],
    *,
    arity: int = 1,
    result: DType | None = None,
    gradient: GradientRule | None = None,
    flops: float = 1.0,
    traits: Trait = Trait.NONE,
    reference: Callable[..., Any] | None = None,
) -> OpDef:
    """Define an elementwise op.

    Args:
        name: the op.
        scalar: its body for one element, `scalar(m, *elements)`. None means that it has none, and needs a `reference`.
        types: the element types that it accepts.
        arity: number of operands, which broadcast.
        result: element type of the result. None means that of the operands.
        gradient: its gradient rule.
        flops: operations per element. A transcendental function counts as about 10.
        traits: its traits.
        reference: the NumPy reference. If it is None, it is made from `scalar`.
    """
    if reference is None:
        if scalar is None:
            raise ValueError(f"{name} needs a scalar body or a reference")
        reference = reference_of(scalar)
    return define(
        name,
        unary_rule(types, result) if arity == 1 else broadcast_rule(types, result),
        reference,
        scalar=scalar,
        gradient=gradient,
        cost=lambda node: default_cost(node, flops),
        traits=traits,
    )


class UnaryFunction(Protocol):
    """The public function of a unary op."""

    def __call__(self, x: TensorLike, name: str | None = None) -> Tensor: ...


class BinaryFunction(Protocol):
    """The public function of a binary op."""

    def __call__(self, x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor: ...


_Function = TypeVar("_Function", bound=Callable[..., Any])


def named(function: _Function, op: str, called: str, text: str) -> _Function:
    """A function that a row of a table makes, as one that is written out in the module of that row.

    Args:
        function: the function.
        op: its op, by which it is called.
        called: its name, if it is another one than the op's; `is_nan` is the name of `IsNan`.
        text: its docstring.
    """
    made, frame = function, sys._getframe(1)
    while frame.f_globals["__name__"] == __name__ and frame.f_back is not None:
        frame = frame.f_back
    made.__name__ = made.__qualname__ = called or re.sub("(?<!^)(?=[A-Z])", "_", op).lower()
    made.__doc__, made.__module__ = text, frame.f_globals["__name__"]
    return function


def define_unary(
    op: str, text: str, scalar: Any, types: tuple[DType, ...], called: str = "", **definition: Any
) -> UnaryFunction:
    """Define a unary elementwise op, and make its public function, with this docstring.

    The other arguments are those of `define_elementwise` and `named`.

    >>> exp = define_unary("Exp", "e ** x.", lambda m, x: m.exp(x), FLOATS)
    """
    define_elementwise(op, scalar, types, **definition)

    def function(x: TensorLike, name: str | None = None) -> Tensor:
        return unary(op, x, name)

    return named(function, op, called, text)


def define_binary(
    op: str, text: str, scalar: Any, types: tuple[DType, ...], called: str = "", **definition: Any
) -> BinaryFunction:
    """`define_unary` for two operands, which broadcast."""
    define_elementwise(op, scalar, types, arity=2, **definition)

    def function(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
        return binary(op, x, y, name or op)

    return named(function, op, called, text)


def input_cost(flops: float) -> Callable[[Node], Cost]:
    """A cost of `flops` per element of the first input, for reductions and scans."""
    return lambda node: Cost(flops * size(node.inputs[0]), default_cost(node).bytes)


def unary(op: str, x: TensorLike, name: str | None, attrs: dict[str, Any] | None = None) -> Tensor:
    """Apply a unary op to a tensor, or to the values of a sparse tensor. A Python value becomes a Const in the op's scope (`Exp/x`)."""
    if isinstance(x, Tensor):
        return apply(op, (x,), attrs, name)
    if isinstance(x, SparseTensor):
        mapped: Any = x._mapped(lambda values: unary(op, values, name, attrs))
        return mapped  # type: ignore[no-any-return]
    with graph_of(x).op_scope(name or op) as scope:
        return apply(op, (convert(x, name="x"),), attrs, scope)


def binary(op: str, x: TensorLike, y: TensorLike, name: str) -> Tensor:
    """Apply a binary op. A Python number takes the other operand's type."""
    a, b, node_name = convert_pair(x, y, name)
    return apply(op, (a, b), None, node_name)
