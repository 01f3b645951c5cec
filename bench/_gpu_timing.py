"""What the parts of bench/gpu.py share: the GPU, data for it, and how long steps on it take."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from _harness import Row

ROUNDS = 5

Case = tuple[str, Callable[[], Iterator[Row]]]
Part = Callable[[bool], Iterator[Case]]


def seconds_of(start: Callable[[], Any], wait: Callable[[], Any], *, least_s: float = 0.05) -> float:
    """Median seconds of one call, when many are started one after the other and waited for together."""
    for _ in range(3):
        start()
    wait()
    calls = 1
    while True:
        began = time.perf_counter()
        for _ in range(calls):
            start()
        wait()
        if (took := time.perf_counter() - began) > least_s or calls >= 4096:
            break
        calls = min(4096, max(2 * calls, int(1.5 * calls * least_s / max(took, 1e-6))))
    samples = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(calls):
            start()
        wait()
        samples.append((time.perf_counter() - began) / calls)
    return statistics.median(samples)


def gpu() -> Any:
    """The first GPU."""
    from dovetail.codegen.gpu.driver.device import device

    os.environ["DOVETAIL_BACKEND"] = "numpy"  # of what runs on CPUs: Numba need not be here
    return device(0)


def normal(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    """Random numbers; a large array repeats a million of them."""
    some = np.random.default_rng(seed).standard_normal(min(int(np.prod(shape)), 1 << 20), dtype=np.float32)
    return np.resize(some.astype(dtype), shape)


def compile_first(session: Any, fetches: Any) -> None:
    """Compile all kernels of a step side by side: while it runs for the first time, they would be compiled one after the other."""
    session.plan(fetches).kernels("gpu:0").compile()


def step_seconds(make: Callable[..., Any], *values: np.ndarray) -> float:
    """Seconds of a step that computes something from variables that hold these values. It may be several tensors.

    What it computes is assigned to variables: it stays on the GPU, and nothing is left out as unused.
    """
    import dovetail as dt

    device = gpu()
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        given = [dt.placeholder(v.dtype, v.shape) for v in values]
        held = [dt.Variable(g, trainable=False) for g in given]
        made = make(*held)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        places = [dt.Variable(dt.zeros(m.shape, m.dtype), trainable=False) for m in made]
        step = dt.group(*[dt.assign(p, m).op for p, m in zip(places, made, strict=True)])
        start = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        compile_first(session, step)
        session.run(start, dict(zip(given, values, strict=True)))
        took = seconds_of(partial(session.run, step), device.synchronize)
    device.pool.trim()
    return took


def copied_per_second(device: Any, size: int) -> float:
    """Bytes read and written each second by a copy of so many float32."""
    source, target = (device.empty((size,), np.dtype(np.float32)) for _ in range(2))
    device.clear(source)
    return 2.0 * source.nbytes / seconds_of(lambda: device.copy_into(target, source), device.synchronize)
