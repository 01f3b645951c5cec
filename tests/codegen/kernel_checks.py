"""What tests of kernels for GPUs share: run them, compare what they give, compile them for every target."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from kernel_runner import loads, run_routine

from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.codegen.target import SM80, SM90, SM100, Target

TARGETS = (SM80, SM90, SM100)
# Targets of kernels that are like others, which are compiled for all: that with the least shared memory.
SOME = (SM80,)


def run(routine: Routine, arrays: dict[str, Any], sizes: dict[str, int]) -> None:
    run_routine(routine, {**arrays, **sizes})


def check(got: Any, want: Any, digits: float, name: str = "") -> None:
    """Errors relative to the largest number: sums of a row share their scale. NaN is an error."""
    want = want.astype(np.float64)
    error = np.abs(got.astype(np.float64) - want).max()
    assert error <= digits * np.abs(want).max(), f"{name} is off by {error}"


def compiles(routine: Routine, targets: Sequence[Target] = TARGETS, stack: int = 0) -> None:
    """Each kernel has a binary that takes its parameters, fits shared memory, and spills at most `stack` bytes: a few are no spilled tile.

    A GPU that tests run on loads those that are for it.
    """
    for kernel in dict.fromkeys(launch.kernel for launch in routine.launches):
        for target in targets:
            binary = compile_kernel(kernel, target)  # compares the parameters with those of the binary
            assert binary.spills <= stack, f"{kernel.name} for {target} spills {binary.spills} bytes\n{kernel.text}"
            assert binary.shared_bytes <= target.block_shared_bytes, f"{kernel.name} for {target}"
            assert binary.registers > 0
            assert binary.threads == kernel.num_warps * 32
            loads([binary])
