"""Compile options: how the kernels of a session are made. The client decides; every task gets them with its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields as fields_of
from typing import Any

BACKENDS = ("auto", "numba", "numpy")


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """How kernels are made.

    Attributes:
        backend: `numpy`: one NumPy call per node. `auto`: what pays is fused, and compiled in the background once it has cost
            as much as compiling does. `numba`: everything that can be is fused, and compiled before the first step.
        warm: compile before the first step, for `auto` too.
        deterministic: compile before the first step, and choose no kernel by measuring: the same program has the same kernels, and so
            the same bits, in every run.
        check: 2: run every fused kernel beside the NumPy references.
        threads: most threads of one kernel; 0: one per core that the task may use.
        fold, merge, rewrite: what is done to graphs beforehand: compute what depends on constants only, let equal nodes become
            one, apply the rule tables (codegen/passes/rewrite.py).
        fast_math: apply the rules too that change rounding, or what becomes of NaN and infinity.
        tf32: GPUs may make products of float32 from the first 10 bits of each factor's fraction.

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
