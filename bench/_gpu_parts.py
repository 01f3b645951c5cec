"""The parts of bench/gpu.py: what is measured on a GPU, case by case.

A part is a function of `quick` that gives cases: a name, and a function that gives the case's rows. The runner goes on
with the next case when one fails. Data is random: products of zeros and ones take less power, so the GPU's clock is higher.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from _gpu_links import links
from _gpu_numbers import numbers
from _gpu_timing import Case, Part, compile_first, copied_per_second, gpu, normal, seconds_of, step_seconds
from _harness import Row, row

ELEMENTS = {True: 1 << 26, False: 1 << 28}  # of the arrays that memory speed is measured with, quick or not
COLUMNS = 1 << 12
LAUNCHES = 200  # before the GPU is waited for: fewer than its queue holds
CHAIN = 100  # kernels of a step
PRODUCTS = {
    True: ((4096, 4096, 4096),),
    False: ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 4096, 512), (16, 4096, 4096)),
}
AT_ONCE = 1 << 36  # multiplications of a step of products: small ones are repeated, on other operands...
MOST_PRODUCTS, MOST_BYTES = 64, 1 << 29  # ...so often, and of so many bytes: more than caches hold
ATTENTIONS = {True: ((4, 16, 1024, 64),), False: ((4, 16, 2048, 64), (2, 16, 4096, 128))}  # batch, heads, tokens, width
CONVOLUTIONS = {
    True: ((32, 28, 128, 128, 3),),
    False: ((64, 56, 64, 64, 3), (64, 28, 256, 256, 3), (64, 28, 256, 512, 1)),
}
"""Images, their side, channels in and out, the filter's side."""


# --- launches ------------------------------------------------------------------------------------------------------------


def launches(quick: bool) -> Iterator[Case]:
    """Microseconds of the host for one launch, and of everything for one kernel of a captured step."""
    yield "launches", _launches
    yield "a session's step", _chain


def _launches() -> Iterator[Row]:
    from dovetail.codegen.gpu.driver.device import capture
    from dovetail.codegen.gpu.driver.launch import LoadedKernel, LoadedRoutine
    from dovetail.codegen.gpu.ir import HEADER, Count, Grid, Launch, Parameter, Routine, TritonKernel
    from dovetail.codegen.gpu.toolchain import compile

    device = gpu()
    text = HEADER + (
        "@triton.jit\ndef add_one(in0, out0, n0, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out0 + i, tl.load(in0 + i, i < n0) + 1.0, i < n0)\n"
    )
    parameters = (Parameter("in0", "*fp32", True), Parameter("out0", "*fp32", True), Parameter("n0", "i32"))
    kernel = TritonKernel("add_one", text, parameters, (("BLOCK", 1024),))
    routine = Routine((Launch(kernel, Grid((Count(("n0",), 1024),))),))
    loaded = LoadedKernel(device, compile.compile_kernel(kernel, device.target))
    x, y = device.from_host(np.zeros(1024, np.float32)), device.empty((1024,), np.dtype(np.float32))
    run = LoadedRoutine(device, routine, [loaded], ["in0", "out0"], {"n0": 1024})
    addresses = (x.pointer, y.pointer)
    samples = []
    for _ in range(50):
        device.synchronize()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            run(addresses)
        samples.append((time.perf_counter() - began) / LAUNCHES)
    host = statistics.median(samples) * 1e6
    yield row("launch of a prepared kernel, host's time", "µs", host, target="dovetail <= 3")
    each = seconds_of(lambda: run(addresses), device.synchronize)
    yield row("launch of a prepared kernel, with its run", "µs", each * 1e6)
    if float(np.asarray(y)[0]) != 1.0:
        raise RuntimeError("the kernel did not do its work")
    with capture(device) as graph:
        for i in range(CHAIN):
            run(addresses if i % 2 == 0 else addresses[::-1])
    captured = seconds_of(graph.launch, device.synchronize) / CHAIN
    yield row(f"kernel of a captured step of {CHAIN}", "µs", captured * 1e6, target="dovetail <= 1")
    starts = []
    for _ in range(20):
        device.synchronize()
        began = time.perf_counter()
        graph.launch()
        starts.append(time.perf_counter() - began)
    each = statistics.median(starts) / CHAIN
    yield row(f"kernel of a captured step of {CHAIN}, host's time", "µs", each * 1e6)


def _chain() -> Iterator[Row]:
    """A step of a session with so many kernels, none of which can be fused with the next."""
    import dovetail as dt

    def make(x: Any) -> Any:
        for _ in range(CHAIN // 2):
            x = dt.transpose(dt.math.cumsum(x, 1))
        return x

    each = step_seconds(make, np.zeros((16, 16), np.float32)) / CHAIN
    yield row(f"kernel of a session's step of {CHAIN}", "µs", each * 1e6)


# --- memory --------------------------------------------------------------------------------------------------------------


def memory(quick: bool) -> Iterator[Case]:
    """GB/s, reads and writes, as a share of what a copy reaches."""
    import dovetail as dt

    device, size = gpu(), ELEMENTS[quick]
    shape = size // COLUMNS, COLUMNS
    value = normal(shape)
    copy = copied_per_second(device, size) / 1e9

    def measured(name: str, make: Callable[[Any], Any], moves: float, target: str) -> Iterator[Row]:
        speed = moves * 4 * size / step_seconds(make, value) / 1e9
        yield row(f"{name}, {shape[0]} x {shape[1]} float32", "GB/s", speed, copy, "copy", target)

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + dt.nn.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    def normalised(x: Any) -> Any:
        centred = x - dt.reduce_mean(x, 1, keepdims=True)
        return centred * dt.math.rsqrt(dt.reduce_mean(centred * centred, 1, keepdims=True) + 1e-5)

    # Each row once: what is read and written is what a copy does. Rows are added to zeros, which are written before.
    places = np.random.default_rng(0).permutation(shape[0]).astype(np.int32)
    good = "ratio >= 0.85"
    cases: dict[
        str, tuple[Callable[[Any], Any], float, str]
    ] = {  # what, how often the array moves through memory, the target
        "GELU chain": (gelu, 2, good),
        "sum of all": (lambda x: dt.reduce_sum(x), 1, good),
        "sums of rows": (lambda x: dt.reduce_sum(x, 1), 1, good),
        "sums of columns": (lambda x: dt.reduce_sum(x, 0), 1, good),
        "softmax of rows": (dt.nn.softmax, 2, good),
        "layer norm of rows": (normalised, 2, good),
        "running sums of rows": (lambda x: dt.math.cumsum(x, 1), 2, ""),
        "transpose": (lambda x: dt.transpose(x), 2, ""),
        "rows looked up at random": (lambda x: dt.gather(x, dt.constant(places)) * 2.0, 2, ""),
        "rows added at random": (
            lambda x: dt.math.unsorted_segment_sum(x * 2.0, dt.constant(places), len(places)),
            3,
            "",
        ),
    }
    yield "copy", lambda: iter([row(f"copy of {4 * size >> 20} MiB", "GB/s", copy)])
    for name, (make, moves, target) in cases.items():
        yield name, partial(measured, name, make, moves, target)


# --- products ------------------------------------------------------------------------------------------------------------


def products(quick: bool) -> Iterator[Case]:
    """TFLOP/s of bfloat16 products; cuBLAS as PyTorch (its launches captured as a graph, as Dovetail's are) or CuPy call it."""
    for sizes in PRODUCTS[quick]:
        yield " x ".join(map(str, sizes)), partial(_product, *sizes)


def _product(m: int, n: int, k: int) -> Iterator[Row]:
    import dovetail as dt

    device = gpu()
    repeated = max(1, min(MOST_PRODUCTS, AT_ONCE // (m * n * k), MOST_BYTES // (2 * (m * k + k * n))))
    flops = 2 * m * n * k * repeated / 1e12
    values = [
        (normal((m, k), ml_dtypes.bfloat16, i), normal((k, n), ml_dtypes.bfloat16, 99 - i)) for i in range(repeated)
    ]
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        given = [tuple(dt.placeholder(dt.bfloat16, v.shape) for v in pair) for pair in values]
        pairs = [tuple(dt.Variable(g, trainable=False) for g in pair) for pair in given]
        step = dt.group(*[dt.matmul(a, b).op for a, b in pairs])
        start = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        compile_first(session, step)
        session.run(start, {g: v for gs, vs in zip(given, values, strict=True) for g, v in zip(gs, vs, strict=True)})
        mine = flops / seconds_of(partial(session.run, step), device.synchronize)
    device.pool.trim()
    peer, theirs = cublas(values)
    name = f"bfloat16 product {m} x {n} x {k}"
    yield row(name, "TFLOP/s", mine, None if theirs is None else flops / theirs, peer, "ratio >= 0.9")


def cublas(values: list[tuple[np.ndarray, np.ndarray]]) -> tuple[str, float | None]:
    """Who called cuBLAS, and the seconds that it took for all of these products."""
    try:
        import torch
    except ImportError:
        pass
    else:
        pairs = [tuple(torch.from_numpy(v.astype(np.float32)).cuda().bfloat16() for v in pair) for pair in values]
        graph, results = torch.cuda.CUDAGraph(), []  # which the graph writes, so they are kept
        for _ in range(3):
            results = [a @ b for a, b in pairs]
        with torch.cuda.graph(graph):
            results = [a @ b for a, b in pairs]
        took = seconds_of(graph.replay, torch.cuda.synchronize)
        del results
        return "PyTorch (cuBLAS)", took
    try:
        import cupy
    except ImportError:
        return "", None
    there = [tuple(cupy.asarray(v.astype(np.float16)) for v in pair) for pair in values]
    return "CuPy (cuBLAS, float16)", seconds_of(lambda: [a @ b for a, b in there], cupy.cuda.Device().synchronize)


# --- attention, convolution ----------------------------------------------------------------------------------------------


def against_torch(name: str, flops: float, mine: float, theirs: Callable[[Any], Callable[[], Any]]) -> Iterator[Row]:
    """TFLOP/s beside PyTorch's, which need not be there. `theirs` gets the module, and gives what starts a run."""
    try:
        import torch
    except ImportError:
        yield row(name, "TFLOP/s", flops / mine / 1e12)
        return
    other = flops / seconds_of(theirs(torch), torch.cuda.synchronize) / 1e12
    torch.cuda.empty_cache()
    yield row(name, "TFLOP/s", flops / mine / 1e12, other, "PyTorch")


def attention(quick: bool) -> Iterator[Case]:
    """TFLOP/s of attention in bfloat16, forward, and with the gradients; PyTorch's scaled_dot_product_attention."""
    for sizes in ATTENTIONS[quick]:
        yield str(sizes), partial(_attention, *sizes)


def _attention(batch: int, heads: int, tokens: int, width: int) -> Iterator[Row]:
    import dovetail as dt

    values = [normal((batch, heads, tokens, width), ml_dtypes.bfloat16, i) for i in range(4)]
    flops = 4.0 * batch * heads * tokens * tokens * width
    name = f"attention, {batch} x {heads} heads x {tokens} x {width} bfloat16"

    def forward(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return dt.matmul(dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * width**-0.5), v)

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        return dt.gradients(forward(q, k, v), [q, k, v], grad_ys=[g])

    def peer(gradients: bool, torch: Any) -> Callable[[], Any]:
        given = [torch.from_numpy(v.astype(np.float32)).cuda().bfloat16() for v in values]
        operands = [x.requires_grad_(gradients) for x in given[:3]]
        function = torch.nn.functional.scaled_dot_product_attention
        if not gradients:
            return lambda: function(*operands)
        return lambda: torch.autograd.grad(function(*operands), operands, given[3])

    yield from against_torch(name, flops, step_seconds(forward, *values[:3]), partial(peer, False))
    yield from against_torch(f"{name}, with gradients", 3.5 * flops, step_seconds(both, *values), partial(peer, True))


def convolution(quick: bool) -> Iterator[Case]:
    """TFLOP/s of convolutions in bfloat16, forward, and both gradients; cuDNN as PyTorch calls it."""
    for sizes in CONVOLUTIONS[quick]:
        yield str(sizes), partial(_convolution, *sizes)


def _convolution(images: int, side: int, channels: int, out: int, filter_side: int) -> Iterator[Row]:
    import dovetail as dt

    x = normal((images, side, side, channels), ml_dtypes.bfloat16)
    w = normal((filter_side, filter_side, channels, out), ml_dtypes.bfloat16, 1)
    g = normal((images, side, side, out), ml_dtypes.bfloat16, 2)
    flops = 2.0 * images * side * side * channels * out * filter_side**2
    name = f"convolution, {images} x {side} x {side} x {channels} to {out}, {filter_side} x {filter_side}, bfloat16"

    def forward(x: Any, w: Any, *rest: Any) -> Any:
        return dt.nn.conv2d(x, w, [1, 1, 1, 1], "SAME")

    def gradients(x: Any, w: Any, g: Any) -> Any:
        return dt.gradients(forward(x, w), [x, w], grad_ys=[g])

    def peer(backward: bool, torch: Any) -> Callable[[], Any]:
        def there(value: np.ndarray, axes: tuple[int, ...]) -> Any:
            moved = torch.from_numpy(value.astype(np.float32)).permute(axes).cuda().bfloat16()
            return moved.contiguous(memory_format=torch.channels_last)

        a, b, c = there(x, (0, 3, 1, 2)), there(w, (3, 2, 0, 1)), there(g, (0, 3, 1, 2))
        torch.backends.cudnn.benchmark = True
        if not backward:
            return lambda: torch.nn.functional.conv2d(a, b, padding="same")
        half = filter_side // 2
        return lambda: torch.ops.aten.convolution_backward(
            c, a, b, None, [1, 1], [half, half], [1, 1], False, [0, 0], 1, [True, True, False]
        )

    yield from against_torch(name, flops, step_seconds(forward, x, w), partial(peer, False))
    yield from against_torch(
        f"{name}, both gradients", 2 * flops, step_seconds(gradients, x, w, g), partial(peer, True)
    )


# --- training ------------------------------------------------------------------------------------------------------------


def training(quick: bool) -> Iterator[Case]:
    """Milliseconds of a step, against torch.compile and jax.jit."""
    from _gpu_models import MODELS, PEERS, dovetail

    gpu()
    for name, (model, batch) in MODELS.items():
        known: dict[str, tuple[float, float]] = {}

        def own(name: str = name, model: str = model, batch: int = batch, known: Any = known) -> Iterator[Row]:
            known["mine"] = timed_step(dovetail, model, batch)
            yield row(f"{name}: training step", "ms", known["mine"][0] * 1e3)

        yield name, own
        for peer, make in PEERS.items():

            def other(
                name: str = name,
                model: str = model,
                batch: int = batch,
                known: Any = known,
                peer: str = peer,
                make: Any = make,
            ) -> Iterator[Row]:
                if "mine" not in known:
                    raise RuntimeError("there is nothing to compare with")
                (mine, loss), (theirs, its) = known["mine"], timed_step(make, model, batch)
                yield row(f"{name}: training step", "ms", mine * 1e3, theirs * 1e3, peer, "ratio <= 1.0")
                if not abs(loss - its) <= 0.02 * abs(its):
                    raise RuntimeError(f"after as many steps the loss is {loss} here and {its} with {peer}")

            yield f"{name}, {peer}", other


def timed_step(make: Callable[[str, int], Any], model: str, batch: int) -> tuple[float, float]:
    """Seconds of a step, and the loss after ten."""
    step, wait = make(model, batch)
    for _ in range(10):
        step()
    loss = wait()
    return seconds_of(step, wait, least_s=0.2), loss


PARTS: dict[str, tuple[Part, float]] = {
    "numbers": (numbers, 1.2),
    "launches": (launches, 0.5),
    "memory": (memory, 1.1),
    "products": (products, 1.3),
    "training": (training, 2.4),
    "attention": (attention, 0.8),
    "convolution": (convolution, 0.8),
    "links": (links, 0.4),
}
"""Each part, and the minutes that it may take: together no more than the whole has, so that none takes another's time.

Wrong numbers make a speed worthless, so they come first; behind them, what has a target."""

TIMELESS = frozenset({"numbers"})
"""Parts that measure no time: their cases run side by side, since each mostly waits for its kernels to be compiled."""
