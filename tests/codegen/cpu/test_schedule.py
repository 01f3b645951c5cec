"""Schedules on CPUs, as text: of loop nests, and of products and convolutions."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen import target
from dovetail.codegen.compilation import Compilation
from dovetail.codegen.cpu.backend import NumbaBackend
from dovetail.codegen.cpu.schedule import product_schedule, schedule_of, scheduled
from dovetail.codegen.fusion.fuse import fuse
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.codegen.ir.partition import PartitionGraph
from dovetail.codegen.ir.schedule import CpuProductSchedule
from dovetail.codegen.passes.decompose import functionalize_random
from dovetail.codegen.pipeline import passes_of, run_passes
from dovetail.graph.core.dtypes import float32


def kernel_of(shape: tuple[int | None, ...], build: Callable[[Any], Any]) -> FusedKernel:
    """The one fused kernel of a function of a placeholder."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, shape)
        y = build(x)
        nodes = [n for n in execution_order([y.op], {x: 0}) if n.type != "Placeholder"]
        partition = PartitionGraph("/device:CPU:0", tuple(nodes), ((x.name, x),), ((y.name, y),))
        (kernel,) = fuse(functionalize_random(partition), small=True, copies_scalars=True).kernels
    return scheduled(kernel)


def log_sum_exp(x: Any) -> Any:
    return dt.reduce_logsumexp(x, -1)


SCHEDULES: list[tuple[str, tuple[int | None, ...], Callable[[Any], Any], str]] = [
    ("elements", (None, 8), dt.nn.gelu, "pointwise: threads share d0, vectors along d0"),
    ("random numbers", (None, 8), lambda x: x + dt.random_normal(dt.shape(x)),
     "pointwise: threads share d0, vectors along d0, blocks of 4096"),
    ("rows of unknown length", (None, None), dt.nn.softmax,
     "rows: threads share d0, vectors along d1, blocks of 4096, saves v3"),
    ("rows of 10", (None, 10), dt.nn.softmax, "rows: threads share d0, d1 unrolled 10 times, saves v3"),
    ("a few rows of 10", (4, 10), dt.nn.softmax, "rows: threads share d0, vectors along d1, blocks of 4096, saves v3"),
    ("rows of 20 with a logarithm", (None, 20), log_sum_exp, "columns: threads share d0, vectors along d0 in tiles of 512"),
    ("maxima of rows", (None, None), lambda x: dt.reduce_max(x * 2.0, 1), "rows: threads share d0, vectors along d1"),
    ("sums of columns", (None, None), lambda x: dt.reduce_sum(dt.tanh(x), 0), "columns: threads share d1, vectors along d1"),
    ("a sum of everything", (None,), lambda x: dt.reduce_sum(x * x),
     "rows: threads share d0 in pieces of 65536, vectors along d0, blocks of 4096"),
    ("everything, twice", (None,), lambda x: x - dt.reduce_mean(x), "rows: one thread, vectors along d0, blocks of 4096"),
    ("running sums", (None, None), lambda x: dt.cumsum(dt.tanh(x), 1) * 0.5,
     "rows: threads share d0, vectors along d1, blocks of 4096"),
    ("sums into rows of a table", (None, 8), lambda x: dt.math.unsorted_segment_sum(dt.exp(x), dt.placeholder(dt.int32, [None]), 9),
     "table: threads share the rows of the table, vectors along d1"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "build", "text"), [c[1:] for c in SCHEDULES], ids=[c[0] for c in SCHEDULES])
def test_schedule(shape: tuple[int | None, ...], build: Callable[[Any], Any], text: str) -> None:
    kernel = kernel_of(shape, build)
    assert str(kernel.schedule) == text
    assert scheduled(kernel) == kernel


def test_threads_share_the_rows_of_a_single_image_and_the_channels_of_a_filter() -> None:
    def pooled(x: Any) -> Any:
        return dt.nn.avg_pool(x, 2, 2, "VALID")

    assert str(kernel_of((None, 8, 8, 4), pooled).schedule) == "pointwise: threads share d0, vectors along d3"
    assert str(kernel_of((1, 8, 8, 4), pooled).schedule) == "pointwise: threads share d0, vectors along d2"
    for channels, tiles in (
        (32, " in tiles of 32"),
        (65, ""),
        (None, ""),
    ):  # so many are known when the kernel is compiled
        text = f"pointwise: threads share d0, vectors along d3{tiles}"
        assert str(kernel_of((None, 8, 8, channels), pooled).schedule) == text
    for channels, shared in ((16, 0), (256, 5)):

        def of_filter(x: Any, c: int = channels) -> Any:
            w = dt.constant(np.ones((3, 3, c, 1), np.float32))
            return dt.gradients(dt.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "VALID"), [w], x[:, 1:-1, 1:-1])

        schedule = str(kernel_of((None, 8, 8, channels), lambda x: of_filter(x)[0]).schedule)
        assert schedule == f"columns: threads share d{shared}, vectors along d5"


def test_a_value_that_only_its_own_pass_needs_is_not_saved() -> None:
    b = LoopNestBuilder([False, True])
    x = b.load(0, float32, [0, 1])
    once, again = b.apply("exp", x), b.apply("tanh", x)
    total = b.reduce("sum", b.apply("mul", once, again))
    b.store(b.apply("mul", b.apply("log", again), total), [0, 1])
    loops, _ = b.finish()
    (log,) = (i for i, v in enumerate(loops.values) if v.op == "log")
    tanh = loops.values[log].args[0]
    assert schedule_of(loops).saved == (tanh,)


# --- products and convolutions -----------------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any) -> Any:
    return dt.matmul(dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * 0.125), v)


def images_like(x: Any, w: Any, y: Any) -> Any:
    """The gradients of a convolution by its image and by its filter."""
    return dt.gradients(dt.nn.conv2d(x, w, strides=2, padding="SAME"), [x, w], y)


PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int | None, ...]]]] = {
    "matrix product": (dt.matmul, [(512, 784), (784, 256)]),
    "product with a transposed factor": (lambda a, b: dt.matmul(a, b, transpose_a=True), [(300, 640), (300, 256)]),
    "product of a row": (dt.matmul, [(1, 4096), (4096, 4096)]),
    "product of float64": (dt.matmul, [(128, 256), (256, 96)]),
    "batch of products": (dt.matmul, [(8, 96, 64), (8, 64, 96)]),
    "attention": (attention, [(4, 8, 128, 64)] * 3),
    "convolution": (lambda x, w: dt.nn.conv2d(x, w, strides=1, padding="SAME"), [(8, 56, 56, 64), (3, 3, 64, 64)]),
    "pointwise convolution": (lambda x, w: dt.nn.conv2d(x, w, strides=1, padding="VALID"), [(8, 14, 14, 256), (1, 1, 256, 64)]),
    "gradients of a convolution": (images_like, [(8, 28, 28, 32), (3, 3, 32, 64), (8, 14, 14, 64)]),
    "batch of unknown size": (dt.matmul, [(None, 784), (784, 256)]),
}  # fmt: skip

PRODUCT_SCHEDULES = Path(__file__).parents[1] / "golden" / "cpu_product_schedules.txt"


def test_schedules_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors of 64 bytes and two threads. DOVETAIL_UPDATE_GOLDEN=1 writes them anew."""
    monkeypatch.setattr(target, "vector_bytes", lambda: 64)
    product_schedule.cache_clear()
    backend, lines = NumbaBackend(threads=2), []
    for name, (build, shapes) in PRODUCTS.items():
        with dt.Graph().as_default():
            fetches = build(*[dt.placeholder("float64" if "float64" in name else "float32", s) for s in shapes])
            fetches = fetches if isinstance(fetches, list) else [fetches]
            nodes = execution_order([y.op for y in fetches], {})
        lines.append(name)
        for node in nodes:
            work = backend.choose(node)
            lines += [f"    {node.type}: {s}" for s in backend.schedules(work, lambda tensor: tensor.dims)]
    product_schedule.cache_clear()
    text = "\n".join(lines) + "\n"
    if os.environ.get("DOVETAIL_UPDATE_GOLDEN"):
        PRODUCT_SCHEDULES.write_text(text, encoding="utf-8")
    assert text == PRODUCT_SCHEDULES.read_text(encoding="utf-8")


def test_a_program_prints_the_schedules_of_its_products() -> None:
    pytest.importorskip("numba")
    with dt.Graph().as_default():
        x, w = dt.placeholder(dt.float32, [64, 784]), dt.placeholder(dt.float32, [784, 256])
        y = dt.nn.relu(dt.matmul(x, w))
        nodes = [n for n in execution_order([y.op], {x: 0, w: 0}) if n.type != "Placeholder"]
    partition = PartitionGraph("/cpu:0", tuple(nodes), ((x.name, x), (w.name, w)), ((y.name, y),))
    backend = NumbaBackend(threads=2)
    compilation = Compilation(partition, backend, lambda node: pytest.fail("no node has state"))
    run_passes(compilation, passes_of(backend)[:-1])
    (product,) = backend.schedules(backend.choose(nodes[0]), lambda tensor: tensor.dims)
    lines = [line.strip() for line in str(compilation).splitlines()]
    at = next(i for i, line in enumerate(lines) if "MatMul(" in line)
    assert lines[at + 1] == str(product)
    assert isinstance(product, CpuProductSchedule) and product.threads == 2
