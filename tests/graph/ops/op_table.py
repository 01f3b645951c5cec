"""The table of op tests: one row per use of an op, and what is checked of every row.

A row names the op, builds it, gives inputs, and says what must come out in plain NumPy that does not call the
op's own reference. From that follow, for each element type: the inferred type and shape against the result,
with sizes known and unknown; the values; and the gradient against central differences. Rows stand in the
files cases_*.py beside this one:

    CASES = [
        OpCase("Square", square, [real(2, 3)], lambda x: x**2, FLOATS),
    ]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from reference_interpreter import Interpreter

import dovetail.graph.ops.all  # noqa: F401 - Python's operators find their functions once the ops are defined
from dovetail.graph.core.build import apply, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.dtypes import DType, as_dtype
from dovetail.graph.core.graph import Graph, Tensor
from dovetail.graph.core.shape import compatible, text
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.tensors.indexed_slices import IndexedSlices

Array = npt.NDArray[Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMBERS = FLOATS + INTEGERS

# Relative error allowed per type: a few units in the last place, more for the types whose rounding the oracle
# does not follow.
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5, "float64": 1e-11}


@dataclass(frozen=True, slots=True)
class OpCase:
    """One row.

    Attributes:
        op: the op's type; a node of that type must come out of `build`.
        build: makes the tensor, or the list of tensors, from tensors for the inputs.
        inputs: arrays. A float64 array stands for "the type under test"; arrays of any other type keep
            theirs.
        oracle: the inputs as arrays -> what must come out, by plain NumPy. Half precision inputs arrive as
            float32 of the same value. Its result is compared as values: the types are checked against the
            inferred ones.
        dtypes: types under test.
        grad: whether the gradient with respect to all float64 inputs is checked; or the positions of those
            that are.
        unknown: check also with the inputs' sizes unknown ("dims") and their ranks unknown ("rank"); a row
            that cannot be built so (a documented need of the op) leaves it out.
        dynamic: the result's shape depends on values, so that its sizes need not be inferred.
        rtol: relative error allowed instead of the type's usual one, scaled for each type from float32.
        label: tells rows of one op apart in test names.
    """

    op: str
    build: Callable[..., Any]
    inputs: Sequence[Any]
    oracle: Callable[..., Any]
    dtypes: tuple[str, ...] = ("float32",)
    grad: bool | tuple[int, ...] = False
    unknown: tuple[str, ...] = ("dims", "rank")
    dynamic: bool = False
    rtol: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class ScriptCase:
    """A row for ops that no oracle describes (state, randomness): `script` runs and asserts what it likes.

    `ops` are the types that it covers; `script` gets a fresh default graph and gives nothing, or that graph.
    """

    ops: tuple[str, ...]
    script: Callable[[], Any]
    label: str = field(default="")


def real(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Random float64 numbers, all different and away from 0 and from whole numbers, where functions have
    kinks.
    """
    rng = np.random.default_rng((seed, *shape))
    x = rng.uniform(low, high, shape)
    near = np.abs(x - np.rint(x)) < 0.05
    return np.where(near, x + 0.1, x)


def whole(*shape: int, low: int = -5, high: int = 6, seed: int = 0) -> Array:
    """Random whole numbers as float64: values of the type under test, for rows that also run on integers."""
    return np.random.default_rng((seed, *shape)).integers(low, high, shape).astype(np.float64)


def index(*values: Any) -> Array:
    """An int32 array, which keeps its type."""
    return np.array(values[0] if len(values) == 1 else values, np.int32)


# --- the checks ---------------------------------------------------------------------------------------------


def op_of(name: str, **attrs: Any) -> Callable[..., Any]:
    """A function that builds a node of an op."""
    return lambda *inputs: apply(name, inputs, dict(attrs))


def interpreted(fetches: Any, feeds: Any = None) -> Any:
    """Values of the default graph, by the interpreter, which checks types and shapes."""
    return Interpreter(get_default_graph(), check=True).run(fetches, feeds)


def check_values(case: OpCase, dtype_name: str, knowledge: str) -> None:
    """Types, shapes and values.

    Args:
        case: the row.
        dtype_name: the type under test.
        knowledge: what is known of the inputs' shapes: "all", "dims" (their ranks only) or "rank" (nothing).
    """
    dtype = as_dtype(dtype_name)
    arrays = [_typed(a, dtype) for a in case.inputs]
    with Graph().as_default() as graph:
        inputs = _placeholders(arrays, knowledge)
        outputs = _as_list(case.build(*inputs))
        _assert_contains(graph, case.op)
        results = Interpreter(graph, check=True).run(outputs, dict(zip(inputs, arrays, strict=True)))
    expected = _as_list(case.oracle(*[_widened(a) for a in arrays]))
    assert len(results) == len(expected), f"{len(results)} outputs, the oracle gives {len(expected)}"
    for tensor, result, value in zip(outputs, results, expected, strict=True):
        assert np.shape(result) == np.shape(value), (
            f"{tensor}: shape {np.shape(result)}, the oracle says {np.shape(value)}"
        )
        assert compatible(np.shape(result), tensor.dims), (
            f"{tensor}: inferred {text(tensor.dims)}, is {np.shape(result)}"
        )
        if knowledge == "all" and not case.dynamic:
            assert tensor.dims == np.shape(result), (
                f"{tensor}: inferred {text(tensor.dims)}, could know {np.shape(result)}"
            )
        _assert_close(result, value, case, tensor)


def check_gradient(case: OpCase, knowledge: str) -> None:
    """The gradient against central differences, in float64."""
    double = as_dtype("float64")
    arrays = [_typed(a, double) for a in case.inputs]
    floating = [i for i, a in enumerate(arrays) if a.dtype == np.float64]
    wrt = floating if case.grad is True else [i for i in floating if i in (case.grad or ())]
    assert wrt, "a row with grad=True needs a float64 input"
    with Graph().as_default() as graph:
        inputs = _placeholders(arrays, knowledge)
        outputs = [t for t in _as_list(case.build(*inputs)) if t.dtype is double]
        run = Interpreter(graph, check=True).run
        feeds = dict(zip(inputs, arrays, strict=True))
        # Random weights, so that errors of different elements cannot cancel.
        weights = [real(*np.shape(v), seed=7) for v in run(outputs, feeds)]
        grads = gradients(outputs, [inputs[i] for i in wrt], grad_ys=weights)
        for i, g in zip(wrt, grads, strict=True):
            assert g is not None, f"no gradient reaches input {i}"
        analytic = run([_dense(g, arrays[i]) for i, g in zip(wrt, grads, strict=True)], feeds)

        def total(changed: dict[Tensor, Array]) -> float:
            return sum(float(np.sum(v * w)) for v, w in zip(run(outputs, changed), weights, strict=True))

        for i, found in zip(wrt, analytic, strict=True):
            assert found.shape == arrays[i].shape, f"gradient of input {i}: shape {found.shape}, not {arrays[i].shape}"
            numeric = _central_differences(lambda x, i=i: total({**feeds, inputs[i]: x}), arrays[i])
            np.testing.assert_allclose(found, numeric, rtol=2e-5, atol=2e-6, err_msg=f"gradient of input {i}")


def _central_differences(f: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        moved = x.copy()
        moved[at] = x[at] + step
        above = f(moved)
        moved[at] = x[at] - step
        out[at] = (above - f(moved)) / (2 * step)
    return out


def _typed(value: Any, dtype: DType) -> Array:
    array = np.asarray(value)
    return array.astype(dtype.np) if array.dtype == np.float64 else array


def _widened(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind not in "iu" else array


def _placeholders(arrays: Sequence[Array], knowledge: str) -> list[Tensor]:
    def shape(a: Array) -> Any:
        return {"all": a.shape, "dims": [None] * a.ndim, "rank": None}[knowledge]

    return [placeholder(as_dtype(a.dtype), shape(a), name=f"input_{i}") for i, a in enumerate(arrays)]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _dense(grad: Any, like: Array) -> Tensor:
    if isinstance(grad, IndexedSlices) and grad.dense_shape is None:
        grad = IndexedSlices(grad.values, grad.indices, np.array(like.shape, np.int32))
    tensor: Tensor = grad._as_tensor() if isinstance(grad, IndexedSlices) else grad
    return tensor


def _assert_contains(graph: Graph, op: str) -> None:
    assert any(n.type == op for n in graph.nodes), f"no {op} was built, only {sorted({n.type for n in graph.nodes})}"


def _assert_close(result: Array, expected: Any, case: OpCase, tensor: Tensor) -> None:
    name = tensor.dtype.base.name
    if not tensor.dtype.is_floating:
        np.testing.assert_array_equal(result, expected, err_msg=str(tensor))
        return
    rtol = _TOLERANCE[name]
    if case.rtol is not None:
        rtol *= case.rtol / _TOLERANCE["float32"]
    with np.errstate(all="ignore"):
        rounded = np.asarray(expected).astype(tensor.dtype.np)  # what the type cannot hold is infinite for both
        wide = result.astype(np.float64), rounded.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=rtol, atol=rtol, err_msg=str(tensor))


def run_script(case: ScriptCase) -> None:
    """Run a script in a fresh graph; each op that it claims to cover must have been built."""
    with Graph().as_default() as graph:
        built = case.script()
        for op in case.ops:
            _assert_contains(built if isinstance(built, Graph) else graph, op)
