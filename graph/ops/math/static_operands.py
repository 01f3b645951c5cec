"""Operands that are mostly constant (shapes, axes, indices), and costs of ops that only move elements.

TensorFlow passes the shape of a reshape or the axis of a concat as an input, so that the graph may compute it. Mostly it is a constant,
and shape rules can use its value. The helpers here convert Python values to such operands, and read the values of operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert, graph_of
from ...core.constant_value import static_value
from ...core.dtypes import DType, int32, int64
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, nbytes
from ...core.shape import Dimension, Dims, TensorShape

INDEX_TYPES = (int32, int64)
_ONE_LIST = "Several tensors or sizes are one list: dt.{}"
AS_LIST = {
    "Reshape": "reshape(x, [2, 3])",
    "Tile": "tile(x, [2, 3])",
    "concat": "concat([x, y], 1)",
    "ones": "ones([2, 3])",
    "stack": "stack([x, y], 1)",
    "transpose": "transpose(x, [1, 0])",
    "zeros": "zeros([2, 3])",
}
"""Default scope of an op -> a correct call, for errors. Other libraries take several arguments where these functions take a list."""


def as_bytes(text: Any) -> bytes:
    """An element of a string array as bytes. A Python str is encoded as UTF-8."""
    return text if isinstance(text, bytes) else str(text).encode()


def op_scope(name: str | None, default: str, *values: Any) -> AbstractContextManager[str]:
    """The name scope of one op, in the graph of its operands. It yields the name for the op's own node.

    Raises:
        TypeError: the name is not a string. This happens if tensors or sizes are passed one by one, as in NumPy or PyTorch, instead of
            as a list: the last one becomes the name.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"{default}: the name must be text, not {name!r}. {_ONE_LIST.format(AS_LIST.get(default, 'concat([x, y], 1)'))}"
        )
    return graph_of(*values).op_scope(name or default)


def index_operand(value: TensorLike, name: str) -> Tensor:
    """Convert sizes, axes or indices to an int32 or int64 tensor.

    Args:
        value: a number, a list that may hold tensors, a `TensorShape`, an array, or a tensor.
        name: name of the Const.

    Raises:
        ValueError: a size is unknown.
        TypeError: the values are not integers.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, TensorShape):
        value = value.as_list()
    if isinstance(value, Dimension):
        value = value.value
    if isinstance(value, (list, tuple)):
        value = [v.value if isinstance(v, Dimension) else v for v in value]
        if any(v is None for v in value):
            raise ValueError(
                f"{name} {value} has an unknown size; use dt.shape(tensor) for sizes that only the running graph knows"
            )
        if not value:
            return constant(np.zeros(0, np.int32), name=name)  # `convert` would make an empty list float32
    elif value is None:
        raise ValueError(f"{name} is not known; use dt.shape(tensor) for sizes that only the running graph knows")
    if isinstance(value, np.ndarray) and value.size == 0 and value.dtype.kind == "f":
        value = value.astype(np.int32)
    return convert(value, name=name)


class Index:
    """Marks an operand of `apply_op` that `index_operand` converts: sizes, axes or indices."""

    __slots__ = ("value",)

    def __init__(self, value: TensorLike) -> None:
        self.value = value


def apply_op(op: str, name: str | None, attrs: dict[str, Any] | None = None, /, **operands: TensorLike) -> Tensor:
    """Add a node and return its first output. Operands that are not tensors become Consts in the node's scope, named by their keywords.

    >>> apply_op("Tile", None, input=x, multiples=Index([2, 3]))
    """
    values = [v.value if type(v) is Index else v for v in operands.values()]
    if name is None and isinstance(values[-1], Tensor) and all(isinstance(v, Tensor) for v in values):
        return apply(op, values, attrs)  # there are no Consts to put into a scope
    with op_scope(name, op, *values) as scope:
        tensors = [
            index_operand(v.value, label) if type(v) is Index else convert(v, name=label)
            for label, v in operands.items()
        ]
        return apply(op, tensors, attrs, scope)


def one_of(new: Any, old: Any, new_name: str, old_name: str) -> Any:
    """The value of an argument that has an old and a new name in TensorFlow 1. ValueError if both are given."""
    if old is None:
        return new
    if new is not None:
        raise ValueError(f"Cannot specify both '{new_name}' and '{old_name}': they are one argument under two names")
    return old


def same_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The shape rule of an op whose output has the type and shape of its only input."""
    (x,) = inputs
    return [(x.dtype.base, x.dims)]


def need_index(tensor: Tensor, what: str, rank: int | None = None) -> None:
    """TypeError unless the tensor is int32 or int64. ValueError if its static rank is not `rank`."""
    if tensor.dtype.base not in INDEX_TYPES:
        raise TypeError(f"{what} must be int32 or int64, not {tensor.dtype.base.name}")
    if rank is not None:
        need_rank(tensor.dims, rank, what)


def need_rank(dims: Dims, rank: int, what: str) -> None:
    """ValueError if the static rank is known and not `rank`."""
    if dims is not None and len(dims) != rank:
        raise ValueError(f"{what}: Shape must be rank {rank} but is rank {len(dims)}")


def need_rank_at_least(dims: Dims, rank: int, what: str) -> None:
    """ValueError if the static rank is known and smaller than `rank`."""
    if dims is not None and len(dims) < rank:
        raise ValueError(f"{what}: Shape must be at least rank {rank} but is rank {len(dims)}")


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """A possibly negative axis as a non-negative one. ValueError if it is out of range.

    >>> normal_axis(-1, 3)
    2
    """
    if not -rank <= axis < rank:
        raise ValueError(f"{what} {axis} does not exist: for rank {rank} it must be in [{-rank}, {rank})")
    return axis % rank if rank else 0


def static_int(tensor: Tensor) -> int | None:
    """The value of an integer scalar, or of a vector of one element, if it is known statically."""
    value = static_value(tensor)
    if value is None:
        return None
    if np.size(value) != 1:
        raise ValueError(f"one number is needed here, not {np.size(value)}")
    return int(np.asarray(value).reshape(()))


def static_ints(tensor: Tensor) -> list[int] | None:
    """The values of an integer vector or scalar, if all are known statically."""
    value = static_value(tensor)
    return None if value is None else dims_of(value)


def index_type_attr(attrs: Attrs, name: str) -> DType:
    """The value of an attribute that must be int32 or int64. TypeError otherwise."""
    value = attrs.get(name)
    if not isinstance(value, DType) or value not in INDEX_TYPES:
        raise TypeError(f"{name} must be int32 or int64, not {value!r}")
    return value


def no_cost(node: Node) -> Cost:
    """The cost of an op that returns a view or metadata: none."""
    return Cost(0.0, 0.0)


def move_cost(node: Node) -> Cost:
    """The cost of an op that reads all inputs and writes all outputs, without arithmetic."""
    return Cost(0.0, float(sum(nbytes(t) for t in (*node.inputs, *node.outputs))))


def write_cost(node: Node) -> Cost:
    """The cost of an op that only writes its outputs."""
    return Cost(0.0, float(sum(nbytes(t) for t in node.outputs)))


def pick_cost(node: Node) -> Cost:
    """The cost of a gather: it reads as many bytes of the first input as it writes, and all of the other inputs."""
    outputs = sum(nbytes(t) for t in node.outputs)
    return Cost(0.0, float(2 * outputs + sum(nbytes(t) for t in node.inputs[1:])))


def dims_of(value: Any) -> list[int]:
    """The elements of a shape operand's array as Python ints."""
    sizes: list[int] = np.ravel(value).tolist()
    return sizes


def known_rank(tensors: Sequence[Tensor]) -> int | None:
    """The rank of the first tensor whose rank is known."""
    return next((len(t.dims) for t in tensors if t.dims is not None), None)
