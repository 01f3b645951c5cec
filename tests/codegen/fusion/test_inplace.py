"""Kernels that write where a dying input was: they do so where nobody holds it, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels import fused
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.fusion.inplace import reuse_inputs_in_place
from dovetail.codegen.fusion.optimizer_loops import writes_in_place
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.memory import donation
from dovetail.codegen.memory.plan import plan_memory
from dovetail.codegen.pipeline import compile_partition
from dovetail.graph.interpreter import execution_order
from dovetail.graph.resources.buffer_pool import LARGE, buffers

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)
W = RNG.standard_normal((256, 256)).astype(np.float32) / 16


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each output that might have overwritten an input: whether it did."""
    found: list[bool] = []
    original = CpuFusedKernel._overwritten

    def spy(self: CpuFusedKernel, inputs: tuple[Any, ...], launch: Any) -> list[Any]:
        outputs = original(self, inputs, launch)
        found.extend(outputs[j] is inputs[i] for i, j in self.group.overwrites)
        return outputs

    monkeypatch.setattr(CpuFusedKernel, "_overwritten", spy)
    return found


def session() -> dt.Session:
    """With one thread: a helper that is about to leave still holds the arrays, and whether he has left is a matter of time."""
    return dt.Session(config=dt.ConfigProto(kernel_backend="numba", intra_op_parallelism_threads=1))


@pytest.mark.parametrize("rows", [3, 512])  # small results, and those whose memory is used again
def test_work_behind_a_product_writes_where_the_product_is(rows: int, seen: list[bool]) -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 256])
        y = dt.matmul(dt.tanh(dt.matmul(x, W) + 1.0), W)
        value = RNG.standard_normal((rows, 256)).astype(np.float32)
        with session() as sess:
            for _ in range(3):
                got = sess.run(y, {x: value})
    np.testing.assert_allclose(got, np.tanh(value @ W + 1.0) @ W, rtol=1e-4, atol=1e-4)
    assert seen == [True] * 3


def test_rows_that_are_looked_up_stay_what_they_are_beside_an_input_that_is_overwritten() -> None:
    value = RNG.standard_normal((7, 3)).astype(np.float32)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 3])
        y = dt.atan(x)
        sums = dt.math.unsorted_segment_sum(abs(y) * 0.1, dt.range(dt.shape(x)[0]) % 5, 5)
        gradient = dt.gradients(dt.reduce_sum(dt.square(sums)), x)[
            0
        ]  # looks up the sums' gradients beside y, which dies there
        plan = dt.place(dt.get_default_graph(), fetches=gradient).kernels("cpu:0")
        assert any("gather" in str(k.loops) and k.group.overwrites for k in plan)
        with session() as sess:
            got = sess.run(gradient, {x: value})
    y = np.arctan(value)
    sums = np.stack([abs(y[i::5]).sum(0) * 0.1 for i in range(5)])
    wanted = 2 * sums[np.arange(7) % 5] * 0.1 * np.sign(y) / (1 + value * value)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_what_is_fetched_fed_or_taken_again_stays() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 256])
        product = dt.matmul(x, W)
        y = dt.tanh(product + 1.0)
        again = y * dt.reduce_sum(dt.matmul(product, W))  # takes the product after y was made
        value = RNG.standard_normal((5, 256)).astype(np.float32)
        with session() as sess:
            first, second = sess.run([product, y], {x: value})
            third = sess.run(y, {product: first})
            fourth = sess.run(again, {x: value})
    np.testing.assert_allclose(first, value @ W, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(second, third)
    np.testing.assert_allclose(fourth, second * (first @ W).sum(), rtol=1e-2)


def test_an_array_that_somebody_holds_is_copied(seen: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    original = fused.is_held_once

    def hold(inputs: tuple[Any, ...], i: int) -> bool:
        held.append((inputs[i].reshape(-1)[:8], inputs[i][0, :8].copy()))  # a view, as a message on its way has one
        return original(inputs, i)

    monkeypatch.setattr(fused, "is_held_once", hold)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 256])
        y = dt.tanh(dt.matmul(x, W) + 1.0)
        value = RNG.standard_normal((300, 256)).astype(np.float32)
        with session() as sess:
            got = sess.run(y, {x: value})
    np.testing.assert_allclose(got, np.tanh(value @ W + 1.0), rtol=1e-4, atol=1e-4)
    assert seen == [False]
    for view, before in held:
        np.testing.assert_array_equal(view, before)


@pytest.mark.parametrize("size", [16, LARGE])
def test_references_are_counted(size: int) -> None:
    class Kernel:
        def __call__(self, *inputs: Any) -> bool:
            return donation.is_held_once(inputs, 0)

    kernel, which = Kernel(), (0,)

    def asked(slots: list[Any]) -> bool:
        return kernel(*[slots[i] for i in which])

    def fresh() -> Any:
        return buffers.empty((size,), np.dtype(np.float32))

    assert asked([fresh()])
    own = fresh()
    assert not asked([own])
    assert not asked([fresh()] * 2)
    view = own[:4]
    slots = [own]
    del own
    assert not asked(slots)
    del view
    assert asked(slots)
    assert not asked([np.zeros((4, 4))[:, 1]])
    assert not asked([np.broadcast_to(np.float32(1), (4,))])
    assert not asked([np.frombuffer(bytearray(64), np.float32)])


def test_training_is_what_it_is_without_kernels() -> None:
    def trained(kind: str) -> list[Any]:
        with dt.Graph().as_default():
            dt.set_random_seed(1)
            x = dt.constant(
                RNG.standard_normal((64, 256)).astype(np.float32) * 0 + np.linspace(-1, 1, 256, dtype=np.float32)
            )
            layer = x
            names = [f"w{i}" for i in range(3)]
            for name in names:
                w = dt.get_variable(name, initializer=W)
                layer = dt.nn.gelu(dt.matmul(layer, w) + 0.1)
            loss = dt.reduce_mean(dt.square(layer - 0.5))
            train = dt.train.AdamOptimizer(0.01).minimize(loss)
            with dt.Session(config=dt.ConfigProto(kernel_backend=kind)) as sess:
                sess.run(dt.global_variables_initializer())
                return [sess.run([loss, train])[0] for _ in range(6)]

    np.testing.assert_allclose(trained("numba"), trained("numpy"), rtol=1e-3)


def test_the_predicted_peak_counts_one_piece_of_memory_for_both() -> None:
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, [1024, 8]), dt.placeholder(dt.float32, [8, 256])
        y = dt.matmul(dt.tanh(dt.matmul(x, w) + 1.0), w, transpose_b=True)
        order = execution_order([y.op], dict.fromkeys((x, w)))
        nodes = tuple(n for n in order if n.type != "Placeholder")
        unit = PartitionGraph("/device:CPU:0", nodes, (("x", x), ("w", w)), (("y", y),))
        steps = fuse(unit, small=True).steps
        fresh = plan_memory(steps, [x, w], [y], writes_in_place=writes_in_place)
        reused = plan_memory(reuse_inputs_in_place(unit, steps), [x, w], [y], writes_in_place=writes_in_place)
        program = compile_partition(
            unit, NumbaBackend(), lambda node: pytest.fail("no node has state"), until="liveness"
        )
    hidden, ends, weights = 4 * 1024 * 256, 4 * 1024 * 8, 4 * 8 * 256
    assert fresh.peak_bytes == 2 * hidden + weights  # x has gone, and y is not there yet
    assert reused.peak_bytes == hidden + ends + weights
    assert program.peak_bytes == reused.peak_bytes
