"""Any slice that NumPy takes gives what NumPy gives; its shape is inferred from however much is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, strategies as st
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.shape import compatible
from dovetail.graph.gradients.reverse import gradients


@st.composite
def slices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """A shape, and a key that fits it."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    end = st.none() | st.integers(-7, 7)
    used = draw(st.integers(0, len(shape)))
    key: list[Any] = []
    front = draw(st.integers(0, used))
    axes = [*range(front), *range(len(shape) - (used - front), len(shape))]
    for axis in axes:
        if draw(st.booleans()):
            key.append(draw(st.integers(-shape[axis], shape[axis] - 1)))
        else:
            step = draw(st.none() | st.integers(-3, 3).filter(bool))
            key.append(slice(draw(end), draw(end), step))
    key.insert(front, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        key.insert(draw(st.integers(0, len(key))), None)
    return shape, tuple(key)


def _with_tensors(key: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same key, its numbers given as tensors."""

    def tensor(v: Any) -> Any:
        return constant(v) if isinstance(v, int) else v

    return tuple(
        slice(tensor(k.start), tensor(k.stop), tensor(k.step)) if isinstance(k, slice) else tensor(k) for k in key
    )


@given(slices(), st.booleans(), st.data())
def test_slices_are_numpys(case: tuple[Any, Any], as_tensors: bool, data: st.DataObject) -> None:
    shape, key = case
    known = [data.draw(st.sampled_from([d, None])) for d in shape]
    value = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    expected = value[key]
    with Graph().as_default() as graph:
        x = placeholder("float64", known)
        picked = x[_with_tensors(key) if as_tensors else key]
        (grad,) = gradients(picked, [x])
        result, back = Interpreter(graph, check=True).run([picked, grad], {x: value})
    np.testing.assert_array_equal(result, expected)
    assert compatible(picked.dims, expected.shape)
    if None not in known:
        assert picked.dims == expected.shape
    taken = np.zeros(shape)
    taken[key] = 1
    np.testing.assert_array_equal(back, taken)
