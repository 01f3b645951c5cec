"""`TensorArray`: a list of tensors that loops write and read one element at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...core.build import apply, constant, convert, make
from ...core.constant_value import static_value
from ...core.default_graph import get_default_graph
from ...core.dtypes import DType, as_dtype, int32, int64
from ...core.graph import Graph, Node, Tensor
from ...core.opdef import GradientRule, set_gradient
from ...core.shape import Dims, TensorShape, as_dims, merge, text
from ..array.identity_and_placeholders import identity
from ..array.ranges import range as range_
from ..array.shapes import shape
from ..math.cast import cast
from . import tensor_array_ops as _ops  # noqa: F401  (defines the ops)


class TensorArray:
    """A list of tensors of one type, which exists for one step.

    A write returns a new `TensorArray`, which represents the list after the write and must be used from then on. A `TensorArray` can be a
    loop variable.

    Args:
        dtype: element type.
        size: the number of elements, an int or an int32 tensor.
        dynamic_size: whether writes beyond the end extend the list.
        clear_after_read: free an element when it is read, so that it can be read only once. None means True.
        tensor_array_name: a name for errors.
        handle: the handle of an existing list.
        flow: the flow of an existing list.
        infer_shape: whether all elements have the same shape, which is inferred from the first write.
        element_shape: the static shape of the elements, as far as it is known.
        colocate_with_first_write_call: put the list on the device of the first value written.
        name: name of the node.

    >>> squares = TensorArray("int32", 5)
    >>> _, squares = while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a.write(i, i * i)), [0, squares])
    >>> squares.stack()   # evaluates to [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Tensor | None = None,
        flow: Tensor | None = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if (handle is None) == (size is None):
            raise ValueError(
                "Either size or handle must be given, and not both"
                if size is None
                else "A list with a handle has its size already"
            )
        if handle is not None and (dynamic_size is not None or tensor_array_name or clear_after_read is not None):
            raise ValueError("A list with a handle has its other properties already")
        self._dtype = as_dtype(dtype).base
        self._dims: list[Dims] = [as_dims(element_shape)]  # shared with the objects that writes return
        self._infer_shape = infer_shape
        self._dynamic = bool(dynamic_size)
        self._home: list[Node] | None = [] if colocate_with_first_write_call and handle is None else None
        if handle is not None:
            if flow is None:
                with handle.graph.colocate_with(handle):
                    flow = constant(0.0, name="flow")
            self._handle, self._flow = handle, flow
            return
        with _graph_of(size).op_scope(name or "TensorArray") as scope:
            graph = get_default_graph()
            count = convert(size, int32, name="size")
            attrs = {
                "dtype": self._dtype,
                "element_shape": self._dims[0],
                "dynamic_size": self._dynamic,
                "clear_after_read": clear_after_read is not False,
                "tensor_array_name": tensor_array_name or "",
            }
            with self._unplaced(graph):
                self._handle, self._flow = make("TensorArrayV3", (count,), attrs, scope).outputs

    @contextmanager
    def _unplaced(self, graph: Graph) -> Iterator[None]:
        """A block without device scopes if the list will be colocated with the first value written."""
        if self._home is None:
            yield
            return
        with graph.device(None), graph.colocate_with(None, ignore_existing=True):
            yield

    @contextmanager
    def _beside(self, value: Tensor) -> Iterator[None]:
        if self._home is None:
            yield
            return
        if not self._home:
            self._home.append(value.op)
        with value.graph.colocate_with(self._home[0]):
            yield

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._dtype

    @property
    def handle(self) -> Tensor:
        """The handle of the list."""
        return self._handle

    @property
    def flow(self) -> Tensor:
        """The flow, which orders accesses to the list."""
        return self._flow

    @property
    def dynamic_size(self) -> bool:
        """Whether writes beyond the end extend the list."""
        return self._dynamic

    @property
    def element_shape(self) -> TensorShape:
        """The static shape of an element."""
        return TensorShape(self._dims[0])

    def _with(self, flow: Tensor) -> TensorArray:
        other = object.__new__(TensorArray)
        other._dtype, other._dims, other._infer_shape = self._dtype, self._dims, self._infer_shape
        other._dynamic, other._home = self._dynamic, self._home
        other._handle, other._flow = self._handle, flow
        return other

    def _flow_parts(self) -> Sequence[Tensor]:
        return (self._flow,)

    def _from_flow_parts(self, parts: Sequence[Tensor]) -> TensorArray:
        return self._with(parts[0])

    def _learn(self, dims: Dims) -> None:
        """Merge the static shape of a value that is written into the element shape."""
        try:
            merged = merge(self._dims[0], dims)
        except ValueError:
            raise ValueError(f"Inconsistent shapes: saw {text(dims)} but expected {text(self._dims[0])}") from None
        if self._infer_shape:
            self._dims[0] = merged

    def identity(self) -> TensorArray:
        """The same list, with a new flow node that is inside the current control dependencies."""
        return self._with(identity(self._flow))

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """The list with one element set. An element can be written only once. Writes to lists of gradients add up."""
        with self._handle.graph.op_scope(name or "TensorArrayWrite"):
            element = self._element(value)
            self._learn(element.dims)
            with self._beside(element), self._handle.graph.op_scope("TensorArrayWriteV3") as scope:
                inputs = (self._handle, convert(index, int32, name="index"), element, self._flow)
                return self._with(apply("TensorArrayWriteV3", inputs, None, scope))

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """One element."""
        with self._handle.graph.op_scope(name or "TensorArrayReadV3") as scope:
            inputs = (self._handle, convert(index, int32, name="index"), self._flow)
            return apply("TensorArrayReadV3", inputs, self._typed(), scope)

    def stack(self, name: str | None = None) -> Tensor:
        """All elements along a new first axis."""
        graph = self._handle.graph
        with graph.colocate_with(self._handle), graph.op_scope(name or "TensorArrayStack"):
            return self.gather(range_(0, self.size()))

    def gather(self, indices: Any, name: str | None = None) -> Tensor:
        """Some elements along a new first axis."""
        with self._handle.graph.op_scope(name or "TensorArrayGatherV3") as scope:
            inputs = (self._handle, convert(indices, int32, name="indices"), self._flow)
            return apply("TensorArrayGatherV3", inputs, self._typed(), scope)

    def concat(self, name: str | None = None) -> Tensor:
        """All elements concatenated along their first axis, in which their sizes may differ."""
        with self._handle.graph.op_scope(name or "TensorArrayConcatV3") as scope:
            node = make("TensorArrayConcatV3", (self._handle, self._flow), self._typed(), scope)
            return node.outputs[0]

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """The list with all elements set to the slices of a tensor along its first axis."""
        with self._handle.graph.op_scope(name or "TensorArrayUnstack"):
            tensor = self._element(value)
            return self.scatter(range_(0, shape(tensor)[0]), tensor)

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """The list with some elements set to the slices of a tensor along its first axis."""
        with self._handle.graph.op_scope(name or "TensorArrayScatter"):
            tensor = self._element(value)
            if tensor.dims == ():
                raise ValueError(f"{tensor!r} is a scalar: it has no slices along a first axis")
            self._learn(None if tensor.dims is None else tensor.dims[1:])
            with self._beside(tensor), self._handle.graph.op_scope("TensorArrayScatterV3") as scope:
                inputs = (self._handle, convert(indices, int32, name="indices"), tensor, self._flow)
                return self._with(apply("TensorArrayScatterV3", inputs, None, scope))

    def split(self, value: Any, lengths: Any, name: str | None = None) -> TensorArray:
        """The list with all elements set to pieces of these lengths of a tensor, along its first axis."""
        with self._handle.graph.op_scope(name or "TensorArraySplit"):
            tensor = self._element(value)
            with self._beside(tensor), self._handle.graph.op_scope("TensorArraySplitV3") as scope:
                counts = cast(convert(lengths, name="lengths"), int64)
                known = static_value(counts)
                rows = int(known.flat[0]) if known is not None and known.size and np.ptp(known) == 0 else None
                self._learn(None if tensor.dims is None else (rows, *tensor.dims[1:]))
                inputs = (self._handle, tensor, counts, self._flow)
                return self._with(apply("TensorArraySplitV3", inputs, None, scope))

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements. A Const if it is known statically and cannot change."""
        count = self._handle.op.inputs[0] if self._handle.op.type == "TensorArrayV3" else None
        if count is not None and count.op.type == "Const" and not self._dynamic:
            with self._handle.graph.as_default():
                return constant(count.op.attrs["value"], name="Const")
        return apply("TensorArraySizeV3", (self._handle, self._flow), None, name)

    def grad(self, source: str, flow: Tensor | None = None, name: str | None = None) -> TensorArray:
        """The list of gradients of this list's elements, for the `gradients` call `source`."""
        flow = self._flow if flow is None else flow
        graph = self._handle.graph
        with graph.op_scope(name or "TensorArrayGrad"), graph.colocate_with(self._handle):
            node = make("TensorArrayGradV3", (self._handle, flow), {"source": source}, "TensorArrayGradV3")
            with graph.control_dependencies([node]):
                flow = identity(flow, name="gradient_flow")
            return TensorArray(
                self._dtype, handle=node.outputs[0], flow=flow, infer_shape=self._infer_shape,
                element_shape=self._dims[0], colocate_with_first_write_call=False,
            )  # fmt: skip

    def close(self, name: str | None = None) -> Node:
        """A node that frees all elements."""
        return make("TensorArrayCloseV3", (self._handle,), None, name)

    def _element(self, value: Any) -> Tensor:
        with self._handle.graph.as_default():
            return convert(value, self._dtype, name="value")

    def _typed(self) -> dict[str, Any]:
        return {"dtype": self._dtype, "element_shape": self._dims[0]}

    def __repr__(self) -> str:
        return f"<dt.TensorArray '{self._handle.op.name}' of {self._dtype.name} {text(self._dims[0])}>"


def _graph_of(size: Any) -> Graph:
    return size.graph if isinstance(size, Tensor) else get_default_graph()


# --- gradients ------------------------------------------------------------------------------------------------


def _gradient_array(node: Node, flow: Tensor, like: Tensor) -> Any:
    """The list of gradients of the list that `node` accesses. `flow` is the list's flow, and `like` a tensor of its type."""
    array = TensorArray(
        node.attrs.get("dtype") or like.dtype.base, handle=node.inputs[0], flow=flow, infer_shape=False,
        element_shape=node.attrs.get("element_shape"), colocate_with_first_write_call=False,
    )  # fmt: skip
    return array.grad(node.graph.scopes.gradient_call)


def _read_gradient(node: Node, grad: Tensor) -> Sequence[Any]:
    _, index, flow = node.inputs
    return [None, None, _gradient_array(node, flow, grad).write(index, grad).flow]


def _gather_gradient(node: Node, grad: Tensor) -> Sequence[Any]:
    _, indices, flow = node.inputs
    return [None, None, _gradient_array(node, flow, grad).scatter(indices, grad).flow]


def _write_gradient(node: Node, flow: Tensor) -> Sequence[Any]:
    _, index, value, _ = node.inputs
    return [None, None, _gradient_array(node, flow, value).read(index), flow]


def _scatter_gradient(node: Node, flow: Tensor) -> Sequence[Any]:
    _, indices, value, _ = node.inputs
    return [None, None, _gradient_array(node, flow, value).gather(indices), flow]


def _concat_gradient(node: Node, grad: Tensor, _lengths: Any) -> Sequence[Any]:
    flow = node.inputs[1]
    return [None, _gradient_array(node, flow, grad).split(grad, node.outputs[1]).flow]


def _split_gradient(node: Node, flow: Tensor) -> Sequence[Any]:
    value = node.inputs[1]
    rows = _gradient_array(node, flow, value).concat()
    return [None, rows[: shape(value)[0]], None, flow]  # rows after those belong to elements that were written later


_RULES: dict[str, GradientRule] = {
    "Write": _write_gradient,
    "Scatter": _scatter_gradient,
    "Split": _split_gradient,
    "Read": _read_gradient,
    "Gather": _gather_gradient,
    "Concat": _concat_gradient,
}
for _op, _rule in _RULES.items():
    set_gradient(f"TensorArray{_op}V3", _rule)
