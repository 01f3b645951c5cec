"""Python functions as nodes: `py_func`, `numpy_function`, `py_function`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import convert, graph_of, make, to_array
from ....graph.core.dtypes import Array, DType, as_dtype, string
from ....graph.core.errors import OpError, UnknownError, invalid
from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import Attrs, Output, Trait, define, typed_attr
from ....graph.ops.control.python_function import MEANING, function_of, process_nonce, register
from ....graph.ops.math.static_operands import op_scope


class EagerArray(np.ndarray[Any, Any]):
    """What a `py_function` gets: an array that also answers `.numpy()`, as TensorFlow's eager tensors do."""

    def numpy(self) -> Array:
        """The plain array."""
        return np.asarray(self)


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for name in ("token", "process"):
        typed_attr(attrs, name, str)
    types = attrs.get("Tout")
    if not isinstance(types, (tuple, list)) or not all(isinstance(t, DType) for t in types):
        raise TypeError(f"Tout must be a list of element types, not {types!r}")
    return [(t.base, None) for t in types]


def _call(inputs: Sequence[Array], token: str, process: str, types: Sequence[DType], eager: bool) -> Any:
    function = function_of(token)
    if function is None or process != process_nonce():
        raise invalid(
            "A Python function runs only in the client's own process, where its graph was built, and this is "
            "another one. "
            "Put the node on the client's task, or feed what the function computes."
        )
    # Copies, so that the function may modify them. A scalar is NumPy's own, or bytes, as in TensorFlow.
    arguments = [np.array(x).view(EagerArray) if eager else np.array(x)[()] for x in inputs]
    try:
        result = function(*arguments)
    except OpError:
        raise
    except Exception as e:
        error = next((c for kind, c in MEANING.items() if isinstance(e, kind)), UnknownError)
        raise error(None, None, f"{type(e).__name__}: {e}\n{traceback.format_exc()}") from e
    results = _as_results(result, len(types))
    if len(results) != len(types):
        raise invalid(f"The Python function returned {len(results)} values, Tout asks for {len(types)}")
    arrays = [_as_array(r, t, i) for i, (r, t) in enumerate(zip(results, types, strict=True))]
    return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _as_results(result: Any, wanted: int) -> list[Any]:
    """What a function returned as a list.

    For one expected value, a list of length one holds it, as in TensorFlow; a longer list is that value.
    """
    if wanted == 0:
        return []  # what a function called for its effect returns does not matter
    if isinstance(result, (tuple, list)) and (wanted > 1 or len(result) == 1):
        return list(result)
    return [result]


def _as_array(value: Any, dtype: DType, i: int) -> Array:
    """A result as an array of the promised type; a Python number or list takes it, an array must have it."""
    text = dtype is string
    if isinstance(value, (np.ndarray, np.generic)) and not text and value.dtype != dtype.np:
        raise invalid(f"{i}-th value returned by the Python function is {value.dtype}, but expects {dtype.name}")
    try:
        return to_array(value if text else np.asarray(value), dtype)
    except (TypeError, ValueError, OverflowError) as e:
        raise invalid(f"{i}-th value returned by the Python function: {e}") from None


def _no_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    raise LookupError(
        f"py_function '{node.name}' (created at {node.source}) has no gradient: what a Python function does is "
        "not known. "
        "Write it with graph ops, or wrap its inputs in stop_gradient"
    )


define(
    "PyFunc",
    infer=_rule,
    reference=lambda context, *inputs, token, process, Tout: _call(inputs, token, process, Tout, False),
    traits=Trait.STATEFUL | Trait.HOST_ONLY | Trait.UNBOUNDED,
    device_types=("CPU",),
)


define(
    "PyFuncStateless",
    infer=_rule,
    reference=lambda *inputs, token, process, Tout: _call(inputs, token, process, Tout, False),
    traits=Trait.HOST_ONLY | Trait.UNBOUNDED,
    device_types=("CPU",),
)


define(
    "EagerPyFunc",
    infer=_rule,
    reference=lambda context, *inputs, token, process, Tout: _call(inputs, token, process, Tout, True),
    gradient=_no_gradient,
    traits=Trait.STATEFUL | Trait.HOST_ONLY | Trait.UNBOUNDED,
    device_types=("CPU",),
)


def _python_node(op: str, func: Callable[..., Any], inp: Any, Tout: Any, name: str | None) -> Any:
    if not callable(func):
        raise TypeError(f"A function is needed, not {func!r}")
    several = isinstance(Tout, (list, tuple))
    types = tuple(as_dtype(t).base for t in (Tout if several else [Tout]))
    values = list(inp) if isinstance(inp, (list, tuple)) else [inp]
    with op_scope(name, op, *values) as scope:
        tensors = [convert(v, name=f"input_{i}") for i, v in enumerate(values)]
        attrs = {"token": register(func, graph_of(*tensors)), "process": process_nonce(), "Tout": types}
        node = make(op, tensors, attrs, scope)
    if not types:
        return node
    return list(node.outputs) if several else node.outputs[0]


def py_func(func: Callable[..., Any], inp: Any, Tout: Any, stateful: bool = True, name: str | None = None) -> Any:
    """Call a Python function with NumPy arrays in each step, in the process that built the graph.

    Args:
        func: takes one array per input; returns an array (or number), or a list of them. It must not modify
            the graph.
        inp: list of tensors.
        Tout: element type, or list of element types, of what it returns.
        stateful: False promises that equal inputs give equal outputs, so that a call may be merged or left
            out.

    Returns:
        A tensor, or a list of tensors when `Tout` is a list; of unknown shape. The node, when `Tout` is an
        empty list.

    Raises:
        InvalidArgumentError: the function returned other types, or runs in another process; errors of the
            function arrive as errors of the step. No gradient flows through it.
    """
    return _python_node("PyFunc" if stateful else "PyFuncStateless", func, inp, Tout, name)


def numpy_function(
    func: Callable[..., Any], inp: Any, Tout: Any, stateful: bool = True, name: str | None = None
) -> Any:
    """`py_func` under TensorFlow's later name."""
    return py_func(func, inp, Tout, stateful, name)


def py_function(func: Callable[..., Any], inp: Any, Tout: Any, name: str | None = None) -> Any:
    """`py_func` whose arrays also answer `.numpy()`. Asking for a gradient through it raises LookupError."""
    return _python_node("EagerPyFunc", func, inp, Tout, name)


explain_members(sys.modules[__name__])
