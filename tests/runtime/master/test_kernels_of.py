"""`plan.kernels(device)` and `plan.why_not_fused(a, b)`: what the runtime would make of a plan, told without making it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dovetail as dt
from dovetail.codegen.cpu.jit import TieredKernel
from dovetail.codegen.cpu.kernels.fused import CpuFusedKernel
from dovetail.codegen.ir.program import Call, one_by_one
from dovetail.codegen.pipeline import compile_partition
from dovetail.runtime.worker import worker
from dovetail.tools.cli import app

GPU = {"worker": ["cpu:0", "gpu:0"]}


@pytest.fixture
def graph() -> Any:
    with dt.Graph().as_default() as g:
        x = dt.placeholder(dt.float32, [64, 128], name="x")
        w = dt.Variable(dt.zeros([128, 10]), name="w", use_resource=True)
        h = dt.nn.gelu(x, name="act") * 2.0
        logits = dt.matmul(h, w, name="logits")
        dt.nn.softmax(dt.tanh(logits, name="squash"), name="probabilities")
        dt.exp(dt.placeholder(dt.float32, [7], name="far"), name="lonely")
    return g


def plan_of(graph: dt.Graph, **more: Any) -> dt.Plan:
    return dt.place(graph, {"worker": 1}, fetches=["probabilities:0", "lonely:0"], **more)


def test_kernels_of_a_plan(graph: dt.Graph) -> None:
    kernels = plan_of(graph).kernels("cpu:0")
    first, second = kernels
    assert len(kernels) == 2
    assert kernels[1] is second
    assert (first.bytes_read, first.bytes_written) == (64 * 128 * 4, 64 * 128 * 4)
    assert first.bytes_saved > 0
    assert second.nodes == ("squash", "probabilities")
    assert second.flops == 64 * 10 * (10 + 14)
    assert "reduce max" in second.loops
    assert "def kernel(" in second.source
    text = str(kernels)
    assert text.startswith("kernels of /job:worker/replica:0/task:0/device:CPU:0: 2 for")
    assert "kernel 1: reads 2.5 KiB, writes 2.5 KiB, 15,360 flops\n  squash, probabilities" in text
    assert "hand-written kernels:\nMatMul: reads 37 KiB, writes 2.5 KiB, 163,840 flops\n  logits" in text
    assert "def contract(" in kernels.own[0].source
    assert re.search(r"peak memory: [\d.]+ KiB", text)
    assert kernels.peak_bytes >= 2 * 64 * 128 * 4


def test_bytes_and_operations_are_those_of_the_plan_s_sizes() -> None:
    """A batch that the graph leaves open, on two devices: the second one's kernels take what the first one made."""

    def plan_for(batch: int | None, **shapes: Any) -> dt.Plan:
        with dt.Graph().as_default() as graph:
            x = dt.placeholder(dt.float32, [batch, 16], name="x")
            with dt.device("/job:worker/task:0"):
                h = dt.matmul(dt.tanh(x * 2.0), dt.ones([16, 8]), name="h")
            with dt.device("/job:worker/task:1"):
                y = dt.nn.gelu(dt.exp(h) + 1.0, name="y")
        return dt.place(graph, {"worker": 2}, fetches=y, **shapes)

    def told(plan: dt.Plan) -> list[Any]:
        devices = [plan.kernels(d) for d in plan.partitions]
        assert all(kernels.memory.exact for kernels in devices)
        return [
            [(k.nodes, k.bytes_read, k.bytes_written, k.bytes_saved, k.flops) for k in kernels]
            + [(k.nodes, k.bytes_read, k.bytes_written, k.flops) for k in kernels.own]
            for kernels in devices
        ]  # fmt: skip

    assert told(plan_for(None, shapes={"x": (64, 16)})) == told(plan_for(64))
    for plan, marked in ((plan_for(64), False), (plan_for(None), True)):
        text = "\n".join(str(plan.kernels(d)) for d in plan.partitions)
        kernels = re.findall("reads .* flops", text)
        assert len(kernels) == 3 and [line.count("≥ ") for line in kernels] == [3 * marked] * 3
    (made,) = [k for d in plan_for(64).partitions for k in plan_for(64).kernels(d) if "y" in k.nodes[-1]]
    assert (made.bytes_read, made.bytes_written) == (64 * 8 * 4, 64 * 8 * 4)


def test_kernels_of_a_real_gpu_are_triton_s(graph: dt.Graph) -> None:
    plan = plan_of(graph, devices=GPU)
    kernels = plan.kernels("gpu:0")
    assert kernels.gpu is not None
    assert any("import triton" in k.source for k in kernels)


def test_schedules_of_a_gpu_are_shown() -> None:
    """Of fused kernels, of products with what is fused with them, and of nodes with templates; unknown sizes count as 1024."""
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.bfloat16, [None, 4096], name="x")
        w = dt.placeholder(dt.bfloat16, [4096, 4096], name="w")
        y = dt.matmul(dt.nn.relu(dt.matmul(x, w), name="active"), w, name="product")
        dt.group(dt.nn.softmax(y, name="shares"), dt.nn.top_k(y, 5)[0], dt.shape(y)[:1] + 1, name="all")
    plan = dt.place(graph, {"worker": 1}, fetches="all", devices=GPU, master="/job:worker/task:0")
    text = str(plan.kernels("gpu:0"))
    tiles = "tiles of 128x256x64, 8 warps, 4 stages, by the copy engine"
    assert f"\n  MatMul, active\n  {tiles}\n" in text
    assert f"\n  product (MatMul): {tiles}\n" in text
    assert "\n  shares\n  tiles of 1x4096, whole rows, 8 warps\n" in text
    assert "(TopKV2): tiles of 1x4096, whole rows, 8 warps\n" in text
    assert "Shape (Shape): tiles" not in text and "add" not in text.partition("tiles")[0], "these are the host's"


def test_why_two_nodes_are_not_in_one_kernel(graph: dt.Graph) -> None:
    plan = plan_of(graph)
    assert plan.why_not_fused("squash", "probabilities") == "'squash' and 'probabilities' are both in kernel 1"
    assert plan.why_not_fused("logits", "squash") == "'logits' (MatMul) is in no kernel: MatMul has no loop nest"
    assert plan.why_not_fused("mul", "squash").endswith(
        "kernel 1: between them runs 'logits' (MatMul), which is in neither: MatMul has no loop nest"
    )
    assert "is in no kernel: nothing to fuse it with" in plan.why_not_fused("lonely", "squash")
    with pytest.raises(KeyError, match="does not run 'x'"):
        plan.why_not_fused("x", "squash")


def test_nodes_of_two_devices(graph: dt.Graph) -> None:
    with graph.as_default(), graph.device("/job:ps"):
        dt.exp(graph.get_tensor_by_name("probabilities:0"), name="there")
    plan = dt.place(graph, {"worker": 1, "ps": 1}, fetches="there:0", master="/job:worker/task:0")
    assert plan.why_not_fused("squash", "there") == (
        "'squash' is on /job:worker/replica:0/task:0/device:CPU:0, 'there' on /job:ps/replica:0/task:0/device:CPU:0"
    )
    with pytest.raises(dt.errors.InvalidArgumentError, match="several devices"):
        plan.kernels("cpu:0")


def test_a_session_s_plan_has_them_too(graph: dt.Graph) -> None:
    with dt.Session(graph=graph) as session:
        plan = session.plan("probabilities:0")
        assert plan.kernels("cpu:0")[0].nodes == plan_of(graph).kernels("cpu:0")[0].nodes
        as_written = plan.kernels("cpu:0", dt.ConfigProto(graph_rewrite=0))
        assert not as_written.fired
        with pytest.raises(dt.errors.InvalidArgumentError, match="no device"):
            plan.kernels("gpu:7")


def test_compiled_kernels_of_their_own_are_those_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Any] = []

    def compiled_partition(*given: Any) -> Any:
        programs.append(compile_partition(*given))
        return programs[-1]

    monkeypatch.setattr(worker, "compile_partition", compiled_partition)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 512], name="x")
        w = dt.get_variable("w", [512, 512])
        r = dt.get_variable("r", [512, 300], use_resource=True)
        noise = dt.random_normal([300])
        hidden = dt.nn.relu(dt.matmul(x, w))
        loss = dt.reduce_mean(
            dt.square(dt.math.unsorted_segment_sum(dt.matmul(hidden, r) + noise, dt.range(64) // 2, 32))
        )
        train = dt.train.AdamOptimizer(0.1).minimize(loss)
        fetches, feeds = [train, loss], {x: np.ones((64, 512), np.float32)}
        with dt.Session(config=dt.ConfigProto(kernel_backend="auto")) as session:
            session.run(dt.global_variables_initializer())
            programs.clear()
            session.run(fetches, feeds)
            told = session.plan(fetches, feeds).kernels("cpu:0")
    (program,) = programs
    compiled = {
        call.nodes or (call.node,)
        for call in one_by_one(program.instructions)
        if isinstance(call, Call)
        and isinstance(call.kernel, TieredKernel)
        and not isinstance(call.kernel, CpuFusedKernel)
    }
    assert {k.nodes for k in told.own} == compiled
    (weights,) = (k for k in told.own if k.nodes == ("Adam/update_w/ApplyAdam",))
    assert weights.step.type == "ApplyAdam"
    assert weights.bytes_written == 3 * 512 * 512 * 4  # the weights and Adam's two slots
    assert "def kernel(" in weights.source
    assert "hand-written kernels:\nMatMul: reads" in str(told)


_MEASURE_A_STEP = """
import json, sys, tracemalloc
import numpy as np
import dovetail as dt
from dovetail.graph.resources.buffer_pool import buffers

buffers._kept = 0  # so that all of a step's memory is new, and counted
x = dt.placeholder(dt.float32, [128, 512])
v = dt.Variable(dt.zeros([512, 600]), use_resource=True)
y = dt.matmul(x, v)
for i in range(4):  # what is made and let go again, of several sizes
    y = dt.matmul(dt.tanh(y), dt.constant(np.ones([y.shape[1], 500 + 40 * i], np.float32)))
change = v.assign_add(dt.zeros_like(v) + dt.reduce_sum(y), read_value=False)
# one thread: a helper that comes late may still hold what it was given
config = dt.ConfigProto(kernel_backend=sys.argv[1], kernel_check=0, intra_op_parallelism_threads=1)
taken = []
with dt.Session(config=config) as session:
    session.run(v.initializer)
    fetches, feeds = [dt.reduce_mean(y), change], {x: np.ones((128, 512), np.float32)}
    for _ in range(4):  # plans and kernels, and those of native regions
        session.run(fetches, feeds)
    predicted = session.plan(fetches, feeds).kernels("cpu:0", config)
    assert predicted.memory.exact
    if sys.argv[1] == "numba":
        region, *_ = predicted.regions  # the last is the update
        assert region.arena_bytes == predicted.memory.arenas[0].bytes > 2 * 128 * 500 * 4, str(predicted)
    tracemalloc.start()
    for _ in range(5):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        session.run(fetches, feeds)
        taken.append(tracemalloc.get_traced_memory()[1] - before)
print(json.dumps([feeds[x].nbytes, predicted.peak_bytes, taken]))
"""


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_predicted_peak_is_what_a_step_takes(backend: str) -> None:
    """In a process of its own: tracemalloc counts what every thread takes, and other tests leave kernels to be compiled."""
    if backend == "numba":
        pytest.importorskip("numba")
    ran = subprocess.run(
        [sys.executable, "-c", _MEASURE_A_STEP, backend], capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr
    fed, predicted, taken = json.loads(ran.stdout)
    for measured in taken:  # and no step takes more than the one before
        assert 0.7 * predicted < measured + fed < 1.3 * predicted


def test_command(graph: dt.Graph, tmp_path: Path) -> None:
    dt.save_graph(graph, tmp_path / "graph")
    words = ["plan", str(tmp_path / "graph"), "--fetch", "probabilities:0", "--kernels"]
    shown = CliRunner().invoke(app, [*words, "cpu:0"])
    assert shown.exit_code == 0 and shown.stdout.startswith("kernels of /job:localhost")
    wrong = CliRunner().invoke(app, [*words, "gpu:3"])
    assert wrong.exit_code == 2 and "names no device" in wrong.stderr


def test_kernels_of_a_device_are_short_as_a_value_and_whole_in_a_notebook() -> None:
    with dt.Graph().as_default() as graph:
        y = dt.exp(dt.zeros([8]) + dt.placeholder(dt.float32, [8], name="x"), name="y")
    kernels = dt.place(graph, fetches=y).kernels("cpu:0")
    assert repr(kernels) == "<dt.DeviceKernels of /job:localhost/replica:0/task:0/device:CPU:0: 1 kernel>"
    assert kernels._repr_html_().startswith("<pre>kernels of /job:localhost/")
