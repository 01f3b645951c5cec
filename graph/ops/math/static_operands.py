"""Operands that are mostly constant (shapes, axes, indices), and costs of ops that only move elements.

TensorFlow passes a reshape's shape or a concat's axis as an input, so that the graph may compute it. Mostly it is a constant, and
then shape rules can use it. The helpers here make such operands of what users write, and read them back.
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
"""Op's scope -> how the function is called that takes a list where other libraries take several arguments."""


def as_bytes(text: Any) -> bytes:
    """An element of a text array: bytes as they are, what an array made of Python's texts holds as UTF-8."""
    return text if isinstance(text, bytes) else str(text).encode()


def op_scope(name: str | None, default: str, *values: Any) -> AbstractContextManager[str]:
    """The name scope of one op in the graph of its operands; gives the name for the op's own node.

    Raises:
        TypeError: the name is no text. NumPy and PyTorch take several tensors or sizes one by one, and the last becomes the name here.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(
            f"{default}: the name must be text, not {name!r}. {_ONE_LIST.format(AS_LIST.get(default, 'concat([x, y], 1)'))}"
        )
    return graph_of(*values).op_scope(name or default)


def index_operand(value: TensorLike, name: str) -> Tensor:
    """A tensor of int32 or int64 for sizes, axes or indices: numbers, lists (tensors among them), a TensorShape.

    Raises:
        ValueError: a size in it is unknown. TypeError: not integers.
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
            return constant(np.zeros(0, np.int32), name=name)  # an empty list would become float32
    elif value is None:
        raise ValueError(f"{name} is not known; use dt.shape(tensor) for sizes that only the running graph knows")
    if isinstance(value, np.ndarray) and value.size == 0 and value.dtype.kind == "f":
        value = value.astype(np.int32)
    return convert(value, name=name)


class Index:
    """An operand of `apply_op` that holds sizes, axes or indices: `index_operand` converts it."""

    __slots__ = ("value",)

    def __init__(self, value: TensorLike) -> None:
        self.value = value


def apply_op(op: str, name: str | None, attrs: dict[str, Any] | None = None, /, **operands: TensorLike) -> Tensor:
    """Add a node and return its first output. Its operands are converted under its name scope, each by its own name.

    >>> apply_op("Tile", None, input=x, multiples=Index([2, 3]))
    """
    values = [v.value if type(v) is Index else v for v in operands.values()]
    if name is None and isinstance(values[-1], Tensor) and all(isinstance(v, Tensor) for v in values):
        return apply(op, values, attrs)  # no constant needs the scope
    with op_scope(name, op, *values) as scope:
        tensors = [
            index_operand(v.value, label) if type(v) is Index else convert(v, name=label)
            for label, v in operands.items()
        ]
        return apply(op, tensors, attrs, scope)


def one_of(new: Any, old: Any, new_name: str, old_name: str) -> Any:
    """The value of an argument that TensorFlow 1 renamed; ValueError when both names are used."""
    if old is None:
        return new
    if new is not None:
        raise ValueError(f"Cannot specify both '{new_name}' and '{old_name}': they are one argument under two names")
    return old


def same_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The rule of an op whose one output has the type and the shape of its one input."""
    (x,) = inputs
    return [(x.dtype.base, x.dims)]


def need_index(tensor: Tensor, what: str, rank: int | None = None) -> None:
    """TypeError unless the tensor is int32 or int64; ValueError when it is known to have another rank."""
    if tensor.dtype.base not in INDEX_TYPES:
        raise TypeError(f"{what} must be int32 or int64, not {tensor.dtype.base.name}")
    if rank is not None:
        need_rank(tensor.dims, rank, what)


def need_rank(dims: Dims, rank: int, what: str) -> None:
    """ValueError when the shape is known to have another rank."""
    if dims is not None and len(dims) != rank:
        raise ValueError(f"{what}: Shape must be rank {rank} but is rank {len(dims)}")


def need_rank_at_least(dims: Dims, rank: int, what: str) -> None:
    """ValueError when the shape is known to have a smaller rank."""
    if dims is not None and len(dims) < rank:
        raise ValueError(f"{what}: Shape must be at least rank {rank} but is rank {len(dims)}")


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front; ValueError when there is no such axis.

    >>> normal_axis(-1, 3)
    2
    """
    if not -rank <= axis < rank:
        raise ValueError(f"{what} {axis} does not exist: for rank {rank} it must be in [{-rank}, {rank})")
    return axis % rank if rank else 0


def static_int(tensor: Tensor) -> int | None:
    """The value of an integer scalar (or of one in a list), if it is known before the graph runs."""
    value = static_value(tensor)
    if value is None:
        return None
    if np.size(value) != 1:
        raise ValueError(f"one number is needed here, not {np.size(value)}")
    return int(np.asarray(value).reshape(()))


def static_ints(tensor: Tensor) -> list[int] | None:
    """The values of an integer vector (or scalar), if all are known before the graph runs."""
    value = static_value(tensor)
    return None if value is None else dims_of(value)


def index_type_attr(attrs: Attrs, name: str) -> DType:
    """An attr that must be the element type int32 or int64."""
    value = attrs.get(name)
    if not isinstance(value, DType) or value not in INDEX_TYPES:
        raise TypeError(f"{name} must be int32 or int64, not {value!r}")
    return value


def no_cost(node: Node) -> Cost:
    """No cost: the op gives a view of the same elements, or metadata."""
    return Cost(0.0, 0.0)


def move_cost(node: Node) -> Cost:
    """No arithmetic; each input and output element moves once."""
    return Cost(0.0, float(sum(nbytes(t) for t in (*node.inputs, *node.outputs))))


def write_cost(node: Node) -> Cost:
    """No arithmetic; only the output moves."""
    return Cost(0.0, float(sum(nbytes(t) for t in node.outputs)))


def pick_cost(node: Node) -> Cost:
    """No arithmetic; of the first input moves only what the outputs hold, of the others everything."""
    outputs = sum(nbytes(t) for t in node.outputs)
    return Cost(0.0, float(2 * outputs + sum(nbytes(t) for t in node.inputs[1:])))


def dims_of(value: Any) -> list[int]:
    """Sizes at run time, as Python ints, from a shape operand's array."""
    sizes: list[int] = np.ravel(value).tolist()
    return sizes


def known_rank(tensors: Sequence[Tensor]) -> int | None:
    """The rank of the first tensor whose rank is known."""
    return next((len(t.dims) for t in tensors if t.dims is not None), None)
