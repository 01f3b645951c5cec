"""What only an NVIDIA GPU can show: `make test-gpu`, or `python -m pytest -m gpu`. Skipped where there is none.

Small programs run on the GPU and on the CPU; copies, graphs, tuning and other libraries' arrays on the real driver.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.gpu import autotune
from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.array import DeviceArray, from_cuda_array, from_dlpack
from dovetail.codegen.gpu.driver.copies import PIECE
from dovetail.codegen.gpu.driver.device import Device, device
from dovetail.codegen.gpu.driver.graphs import capture
from dovetail.codegen.gpu.driver.launch import LoadedKernel, LoadedRoutine
from dovetail.codegen.gpu.ir import HEADER, Count, Grid, Launch, Parameter, Routine, TritonKernel
from dovetail.codegen.gpu.toolchain.compile import compile_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(api.gpu_count() == 0, reason="there is no NVIDIA GPU here, or no cuda-bindings"),
]


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        patch.setenv("DOVETAIL_BACKEND", "numpy")  # of the CPU that the GPU is compared with
        yield


@pytest.fixture
def gpu() -> Device:
    return device(0)


def added(gpu: Device, n: int) -> LoadedRoutine:
    """A kernel that adds one, for n elements."""
    text = HEADER + (
        "@triton.jit\ndef add_one(in0, out0, n0, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out0 + i, tl.load(in0 + i, i < n0) + 1.0, i < n0)\n"
    )
    parameters = (Parameter("in0", "*fp32", True), Parameter("out0", "*fp32", True), Parameter("n0", "i32"))
    kernel = TritonKernel("add_one", text, parameters, (("BLOCK", 1024),))
    routine = Routine((Launch(kernel, Grid((Count(("n0",), 1024),))),))
    return LoadedRoutine(gpu, routine, [LoadedKernel(gpu, compile_kernel(kernel, gpu.target))], 1, 1, {"n0": n})


# --- the device layer ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1000, 16384, 16385, PIECE // 4 + 1, 10 * PIECE // 4 + 3])
def test_there_and_back(gpu, count):
    x = np.arange(count, dtype=np.float32)
    np.testing.assert_array_equal(gpu.to_host(gpu.from_host(x)), x)


@pytest.mark.parametrize("n", [1, 1000, 5_000_000])
def test_copies_and_kernels_wait_for_each_other(gpu, n):
    x = gpu.from_host(np.arange(n, dtype=np.float32))
    run = added(gpu, n)
    for _ in range(5):
        y = gpu.empty((n,), np.dtype(np.float32))
        with gpu.entered():
            run([x.pointer, y.pointer])
        x = y
    np.testing.assert_array_equal(gpu.to_host(x), np.arange(n, dtype=np.float32) + 5)


def test_a_captured_step_runs_again_and_again(gpu):
    x, y = gpu.from_host(np.zeros(1000, np.float32)), gpu.empty((1000,), np.dtype(np.float32))
    run = added(gpu, 1000)
    gpu.synchronize()
    with capture(gpu) as graph:
        for _ in range(50):
            run([x.pointer, y.pointer])
            run([y.pointer, x.pointer])
    for _ in range(3):
        graph.launch()
    assert (gpu.to_host(x) == 300).all()


def test_out_of_memory_is_an_error_and_the_device_goes_on(gpu):
    with pytest.raises(dt.errors.ResourceExhaustedError, match="is out of memory: no room for"):
        gpu.empty((gpu.memory_bytes,), np.dtype(np.float32), "too much")
    np.testing.assert_array_equal(gpu.to_host(gpu.from_host(np.arange(5))), np.arange(5))


def test_the_faster_of_two_wins(gpu):
    small, large = gpu.empty((1 << 10,), np.dtype(np.float32)), gpu.empty((1 << 26,), np.dtype(np.float32))
    with gpu.entered():
        times = autotune.measure(gpu, [lambda: gpu.clear(large), lambda: gpu.clear(small)])
    assert times[1] < times[0]


@pytest.mark.parametrize("library", ["torch", "cupy", "jax"])
def test_arrays_of_other_libraries(gpu, library):
    x = gpu.from_host(np.arange(12, dtype=np.float32).reshape(3, 4))
    if library == "torch":
        torch = pytest.importorskip("torch")
        there = torch.from_dlpack(x)
        there += 1
        back = from_dlpack(there * 2, gpu)
    elif library == "cupy":
        cupy = pytest.importorskip("cupy")
        there = cupy.from_dlpack(x)
        there += 1
        back = from_cuda_array(there * 2, gpu)
        assert float(cupy.asarray(x)[0, 1]) == 2.0
    else:
        jax = pytest.importorskip("jax")
        if jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU here")
        back = from_dlpack((jax.dlpack.from_dlpack(x) + 1) * 2, gpu)
    np.testing.assert_array_equal(np.asarray(back), (np.arange(12, dtype=np.float32).reshape(3, 4) + 1) * 2)


# --- sessions --------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
A, B, W = (RNG.standard_normal(s).astype(np.float32) for s in ((130, 257), (130, 257), (257, 65)))


def heads(x: Any) -> Any:
    """Rows as [2, 4, 65, 16]."""
    return dt.transpose(dt.reshape(x[:, :64], [2, 65, 4, 16]), [0, 2, 1, 3])


PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "pointwise": lambda x, y, w: dt.tanh(x * y) + dt.exp(-x * x) * dt.erf(y),
    "rows": lambda x, y, w: dt.reduce_sum(x * y, 1),
    "columns": lambda x, y, w: dt.reduce_max(x + y, 0),
    "all": lambda x, y, w: dt.reduce_mean(dt.exp(x)),
    "softmax": lambda x, y, w: dt.nn.softmax(3.0 * x),
    "layer norm": lambda x, y, w: (x - dt.reduce_mean(x, 1, keepdims=True)) * dt.rsqrt(dt.reduce_mean(x * x, 1, keepdims=True)),
    "product": lambda x, y, w: dt.nn.relu(dt.matmul(x, w) + 1.0),
    "transposed product": lambda x, y, w: dt.matmul(x, y, transpose_a=True),
    "gradient": lambda x, y, w: dt.gradients(dt.reduce_sum(dt.nn.relu(dt.matmul(x, w)) ** 2.0), [w])[0],
    "transpose": lambda x, y, w: dt.transpose(x) * 2.0,
    "on the host": lambda x, y, w: dt.reverse(x, [1]) + y,
    "running sum": lambda x, y, w: dt.cumsum(x, 1) + y,
    "largest": lambda x, y, w: dt.nn.top_k(x, 5)[0],
    "rows picked": lambda x, y, w: dt.gather(x, dt.argmax(y, 1) % 7),
    "rows added": lambda x, y, w: dt.math.unsorted_segment_sum(x, dt.constant(np.arange(130) % 7), 7),
    "attention": lambda x, y, w: dt.matmul(
        dt.nn.softmax(dt.matmul(heads(x), heads(y), transpose_b=True) / 4.0), heads(x + y)
    ),
    "convolution": lambda x, y, w: dt.nn.conv2d(
        dt.reshape(x, [13, 10, 257, 1]), dt.reshape(w[:9, :8], [3, 3, 1, 8]), strides=[1, 2, 2, 1], padding="SAME"
    ),
    "pooling": lambda x, y, w: dt.nn.max_pool(dt.reshape(x, [13, 10, 257, 1]), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
    "compare": lambda x, y, w: dt.where(x > y, x, -y),
    "branch": lambda x, y, w: dt.cond(dt.reduce_sum(x) > 0.0, lambda: x + y, lambda: x - y),
    "loop": lambda x, y, w: dt.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 0.5 + y), [0, x])[1],
}  # fmt: skip


def run_on(where: str, make: Callable[[Any, Any, Any], Any]) -> np.ndarray:
    with dt.Graph().as_default() as graph, dt.device(where):
        given = [dt.placeholder(dt.float32, [None, v.shape[1]]) for v in (A, B, W)]
        out = make(*given)
    with dt.Session(graph=graph) as session:
        for _ in range(2):
            value = session.run(out, dict(zip(given, (A, B, W), strict=True)))
    return value


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gpu_gives_the_cpus_numbers(name):
    mine, theirs = (run_on(where, PROGRAMS[name]) for where in ("/gpu:0", "/cpu:0"))
    assert mine.dtype == theirs.dtype
    scale = float(np.max(np.abs(theirs)))
    np.testing.assert_allclose(mine / scale, theirs / scale, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("optimizer", [dt.train.GradientDescentOptimizer, dt.train.AdamOptimizer])
def test_training(optimizer):
    losses = []
    for where in ("/gpu:0", "/cpu:0"):
        with dt.Graph().as_default() as graph, dt.device(where):
            w = dt.Variable(W[:, :10] * 0.1)
            logits = dt.matmul(dt.constant(A), w)
            labels = dt.constant(np.eye(10, dtype=np.float32)[np.arange(130) % 10])
            loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            train = optimizer(0.05).minimize(loss)
            start = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(start)
            for _ in range(20):
                session.run(train)
            losses.append(float(session.run(loss)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] < np.log(10)


def test_nothing_is_left_after_steps(gpu):
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, 257])
        y = dt.reduce_sum(dt.exp(x) * x)
    with dt.Session(graph=graph) as session:
        session.run(y, {x: A})
        gpu.synchronize()
        before = gpu.pool.largest()
        for _ in range(20):
            session.run(y, {x: A})
        gpu.synchronize()
        assert gpu.pool.largest() == before


def test_the_devices_are_real():
    with dt.Session(graph=dt.Graph()) as session:
        found = [d for d in session.list_devices() if d.name.device_type == "GPU"]
    assert len(found) == api.gpu_count() and not any(d.emulated for d in found)
    assert isinstance(device(0).from_host(np.ones(3)), DeviceArray)
