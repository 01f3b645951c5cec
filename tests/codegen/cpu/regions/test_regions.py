"""Native regions: the same bits as one by one, for random runs of calls, sizes that change, several threads, and errors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from region_calls import BEFORE, Array, call, identity, kernel_of, kernels, nodes_of, region_of_calls, same
from window_kernels import kernels_of_node

import dovetail as dt
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel
from dovetail.codegen.cpu.kernels.node import RecordableKernel
from dovetail.codegen.cpu.native.plans import NativePlan
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.ir.program import Call, NodeError, Program
from dovetail.codegen.target import OPERATIONS_PER_BYTE
from dovetail.graph.resources.variable import VariableState


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Call], int]:
    """Calls over square matrices of one size, and how many come in. Each call takes what is there."""
    count = draw(st.integers(1, 3))
    there = list(range(count))
    calls: list[Call] = []
    slot = count
    for _ in range(draw(st.integers(2, 9))):
        name = draw(st.sampled_from([*kernels(), "Identity", "Transpose"]))
        if name in kernels():
            kernel, takes, makes = kernels()[name]
        else:
            kernel, takes, makes = (identity if name == "Identity" else np.transpose), 1, 1
        inputs = [draw(st.sampled_from(there)) for _ in range(takes)]
        outputs = range(slot, slot + makes)
        calls.append(call(kernel, name if name in ("Identity", "Transpose") else "Fused", inputs, outputs))
        there += outputs
        slot += makes
    kept = draw(st.sets(st.sampled_from(range(slot)), max_size=4))
    last: dict[int, Call] = {}
    for c in calls:
        last.update(dict.fromkeys((*c.inputs, *c.outputs), c))
    for s, c in last.items():
        if s not in kept:
            c.frees = (*c.frees, s)
    return calls, count


@settings(max_examples=40)
@given(runs(), st.lists(st.sampled_from([1, 2, 5, 24]), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_random_runs_have_the_bits_of_one_by_one(made: tuple[list[Call], int], sizes: list[int], seed: int) -> None:
    calls, _ = made
    region = region_of_calls(calls)
    rng = np.random.default_rng(seed)
    for n in sizes * 4:
        inputs = [rng.normal(size=(n, n)).astype(np.float32) for _ in region.region.given]
        before = [x.copy() for x in inputs]
        want = region.region.one_by_one(inputs)
        same(region(*inputs), want)
        same(inputs, before)  # which are others'
    if calls:
        assert region.replays
    for key, plan in region.plans._plans.items():
        # What is told beforehand is what is taken.
        foretold = region.plans.predicted([(shape, dtype) for shape, dtype, _ in key])
        assert isinstance(plan, NativePlan) and foretold is not None and plan.arena_bytes == foretold.arena_bytes


def test_sizes_that_change_have_plans_of_their_own() -> None:
    region = region_of_calls(
        [call(kernels()["Joint"][0], "Fused", [0, 1], [2]), call(kernels()["Softmax"][0], "Fused", [2], [3])]
    )
    for turn in range(8):
        for n in (3, 7):
            x, y = np.full((n, n), 0.5, np.float32), np.eye(n, dtype=np.float32)
            same(region(x, y), region.region.one_by_one([x, y]))
        assert region.replays == 2 * max(0, turn + 1 - BEFORE)
    assert region.replays
    joined = region.region.as_call(region.region, "Region of 2 kernels")
    joined.kernel = region
    program = Program("/cpu:0", (joined,), (None,) * 4, (), ())
    assert [line for line in str(program).splitlines() if "arena" in line] == [
        f"      in an arena of {n:,} bytes" for n in region.plans.arenas
    ]
    assert region.plans.arenas == (0, 0)  # all of it leaves: nobody lets go of it


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0)])
def test_what_has_no_elements_goes_one_by_one(shape: tuple[int, int]) -> None:
    region = region_of_calls(
        [call(kernels()["Joint"][0], "Fused", [0, 1], [2]), call(kernels()["Both"][0], "Fused", [2, 1], [3, 4])]
    )
    x = np.zeros(shape, np.float32)
    for _ in range(5):
        same(region(x, x), region.region.one_by_one([x, x]))
    assert region.replays == 0


def test_inputs_in_another_order_in_memory_are_put_in_order() -> None:
    region = region_of_calls(
        [call(kernels()["Joint"][0], "Fused", [0, 1], [2]), call(kernels()["Softmax"][0], "Fused", [2], [3])]
    )
    x = np.arange(30, dtype=np.float32).reshape(5, 6)
    for _ in range(5):
        same(region(x, x), region.region.one_by_one([x, x]))
    turned, apart = np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]
    for i, other in enumerate((turned, turned, apart, x, apart)):
        same(region(other, x), region.region.one_by_one([other, x]))
        assert region.replays == 5 - BEFORE + 1 + i


def test_a_view_in_another_order_than_its_input_leaves_in_its_own() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [2, 3])
        read = dt.reshape(
            dt.transpose(x), [2, 3]
        )  # of an array in columns' order, all of its memory, from the first number to the last
        product = dt.matmul(dt.nn.softmax(dt.matmul(x, np.ones((3, 3), np.float32))), np.ones((3, 3), np.float32))
        fetched = [read, dt.nn.softmax(product + read)]
        with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend="numba")) as session:
            for step in range(BEFORE + 2):
                value = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3) + step)
                np.testing.assert_array_equal(session.run(fetched, {x: value})[0], value.T.reshape(2, 3))


def test_several_threads_run_one_region_at_once() -> None:
    names = ["Product", "Joint", "Both", "Product", "Softmax", "Both"]
    calls = [
        call(kernels()[name][0], "Fused", [i, i + 1][: kernels()[name][1]], range(i + 2, i + 2 + kernels()[name][2]))
        for i, name in enumerate(names)
    ]
    region = region_of_calls(calls)
    failed: list[BaseException] = []
    rng = np.random.default_rng(1)
    given_ = [[rng.normal(size=(32, 32)).astype(np.float32) for _ in range(2)] for _ in range(4)]
    for _ in range(4):
        region(*given_[0])
    assert region.replays

    def work(inputs: list[Array], wanted: list[Any]) -> None:
        try:
            for _ in range(50):
                same(region(*inputs), wanted)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(x, region.region.one_by_one(x))) for x in given_]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not failed
    assert region.replays > 4


@pytest.mark.parametrize("threads", [2, 3])
def test_large_kernels_are_shared_between_threads(threads: int) -> None:
    with dt.Graph().as_default():
        x, y = dt.placeholder(dt.float32, [None, None]), dt.placeholder(dt.float32, [None, None])
        backend = NumbaBackend(compile_first=True, threads=threads)
        product = kernel_of(backend, dt.matmul(x, y).op)
    both = CpuFusedKernel(kernels()["Both"][0].group, threads=threads, compile_first=True)
    region = region_of_calls(
        [
            call(product, "MatMul", [0, 1], [2]),
            call(both, "Fused", [2, 1], [3, 4]),
            call(product, "MatMul", [3, 4], [5]),
        ]
    )
    rng = np.random.default_rng(0)
    x_, y_ = (rng.normal(size=(600, 600)).astype(np.float32) for _ in range(2))
    want = region.region.one_by_one([x_, y_])
    for _ in range(6):
        same(region(x_, y_), want)
    assert region.replays == 6 - BEFORE


# --- kernels that are more than one launch -----------------------------------------------------------------------------


def node_call(node: Any, threads: int = 1) -> Call:
    """A node's kernel as a call."""
    kernel = kernel_of(NumbaBackend(compile_first=True, threads=threads), node)
    assert isinstance(kernel, RecordableKernel), node.type
    count = len(node.inputs)
    return call(kernel, node.type, range(count), range(count, count + len(node.outputs)))


def runs_alike(node: Any, arrays: Sequence[Array], threads: int = 1) -> int:
    """Run a node as a region; how often it went by a plan."""
    region = region_of_calls([node_call(node, threads)])
    for x in arrays:
        x.flags.writeable = False
    for _ in range(5):
        same(region(*arrays), region.region.one_by_one(list(arrays)))
    return region.replays


IMAGES = {
    "plain": ((2, 9, 11, 3), (3, 3, 3, 6), 1, "SAME", 1),
    "strides": ((2, 9, 11, 12), (3, 2, 12, 20), (2, 3), "SAME", 1),
    "dilations": ((3, 10, 9, 9), (3, 3, 9, 16), 1, "VALID", 2),
    "one tap": ((2, 7, 7, 16), (1, 1, 16, 8), 2, "SAME", 1),
    "taps far apart": ((1, 33, 33, 600), (3, 3, 600, 5), 1, "SAME", 36),
}


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", IMAGES)
def test_convolutions_go_by_plans(name: str, data_format: str) -> None:
    shape, taps, strides, padding, dilations = IMAGES[name]
    shape = shape if data_format == "NHWC" else (shape[0], shape[3], *shape[1:3])
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, shape), dt.placeholder(dt.float32, taps)
        y = dt.nn.conv2d(x, w, strides, padding, data_format=data_format, dilations=dilations)
        of_x, of_w = dt.gradients(y, [x, w])
    image, filters, slopes = (rng.normal(size=s).astype(np.float32) for s in (shape, taps, y.dims))
    sizes = [np.array(s, np.int32) for s in (shape, taps)]
    assert runs_alike(y.op, [image, filters]) == 5 - BEFORE
    assert runs_alike(of_x.op, [sizes[0], filters, slopes]) == 5 - BEFORE
    assert runs_alike(of_w.op, [image, sizes[1], slopes], threads=2) == 5 - BEFORE


def windows_run_alike(tensor: Any, arrays: Sequence[Array]) -> int:
    """As `runs_alike`, for a node over windows, which is one fused kernel, or two."""
    slots = {t: i for i, t in enumerate(dict.fromkeys(tensor.op.inputs))}
    calls = []
    for kernel in kernels_of_node(tensor):
        slots |= {t: len(slots) + i for i, t in enumerate(kernel.outputs)}
        taken = [slots[t] for t in kernel.inputs]
        calls.append(
            call(CpuFusedKernel(kernel, compile_first=True), "Fused", taken, [slots[t] for t in kernel.outputs])
        )
    region = region_of_calls(calls)
    taken = sorted({i for c in calls for i in c.inputs if i < len(arrays)})
    for _ in range(5):
        same(region(*(arrays[i] for i in taken)), region.region.one_by_one([arrays[i] for i in taken]))
    return region.replays


@pytest.mark.parametrize("times", [1, 3])
def test_depthwise_convolutions_go_by_plans(times: int) -> None:
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, [2, 9, 8, 5]), dt.placeholder(dt.float32, [3, 3, 5, times])
        y = dt.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME")
        of_x, of_w = dt.gradients(y, [x, w])
    image, filters, slopes = (rng.normal(size=t.dims).astype(np.float32) for t in (x, w, y))
    sizes = [np.array(t.dims, np.int32) for t in (x, w)]
    assert windows_run_alike(y, [image, filters]) == 5 - BEFORE
    assert windows_run_alike(of_x, [sizes[0], filters, slopes]) == 5 - BEFORE
    assert windows_run_alike(of_w, [image, sizes[1], slopes]) == 5 - BEFORE


@pytest.mark.parametrize("pool", ["max_pool", "avg_pool"])
def test_poolings_go_by_plans(pool: str) -> None:
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float64, [3, 7, 9, 4])
        y = getattr(dt.nn, pool)(x, 3, 2, "SAME")
        (of_x,) = dt.gradients(y, [x])
    image, slopes = rng.integers(-3, 3, x.dims).astype(np.float64), rng.normal(size=y.dims)
    assert windows_run_alike(y, [image]) == 5 - BEFORE
    given_ = [np.array(x.dims, np.int32), slopes] if pool == "avg_pool" else [image, np.zeros(y.dims), slopes]
    assert windows_run_alike(of_x, given_) == 5 - BEFORE


def test_rows_that_kernels_look_up_and_add_go_by_plans() -> None:
    """The table is a variable: its value at the time of each run counts."""
    rng = np.random.default_rng(0)
    with dt.Graph().as_default():
        table = dt.get_variable("table", [9, 6], use_resource=True)
        ids, places = dt.placeholder(dt.int32, [None]), dt.placeholder(dt.int64, [None])
        rows = dt.nn.embedding_lookup(table, ids) * 2.0
        total = dt.math.unsorted_segment_sum(dt.exp(rows), places, dt.constant(4))
        nodes = nodes_of(total)
        nodes = [n for n in nodes if n.type != "VarHandleOp"]
        partition = PartitionGraph(
            "/cpu:0", tuple(nodes), tuple((t.name, t) for t in (table.handle, ids, places)), ((total.name, total),)
        )
        (group,) = fuse(partition, small=True, operations_per_byte=OPERATIONS_PER_BYTE, copies_scalars=True).kernels
    kernel = CpuFusedKernel(group, compile_first=True)
    assert kernel.read and kernel.group.tables
    slots = {t: i for i, t in enumerate((*kernel.group.inputs, *kernel.group.shapes))}
    region = region_of_calls([call(kernel, "Fused", list(slots.values()), [len(slots)])])
    state = VariableState("table", dt.float32)
    fed = {table.handle: state, ids: rng.integers(0, 9, 20).astype(np.int32)}
    fed[places] = rng.integers(-1, 4, 20)
    arrays = [fed[t] if t in fed else np.array(4, t.dtype.np) for t in slots]
    with pytest.raises(NodeError):
        region(*arrays)  # it has no value
    for _ in range(6):
        state.assign(rng.normal(size=(9, 6)).astype(np.float32))
        same(region(*arrays), region.region.one_by_one(arrays))
    assert region.replays == 6 - BEFORE
    for which in (ids, places):
        wrong = [np.where(np.arange(20) == 3, 9, x).astype(x.dtype) if x is fed[which] else x for x in arrays]
        with pytest.raises(NodeError):
            region(*wrong)
