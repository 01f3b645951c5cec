"""Programs of every family of kernels, with the binaries that Triton makes: on the strict driver, and by `make test-gpu` on a real GPU.

Programs run on the GPU and on the CPU; steps are captured; what only a real GPU can show is skipped where there is none.
"""

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gpu_backends import IS_REAL, ON_DEVICE, RecordedDriver
from gpu_programs import gpus_with_kernels

import dovetail as dt
from dovetail.codegen.gpu import autotune
from dovetail.codegen.gpu.driver import api
from dovetail.codegen.gpu.driver.array import DeviceArray
from dovetail.codegen.gpu.driver.device import Device, device

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
only_real = pytest.mark.skipif(not IS_REAL, reason="only a real GPU shows it: make test-gpu")


@pytest.fixture(autouse=True, scope="module")
def _numpy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOVETAIL_BACKEND", "numpy")  # of the CPU that the GPU is compared with
        yield


@pytest.fixture(autouse=True)
def fake(own_cache: None) -> Iterator[RecordedDriver]:
    with gpus_with_kernels(compiled=True) as made:
        yield made


@pytest.fixture
def gpu(fake: RecordedDriver) -> Device:
    return device(0)


# --- the device layer ------------------------------------------------------------------------------------------------


@only_real
def test_the_faster_of_two_wins(gpu: Device) -> None:
    small, large = gpu.empty((1 << 10,), np.dtype(np.float32)), gpu.empty((1 << 26,), np.dtype(np.float32))
    with gpu.entered():
        times = autotune.measure(gpu, [lambda: gpu.clear(large), lambda: gpu.clear(small)])
    assert times[1] < times[0]


# --- sessions --------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
N, C, STEPS, TRAINED = (130, 257, 4, 20) if ON_DEVICE else (26, 65, 2, 5)  # the interpreter is slow
A, B, W = (RNG.standard_normal(s).astype(np.float32) for s in ((N, C), (N, C), (C, 33)))


def heads(x: Any) -> Any:
    """Rows as [2, 4, N / 2, 16]."""
    return dt.transpose(dt.reshape(x[:, :64], [2, N // 2, 4, 16]), [0, 2, 1, 3])


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
    "rows added": lambda x, y, w: dt.math.unsorted_segment_sum(x, dt.constant(np.arange(N) % 7), 7),
    "attention": lambda x, y, w: dt.matmul(
        dt.nn.softmax(dt.matmul(heads(x), heads(y), transpose_b=True) / 4.0), heads(x + y)
    ),
    "convolution": lambda x, y, w: dt.nn.conv2d(
        dt.reshape(x, [2, N // 2, C, 1]), dt.reshape(w[:9, :8], [3, 3, 1, 8]), strides=[1, 2, 2, 1], padding="SAME"
    ),
    "pooling": lambda x, y, w: dt.nn.max_pool(dt.reshape(x, [2, N // 2, C, 1]), [1, 2, 2, 1], [1, 2, 2, 1], "SAME"),
    "compare": lambda x, y, w: dt.where(x > y, x, -y),
    "branch": lambda x, y, w: dt.cond(dt.reduce_sum(x) > 0.0, lambda: x + y, lambda: x - y),
    "loop": lambda x, y, w: dt.while_loop(lambda i, v: i < 5, lambda i, v: (i + 1, v * 0.5 + y), [0, x])[1],
}  # fmt: skip


def run_on(where: str, make: Callable[[Any, Any, Any], Any]) -> list[np.ndarray[Any, Any]]:
    with dt.Graph().as_default() as graph, dt.device(where):
        given = [dt.placeholder(dt.float32, [None, v.shape[1]]) for v in (A, B, W)]
        out = make(*given)
    with dt.Session(graph=graph) as session:
        return [session.run(out, dict(zip(given, (A, B, W), strict=True))) for _ in range(STEPS)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_gpu_gives_the_cpus_numbers(name: str) -> None:
    theirs, *_ = run_on("/cpu:0", PROGRAMS[name])
    scale = float(np.max(np.abs(theirs)))
    for mine in run_on("/gpu:0", PROGRAMS[name]):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine / scale, theirs / scale, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("optimizer", [dt.train.GradientDescentOptimizer, dt.train.AdamOptimizer])
def test_training(fake: RecordedDriver, optimizer: Any) -> None:
    losses = []
    for where in ("/gpu:0", "/cpu:0"):
        with dt.Graph().as_default() as graph, dt.device(where):
            w = dt.Variable(W[:, :10] * 0.1)
            logits = dt.matmul(dt.constant(A), w)
            labels = dt.constant(np.eye(10, dtype=np.float32)[np.arange(N) % 10])
            loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits))
            train = optimizer(0.05).minimize(loss)
            start = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(start)
            for _ in range(TRAINED):
                session.run(train)
            losses.append(float(session.run(loss)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] < np.log(10)
    assert ("graph launch",) in fake.log, "the step was captured"


def test_nothing_is_left_after_steps(gpu: Device) -> None:
    garbage: list[Any] = [gpu.empty((C,), np.dtype(np.float32), "of an earlier test")]
    garbage.append(garbage)
    del garbage
    gc.collect()  # the steps' own garbage is none, so no collection may change what is counted
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(dt.float32, [None, C])
        y = dt.reduce_sum(dt.exp(x) * x)
    with dt.Session(graph=graph) as session:
        session.run(y, {x: A})
        gpu.synchronize()
        before = gpu.pool.largest()
        for _ in range(TRAINED):
            session.run(y, {x: A})
        gpu.synchronize()
        assert gpu.pool.largest() == before


def test_warnings_of_other_libraries_are_errors_only_where_none_is_needed() -> None:
    with pytest.raises(UserWarning):
        warnings.warn_explicit("ours", UserWarning, "kernels.py", 1, module="dovetail.codegen.gpu.kernels")
    with contextlib.nullcontext() if ON_DEVICE else pytest.raises(DeprecationWarning):
        warnings.warn_explicit("theirs", DeprecationWarning, "cuda.py", 1, module="torch.cuda")


@only_real
def test_the_devices_are_real() -> None:
    with dt.Session(graph=dt.Graph()) as session:
        found = [d for d in session.list_devices() if d.name.device_type == "GPU"]
    assert len(found) == api.gpu_count() and not any(d.emulated for d in found)
    assert isinstance(device(0).from_host(np.ones(3)), DeviceArray)
