"""Constant evaluation: the elements of a tensor that are known statically, before the graph runs.

Shapes are often computed in the graph: `reshape(x, [shape(x)[0], 10])`. Shape rules need as many elements of such a vector as possible,
even if others are unknown. So the evaluation works on *partly known* arrays, which are a value and a mask of its known elements:

- Constants are known.
- `Shape` gives the static sizes.
- An op that only moves elements runs its reference twice, on the values and on the mask.
- A result of an elementwise op is known where all operands are known.
- Any other pure op runs if its inputs are completely known.

The numbers of nodes and elements are bounded, so a query is cheap on any graph. "Unknown" is always a correct result.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .dtypes import Array, DType
from .frames import CONTROL_FLOW_OPS
from .graph import Node, Tensor
from .opdef import Trait
from .shape import Dims, element_count, is_static, of_rank

_MAX_NODES = 64  # nodes evaluated per query; shape arithmetic is rarely longer than ten nodes
_MAX_ELEMENTS = 1024  # elements of an evaluated value; constants may be larger

# Of a folded constant: bytes, unless its inputs have as many, as a large Fill stays a Fill; and operations, some ten milliseconds.
_MOST_FOLDED, _MOST_FLOPS = 1 << 16, 1e7

_UNKNOWABLE = Trait.STATEFUL | Trait.STATE_HANDLE | Trait.BLOCKING | Trait.HOST_ONLY

# Op -> the inputs whose elements it only moves (None: all). The other inputs determine where.
_MOVERS: dict[str, tuple[int, ...] | None] = {
    "ConcatV2": None,  # its last input is the axis; see `moved_inputs`
    "ExpandDims": (0,),
    "Fill": (1,),
    "Gather": (0,),
    "GatherV2": (0,),
    "Identity": (0,),
    "Pack": None,
    "Reshape": (0,),
    "Reverse": (0,),
    "ReverseV2": (0,),
    "Slice": (0,),
    "Squeeze": (0,),
    "StopGradient": (0,),
    "StridedSlice": (0,),
    "Tile": (0,),
    "Transpose": (0,),
}


class _Partial(NamedTuple):
    value: Array
    known: Array
    """The mask of the known elements of `value`."""

    @property
    def complete(self) -> bool:
        return bool(self.known.all())


def static_value(tensor: Tensor) -> Array | None:
    """The tensor's value if it is known statically, else None. Do not modify the array.

    >>> static_value(shape(placeholder("float32", [2, 3])))
    array([2, 3], dtype=int32)
    """
    node = tensor.op
    if node.opdef.name == "Const":  # by far the most frequent case
        value: Array = node.attrs["value"]
        return value
    found = _Evaluation().of(tensor)
    return found.value if found is not None and found.complete else None


def partly_known(tensor: Tensor) -> list[Any] | None:
    """The value as nested lists with None for unknown elements. None if the shape is unknown."""
    found = _Evaluation().of(tensor)
    if found is None:
        return None
    value: list[Any] = np.where(found.known, found.value, np.array(None, object)).tolist()
    return value


def static_dims(tensor: Tensor) -> Dims:
    """The shape in a vector of sizes, as far as it is known statically. -1 means an unknown size.

    >>> static_dims(shape(placeholder("float32", [None, 3])))
    (None, 3)
    """
    found = _Evaluation().of(tensor)
    if found is not None and found.value.ndim == 1:
        return tuple(
            int(v) if k and v >= 0 else None for v, k in zip(found.value.tolist(), found.known.tolist(), strict=True)
        )
    dims = tensor.dims
    return of_rank(dims[0]) if dims is not None and len(dims) == 1 else None


class _Evaluation:
    """The evaluation for one query. It visits each tensor once."""

    def __init__(self) -> None:
        self.budget = _MAX_NODES
        self.found: dict[Tensor, _Partial | None] = {}

    def of(self, tensor: Tensor) -> _Partial | None:
        """The partly known value of a tensor. None if its shape is unknown, or it is too large."""
        if tensor in self.found:
            return self.found[tensor]
        self.found[tensor] = None  # for a tensor that depends on itself through a loop
        result = self._evaluate(tensor) if self.budget > 0 else None
        self.found[tensor] = result if result is not None else _nothing_known(tensor)
        return self.found[tensor]

    def _evaluate(self, tensor: Tensor) -> _Partial | None:
        self.budget -= 1
        node = tensor.op
        op = node.opdef
        if op.name == "Const":
            return _complete(node.attrs["value"])
        if Trait.METADATA in op.traits:
            return _metadata(node, tensor)
        if op.name in CONTROL_FLOW_OPS:
            # A value that enters a branch or loop and does not change is the same inside. A loop variable is unknown.
            return self.of(node.inputs[0]) if op.name == "Switch" or node.attrs.get("is_constant") else None
        if op.reference is None or op.traits & _UNKNOWABLE or not node.inputs or op.name == "PlaceholderWithDefault":
            return None
        if not _may_be_small(tensor):
            return None
        inputs = [self.of(t) for t in node.inputs]
        if op.name == "Pack" and node.attrs["axis"] == 0 and tensor.dims:
            inputs = [i or _unknown(tensor.dims[1:], tensor.dtype) for i in inputs]  # all inputs have the same shape
        if any(i is None or i.value.size > _MAX_ELEMENTS for i in inputs):
            return None
        partials = [i for i in inputs if i is not None]
        try:
            return _apply(node, tensor.value_index, partials)
        except Exception:
            return None  # the op fails for this value, and the step will report the error


def is_folded(node: Node, taken: int, flops: float) -> bool:
    """Whether compilers compute a node whose inputs are constants before the step runs: its result is small, and takes little time.

    Args:
        taken: bytes of the constants. flops: operations of the node.
    """
    if len(node.outputs) != 1 or not node.inputs or node.opdef.traits & _UNKNOWABLE:
        return False
    (output,) = node.outputs
    count = element_count(output.dims)
    small = count is not None and count * output.dtype.size <= max(_MOST_FOLDED, taken)
    return small and flops <= _MOST_FLOPS and not output.dtype.np.hasobject


def _may_be_small(tensor: Tensor) -> bool:
    dims = tensor.dims
    if is_static(dims):
        return math.prod(dims) <= _MAX_ELEMENTS  # type: ignore[arg-type]
    # A vector of sizes can be short although its length was not inferred.
    return tensor.dtype.is_integer and (dims is None or len(dims) == 1)


def _complete(value: Array) -> _Partial:
    return _Partial(value, np.ones(value.shape, np.bool_))


def _nothing_known(tensor: Tensor) -> _Partial | None:
    """A value of known shape and unknown elements. Only for integers, because sizes are integers."""
    return _unknown(tensor.dims, tensor.dtype)


def _unknown(dims: Dims, dtype: DType) -> _Partial | None:
    if not dtype.is_integer or not is_static(dims):
        return None
    if math.prod(dims) > _MAX_ELEMENTS:  # type: ignore[arg-type]
        return None
    return _Partial(np.ones(dims, dtype.np), np.zeros(dims, np.bool_))


def _metadata(node: Node, tensor: Tensor) -> _Partial | None:
    """Shape, ShapeN, Size, Rank: from the input's static shape."""
    dims = node.inputs[tensor.value_index if len(node.outputs) > 1 else 0].dims
    if dims is None:
        return None
    dtype = tensor.dtype.np
    if node.type in ("Shape", "ShapeN"):
        return _Partial(np.array([d or 0 for d in dims], dtype), np.array([d is not None for d in dims], np.bool_))
    if node.type == "Rank":
        return _complete(np.array(len(dims), dtype))
    if node.type == "Size" and is_static(dims):
        return _complete(np.array(math.prod(dims), dtype))  # type: ignore[arg-type]
    return None


def _apply(node: Node, index: int, inputs: list[_Partial]) -> _Partial | None:
    op = node.opdef
    attrs = op.kernel_attrs(node.attrs)
    with np.errstate(all="ignore"):

        def run(values: list[Array]) -> Array:
            results = op.reference(*values, **attrs)
            return np.asarray(results if len(node.outputs) == 1 else results[index])

        values = [i.value for i in inputs]
        if all(i.complete for i in inputs):
            return _complete(run(values))
        moved = moved_inputs(node)
        if moved:
            if not all(inputs[i].complete for i in range(len(inputs)) if i not in moved):
                return None
            marks = [i.known.astype(i.value.dtype) if at in moved else i.value for at, i in enumerate(inputs)]
            return _Partial(run(values), run(marks).astype(np.bool_))
        if op.scalar is not None or op.name == "Cast":
            value = run(values)
            known = np.broadcast_arrays(*(i.known for i in inputs))
            return _Partial(value, np.logical_and.reduce(known).reshape(value.shape))
    return None


def moved_inputs(node: Node) -> tuple[int, ...]:
    """The inputs whose elements a node only moves. () for other ops."""
    moved = _MOVERS.get(node.type, ())
    if moved is not None:
        return moved
    return tuple(range(len(node.inputs) - (node.type == "ConcatV2")))
