"""Kernels, products, training steps and launches on an NVIDIA GPU, beside PyTorch and JAX in the same run.

    python bench/gpu.py --json bench/results/gpu.json

One command, under nine minutes. What it measures:

    numbers       small programs, compared with NumPy: whether the kernels compute what they should
    launches      the host's time for one launch, and a step of 100 kernels captured as a CUDA graph
    memory        a chain of functions, sums, softmax, layer norm and rows of large arrays, against a plain copy on the same GPU
    products      bfloat16 matrices, against cuBLAS (as PyTorch or CuPy call it)
    training      steps of an MLP and a transformer block, against torch.compile and jax.jit
    attention     forward and with gradients, against PyTorch's
    convolution   forward and both gradients, against cuDNN (as PyTorch calls it)
    links         from the memory of one process's GPU to another's, and reductions by NCCL where there are several GPUs

Each part runs in a process of its own, with a limit to its time: one that fails, hangs or breaks the GPU's context says so, and the
others go on. The file is written anew after each part, so whatever was measured is there. All kernels of a step are compiled side by
side on all cores before it runs.

It needs NumPy, ml_dtypes, msgpack, Triton and cuda-bindings (no Numba, SciPy or pyzmq); peers that are not installed are left out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from _gpu_parts import PARTS, TIMELESS

from _harness import Row, report

MINUTES = 8.5
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
NO_GPU = (
    "bench/gpu.py measures NVIDIA GPUs, and this machine has none that Dovetail can use: it looks for the driver "
    "(/proc/driver/nvidia), and for the package cuda-bindings (pip install 'dovetail[cuda]')."
)
Outcome = tuple[list[Row], dict[str, str]]  # rows, and what went wrong


def measured(part: str, quick: bool, file: Path | None = None) -> Outcome:
    """One part, in this process. What there is so far is kept in `file`."""
    rows: list[Row] = []
    errors: dict[str, str] = {}

    def keep() -> None:
        if file is not None:
            file.write_text(json.dumps({"rows": [asdict(r) for r in rows], "errors": errors}), encoding="utf-8")

    def failed(what: str, error: Exception) -> None:
        errors[what] = f"{type(error).__name__}: {error}"
        print(f"{what}: {errors[what]}", file=sys.stderr)
        traceback.print_exception(error, limit=-4)

    def run(named: tuple[str, Callable[[], Iterator[Row]]]) -> None:
        name, case = named
        try:
            for each in case():
                with lock:
                    print(line(each), flush=True)
                    rows.append(each)
                    keep()
        except Exception as e:
            with lock:
                failed(f"{part}: {name}", e)
                keep()

    lock = threading.Lock()
    try:
        cases = PARTS[part][0](quick)
        if part in TIMELESS:
            with ThreadPoolExecutor(WORKERS) as pool:
                list(pool.map(run, cases))
        else:
            for case in cases:
                run(case)
    except Exception as e:
        failed(part, e)
    keep()
    return rows, errors


def apart(part: str, quick: bool, seconds: float) -> Outcome:
    """One part, in a process of its own that has so long."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--part", part, "--json", str(file), *(["--quick"] if quick else [])]
        problem = ""
        try:
            done = subprocess.run(command, timeout=seconds, check=False)
            problem = f"the process ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"stopped after {seconds:.0f} s"
        told = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": [], "errors": {}}
    if problem:
        print(f"{part}: {problem}", file=sys.stderr)
        told["errors"][part] = problem
    return [Row(**r) for r in told["rows"]], told["errors"]


def line(each: Row) -> str:
    """A row as text."""
    peer = "" if each.peer is None else f", {each.peer_name} {each.peer:.4g}, ratio {each.ratio:.3f}"
    judged = "" if each.met is None else f" ({each.target}: {'met' if each.met else 'missed'})"
    return f"{each.name}: {each.dovetail:.4g} {each.unit}{peer}{judged}"


def main(argv: list[str] | None = None) -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run: fewer and smaller cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine and versions there")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part alone; may be given several times")
    parser.add_argument(
        "--part", choices=PARTS, help="this part, in this process: rows and errors alone go into --json"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for everything")
    args = parser.parse_args(argv)
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")  # before minutes are spent
    from dovetail.codegen.gpu.driver.api import gpu_count

    if not gpu_count():
        raise SystemExit(NO_GPU)
    if args.part:
        measured(args.part, args.quick, args.json)
        return
    every(args)


def every(args: argparse.Namespace) -> None:
    """All parts, one after the other, and the file."""
    end = time.monotonic() + 60 * args.minutes
    rows: list[Row] = []
    errors: dict[str, str] = {}
    title = f"GPU kernels on {gpu_name()}"
    for part in args.only or PARTS:
        left = end - time.monotonic()
        if left < 5:
            errors[part] = "no time was left"
            continue
        found, wrong = apart(part, args.quick, min(left, 60 * PARTS[part][1]))
        rows += found
        errors |= wrong
        if args.json is not None:
            facts = report(title, args.quick, rows) | {"gpu": title.removeprefix("GPU kernels on "), "errors": errors}
            args.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"\n{title}: {sum(bool(r.met) for r in rows)} of {sum(r.met is not None for r in rows)} targets met")
    for each in rows:
        print(line(each))
    if errors:
        print("failed: " + ", ".join(f"{name} ({text})" for name, text in errors.items()), file=sys.stderr)


def gpu_name() -> str:
    """What the driver calls the first GPU; nothing is started on it."""
    from dovetail.codegen.gpu.driver.api import bindings, check

    name = check(bindings().cuDeviceGetName(256, check(bindings().cuDeviceGet(0))))
    return (name if isinstance(name, str) else bytes(name).split(b"\0")[0].decode()).strip()


if __name__ == "__main__":
    main()
