"""Random numbers in kernels: the bits of the reference, wherever they are made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.passes.decompose import functionalize_random
from dovetail.graph.core.philox import Stream

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

CHECKED = dt.ConfigProto(kernel_backend="numba", kernel_check=2)


def drawn(scaled: Any) -> Any:
    """The tensor behind `drawn * factor + offset`."""
    return scaled.op.inputs[0].op.inputs[0]


def seeds_of(tensor: Any) -> tuple[int, int]:
    return tensor.op.attrs["seed"], tensor.op.attrs["seed2"]


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (dt.random_uniform, "float32"), (dt.random_uniform, "float64"), (dt.random_uniform, "bfloat16"),
        (dt.random_normal, "float32"),
    ],
)  # fmt: skip
def test_the_bits_are_the_reference_s(function: Callable[..., Any], dtype: str) -> None:
    draw = Stream.uniform if function is dt.random_uniform else Stream.normal
    with dt.Graph().as_default():
        sizes = dt.placeholder(dt.int32, [2])
        x = drawn(function(sizes, dtype=dtype, seed=12))
        # Along rows, and with the reduction, in blocks: the numbers have to be those of the whole array.
        fetches = [x, dt.reduce_sum(x, 1)]
        with dt.Session(config=CHECKED) as session:
            assert len(session.plan(fetches).kernels("cpu:0")) == 1
            for run, shape in enumerate(
                [(1, 1), (1, 2), (3, 1), (7, 13), (0, 3), (3, 0), (3, 4099), (1, 9001), (4000, 3), (700, 500)]
            ):
                got, _ = session.run(fetches, {sizes: shape})
                want = draw(Stream(seeds_of(x), run), shape, x.dtype.np)
                assert got.dtype == want.dtype
                np.testing.assert_array_equal(got, want)


def test_it_does_not_matter_how_many_draw() -> None:
    made = []
    for threads in (1, 3):
        with dt.Graph().as_default():
            x = dt.random_normal([1 << 17], seed=1)
            config = dt.ConfigProto(kernel_backend="numba", intra_op_parallelism_threads=threads)
            with dt.Session(config=config) as session:
                made.append(session.run(x))
    np.testing.assert_array_equal(*made)


def test_a_session_draws_new_numbers_in_each_step() -> None:
    with dt.Graph().as_default():
        x = dt.random_uniform([5000])
        y = dt.nn.dropout(x, rate=0.25)
        with dt.Session(config=CHECKED) as session:
            (first, kept), (second, _) = session.run([x, y]), session.run([x, y])
    assert 0 <= first.min() < first.max() < 1
    assert not np.array_equal(first, second)
    assert 0.7 < np.count_nonzero(kept) / 5000 < 0.8


def test_a_dropout_is_part_of_the_kernel_that_it_stands_in_and_its_gradient_reads_the_mask() -> None:
    with dt.Graph().as_default() as graph:
        x, w = dt.placeholder(dt.float32, [256, 512]), dt.placeholder(dt.float32, [512, 16])
        y = dt.matmul(dt.nn.dropout(dt.tanh(x), rate=0.5), w)
        gradient = dt.gradients(y, [x])[0]
        forward, backward = dt.place(graph, fetches=[y, gradient]).kernels("cpu:0")
        assert forward.loops.count("random uniform") == 1
        assert "random" not in backward.loops
        assert any(t.dtype is dt.bool and t in forward.group.outputs for t in backward.group.inputs)
        with dt.Session(config=CHECKED) as session:
            ones = np.ones((256, 512), np.float32)
            product, slope = session.run([y, gradient], {x: ones, w: np.ones((512, 16))})
    kept = (slope != 0).sum(1)
    assert 0 < kept.min() < kept.max() < 512
    np.testing.assert_allclose(product[:, 0], 2 * np.tanh(1) * kept, rtol=1e-5)


def test_columns_and_several_passes() -> None:
    with dt.Graph().as_default():
        noise = [dt.random_uniform([600, 40], seed=k) for k in range(3)]
        fetches = [dt.reduce_max(noise[0], 0), dt.nn.softmax(noise[1]), dt.reduce_sum(noise[2], 0) * 2.0]
        with dt.Session(config=CHECKED) as session:
            highest, rows, totals = session.run(fetches)
    streams = [Stream(seeds_of(drawn(n)), 0).uniform((600, 40), np.dtype(np.float32)) for n in noise]
    np.testing.assert_array_equal(highest, streams[0].max(0))
    np.testing.assert_allclose(rows.sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(rows.argmax(1), streams[1].argmax(1))
    np.testing.assert_allclose(totals, 2 * streams[2].sum(0), rtol=1e-5)


def test_draws_in_branches_and_loops() -> None:
    with dt.Graph().as_default():
        taken = dt.placeholder(dt.bool, [])
        drawn_there = dt.cond(taken, lambda: dt.random_uniform([3000], seed=3) * 2.0, lambda: dt.zeros([3000]))
        _, sums = dt.while_loop(
            lambda i, _: i < 3,
            lambda i, total: (i + 1, total + dt.random_uniform([5000], seed=5)),
            [0, dt.zeros([5000])],
        )
        with dt.Session(config=CHECKED) as session:
            first, total = session.run([drawn_there, sums], {taken: True})
            assert not session.run(drawn_there, {taken: False}).any()
            second = session.run(drawn_there, {taken: True})
    want = Stream((87654321, 3), 0).uniform((3000,), np.dtype(np.float32)) * 2
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, Stream((87654321, 3), 1).uniform((3000,), np.dtype(np.float32)) * 2)
    np.testing.assert_allclose(
        total, sum(Stream((87654321, 5), k).uniform((5000,), np.dtype(np.float32)) for k in range(3)), rtol=1e-6
    )


def test_what_has_no_state_gives_the_same_every_time() -> None:
    with dt.Graph().as_default():
        seed = dt.placeholder(dt.int64, [2])
        x = dt.random.stateless_uniform([70, 90], seed=seed) + dt.random.stateless_normal([70, 90], seed=seed)
        with dt.Session(config=CHECKED) as session:
            assert len(session.plan(x).kernels("cpu:0")) == 1
            first, second, other = (session.run(x, {seed: s}) for s in ([1, 2**40], [1, 2**40], [-1, 0]))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_what_stays_whole() -> None:
    with dt.Graph().as_default():
        fed, cut, empty = dt.random_uniform([4]), dt.truncated_normal([4]), dt.random_uniform([0])
        double, plain = dt.random_normal([4], dtype="float64"), dt.random_uniform([4])
        fetches = [drawn(t) for t in (fed, cut, empty, double, plain)]
        nodes = tuple(execution_order([t.op for t in fetches], {}))
        partition = PartitionGraph(
            "/device:CPU:0", nodes, ((fetches[0].name, fetches[0]),), tuple((t.name, t) for t in fetches)
        )
        steps: tuple[Any, ...] = functionalize_random(partition).steps
        streams = [n for n in steps if n.type == "RandomStream"]
    assert [n.name for n in streams] == [plain.op.inputs[0].op.inputs[0].op.name]
    assert steps[0] is streams[0]
    assert [k.outputs for k in fuse(functionalize_random(partition)).kernels] == [(fetches[-1],)]
