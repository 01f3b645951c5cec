"""Transposes, slices, paddings and concatenations that kernels read in place, against NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from loop_interpreter import run_loops
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.partition import PartitionGraph

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)


def numbers(shape: Sequence[int], dtype: str = "float32") -> Any:
    return (RNG.standard_normal(shape) * 50).astype(dtype)


def kernels_of(y: Any, feeds: Sequence[Any]) -> list[FusedKernel]:
    nodes = [n for n in execution_order([y.op], dict.fromkeys(feeds, 0)) if n.type != "Placeholder"]
    fed = tuple((x.name, x) for x in feeds)
    return fuse(PartitionGraph("/device:CPU:0", tuple(nodes), fed, ((y.name, y),)), small=True).kernels


def computed(kernel: FusedKernel, arrays: dict[Any, Any]) -> dict[Any, Any] | None:
    """A kernel's outputs by its loop nest; None where its nodes run one by one."""
    inputs = [arrays[t] for t in kernel.inputs]
    sized = kernel.sized([x.shape for x in inputs], {})
    if sized is None:
        return None
    made = run_loops(kernel.loops, inputs, sized.loops, sized.numbers)
    return {t: x.reshape(dims) for t, x, (dims, _) in zip(kernel.outputs, made, sized.outputs, strict=True)}


# --- any shape -------------------------------------------------------------------------------------------------------


@st.composite
def moves(draw: Any) -> tuple[tuple[int, ...], Callable[[Any], Any], Callable[[Any], Any]]:
    """A shape, and something that moves the elements of such an array: in a graph, and in NumPy."""
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    rank = len(shape)
    kind = draw(st.sampled_from(["transpose", "slice", "pad", "pad with", "concat"]))
    if kind == "transpose":
        order = [*draw(st.permutations(range(rank - 1))), rank - 1]
        return shape, lambda x: dt.transpose(x, order), lambda x: np.transpose(x, order)
    if kind == "slice":
        ends = st.none() | st.integers(-6, 6)
        index = tuple(
            draw(st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1, -3])) | st.integers(0, d - 1))
            if d
            else slice(None)
            for d in shape
        )
        at = draw(st.integers(0, rank))
        index = (*index[:at], None, *index[at:]) if draw(st.booleans()) else index
        return shape, lambda x: x[index], lambda x: x[index]
    if kind == "concat":
        axis, parts = draw(st.integers(0, rank - 1)), draw(st.integers(2, 4))
        return (
            shape,
            lambda x: dt.concat([x * float(i) if i else x for i in range(parts)], axis),
            lambda x: np.concatenate([x * np.float32(i) if i else x for i in range(parts)], axis),
        )
    margins = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=rank, max_size=rank))
    value = 7.5 if kind == "pad with" else 0.0
    return (
        shape,
        lambda x: dt.pad(x, margins, constant_values=value),
        lambda x: np.pad(x, margins, constant_values=value),
    )


@settings(deadline=None, max_examples=100)
@given(moves(), st.booleans())
def test_places_in_any_shape(move: Any, batch: bool) -> None:
    """The loop nest gives what NumPy gives. Moves along an axis of unknown size, or of nothing, are not in the kernel."""
    shape, build, reference = move
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, *shape[1:]] if batch else shape)
        y = build(x) * 2.0 + 1.0
        kernels = kernels_of(y, [x])
    value = numbers(shape)
    arrays = {x: value}
    for kernel in kernels:
        found = computed(kernel, arrays) if arrays.keys() >= {*kernel.inputs} else None
        if found is None:
            assert batch or 0 in shape or 0 in reference(value).shape
            return
        arrays |= found
    if kernels:
        np.testing.assert_array_equal(arrays[y], reference(value) * np.float32(2) + np.float32(1))


# --- what is fused ---------------------------------------------------------------------------------------------------

IMAGE = (None, 6, 5, 8)
MARGINS = [[0, 0], [1, 2], [1, 0], [0, 0]]
ONE_KERNEL: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "padding and reduction": (
        lambda x: dt.reduce_sum(dt.pad(x, MARGINS) * 2.0 + 1.0, [1, 2]),
        lambda x: (np.pad(x, MARGINS) * np.float32(2) + np.float32(1)).sum((1, 2)),
    ),
    "padding along rows": (
        lambda x: dt.abs(dt.pad(x, [[0, 0], [0, 0], [0, 0], [3, 4]], constant_values=-9.0)),
        lambda x: abs(np.pad(x, [[0, 0], [0, 0], [0, 0], [3, 4]], constant_values=-9)),
    ),
    "transpose": (
        lambda x: dt.abs(dt.transpose(x, [2, 0, 1, 3]) * 2.0),
        lambda x: abs(np.transpose(x, [2, 0, 1, 3]) * np.float32(2)),
    ),
    "neighbours": (lambda x: x[:, 1:] - x[:, :-1] * 2.0, lambda x: x[:, 1:] - x[:, :-1] * np.float32(2)),
    "backwards": (lambda x: dt.abs(-x[:, ::-2, 3, ..., None]), lambda x: abs(x[:, ::-2, 3, ..., None])),
    "concatenation": (
        lambda x: dt.abs(dt.concat([x, x[:, :, :2], x], 2)),
        lambda x: abs(np.concatenate([x, x[:, :, :2], x], 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_moves_and_what_is_done_with_them_are_one_kernel(name: str) -> None:
    build, reference = ONE_KERNEL[name]
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, IMAGE)
        y = build(x)
        assert len(dt.place(dt.get_default_graph(), fetches=y).kernels("cpu:0").kernels) == 1
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as s:
            for batch in (3, 0):
                value = numbers((batch, *IMAGE[1:]))
                np.testing.assert_allclose(s.run(y, {x: value}), reference(value), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8", "bool"])
def test_moves_of_other_types(dtype: str) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dtype, [None, 40])
        moved = dt.concat([dt.pad(x, [[0, 0], [1, 2]]), x[:, ::-1]], 1)
        y = dt.logical_not(moved) if dtype == "bool" else moved + moved
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as s:
            value = numbers((5, 40), dtype)
            joined = np.concatenate([np.pad(value, [[0, 0], [1, 2]]), value[:, ::-1]], 1)
            np.testing.assert_array_equal(s.run(y, {x: value}), ~joined if dtype == "bool" else joined + joined)


def test_a_slice_at_another_place_is_the_same_kernel() -> None:
    texts = set()
    for t in (0, 1, 5):
        with dt.Graph().as_default():
            x = dt.placeholder(dt.float32, [None, 6, 8])
            (kernel,) = kernels_of(dt.tanh(x[:, t] * 2.0), [x])
            texts.add(str(kernel.loops))
    assert len(texts) == 1


def test_a_transpose_of_the_last_axis_stays_a_node() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 6, 8])
        (kernel,) = kernels_of(dt.abs(dt.transpose(x, [0, 2, 1]) * 2.0), [x])
        assert [t.op.type for t in kernel.inputs] == ["Transpose"]


def test_a_moved_result_is_computed_before() -> None:
    """What makes the input of a move is another kernel; both tensors can be taken by others, too."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 6])
        made = dt.tanh(x * 0.02)
        padded = dt.pad(made, [[0, 0], [2, 0]])
        y = dt.nn.relu(padded) * 2.0 + dt.concat([made, x[:, :2]], 1)
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as s:
            value = numbers((7, 6))
            found = s.run([y, padded, made], {x: value})
    first = np.tanh(value * np.float32(0.02))
    wide = np.pad(first, [[0, 0], [2, 0]])
    want = [np.maximum(wide, 0) * np.float32(2) + np.concatenate([first, value[:, :2]], 1), wide, first]
    for mine, theirs in zip(found, want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_padding_that_others_copy_anyway_is_read_there() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, [None, 6]), dt.placeholder(dt.float32, [8, 3])
        padded = dt.pad(x, [[0, 0], [1, 1]])
        y = dt.abs(padded * 2.0)
        with_product = dt.matmul(padded, w) + dt.reduce_sum(y)
        kernels = kernels_of(with_product, [x, w])
        assert all(n.type != "Pad" for k in kernels for n in k.nodes)
        assert [n.type for n in kernels_of(y, [x])[0].nodes][0] == "Pad"
