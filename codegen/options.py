"""Compile options: how the kernels of a session are made. The client decides; every task gets them with its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields as fields_of
from typing import Any

from .target import PARALLEL_NS, TASK_PARALLEL_NS

BACKENDS = ("auto", "numba", "numpy")


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """Compile options.

    Attributes:
        backend: `numpy`: one NumPy call per node. `auto`: fuses what pays, and compiles a kernel in the background once its runs have
            cost as much as compiling it. `numba`: fuses everything possible, and compiles before the first step.
        warm: compile before the first step, for `auto` too.
        deterministic: compile before the first step, without autotuning: the same program has the same kernels, and so the same bits,
            in every run.
        check: 2: run every fused kernel and compare its results with the NumPy references.
        threads: the most threads of one kernel; 0: one per core that the task may use.
        fold, merge, rewrite: graph rewrites: constant folding, common subexpression elimination, the rule tables
            (codegen/passes/rewrite.py).
        fast_math: also apply the rules that change rounding, or the handling of NaN and infinity.
        tf32: GPUs may compute float32 products in TF32, with 10 bits of each factor's fraction.

    Raises:
        ValueError: no such backend, or a negative number.
    """

    backend: str = "numpy"
    warm: bool = False
    check: int = 0
    threads: int = 0
    fold: bool = True
    merge: bool = True
    rewrite: bool = True
    fast_math: bool = False
    tf32: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(f"the backend for kernels is one of {', '.join(BACKENDS)}, not {self.backend!r}")
        if self.check < 0 or self.threads < 0:
            raise ValueError(f"check and threads are 0 or more, not {self.check} and {self.threads}")

    def to_fields(self) -> dict[str, Any]:
        """Plain data for a message."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Any) -> KernelOptions:
        """From a message's plain data.

        Raises:
            TypeError, ValueError: they are malformed.
        """
        if not isinstance(fields, Mapping):
            raise TypeError(f"kernel options are a mapping, not {fields!r}")
        values: dict[str, Any] = {}
        for f in fields_of(cls):
            value, kind = fields.get(f.name), type(f.default)
            if type(value) is not kind:
                raise TypeError(f"kernel option {f.name} must be of type {kind.__name__}, not {value!r}")
            values[f.name] = value
        return cls(**values)


_has_neighbours = False


def expect_neighbours() -> None:
    """This process is one of several tasks, which may share a machine: its idle threads give the cores up almost at once."""
    global _has_neighbours
    _has_neighbours = True


def has_neighbours() -> bool:
    """Whether this process may share its cores with other tasks."""
    return _has_neighbours


def threads_for(nanoseconds: float, threads: int) -> int:
    """How many of so many threads share a work that takes one of them so long: all or one."""
    return threads if nanoseconds >= (TASK_PARALLEL_NS if _has_neighbours else PARALLEL_NS) else 1


_disabled: set[str] = set()


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Compile programs without these passes (`pipeline`) and kernel families (`cpu.backend`), in all threads of this process.

    For measurements of what each is worth (bench/ablation.py). The results of a program stay the same, up to rounding.
    """
    added = set(names) - _disabled
    _disabled.update(added)
    try:
        yield
    finally:
        _disabled.difference_update(added)


def is_enabled(name: str) -> bool:
    """Whether a pass or a kernel family is to be used."""
    return name not in _disabled
