"""The ops of `TensorArray`: a list of tensors that a loop writes and reads one element at a time.

A `TensorArrayV3` node creates a new list in each step and returns its handle. The list is freed with the last reference to it. All ops that
take the handle run on one device. A *flow*, a scalar, represents the state of the list. A write takes a flow and returns a new one. A read
takes the flow of the writes that it must see. So the edges of the graph order the accesses, and gradients can follow them.

The gradient of a list is a list of the same size, identified by the name of its `gradients` call. Several writes to one of its elements add
up. An element without a write is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import Array, DType, float32, int32, int64, resource
from ...core.errors import InvalidArgumentError, invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, InferRule, Output, Trait, define, typed_attr
from ...core.shape import Dims, compatible, is_static, merge, text
from ...resources.resource_manager import Context
from ..math.static_operands import need_rank, no_cost


class ArrayState:
    """The elements of one list."""

    __slots__ = ("cleared", "dims", "dtype", "dynamic", "gradients", "name", "once", "shapes", "sums", "values")

    def __init__(self, name: str, dtype: DType, dims: Dims, size: int, dynamic: bool, once: bool) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.dynamic = dynamic
        self.once = once  # whether an element may be read only once
        self.sums = False  # whether writes add up, as in a list of gradients
        self.values: list[Array | None] = [None] * size
        self.shapes: list[tuple[int, ...] | None] = [
            None
        ] * size  # of elements that were written, also after they are freed
        self.cleared: set[int] = set()
        self.gradients: dict[str, ArrayState] = {}

    def gradient(self, source: str) -> ArrayState:
        """The list of gradients for one `gradients` call."""
        found = self.gradients.get(source)
        if found is None:
            name = f"{self.name}@{source}"
            found = ArrayState(name, self.dtype, self.dims, len(self.values), self.dynamic, False)
            found.sums = True
            found.shapes = self.shapes
            self.gradients[source] = found
        return found

    def write(self, index: int, value: Array) -> None:
        """Set an element, or add to an element of a list of gradients."""
        self._check_index(index, "write to", grow=True)
        if not compatible(np.shape(value), self.dims):
            raise self._error(f"a value of shape {text(np.shape(value))} does not fit its elements, {text(self.dims)}")
        old = self.values[index]
        if self.sums:
            if old is not None and np.shape(old) != np.shape(value):
                raise self._error(
                    f"Could not aggregate to TensorArray index {index} because the existing shape is {text(np.shape(old))} "
                    f"but the new input shape is {text(np.shape(value))}"
                )
            self.values[index] = value if old is None else np.asarray(old + value, value.dtype)
            return
        if old is not None or index in self.cleared:
            raise self._error(f"Could not write to TensorArray index {index} because it has already been written to.")
        self.values[index], self.shapes[index] = value, np.shape(value)

    def read(self, index: int) -> Array:
        """Return an element. It is freed if elements may be read only once."""
        self._check_index(index, "read from", grow=False)
        value = self.values[index]
        if value is None:
            if index in self.cleared:
                raise self._error(
                    f"Could not read index {index} twice because it was cleared after a previous read "
                    "(perhaps try setting clear_after_read = false?)"
                )
            return np.zeros(self._dims_at(index), self.dtype.np)
        if self.once:
            self.values[index] = None
            self.cleared.add(index)
        return value

    def _dims_at(self, index: int) -> tuple[int, ...]:
        """The shape of an element that is zero: that of its value if it was written, or else that of all elements."""
        written = self.shapes[index]
        if written is not None:
            return written
        if is_static(self.dims):
            return tuple(d for d in self.dims or () if d is not None)
        others = {dims for dims in self.shapes if dims is not None}
        if len(others) != 1:
            raise self._error(f"Could not read index {index}: it was never written, and its shape is not known")
        return others.pop()

    def _check_index(self, index: int, doing: str, grow: bool) -> None:
        size = len(self.values)
        if 0 <= index < size:
            return
        if grow and self.dynamic and index >= 0:
            more = index + 1 - size
            self.values += [None] * more
            self.shapes += [None] * more
            return
        hint = "array is not resizeable and " if grow and not self.dynamic else ""
        raise self._error(f"Tried to {doing} index {index} but {hint}size is: {size}")

    def _error(self, message: str) -> InvalidArgumentError:
        return invalid(f"TensorArray {self.name}: {message}")


# --- rules ----------------------------------------------------------------------------------------------------


_OPERANDS: dict[str, tuple[tuple[DType, ...], int]] = {
    "handle": ((resource,), 0),
    "flow": ((float32,), 0),
    "size": ((int32,), 0),
    "index": ((int32,), 0),
    "indices": ((int32,), 1),
    "lengths": ((int64, int32), 1),  # int32 in graphs of older versions
}
"""Name of an operand -> its types and rank. A `value` may have any."""


def _check(inputs: Sequence[Tensor], *names: str) -> None:
    """TypeError or ValueError unless the inputs have the types and ranks of these operands."""
    for tensor, name in zip(inputs, names, strict=True):
        if name != "value":
            dtypes, rank = _OPERANDS[name]
            if tensor.dtype.base not in dtypes:
                raise TypeError(f"{name} must be of type {dtypes[0].name}, not {tensor.dtype.base.name}")
            need_rank(tensor.dims, rank, name)


def _change_rule(*names: str) -> InferRule:
    """The rule of an op that changes the list and returns its new flow."""

    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        _check(inputs, *names)
        return [(float32, ())]

    return infer


def _new_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "size")
    typed_attr(attrs, "dtype", DType)
    for name in ("dynamic_size", "clear_after_read"):
        typed_attr(attrs, name, bool)
    return [(resource, ()), (float32, ())]


def _grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "handle", "flow")
    typed_attr(attrs, "source", str)
    return [(resource, ()), (float32, ())]


def _read_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "handle", "index", "flow")
    return [(typed_attr(attrs, "dtype", DType).base, attrs["element_shape"])]


def _gather_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "handle", "indices", "flow")
    dims, indices = attrs["element_shape"], inputs[1]
    count = indices.dims[0] if indices.dims is not None else None
    return [(typed_attr(attrs, "dtype", DType).base, None if dims is None else (count, *dims))]


def _size_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "handle", "flow")
    return [(int32, ())]


def _concat_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check(inputs, "handle", "flow")
    dims = attrs.get("element_shape")
    rest = attrs.get("element_shape_except0") if dims is None else dims[1:]  # an attribute of TensorFlow's graphs
    return [(typed_attr(attrs, "dtype", DType).base, None if rest is None else (None, *rest)), (int64, (None,))]


# --- kernels --------------------------------------------------------------------------------------------------

_FLOW = np.float32(0.0)


def _new(context: Context, size: Array, **attrs: Any) -> tuple[ArrayState, Any]:
    name = attrs["tensor_array_name"] or context.node_name
    dtype, dims = attrs["dtype"].base, attrs["element_shape"]
    return ArrayState(name, dtype, dims, int(size), attrs["dynamic_size"], attrs["clear_after_read"]), _FLOW


def _write(context: Context, array: ArrayState, index: Array, value: Array, flow: Array) -> Any:
    array.write(int(index), value)
    return _FLOW


def _scatter(context: Context, array: ArrayState, indices: Array, value: Array, flow: Array) -> Any:
    if len(indices) != len(value):
        raise invalid(f"{len(indices)} indices, but {len(value)} values to scatter")
    for i, index in enumerate(indices):
        array.write(int(index), value[i, ...])
    return _FLOW


def _gather(context: Context, array: ArrayState, indices: Array, flow: Array, **attrs: Any) -> Array:
    found = [array.read(int(i)) for i in indices]
    if not found:
        dims = merge(array.dims, attrs["element_shape"])
        if not is_static(dims):
            raise array._error("it has no elements to stack, and their shape is unknown")
        return np.zeros((0, *(d for d in dims or () if d is not None)), array.dtype.np)
    if any(np.shape(v) != np.shape(found[0]) for v in found):
        raise array._error(f"has elements of different shapes: {', '.join(text(np.shape(v)) for v in found[:4])}, ...")
    return np.stack(found)


def _concat(context: Context, array: ArrayState, flow: Array, **attrs: Any) -> tuple[Array, Array]:
    found = [array.read(i) for i in range(len(array.values))]
    lengths = np.array([len(v) for v in found], np.int64)
    if not found:
        dims = array.dims or ()
        return np.zeros((0, *(d or 0 for d in dims[1:])), array.dtype.np), lengths
    return np.concatenate(found), lengths


def _split(context: Context, array: ArrayState, value: Array, lengths: Array, flow: Array) -> Any:
    if lengths.sum() != len(value):
        raise invalid(f"lengths add up to {lengths.sum()}, but the value has {len(value)} rows")
    if array.dynamic or len(lengths) == len(array.values):
        start = 0
        for i, n in enumerate(lengths):
            array.write(i, value[start : start + int(n)])
            start += int(n)
        return _FLOW
    raise array._error(f"{len(lengths)} lengths for {len(array.values)} elements")


_STATE: dict[str, Any] = {"cost": no_cost, "traits": Trait.STATEFUL}
_TYPED = {**_STATE, "internal_attrs": ("dtype", "element_shape")}

define("TensorArrayV3", _new_rule, _new, cost=no_cost, traits=Trait.STATEFUL | Trait.STATE_HANDLE)
define(
    "TensorArrayGradV3",
    infer=_grad_rule,
    reference=lambda context, array, flow, *, source: (array.gradient(source), _FLOW),
    **_STATE,
)
define("TensorArrayWriteV3", _change_rule("handle", "index", "value", "flow"), _write, **_STATE)
define("TensorArrayScatterV3", _change_rule("handle", "indices", "value", "flow"), _scatter, **_STATE)
define("TensorArraySplitV3", _change_rule("handle", "value", "lengths", "flow"), _split, **_STATE)
define(
    "TensorArrayReadV3",
    infer=_read_rule,
    reference=lambda context, array, index, flow: array.read(int(index)),
    **_TYPED,
)
define("TensorArrayGatherV3", infer=_gather_rule, reference=_gather, **_STATE)
define("TensorArrayConcatV3", infer=_concat_rule, reference=_concat, **_STATE)
define(
    "TensorArraySizeV3",
    infer=_size_rule,
    reference=lambda context, array, flow: np.int32(len(array.values)),
    **_STATE,
)
define(
    "TensorArrayCloseV3",
    infer=lambda inputs, attrs: [],
    reference=lambda context, array: array.values.clear() or (),
    **_STATE,
)
