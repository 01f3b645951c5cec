"""The loop IR and its Numba source: as text, against golden files. DOVETAIL_UPDATE_GOLDEN=1 writes them anew."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reference_interpreter import execution_order
from window_kernels import fused_kernels

import dovetail as dt
from dovetail.codegen.cpu.emit.module import source_of
from dovetail.codegen.cpu.schedule import schedule_of
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.passes.decompose import functionalize_random, split_batch_norms
from dovetail.codegen.target import OPERATIONS_PER_BYTE
from dovetail.graph.core.dtypes import float32, int8

GOLDEN = Path(__file__).parents[1] / "golden"


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + dt.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def layer_norm(x: Any) -> Any:
    mean = dt.reduce_mean(x, -1, keepdims=True)
    variance = dt.reduce_mean(dt.square(x - mean), -1, keepdims=True)
    return (x - mean) * dt.rsqrt(variance + 1e-5)


KERNELS: dict[str, tuple[tuple[int | None, ...], Callable[[Any], Any]]] = {
    "gelu": ((None, 8), gelu),
    "softmax_rows": ((None, 8), dt.nn.softmax),
    "softmax_columns": (
        (None, 8),
        lambda x: dt.exp(x - dt.reduce_max(x, 0)) / dt.reduce_sum(dt.exp(x - dt.reduce_max(x, 0)), 0),
    ),
    "layer_norm": ((4, None), layer_norm),
    "mean_of_squares": ((None, 3, None), lambda x: dt.reduce_mean(x * x)),
    "images_over_space": ((2, 5, 6, 3), lambda x: dt.reduce_mean(dt.nn.relu(x), [1, 2])),
    "looked_up_rows": ((None, 5), lambda x: layer_norm(2.0 * dt.gather(dt.placeholder(dt.float32, [None, 8]), x))),
    "running_sums": ((None, 8), lambda x: dt.exp(dt.cumsum(dt.tanh(x), 1)) * 0.5),
    "running_sums_down_and_back": (
        (8, None),
        lambda x: dt.reduce_max(dt.cumsum(x, 0, exclusive=True, reverse=True), 0),
    ),
    "sums_of_segments": (
        (None, 8),
        lambda x: dt.math.unsorted_segment_sum(dt.exp(x), dt.placeholder(dt.int32, [None]), 10),
    ),
    "dropout": ((None, 8), lambda x: dt.nn.dropout(dt.nn.relu(x), rate=0.25)),
    "noisy_rows": ((None, 8), lambda x: dt.nn.softmax(x + dt.random_normal(dt.shape(x)))),
    "padded_and_concatenated": (
        (None, 6, 8),
        lambda x: dt.nn.relu(dt.pad(x, [[0, 0], [1, 1], [0, 0]])) * dt.concat([x[:, 1:], x[:, :3]], 1),
    ),
    "normalized_batch": (
        (8, None, None, 16),
        lambda x: dt.nn.relu(
            dt.nn.fused_batch_norm(x, dt.placeholder("float32", [16]), dt.placeholder("float32", [16]))[0] + x
        ),
    ),
    "below_the_diagonal": ((None, 4, 8), lambda x: dt.exp(dt.matrix_band_part(x, 1, -1))),
    "among_the_largest": (
        (None, 8),
        lambda x: dt.cast(dt.nn.in_top_k(dt.tanh(x), dt.placeholder(dt.int32, [None]), 3), dt.float32),
    ),
    "channels_first": ((2, 3, 5, 6), lambda x: dt.reduce_sum(dt.exp(x), [0, 2, 3])),
}


@pytest.mark.parametrize("name", KERNELS)
def test_text_of_a_kernel(name: str) -> None:
    shape, build = KERNELS[name]
    with dt.Graph().as_default():
        x = dt.placeholder(dt.int32 if name == "looked_up_rows" else dt.float32, shape)
        y = build(x)
        nodes = [n for n in execution_order([y.op], {x: 0}) if n.type != "Placeholder"]
        partition = PartitionGraph("/device:CPU:0", tuple(nodes), ((x.name, x),), ((y.name, y),))
        fusion = fuse(
            split_batch_norms(functionalize_random(partition)),
            small=True,
            operations_per_byte=OPERATIONS_PER_BYTE,
            copies_scalars=True,
        )
    (kernel,) = fusion.kernels
    compare(name, source_of(kernel.loops, schedule_of(kernel.loops)).text)


def max_pool_gradient() -> Any:
    x = dt.placeholder(dt.float32, [None, 1, 7, 6])
    y = dt.nn.max_pool(x, [1, 3], [1, 2], "SAME")
    return dt.gradients(y, [x], dt.placeholder(dt.float32, y.dims))[0] * 0.5


def depthwise() -> Any:
    x, w = dt.placeholder(dt.float32, [None, 6, 5, 7]), dt.placeholder(dt.float32, [1, 2, 6, 1])
    bias = dt.placeholder(dt.float32, [6])
    y = dt.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", data_format="NCHW")
    return dt.nn.relu(dt.nn.bias_add(y, bias, data_format="NCHW"))


def many_taps() -> Any:
    return dt.nn.avg_pool(dt.placeholder(dt.float32, [None, 9, 9, 8]), 6, 3, "VALID") + 1.0


def test_text_of_arithmetic_at_the_taps_of_a_window() -> None:
    with dt.Graph().as_default():
        x, bias = dt.placeholder(dt.float32, [None, 1, 7, 6]), dt.placeholder(dt.float32, [6])
        y = dt.nn.max_pool(dt.nn.relu(dt.nn.bias_add(x, bias)), [1, 2], [1, 2], "SAME")
        (kernel,) = fused_kernels(y, operations_per_byte=OPERATIONS_PER_BYTE)
    compare("computed_at_taps", source_of(kernel.loops, schedule_of(kernel.loops)).text)


@pytest.mark.parametrize("name", ["max_pool_gradient", "depthwise_channels_first", "many_taps"])
def test_text_of_windows_and_arithmetic_behind_them(name: str) -> None:
    """Places along rows are masked by branches, of which LLVM makes loads with masks: of selects it makes gathers."""
    build = {"max_pool_gradient": max_pool_gradient, "depthwise_channels_first": depthwise, "many_taps": many_taps}[
        name
    ]
    with dt.Graph().as_default():
        kernel = fused_kernels(build())[-1]
    compare(name, source_of(kernel.loops, schedule_of(kernel.loops)).text)


def compare(name: str, text: str) -> None:
    """With the golden file, or write it; without the versions that it was made for."""
    text = re.sub(r"^# for .*\n", "", text, count=1, flags=re.MULTILINE)
    path = GOLDEN / f"{name}.py.txt"
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_equal_values_are_made_once_and_dead_ones_not_at_all() -> None:
    b = LoopNestBuilder([False])
    x = b.load(0, float32, [0])
    first, second = b.apply("add", x, x), b.apply("add", x, x)
    assert first == second
    b.apply("exp", x)
    b.store(first, [0])
    loops, _ = b.finish()
    assert [v.op for v in loops.values] == ["load", "add"]


def test_a_negative_zero_is_another_constant() -> None:
    b = LoopNestBuilder([])
    assert b.constant(0.0, float32) != b.constant(-0.0, float32)
    assert b.constant(0, int8) == b.constant(0, int8)


def test_neighbouring_axes_that_always_come_together_become_one() -> None:
    b = LoopNestBuilder([False, False, False])
    x, row = b.load(0, float32, [0, 1, 2]), b.load(1, float32, [2])
    b.store(b.apply("add", x, row), [0, 1, 2])
    loops, parts = b.finish()
    assert parts == ((0, 1), (2,))
    assert [v.axes for v in loops.loads] == [(0, 1), (1,)]


def test_a_reduced_axis_joins_no_kept_one() -> None:
    b = LoopNestBuilder([False, True, True])
    x = b.load(0, float32, [0, 1, 2])
    b.store(b.reduce("sum", x), [0])
    loops, parts = b.finish()
    assert parts == ((0,), (1, 2))
    assert loops.reduced == (False, True)
    assert loops.stages() == [0, 1]


def test_equal_kernels_are_one_whatever_their_nodes_are_called() -> None:
    found = []
    for scope in ("a", "b"):
        with dt.Graph().as_default(), dt.name_scope(scope):
            x = dt.placeholder(dt.float32, [None, 4])
            y = gelu(x)
            nodes = [n for n in execution_order([y.op], {x: 0}) if n.type != "Placeholder"]
            found.append(
                fuse(PartitionGraph("/device:CPU:0", tuple(nodes), ((x.name, x),), ((y.name, y),)), small=True)
                .kernels[0]
                .loops
            )
    assert found[0] == found[1]
