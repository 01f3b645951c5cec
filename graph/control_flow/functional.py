"""Functions that apply a function to each element along the first axis, by a loop in the graph: `map_fn`, `scan`.

Elements may be nested structures of tensors that all have the same size along the first axis. The loop reads each element from a
`TensorArray`, so it processes one element at a time. So do the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.build import constant, convert
from ..core.graph import Tensor
from ..core.nest import flatten, map_structure, pack, same_structure
from ..ops.array.shapes import shape
from ..ops.control.tensor_array import TensorArray
from .cond_while import graph_of_values, while_loop


def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Any:
    """Apply `fn` to each element along the first axis, and stack the results.

    Args:
        fn: function of an element, which has the structure of `elems`.
        elems: a tensor, or a structure of tensors of the same size along the first axis.
        dtype: types of the results, in their structure. If it is None, those of `elems`.
        parallel_iterations: as in `while_loop`.
        back_prop: as in `while_loop`.
        swap_memory: as in `while_loop`.
        infer_shape: whether all results have the same shape.
        name: scope of the nodes.

    Returns:
        The results, stacked along a new first axis.

    Raises:
        TypeError: `fn` is not callable, or returns another structure or type than `dtype`.
        ValueError: a tensor of `elems` is a scalar, or their sizes along the first axis differ.

    >>> map_fn(lambda x: x * x, constant([1, 2, 3]))   # evaluates to [1, 4, 9]
    """
    if not callable(fn):
        raise TypeError("fn must be a function")
    with graph_of_values(flatten(elems)).op_scope(name or "map"):
        inputs, count, static = elements_of(elems)
        types = dtype if dtype is not None else map_structure(lambda t: t.dtype.base, inputs)
        sources = [unstacked(t, count) for t in flatten(inputs)]
        first = constant(0)
        results = [TensorArray(t, size=count, infer_shape=infer_shape, dynamic_size=False) for t in flatten(types)]

        def body(i: Tensor, arrays: list[TensorArray]) -> Any:
            value = fn(pack(inputs, [a.read(i) for a in sources]))
            same_structure(types, value, ("dtype", "the result of fn"))
            return i + 1, [a.write(i, v) for a, v in zip(arrays, flatten(value), strict=True)]

        _, results = while_loop(
            lambda i, *_: i < count, body, (first, results), parallel_iterations=parallel_iterations or 10,
            back_prop=back_prop, swap_memory=swap_memory, maximum_iterations=count,
        )  # fmt: skip
        return pack(types, [_stacked(a, static) for a in results])


def scan(
    fn: Callable[[Any, Any], Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """Fold `fn` along the first axis, and stack all its results.

    Args:
        fn: function of its previous result and the next element.
        elems: a tensor, or a structure of tensors of the same size along the first axis.
        initializer: the previous result for the first element. If it is None, the first element is the first result.
        parallel_iterations: as in `while_loop`.
        back_prop: as in `while_loop`.
        swap_memory: as in `while_loop`.
        infer_shape: whether all results have the same shape.
        reverse: whether to begin with the last element.
        name: scope of the nodes.

    Raises:
        TypeError: `fn` is not callable, or returns another structure than `initializer`.
        ValueError: a tensor of `elems` is a scalar, or their sizes along the first axis differ.

    >>> scan(lambda total, x: total + x, constant([1, 2, 3]))   # evaluates to [1, 3, 6]
    """
    if not callable(fn):
        raise TypeError("fn must be a function")
    with graph_of_values(flatten(elems)).op_scope(name or "scan"):
        inputs, count, static = elements_of(elems)
        sources = [unstacked(t, count) for t in flatten(inputs)]
        first_index = count - 1 if reverse else constant(0) if isinstance(count, Tensor) else 0
        if initializer is None:
            start = pack(inputs, [a.read(first_index) for a in sources])
            begin = 1
        else:
            start = map_structure(convert, initializer)
            begin = 0
        results = [
            TensorArray(
                t.dtype.base, size=count, dynamic_size=False, infer_shape=infer_shape,
                element_shape=t.dims if infer_shape else None,
            )
            for t in flatten(start)
        ]  # fmt: skip
        if initializer is None:
            results = [a.write(first_index, t) for a, t in zip(results, flatten(start), strict=True)]

        def body(i: Tensor, last: Any, arrays: list[TensorArray]) -> Any:
            value = fn(last, pack(inputs, [a.read(i) for a in sources]))
            same_structure(start, value, ("initializer", "the result of fn"))
            written = [a.write(i, v) for a, v in zip(arrays, flatten(value), strict=True)]
            return (i - 1 if reverse else i + 1), pack(start, flatten(value)), written

        index = count - 1 - begin if reverse else begin
        _, _, results = while_loop(
            lambda i, *_: i >= 0 if reverse else i < count, body, (index, start, results), parallel_iterations=parallel_iterations,
            back_prop=back_prop, swap_memory=swap_memory, maximum_iterations=count,
        )  # fmt: skip
        return pack(start, [_stacked(a, static) for a in results])


# --- shared parts ---------------------------------------------------------------------------------------------


def elements_of(elems: Any) -> tuple[Any, Any, int | None]:
    """The tensors, their size along the first axis (a tensor if it is not known statically), and its static value or None."""
    tensors = map_structure(lambda e: convert(e, name="elem"), elems)
    leaves = flatten(tensors)
    if not leaves:
        raise ValueError("elems must hold at least one tensor")
    static: int | None = None
    for t in leaves:
        if t.dims == ():
            raise ValueError(f"{t!r} is a scalar, which has no first axis")
        size = t.dims[0] if t.dims is not None else None
        if size is not None and static is not None and size != static:
            raise ValueError(f"The tensors have {static} and {size} elements along the first axis, which must be equal")
        static = size if size is not None else static
    return tensors, static if static is not None else shape(leaves[0])[0], static


def unstacked(tensor: Tensor, count: Any) -> TensorArray:
    dims = None if tensor.dims is None else tensor.dims[1:]
    array = TensorArray(tensor.dtype.base, size=count, dynamic_size=False, element_shape=dims)
    return array.unstack(tensor)


def _stacked(array: TensorArray, count: int | None) -> Tensor:
    tensor = array.stack()
    if tensor.dims is not None:
        tensor.set_shape([count, *tensor.dims[1:]])
    return tensor
