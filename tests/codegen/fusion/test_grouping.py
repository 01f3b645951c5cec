"""What comes together in one kernel: gradients with unknown batch sizes, branches, loop bodies; and that it stays right."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from reference_interpreter import execution_order

import dovetail as dt
from dovetail.codegen.cpu.emit.module import source_of
from dovetail.codegen.cpu.schedule import schedule_of
from dovetail.codegen.fusion.fuse import Fusion, fuse
from dovetail.codegen.fusion.grouping import MOST_PASSES
from dovetail.codegen.ir.fused_kernel import FusedKernel
from dovetail.codegen.ir.partition import PartitionGraph, RecvTensor
from dovetail.codegen.options import KernelOptions, without
from dovetail.codegen.passes.rewrite import rewrite
from dovetail.codegen.pipeline import compile_partition
from dovetail.codegen.target import OPERATIONS_PER_BYTE
from dovetail.graph.core.graph import Node


def partition_of(fetches: Sequence[Any], feeds: Sequence[Any]) -> PartitionGraph:
    order = execution_order([t.op for t in fetches], dict.fromkeys(feeds))
    nodes = tuple(n for n in order if n.type != "Placeholder")
    ends = (tuple((t.name, t) for t in feeds), tuple((t.name, t) for t in fetches))
    return PartitionGraph("/device:CPU:0", nodes, *ends)


def fusion_of(fetches: Sequence[Any], feeds: Sequence[Any]) -> Fusion:
    return fuse(partition_of(fetches, feeds), small=True)


def layer(batch: int | None) -> tuple[list[Any], list[Any]]:
    """A loss, its gradients, and what is fed: a residual layer with a gate and a normalisation."""
    x, w, b = (dt.placeholder(dt.float32, s) for s in ([batch, 6], [6, 6], [6]))
    h = dt.nn.gelu(dt.matmul(x, w) + b, approximate=True)
    h = x * dt.sigmoid(h) + h / (1.0 + abs(x))
    h = (h - dt.reduce_mean(h, -1, keepdims=True)) * b
    loss = dt.reduce_mean(dt.square(h - x))
    return [loss, *dt.gradients(loss, [x, w, b])], [x, w, b]


def test_a_gradient_fuses_alike_whether_the_batch_is_known_or_not() -> None:
    fusions = []
    for batch in (8, None):
        with dt.Graph().as_default():
            fusions.append(fusion_of(*layer(batch)))
    rest = [{s.type for s in f.steps if not isinstance(s, FusedKernel)} for f in fusions]
    # What is more between the kernels may only be arithmetic on shapes.
    assert rest[1] - rest[0] <= {"Shape", "Size", "FloorDiv", "Maximum", "Cast", "BroadcastGradientArgs"}
    assert len(fusions[1].kernels) <= len(fusions[0].kernels) + 1


@pytest.mark.parametrize("batch", [1, 2, 37])
def test_a_gradient_with_an_unknown_batch_is_right(batch: int) -> None:
    values = [
        np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(((batch, 6), (6, 6), (6,)))
    ]
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            fetches, feeds = layer(None)
            with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
                results.append(session.run(fetches, dict(zip(feeds, values, strict=True))))
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)


SHAPES = [((5, 3), (5, 3)), ((1, 3), (5, 3)), ((5, 3), (1, 3)), ((1, 3), (1, 3)), ((0, 3), (1, 3)), ((5, 3), (5, 1))]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_a_broadcast_that_only_the_running_graph_knows_is_undone(shapes: Any) -> None:
    """Fusion assumes that there is none; the kernel must find out, by the axes or by the shape to return to."""
    values = [np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)]
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            x, y = (dt.placeholder(dt.float32, [None, None]) for _ in range(2))
            z = dt.reduce_sum(dt.tanh(x * y + x))
            gradients = [g * 2.0 + 1.0 for g in dt.gradients(z, [x, y])]
            with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
                results.append(session.run(gradients, dict(zip([x, y], values, strict=True))))
    for plain, fused, value in zip(*results, values, strict=True):
        assert fused.shape == value.shape
        np.testing.assert_allclose(fused, plain, rtol=1e-5)


def test_a_broadcast_to_a_computed_shape_is_compared_with_what_is_there() -> None:
    with dt.Graph().as_default() as graph:
        x, y, rows = (dt.placeholder(t, s) for t, s in ((dt.float32, [1, 3]), (dt.float32, [None, 3]), (dt.int32, [])))
        wide = dt.broadcast_to(x * 2.0, dt.stack([rows, 3]))
        both = [wide + y, dt.reduce_sum(wide * 1.5, 1)]
        config = dt.ConfigProto(kernel_backend="numba")
        with dt.Session(graph=graph, config=config) as session:
            a, b = np.ones((1, 3), np.float32), np.ones((4, 3), np.float32)
            for count, expected in ((4, 4), (1, 1)):
                sums = session.run(both, {x: a, y: b, rows: count})
                assert sums[0].shape == (4, 3)
                assert sums[1].shape == (expected,)
            with pytest.raises(dt.errors.InvalidArgumentError):
                session.run(both, {x: a, y: b, rows: 3})


# --- branches and loops ----------------------------------------------------------------------------------------------


def kernels_in(build: Callable[[], tuple[Any, list[Any]]]) -> str:
    """The program of a step as lowering makes it, as text."""
    seen: list[str] = []

    def spy(*args: Any) -> Any:
        with without("native regions"):
            seen.append(str(compile_partition(*args)))
        return compile_partition(*args)

    with pytest.MonkeyPatch.context() as patch, dt.Graph().as_default() as graph:
        import dovetail.runtime.worker.worker as worker

        patch.setattr(worker, "compile_partition", spy)
        fetch, feeds = build()
        with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend="numba")) as session:
            session.run(fetch, {t: np.ones([2 if d is None else d for d in t.dims], t.dtype.np) for t in feeds})
    return "\n".join(seen)


def branches() -> tuple[Any, list[Any]]:
    x, p = dt.placeholder(dt.float32, [None, 4]), dt.placeholder(dt.bool, [])
    y = x * 2.0
    out = dt.cond(p, lambda: dt.tanh(y * x + 1.0) * 0.5, lambda: dt.nn.softmax(dt.exp(y) - x))
    return out + 1.0, [x, p]


def test_each_branch_is_one_predicated_kernel() -> None:
    text = kernels_in(branches)
    predicated = [line for line in text.splitlines() if "unless dead" in line]
    assert sum("Fused" in line for line in predicated) == 2
    assert not any(f"= {op}(" in line for line in predicated for op in ("Tanh", "Exp", "Softmax", "Mul", "Sub"))


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_gives_what_it_gives_without_kernels(taken: bool) -> None:
    value = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            out, (x, p) = branches()
            (gradient,) = dt.gradients(dt.square(out), [x])
            with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
                results.append(session.run([out, gradient], {x: value, p: taken}))
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)


def nested(x: Any, p: Any, q: Any) -> Any:
    def inner() -> Any:
        return dt.cond(q, lambda: dt.exp(x * 0.5) + x, lambda: dt.tanh(x) * x - 1.0) * 2.0 + x

    return dt.cond(p, inner, lambda: dt.ones_like(x) * 3.0 + dt.constant(1.0))


@pytest.mark.parametrize("p", [True, False])
@pytest.mark.parametrize("q", [True, False])
def test_branches_inside_branches(p: bool, q: bool) -> None:
    value = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            x, a, b = dt.placeholder(dt.float32, [None, 4]), dt.placeholder(dt.bool, []), dt.placeholder(dt.bool, [])
            out = nested(x, a, b)
            with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
                results.append(session.run([out, *dt.gradients(out, [x])], {x: value, a: p, b: q}))
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-6)


def loop(x: Any) -> Any:
    def body(i: Any, v: Any) -> Any:
        moved = dt.tanh(v * 0.9 + x) * 1.5
        return i + 1, dt.cond(dt.equal(i % 2, 0), lambda: moved * 2.0 - x, lambda: dt.exp(-abs(moved)) + v)

    return dt.while_loop(lambda i, v: i < 5, body, [0, x])[1]


def test_a_loop_body_is_fused_and_right() -> None:
    text = kernels_in(lambda: (lambda x: (loop(x), [x]))(dt.placeholder(dt.float32, [None, 4])))
    inside = text[text.index("while ") : text.index("again:")]
    assert "Fused" in inside
    assert "Tanh" not in inside
    assert sum("unless dead" in line and "Fused" in line for line in inside.splitlines()) == 2
    value = np.random.default_rng(2).standard_normal((3, 4)).astype(np.float32)
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            x = dt.placeholder(dt.float32, [None, 4])
            out = loop(x)
            with dt.Session(graph=graph, config=dt.ConfigProto(kernel_backend=backend)) as session:
                results.append(session.run([out, *dt.gradients(out, [x])], {x: value}))
    for plain, fused in zip(*results, strict=True):
        np.testing.assert_allclose(fused, plain, rtol=1e-4, atol=1e-5)


def test_a_receive_ends_the_kernels_before_it() -> None:
    """What joined them behind it would make them wait for another task."""
    with dt.Graph().as_default() as graph:
        x, y = dt.placeholder(dt.float32, [64, 64], name="x"), dt.placeholder(dt.float32, [64, 64], name="y")
        before = dt.tanh(x * 2.0, name="before")
        after = dt.tanh(before + y, name="after")
    nodes = [n for n in graph.nodes if n is not y.op]
    at = nodes.index(before.op) + 1
    receive = RecvTensor(0, y, "/job:worker/replica:0/task:1/device:CPU:0")
    partition = PartitionGraph(
        "/device:CPU:0", (*nodes[:at], receive, *nodes[at:]), (("x:0", x),), (("after:0", after),)
    )
    kinds = [type(s).__name__ for s in fuse(partition, small=True).steps if not isinstance(s, Node)]
    assert kinds == ["FusedKernel", "RecvTensor", "FusedKernel"]


def kinds_of(steps: Sequence[Any]) -> list[str]:
    """What each step is: the ops of a kernel joined by +."""
    return [
        "+".join(n.type for n in s.nodes) if isinstance(s, FusedKernel) else s.type
        for s in steps
        if getattr(s, "type", "") != "Const"
    ]


def test_a_choice_is_a_kernel_by_itself_sooner_than_other_ops() -> None:
    with dt.Graph().as_default():
        g, y = dt.placeholder(dt.float32, [None, 96]), dt.placeholder(dt.float32, [None, 96])
        (chosen,) = dt.gradients(dt.nn.relu(y), [y], [g])
        assert [k.nodes[-1].type for k in fuse(partition_of([chosen], [g, y])).kernels] == ["ReluGrad"]
        assert not fuse(partition_of([g + y], [g, y])).kernels


def loss_and_gradients(batch: int | None) -> tuple[list[Any], list[Any]]:
    """The gradient of a mean of losses, and what is fed."""
    x, y, w = (dt.placeholder(t, s) for t, s in ((dt.float32, [batch, 6]), (dt.int64, [batch]), (dt.float32, [6, 5])))
    logits = dt.matmul(x, w) * 3.0
    losses = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return [dt.gradients(dt.reduce_mean(losses), [logits])[0]], [x, y, w]


def test_the_gradient_of_a_mean_of_losses_is_part_of_their_kernel() -> None:
    with dt.Graph().as_default():
        fetches, feeds = loss_and_gradients(None)
        partition = rewrite(partition_of(fetches, feeds), KernelOptions())[0]
        fusion = fuse(partition, small=True, operations_per_byte=OPERATIONS_PER_BYTE, copies_scalars=True)
    (kernel,) = fusion.kernels
    assert kinds_of([s for s in fusion.steps if s is not kernel]) == ["MatMul", "Size"]
    assert not kernel.assumed
    assert not kernel.shapes
    assert len(kernel.outputs) == 1


@pytest.mark.parametrize("batch", [1, 7])
def test_the_gradient_of_a_mean_of_losses_is_right(batch: int) -> None:
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal((batch, 6)).astype(np.float32),
        rng.integers(0, 5, batch),
        np.ones((6, 5), np.float32),
    ]
    results = []
    for backend in ("numpy", "numba"):
        with dt.Graph().as_default() as graph:
            fetches, feeds = loss_and_gradients(None)
            config = dt.ConfigProto(kernel_backend=backend)
            with dt.Session(graph=graph, config=config) as session:
                results.append(session.run(fetches, dict(zip(feeds, values, strict=True)))[0])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["a chain", "a long sum", "a chain that is computed again"])
def test_no_kernel_is_deeper_than_its_writers_can_go(name: str) -> None:
    """Who writes a kernel down follows a value to what it is made from, one call inside the other."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 512])
        if name == "a long sum":
            fetches = [dt.tanh(dt.add_n([x, dt.exp(x)] * 200)) * 3.0]
        else:
            y = x
            for _ in range(190):
                y = dt.sigmoid(y)
            fetches = [y] if name == "a chain" else [y, *dt.gradients(y, x)]
        partition = rewrite(partition_of(fetches, [x]), KernelOptions())[0]
        kernels = fuse(partition, small=True, operations_per_byte=OPERATIONS_PER_BYTE, copies_scalars=True).kernels
    assert kernels
    for kernel in kernels:
        assert source_of(kernel.loops, schedule_of(kernel.loops)).text
    made = [n for k in kernels for n in k.nodes]
    assert len(made) >= (190 if name != "a long sum" else 2)


def test_nodes_that_run_as_targets_are_a_kernel_though_nobody_takes_their_results() -> None:
    """Whoever times a step without a fetch runs it so."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [512, 512])
        total = dt.reduce_sum(dt.tanh(x) * 2.0)
        (kernel,) = fuse(replace(partition_of([total], [x]), fetches=())).kernels
    assert kernel.outputs == (total,)


def test_small_tensors_of_long_programs_are_fused_too() -> None:
    """Steps of recurrent networks that are written out: thousands of nodes, of which one region runs all."""
    with dt.Graph().as_default():
        h, w = dt.placeholder(dt.float32, [1, 8]), dt.placeholder(dt.float32, [8, 8])
        for _ in range(600):
            h = dt.nn.relu(dt.matmul(h, w))
        assert "one call for 600 kernels" in str(dt.place(h).kernels("/cpu:0"))


def test_a_kernel_has_few_reductions_one_after_the_other() -> None:
    """Each of them goes over its elements anew and computes all that is before it again: 20 in one kernel are 210 passes."""
    with dt.Graph().as_default():
        h = x = dt.placeholder(dt.float32, [256, 64])
        for _ in range(20):
            h = dt.tanh(h)
            h = h - dt.reduce_mean(h, 0, keepdims=True)
        kernels = fuse(partition_of([h], [x]), small=True).kernels
    assert sum(len(k.nodes) for k in kernels) == 60
    assert max(sum(n.type == "Mean" for n in k.nodes) for k in kernels) == MOST_PASSES
