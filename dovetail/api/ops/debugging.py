"""`dt.debugging`: assertions about values. They are checked while the graph is built if the values are known, and otherwise in the step.

An assertion returns a node. It is only checked if the node runs, so use control dependencies.

>>> with dt.control_dependencies([dt.assert_positive(x)]):
...     y = dt.math.log(x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from ...graph.core.build import TensorLike, convert
from ...graph.core.constant_value import static_value
from ...graph.core.default_graph import get_default_graph
from ...graph.core.dtypes import DType, as_dtype, float32
from ...graph.core.errors import InvalidArgumentError
from ...graph.core.graph import Node, Tensor
from ...graph.ops.array.concat_stack import concat
from ...graph.ops.array.identity_and_placeholders import Assert, group, identity, no_op
from ...graph.ops.array.shapes import rank as rank_of, reshape, shape
from ...graph.ops.math.arithmetic import absolute, add, multiply, subtract
from ...graph.ops.math.compare import equal, greater, greater_equal, less, less_equal, logical_or, not_equal
from ...graph.ops.math.elementwise import is_finite, is_inf, is_nan
from ...graph.ops.math.reduce import reduce_all
from ...graph.tensors.sparse_tensor import SparseTensor

Data = Sequence[TensorLike] | None


def _assertion(
    holds: Tensor, text: str, given: dict[str, Tensor], data: Data, summarize: int | None, message: str | None
) -> Node:
    """A node that fails unless all elements of `holds` are true. If their values are constants, the error is raised immediately."""
    text = f"{message}\n{text}" if message else text
    known = static_value(holds)
    if known is not None and np.all(known):
        return no_op(name="static_checks_determined_all_ok")
    shown: list[Any] = [text]
    for name, tensor in given.items():
        shown += [f"{name} ({tensor.name}) = ", tensor]
    if known is not None:
        values = "; ".join(f"{name} ({t.name}) = {static_value(t)}" for name, t in given.items())
        raise InvalidArgumentError.of(f"{text}\n{values}")
    return Assert(reduce_all(holds), [text, *data] if data is not None else shown, summarize)


def _comparison(name: str, holds: Callable[[Tensor, Tensor], Tensor], operator: str) -> Callable[..., Node]:
    default = name

    def check(
        x: TensorLike,
        y: TensorLike,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Node:
        with get_default_graph().name_scope(name or default):
            a = convert(x, name="x")
            b = convert(y, dtype=None if isinstance(y, Tensor) else a.dtype.base, name="y")
            text = f"Condition x {operator} y did not hold element-wise:"
            return _assertion(holds(a, b), text, {"x": a, "y": b}, data, summarize, message)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""A node that fails its step unless x {operator} y, element by element.

    Args:
        x: a tensor.
        y: a tensor whose shape broadcasts with that of x.
        data: tensors to print in the error. None: x and y.
        summarize: number of elements to print of each tensor.
        message: start of the error message.
        name: name of the node.

    Raises:
        InvalidArgumentError: the assertion failed, in the step. If x and y are constants, the call itself raises it.
    """
    return check


def _sign(name: str, holds: Callable[[Tensor], Tensor], condition: str) -> Callable[..., Node]:
    default = name

    def check(
        x: TensorLike,
        data: Data = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Node:
        with get_default_graph().name_scope(name or default):
            a = convert(x, name="x")
            text = f"Condition x {condition} did not hold element-wise:"
            return _assertion(holds(a), text, {"x": a}, data, summarize, message)

    check.__name__ = check.__qualname__ = name
    check.__doc__ = f"""A node that fails its step unless x {condition} for all elements. Arguments and errors are as in `assert_equal`."""
    return check


assert_equal = _comparison("assert_equal", equal, "==")
assert_none_equal = _comparison("assert_none_equal", not_equal, "!=")
assert_less = _comparison("assert_less", less, "<")
assert_less_equal = _comparison("assert_less_equal", less_equal, "<=")
assert_greater = _comparison("assert_greater", greater, ">")
assert_greater_equal = _comparison("assert_greater_equal", greater_equal, ">=")


def _zero(x: Tensor) -> Tensor:
    return convert(0, dtype=x.dtype.base)


assert_positive = _sign("assert_positive", lambda x: less(_zero(x), x), "> 0")
assert_negative = _sign("assert_negative", lambda x: less(x, _zero(x)), "< 0")
assert_non_negative = _sign("assert_non_negative", lambda x: less_equal(_zero(x), x), ">= 0")
assert_non_positive = _sign("assert_non_positive", lambda x: less_equal(x, _zero(x)), "<= 0")


def assert_near(
    x: TensorLike,
    y: TensorLike,
    rtol: float | None = None,
    atol: float | None = None,
    data: Data = None,
    summarize: int | None = None,
    message: str | None = None,
    name: str | None = None,
) -> Node:
    """A node that fails its step unless |x - y| <= atol + rtol * |y| for all elements.

    Args:
        x: a floating tensor.
        y: a tensor whose shape broadcasts with that of x.
        rtol: relative tolerance. None: 10 times the machine epsilon of the dtype of x.
        atol: absolute tolerance. None: the same default.

    The other arguments and the errors are as in `assert_equal`.
    """
    with get_default_graph().name_scope(name or "assert_near"):
        a = convert(x, name="x")
        b = convert(y, dtype=None if isinstance(y, Tensor) else a.dtype.base, name="y")
        default = 10 * float(np.finfo(a.dtype.base.np).eps)
        limit = add(multiply(absolute(b), default if rtol is None else rtol), default if atol is None else atol)
        holds = less_equal(absolute(subtract(a, b)), limit)
        return _assertion(holds, "x and y not equal to tolerance", {"x": a, "y": b}, data, summarize, message)


# --- ranks and types --------------------------------------------------------------------------------------------------


def _rank_assertion(
    x: TensorLike, ranks: Sequence[Any], fits: Callable[[int], bool], holds: Callable[[Tensor], Tensor], expected: str, data: Data,
    summarize: int | None, message: str | None, name: str,
) -> Node:  # fmt: skip
    with get_default_graph().name_scope(name):
        a = convert(x, name="x")
        known = a.shape.rank
        text = f"{message or ''} Tensor {a.name} must have rank {expected}.".strip()
        if known is None or any(isinstance(r, Tensor) for r in ranks):
            return _assertion(holds(rank_of(a)), text, {"x": a}, data, summarize, None)
        if not fits(known):
            raise ValueError(f"{text}  Received rank {known}, shape {a.shape}")
        return no_op(name="static_checks_determined_all_ok")


def _static_rank(rank: Any) -> Any:
    """The rank as an int if its value is known, else as a tensor.

    Raises:
        ValueError: the rank is not a scalar.
        TypeError: the rank is not an integer.
    """
    known = static_value(rank) if isinstance(rank, Tensor) else np.asarray(rank)
    kind = rank.dtype.base.np if known is None else known.dtype
    if (known is None or known.size) and np.dtype(kind).kind not in "iu":
        raise TypeError(f"a rank must be of type <dtype: 'int32'>, not {kind}")
    if known is not None and known.ndim:
        raise ValueError(f"Rank must be a scalar, not of shape {known.shape}.")
    return rank if known is None else int(known)


def assert_rank(
    x: TensorLike, rank: TensorLike, data: Data = None, summarize: int | None = None, message: str | None = None,
    name: str | None = None,
) -> Node:  # fmt: skip
    """A node that fails its step unless x has the rank `rank`.

    Raises:
        ValueError: the static rank of x differs.
        InvalidArgumentError: the rank of x differs, in the step.
    """
    rest = data, summarize, message, name or "assert_rank"
    number = _static_rank(rank)
    return _rank_assertion(x, [number], lambda r: r == number, lambda r: equal(r, number), str(number), *rest)


def assert_rank_at_least(
    x: TensorLike, rank: TensorLike, data: Data = None, summarize: int | None = None, message: str | None = None,
    name: str | None = None,
) -> Node:  # fmt: skip
    """A node that fails its step unless the rank of x is at least `rank`. Errors are as in `assert_rank`."""
    rest = data, summarize, message, name or "assert_rank_at_least"
    number = _static_rank(rank)
    return _rank_assertion(
        x, [number], lambda r: r >= number, lambda r: greater_equal(r, number), f"at least {number}", *rest
    )


def assert_rank_in(
    x: TensorLike, ranks: Sequence[TensorLike], data: Data = None, summarize: int | None = None, message: str | None = None,
    name: str | None = None,
) -> Node:  # fmt: skip
    """A node that fails its step unless the rank of x is one of `ranks`. Errors are as in `assert_rank`."""
    rest = data, summarize, message, name or "assert_rank_in"
    numbers = [_static_rank(rank) for rank in ranks]
    one_of = f"in {tuple(numbers)}"
    return _rank_assertion(
        x, numbers, lambda r: r in numbers, lambda r: reduce(logical_or, [equal(r, k) for k in numbers]), one_of, *rest
    )


def assert_shapes(
    shapes: Any, data: Data = None, summarize: int | None = None, message: str | None = None, name: str | None = None
) -> Node:
    """A node that fails its step unless tensors have the given sizes.

    Args:
        shapes: pairs of a tensor and its sizes, or a dict from tensors to sizes. A size is a number, a symbol that stands for the same
            size everywhere, or None or "." for any size. `...` or "*" as the first size matches any number of axes. A string has one
            character per size: "2N". If the sizes are None, the tensor is not checked. A scalar counts as a vector of one element.
        data: tensors to print in the error.
        summarize: number of elements to print of each tensor.
        message: start of the error message.
        name: name of the node.

    Raises:
        ValueError: static sizes differ, or the sizes are not an iterable.
        InvalidArgumentError: sizes differ, in the step.

    >>> check = assert_shapes([(x, ("batch", 3)), (y, ("batch",))])
    """
    pairs = shapes.items() if isinstance(shapes, dict) else shapes
    with get_default_graph().name_scope(name or "assert_shapes"):
        checks: list[Node] = []
        seen: dict[Any, tuple[Any, str]] = {}
        for value, sizes in pairs:
            if sizes is not None:
                checks += _sizes(convert(value), sizes, seen, data, summarize, message or "")
        found = group(*checks)
        assert isinstance(found, Node)
        return found


def _sizes(
    x: Tensor, sizes: Any, seen: dict[Any, tuple[Any, str]], data: Data, summarize: int | None, message: str
) -> list[Node]:
    """The checks of one tensor. `seen` has the size of each symbol, and a text that says which tensor defined it."""
    if not hasattr(sizes, "__iter__"):
        raise ValueError(
            f"{message}.  Tensor {x.name}.  Specified shape must be an iterable.  An iterable has the attribute `__iter__` or "
            f"`__getitem__`.  Received specified shape: {sizes}"
        )
    symbols = list(sizes)
    inner = bool(symbols) and symbols[0] in (..., "*")
    symbols = symbols[1:] if inner else symbols
    for i, symbol in enumerate(symbols):
        if symbol in (..., "*"):
            raise ValueError(
                f"{message}.  Tensor {x.name} specified shape index {i + inner}.  Symbol `...` or `*` for a variable number of "
                "unspecified dimensions is only allowed as the first entry"
            )
    count = len(symbols)
    if inner:
        checks = [] if count < 2 else [assert_rank_at_least(x, count, data, summarize, message)]
    elif count < 2:
        symbols = symbols or [1]
        checks = [assert_rank_in(x, (0, 1), data, summarize, message)]
    else:
        checks = [assert_rank(x, count, data, summarize, message)]
    with get_default_graph().control_dependencies(checks):
        vector = x if x.shape.rank != 0 else reshape(x, [1])
        actual = (
            concat([shape(vector), [1]], 0)[:1] if x.shape.rank is None and count < 2 and not inner else shape(vector)
        )
    for i, symbol in enumerate(symbols):
        if symbol is None or symbol == ".":
            continue
        axis = i - len(symbols) if inner else i
        known = None if vector.dims is None else vector.dims[axis]
        size: Any = actual[axis] if known is None else known
        number = isinstance(symbol, (int, np.integer)) or str(symbol).isdigit()
        if not number and symbol not in seen:
            seen[symbol] = size, f"Specified by tensor {x.name} dimension {axis}"
            continue
        expected, source = (int(symbol), "Specified explicitly") if number else seen[symbol]
        if not isinstance(expected, Tensor) and not isinstance(size, Tensor):
            if expected != size:
                raise ValueError(
                    f"{message}.  {source}.  Tensor {x.name} dimension {axis} must have size {expected}.  "
                    f"Received size {size}, shape {x.shape}"
                )
            continue
        where = f"Tensor {x.name} dimension"
        shown = [message, source, where, axis, "must have size", expected, "Received shape: ", shape(x)]
        checks.append(Assert(equal(size, expected), shown if data is None else data, summarize))
    return checks


def assert_scalar(tensor: TensorLike, name: str | None = None, message: str | None = None) -> Tensor:
    """The tensor. ValueError: its static shape is not a scalar's."""
    found = convert(tensor)
    if found.shape.rank not in (None, 0):
        raise ValueError(f"{message or ''}Expected scalar shape for {found.name}, saw shape: {found.shape}.")
    return found


def assert_type(tensor: TensorLike, tf_type: Any, message: str | None = None, name: str | None = None) -> Node:
    """Check the dtype of a tensor, and return a node that does nothing. TypeError: the dtype is not `tf_type`."""
    found, expected = convert(tensor), as_dtype(tf_type)
    if found.dtype.base is not expected.base:
        raise TypeError(f"{message or ''} {found.name} must be of type {expected.name}, not {found.dtype.name}".strip())
    return no_op(name=name or "static_checks_determined_all_ok")


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> Node:
    """Check that the dtype of a tensor is an integer type, and return a node that does nothing. TypeError: it is not."""
    found = convert(x)
    if not found.dtype.base.is_integer:
        raise TypeError(f"{message or ''} Expected integer type, {found.name} is {found.dtype.name}".strip())
    return no_op(name=name or "static_checks_determined_all_ok")


# --- finite numbers ---------------------------------------------------------------------------------------------------


def check_numerics(tensor: TensorLike, message: str, name: str | None = None) -> Tensor:
    """The tensor, with a check for NaN and infinity.

    Args:
        tensor: a floating tensor.
        message: start of the error message.
        name: name of the node.

    Raises:
        InvalidArgumentError: an element is NaN or infinite, in the step.
    """
    graph = get_default_graph()
    with graph.name_scope(name or "CheckNumerics"):
        found = convert(tensor)
        check = Assert(reduce_all(is_finite(found)), [f"{message} : Tensor {found.name} had Inf or NaN values"])
        with graph.control_dependencies([check]):
            passed: Tensor = identity(found)
            return passed


def assert_all_finite(t: TensorLike, msg: str, name: str | None = None) -> Tensor:
    """The same as `check_numerics`."""
    return check_numerics(t, msg, name or "VerifyFinite")


verify_tensor_all_finite = assert_all_finite


def add_check_numerics_ops() -> Node:
    """A node that checks each floating tensor of the default graph for NaN and infinity.

    Raises:
        ValueError: the graph has branches or loops. Their tensors cannot be checked from outside.
    """
    graph = get_default_graph()
    checks = []
    for node in graph.get_operations():
        if node.type in ("Switch", "Merge", "Enter", "Exit", "NextIteration"):
            raise ValueError("tf.add_check_numerics_ops() is not compatible with TensorFlow control flow operations")
        for tensor in node.outputs:
            if tensor.dtype.base.is_floating and not tensor.dtype.is_ref:
                with graph.colocate_with(node):
                    text = f"{tensor.name} had Inf or NaN values"
                    checks.append(Assert(reduce_all(is_finite(tensor)), [text]))
    found = group(*checks)
    assert isinstance(found, Node)
    return found


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element of x, flattened, is at least the one before it."""
    return _neighbours_hold(x, less_equal, name or "is_non_decreasing")


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """Whether each element of x, flattened, is greater than the one before it."""
    return _neighbours_hold(x, less, name or "is_strictly_increasing")


def _neighbours_hold(x: TensorLike, holds: Callable[[Tensor, Tensor], Tensor], name: str) -> Tensor:
    with get_default_graph().name_scope(name):
        flat = reshape(convert(x), [-1])
        found: Tensor = reduce_all(holds(flat[:-1], flat[1:]))
        return found


def assert_proper_iterable(values: Any) -> None:
    """Raise a TypeError unless the argument is iterable and is not a tensor, array or string."""
    if isinstance(values, (Tensor, SparseTensor, np.ndarray, str, bytes)):
        raise TypeError(f'Expected argument "values" to be a "proper" iterable.  Found: {type(values)}')
    if not hasattr(values, "__iter__"):
        raise TypeError(f'Expected argument "values" to be iterable.  Found: {type(values)}')


def assert_same_float_dtype(tensors: Sequence[Any] | None = None, dtype: Any = None) -> DType:
    """The common floating dtype of all tensors.

    Args:
        tensors: the tensors; elements of None are ignored.
        dtype: the dtype that all must have. None: that of the first tensor, or float32 if there are no tensors.

    Raises:
        ValueError: dtypes differ, or the dtype is not floating.
    """
    found = None if dtype is None else as_dtype(dtype).base
    for tensor in tensors or ():
        if tensor is None:
            continue
        own = tensor.dtype.base
        if found is not None and own is not found:
            raise ValueError(f"{tensor!r}, type={own.name}, must be of the same type ({found.name}) as the others.")
        found = own
    found = found or float32
    if not found.is_floating:
        raise ValueError(f"Expected floating point type, got {found.name}.")
    return found


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether the argument is a tensor of numbers."""
    return isinstance(tensor, Tensor) and (
        tensor.dtype.base.is_integer or tensor.dtype.base.is_floating or tensor.dtype.base.is_complex
    )


__all__ = [
    "add_check_numerics_ops",
    "assert_all_finite",
    "assert_equal",
    "assert_greater",
    "assert_greater_equal",
    "assert_integer",
    "assert_less",
    "assert_less_equal",
    "assert_near",
    "assert_negative",
    "assert_non_negative",
    "assert_non_positive",
    "assert_none_equal",
    "assert_positive",
    "assert_proper_iterable",
    "assert_rank",
    "assert_rank_at_least",
    "assert_rank_in",
    "assert_same_float_dtype",
    "assert_scalar",
    "assert_shapes",
    "assert_type",
    "check_numerics",
    "is_inf",
    "is_nan",
    "is_non_decreasing",
    "is_numeric_tensor",
    "is_strictly_increasing",
    "verify_tensor_all_finite",
]
