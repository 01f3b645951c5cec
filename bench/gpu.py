"""Kernels, products, training steps and launches on an NVIDIA GPU, beside PyTorch and JAX in the same run.

    python bench/gpu.py --json bench/results/gpu.json --plot bench/results/gpu.svg

One command, under nine minutes. What it measures, each part by itself (one that fails says so, and the others go on):

    numbers     small programs, compared with NumPy: whether what follows computes anything
    memory      a chain of functions, sums and softmax of large arrays, against the speed of a plain copy on the same GPU
    products    bfloat16 matrices, against cuBLAS (as PyTorch or CuPy call it)
    training    steps of an MLP and a transformer block, against torch.compile and jax.jit
    launches    the host's time for one launch, and a step of 100 kernels captured as a CUDA graph

It needs NumPy, ml_dtypes, msgpack, Triton and cuda-bindings (no Numba, SciPy or pyzmq); peers that are not installed are left out.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from _harness import Row, report, row

MINUTES = 8.5
ROUNDS = 5
ELEMENTS = {True: 1 << 26, False: 1 << 28}  # of the arrays that memory speed is measured with, quick or not
COLUMNS = 1 << 12
LAUNCHES = 200  # before the GPU is waited for: fewer than its queue holds
PRODUCTS = {
    True: ((4096, 4096, 4096),),
    False: ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 4096, 512)),
}
NO_GPU = (
    "bench/gpu.py measures NVIDIA GPUs, and this machine has none that Dovetail can use: it looks for the driver "
    "(/proc/driver/nvidia), and for the package cuda-bindings (pip install 'dovetail[cuda]')."
)

Section = Callable[[bool], Iterator[Row]]


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


# --- numbers -------------------------------------------------------------------------------------------------------------


def numbers(quick: bool) -> Iterator[Row]:
    """The largest relative difference from NumPy, for one program of each kind."""
    import dovetail as dt

    os.environ["DOVETAIL_BACKEND"] = "numpy"  # of what runs on CPUs: Numba need not be here

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((300, 257), dtype=np.float32) for _ in range(2))
    square = rng.standard_normal((257, 129), dtype=np.float32)
    programs: dict[str, Callable[[Any, Any, Any], Any]] = {
        "pointwise chain": lambda x, y, w: dt.tanh(x * y) + dt.exp(-x * x),
        "sums of rows": lambda x, y, w: dt.reduce_sum(x * y, 1),
        "sums of columns": lambda x, y, w: dt.reduce_sum(x * y, 0),
        "sum of all": lambda x, y, w: dt.reduce_sum(dt.exp(x)),
        "softmax": lambda x, y, w: dt.nn.softmax(3.0 * x),
        "matrix product": lambda x, y, w: dt.matmul(x, w),
        "transposed product": lambda x, y, w: dt.matmul(x, y, transpose_a=True),
        "gradient of a layer": lambda x, y, w: dt.gradients(dt.reduce_sum(dt.nn.relu(dt.matmul(x, w)) ** 2.0), [w])[0],
        "transpose": lambda x, y, w: dt.transpose(x) * 2.0,
    }
    for name, make in programs.items():
        results = []
        for where in ("/gpu:0", "/cpu:0"):
            with dt.Graph().as_default() as graph, dt.device(where):
                given = [dt.placeholder(dt.float32, v.shape) for v in (a, b, square)]
                out = make(*given)
            with dt.Session(graph=graph) as session:
                results.append(session.run(out, dict(zip(given, (a, b, square), strict=True))).astype(np.float64))
        mine, theirs = results
        worst = float(np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs)))
        yield row(f"numbers: {name}", "difference", worst, target="dovetail <= 2e-5")


# --- memory --------------------------------------------------------------------------------------------------------------


def memory(quick: bool) -> Iterator[Row]:
    """GB/s, reads and writes, as a share of what a copy reaches."""
    import dovetail as dt
    from dovetail.codegen.cuda.device import device

    gpu = device(0)
    size = ELEMENTS[quick]
    copy = copied_per_second(gpu, size) / 1e9
    yield row(f"copy of {4 * size >> 20} MiB", "GB/s", copy)
    rows, columns = size // COLUMNS, COLUMNS

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + dt.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))

    cases: dict[str, tuple[Callable[[Any], Any], float]] = {  # what, and how often the array moves through memory
        "GELU chain": (gelu, 2),
        "sum of all": (lambda x: dt.reduce_sum(x), 1),
        "sums of rows": (lambda x: dt.reduce_sum(x, 1), 1),
        "sums of columns": (lambda x: dt.reduce_sum(x, 0), 1),
        "softmax of rows": (dt.nn.softmax, 2),
        "normalised rows": (lambda x: (x - dt.reduce_mean(x, 1, keepdims=True)) * 2.0, 2),
    }
    for name, (make, moves) in cases.items():
        with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
            x = dt.Variable(dt.zeros([rows, columns]), name="x")
            out = make(x)
            # A result that nobody takes would not be computed; an assignment takes it, and copies nothing.
            step = dt.assign(dt.Variable(dt.zeros(out.shape), name="out"), out).op
            start = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(start)
            speed = moves * 4 * size / seconds_of(partial(session.run, step), gpu.synchronize) / 1e9
        yield row(f"{name}, {rows} x {columns} float32", "GB/s", speed, copy, "copy", "ratio >= 0.85")
        gpu.pool.trim()


def copied_per_second(gpu: Any, size: int) -> float:
    """Bytes read and written each second by a copy of so many float32."""
    source, target = (gpu.empty((size,), np.dtype(np.float32)) for _ in range(2))
    return 2.0 * source.nbytes / seconds_of(lambda: gpu.copy_into(target, source), gpu.synchronize)


# --- products ------------------------------------------------------------------------------------------------------------


def products(quick: bool) -> Iterator[Row]:
    """TFLOP/s of bfloat16 products; cuBLAS as PyTorch or CuPy call it."""
    import dovetail as dt
    from dovetail.codegen.cuda.device import device

    gpu = device(0)
    for m, n, k in PRODUCTS[quick]:
        flops = 2 * m * n * k / 1e12
        with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
            a, b = (dt.Variable(dt.cast(dt.ones(s), dt.bfloat16), name="x") for s in ((m, k), (k, n)))
            step = dt.matmul(a, b).op
            start = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(start)
            mine = flops / seconds_of(partial(session.run, step), gpu.synchronize)
        peer, theirs = cublas(m, n, k)
        name = f"bfloat16 product {m} x {n} x {k}"
        yield row(name, "TFLOP/s", mine, None if theirs is None else flops / theirs, peer, "ratio >= 0.9")
        gpu.pool.trim()


def cublas(m: int, n: int, k: int) -> tuple[str, float | None]:
    """Who called cuBLAS, and the seconds that it took."""
    try:
        import torch

        a, b = (torch.ones(s, device="cuda", dtype=torch.bfloat16) for s in ((m, k), (k, n)))
        return "PyTorch (cuBLAS)", seconds_of(lambda: torch.matmul(a, b), torch.cuda.synchronize)
    except ImportError:
        pass
    try:
        import cupy

        a, b = (cupy.ones(s, cupy.float16) for s in ((m, k), (k, n)))
        return "CuPy (cuBLAS, float16)", seconds_of(lambda: a @ b, cupy.cuda.Device().synchronize)
    except ImportError:
        return "", None


# --- training ------------------------------------------------------------------------------------------------------------


def training(quick: bool) -> Iterator[Row]:
    """Milliseconds of a step."""
    from _gpu_models import MODELS, PEERS, dovetail

    for name, (model, batch) in MODELS.items():
        try:
            mine, loss = timed_step(dovetail, model, batch)
        except Exception as e:
            explain(f"training of {name}", e)
            continue
        for peer, make in PEERS.items():
            try:
                theirs, other = timed_step(make, model, batch)
            except Exception as e:
                explain(f"{peer}, {name}", e)
                yield row(f"{name}: training step", "ms", mine * 1e3)
                continue
            if not math.isclose(loss, other, rel_tol=0.02):
                print(f"{name}: after as many steps the loss is {loss} here and {other} with {peer}", file=sys.stderr)
            yield row(f"{name}: training step", "ms", mine * 1e3, theirs * 1e3, peer, "ratio <= 1.0")


def timed_step(make: Callable[[str, int], Any], model: str, batch: int) -> tuple[float, float]:
    """Seconds of a step, and the loss after ten."""
    step, wait = make(model, batch)
    for _ in range(10):
        step()
    loss = wait()
    return seconds_of(step, wait, least_s=0.2), loss


# --- launches ------------------------------------------------------------------------------------------------------------


def launches(quick: bool) -> Iterator[Row]:
    """Microseconds of the host for one launch, and of everything for one kernel of a captured step."""
    from dovetail.codegen import triton_compile
    from dovetail.codegen.cuda.device import device
    from dovetail.codegen.cuda.graphs import capture
    from dovetail.codegen.cuda.kernels import KernelOnDevice, RoutineOnDevice
    from dovetail.codegen.gpu_kernel import HEADER, Count, Grid, Launch, Parameter, Routine, TritonKernel

    gpu = device(0)
    text = HEADER + (
        "@triton.jit\ndef add_one(in0, out0, n0, BLOCK: tl.constexpr):\n"
        "    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    tl.store(out0 + i, tl.load(in0 + i, i < n0) + 1.0, i < n0)\n"
    )
    parameters = (Parameter("in0", "*fp32", True), Parameter("out0", "*fp32", True), Parameter("n0", "i32"))
    kernel = TritonKernel("add_one", text, parameters, (("BLOCK", 1024),))
    routine = Routine((Launch(kernel, Grid((Count(("n0",), 1024),))),))
    loaded = KernelOnDevice(gpu, triton_compile.compile_kernel(kernel, gpu.target))
    x, y = gpu.from_host(np.zeros(1024, np.float32)), gpu.empty((1024,), np.dtype(np.float32))
    run = RoutineOnDevice(gpu, routine, [loaded], 1, 1, {"n0": 1024})
    addresses = (x.pointer, y.pointer)
    samples = []
    for _ in range(50):
        gpu.synchronize()
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            run(addresses)
        samples.append((time.perf_counter() - began) / LAUNCHES)
    yield row(
        "launch of a prepared kernel, host's time", "µs", statistics.median(samples) * 1e6, target="dovetail <= 3"
    )
    each = seconds_of(lambda: run(addresses), gpu.synchronize)
    yield row("launch of a prepared kernel, with its run", "µs", each * 1e6)
    if float(np.asarray(y)[0]) != 1.0:
        raise RuntimeError("the kernel did not do its work")
    with capture(gpu) as graph:
        for i in range(100):
            run(addresses if i % 2 == 0 else addresses[::-1])
    captured = seconds_of(graph.launch, gpu.synchronize) / 100
    yield row("kernel of a captured step of 100", "µs", captured * 1e6, target="dovetail <= 1")
    host = []
    for _ in range(20):
        gpu.synchronize()
        began = time.perf_counter()
        graph.launch()
        host.append(time.perf_counter() - began)
    yield row("kernel of a captured step of 100, host's time", "µs", statistics.median(host) * 1e4)


SECTIONS: dict[str, Section] = {
    "numbers": numbers,
    "launches": launches,
    "memory": memory,
    "products": products,
    "training": training,
}


# --- the command ---------------------------------------------------------------------------------------------------------


def explain(what: str, error: BaseException) -> None:
    """Say what went wrong, and go on."""
    print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)
    traceback.print_exception(error, limit=-4)


def rows(quick: bool, sections: list[str], minutes: float, errors: dict[str, str]) -> Iterator[Row]:
    """The rows of all sections; what failed goes into `errors`."""
    end = time.monotonic() + 60 * minutes
    for name in sections:
        try:
            for each in SECTIONS[name](quick):
                print(line(each), flush=True)
                yield each
                if time.monotonic() > end:
                    raise TimeoutError(f"the {minutes:g} minutes are over")
        except Exception as e:
            explain(name, e)
            errors[name] = f"{type(e).__name__}: {e}"


def line(each: Row) -> str:
    """A row as text."""
    peer = "" if each.peer is None else f", {each.peer_name} {each.peer:.4g}, ratio {each.ratio:.3f}"
    judged = "" if each.met is None else f" ({each.target}: {'met' if each.met else 'missed'})"
    return f"{each.name}: {each.dovetail:.4g} {each.unit}{peer}{judged}"


def plot(measured: list[Row], title: str) -> str:
    """An SVG: for each row with a target, how far along Dovetail is; 1 is the target."""
    bars = []
    for each in measured:
        if not each.target:
            continue
        kind, sign, number = each.target.split()
        value = each.ratio if kind == "ratio" else each.dovetail
        if value is None:
            continue
        reached = value / float(number) if sign == ">=" else float(number) / max(value, 1e-12)
        bars.append((f"{each.name}" + (f" / {each.peer_name}" if each.peer_name else ""), reached, bool(each.met)))
    left, width, high = 460, 300, 22
    full = 2.0
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 80}" height="{60 + high * len(bars)}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-size="14">{_escaped(title)}: how much of each target is reached</text>',
    ]
    for i, (name, reached, met) in enumerate(bars):
        y = 40 + high * i
        long = min(reached, full) / full * width
        out.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{_escaped(name)}</text>')
        out.append(
            f'<rect x="{left}" y="{y}" width="{long:.1f}" height="16" fill="{"#3b7dd8" if met else "#d8723b"}"/>'
        )
        out.append(f'<text x="{left + long + 4:.1f}" y="{y + 12}">{reached:.2f}</text>')
    at = left + width / full
    out.append(f'<line x1="{at}" y1="32" x2="{at}" y2="{40 + high * len(bars)}" stroke="black"/></svg>')
    return "\n".join(out) + "\n"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def main(argv: list[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run: fewer and smaller cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine and versions there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (SVG) there")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this part alone; may be given several times")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="start nothing more after so long")
    args = parser.parse_args(argv)
    for path in (args.json, args.plot):
        if path is not None and not path.parent.is_dir():
            parser.error(f"{path}: there is no folder {path.parent}")  # before minutes are spent
    from dovetail.codegen.cuda.driver import gpu_count

    if not gpu_count():
        raise SystemExit(NO_GPU)
    from dovetail.codegen.cuda.device import device

    errors: dict[str, str] = {}
    measured = list(rows(args.quick, args.only or list(SECTIONS), args.minutes, errors))
    title = f"GPU kernels on {device(0).name}"
    if args.json is not None:
        facts = report(title, args.quick, measured) | {"gpu": device(0).name, "errors": errors}
        args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None:
        args.plot.write_text(plot(measured, title), encoding="utf-8")
    if errors:
        print("failed: " + ", ".join(f"{name} ({text})" for name, text in errors.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
