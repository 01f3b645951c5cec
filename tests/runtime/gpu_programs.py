"""Programs on GPUs, and the same programs on a CPU: what tests of sessions on GPUs share.

The GPUs are those of `tests/gpu/gpu_backends.py`: stand-ins, whose kernels run in Triton's interpreter as late as they may, or real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from gpu_backends import RecordedDriver, gpus_for_tests

import dovetail as dt
from dovetail.codegen.gpu.toolchain import compile
from dovetail.codegen.ir.program import Call, Instruction
from dovetail.runtime.session.local_backend import LocalBackend

Build = Callable[[], tuple[Any, dict[Any, Any]]]
"""Makes the nodes of a program; gives fetches and feeds."""


_random = [np.random.default_rng(0)]


def matrix(*shape: int) -> np.ndarray[Any, Any]:
    """Normal numbers, the same in each test whatever ran before."""
    return _random[0].standard_normal(shape).astype(np.float32)


@contextmanager
def gpus_with_kernels(gpus: int = 1, *, compiled: bool = False) -> Iterator[RecordedDriver]:
    """A machine with such GPUs, and their kernels. Candidates are not timed: they are many, and the interpreter is slow.

    Args:
        compiled: stand-ins, too, load the binaries that Triton makes. It takes up to a second for each.
    """
    _random[0] = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch, gpus_for_tests(gpus) as made:
        patch.setenv("DOVETAIL_AUTOTUNE", "0")
        patch.setattr(compile, "compile_kernel", made.compiled if compiled else made.compile_kernel)
        yield made


def graph_variable(session: dt.Session, name: str) -> Any:
    """What a variable holds."""
    return variable_state(session, name)._value


def variable_state(session: dt.Session, name: str) -> Any:
    """A variable, as ops see it."""
    target = session._backend
    assert isinstance(target, LocalBackend)
    for state in target._worker._sessions.values():
        for _, found, resource in state.resources:
            if found == name:
                return resource
    raise KeyError(name)


def instructions(session: dt.Session, kind: str = "GPU") -> list[Instruction]:
    """All instructions of the programs of a type of device."""
    target = session._backend
    assert isinstance(target, LocalBackend)
    programs = [p for loaded in target._worker._registered.values() for p in loaded.programs if f":{kind}:" in p.device]
    return [i for p in programs for i in p.instructions]


def ops(session: dt.Session, kind: str = "GPU") -> list[str]:
    return [i.op for i in instructions(session, kind) if isinstance(i, Call)]


def results_on(where: str, build: Build, steps: int = 1) -> tuple[list[Any], list[str]]:
    """What a program gives on a device, step by step, and the ops of the GPU's programs."""
    with dt.Graph().as_default() as graph:
        with dt.device(where):
            fetches, feeds = build()
            init = dt.global_variables_initializer()
        with dt.Session(graph=graph) as session:
            session.run(init)
            return [session.run(fetches, feeds) for _ in range(steps)], ops(session)


def agree(build: Build, steps: int = 1, rtol: float = 2e-5, atol: float = 1e-6) -> list[str]:
    """A program gives on a GPU what it gives on a CPU; the GPU's ops. `atol` is relative to the largest number of a tensor, or 1."""
    mine, names = results_on("/gpu:0", build, steps)
    theirs, _ = results_on("/cpu:0", build, steps)
    for a, b in zip(mine, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            assert type(x) is type(y) and (x is None or x.dtype == y.dtype)
            if x is not None:
                close(x, y, rtol, atol)
    return names


def close(x: Any, y: Any, rtol: float, atol: float) -> None:
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    np.testing.assert_allclose(x, y, rtol=rtol, atol=atol * max(1.0, float(np.abs(y).max(initial=0.0))))
