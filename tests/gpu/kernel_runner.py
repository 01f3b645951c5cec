"""Runs kernels on NumPy arrays: in Triton's interpreter, or, with DOVETAIL_TEST_GPU=1, on this machine's GPU.

All tests of single kernels' numbers go through here, so `make test-gpu` checks each of them on the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_interpreter
from gpu_backends import ON_DEVICE, gpus_for_tests

from dovetail.codegen.gpu.driver.device import Device, device
from dovetail.codegen.gpu.driver.launch import LoadedKernel, LoadedRoutine
from dovetail.codegen.gpu.ir import Binary, Routine, TritonKernel
from dovetail.codegen.gpu.toolchain import compile


def run_routine(routine: Routine, arguments: Mapping[str, Any]) -> None:
    """Run all kernels of a routine.

    Args:
        arguments: what each name stands for: contiguous arrays (outputs are written to), and numbers.
    """
    if not ON_DEVICE:
        triton_interpreter.run_routine(routine, arguments)
        return
    with gpus_for_tests():
        gpu, there = device(0), _There(arguments)
        numbers = {name: value for name, value in arguments.items() if not isinstance(value, np.ndarray)}
        kernels = [loaded(gpu, launch.kernel) for launch in routine.launches]
        run = LoadedRoutine(gpu, routine, kernels, list(there.pointers), numbers)
        with gpu.entered():
            run(list(there.pointers.values()))
        there.back()


def run_kernel(kernel: TritonKernel, grid: tuple[int, int, int], arguments: Mapping[str, Any]) -> None:
    """Run one kernel. See `run_routine` for the arguments."""
    if not ON_DEVICE:
        triton_interpreter.run_kernel(kernel, grid, arguments)
        return
    with gpus_for_tests():
        gpu, there = device(0), _There(arguments)
        with gpu.entered():
            loaded(gpu, kernel).launch(grid, [there.pointers.get(p.name, arguments[p.name]) for p in kernel.parameters])
        there.back()


def loaded(gpu: Device, kernel: TritonKernel) -> LoadedKernel:
    """A kernel that the GPU takes."""
    return LoadedKernel(gpu, compile.compile_kernel(kernel, gpu.target))


def loads(binaries: Sequence[Binary]) -> None:
    """The GPU takes these binaries, where there is one that they are for."""
    if ON_DEVICE:
        with gpus_for_tests():
            for binary in binaries:
                if binary.target == device(0).target:
                    LoadedKernel(device(0), binary)


class _There:
    """Arrays on the GPU. Names of one array are names of one array there, too."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arrays: dict[tuple[int, int], tuple[np.ndarray[Any, Any], Any]] = {}
        self.pointers: dict[str, int] = {}
        for name, array in arguments.items():
            if isinstance(array, np.ndarray):
                key = array.ctypes.data, array.nbytes
                if key not in self._arrays:
                    self._arrays[key] = array, device(0).from_host(array)
                self.pointers[name] = self._arrays[key][1].pointer

    def back(self) -> None:
        """Copy everything back."""
        for array, there in self._arrays.values():
            if array.flags.writeable:
                array[...] = device(0).to_host(there)
