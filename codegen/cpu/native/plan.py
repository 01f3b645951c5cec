"""Native plans: the launches of a kernel or a region for one set of shapes, as a table that runs without Python in between.

All addresses are known up to where the arrays of a run begin: the inputs, the outputs (arrays of their own, since others will hold
them), and the *arena*, one piece of memory for everything else. `planner` makes plans, `plan_cache` keeps them, `worker_pool` runs
their tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ....graph.core.dtypes import Array
from ....graph.resources.buffer_pool import LARGE, buffers
from ....graph.resources.shared_storage import is_shared, to_send
from . import table as launches
from .worker_pool import run

_type_of = attrgetter("dtype")


@dataclass(frozen=True, slots=True)
class Output:
    """Where an output is: an input, an array that the plan made, or a view of one of them; or its value is known."""

    given: int = -1
    made: int = -1
    known: Any = None
    view: tuple[int, tuple[int, ...], tuple[int, ...] | None] | None = None  # offset, shape, strides: elements

    def take(self, arrays: Sequence[Array], made: Sequence[Array]) -> Any:
        """The output, given the inputs and the arrays that the plan made."""
        if self.known is not None:
            return self.known.copy() if isinstance(self.known, np.ndarray) else self.known
        x = made[self.made] if self.given < 0 else arrays[self.given]
        if self.view is None:
            return x
        offset, shape, strides = self.view
        flat = x.reshape(-1) if x.flags.c_contiguous else as_strided(x, (x.size,), (x.itemsize,))
        if strides is None:
            return flat[offset : offset + math.prod(shape)].reshape(shape)
        jumps = tuple(s * x.itemsize for s in strides)
        out: Array = np.ndarray(shape, x.dtype, flat, offset * x.itemsize, jumps)
        if 0 in strides:
            out.flags.writeable = False
        return out


class NativePlan:
    """A run of launches for arrays of certain shapes. Several threads may run it at once.

    Args:
        table: the records, without the addresses of the arrays. patches: where these belong (`table.binding`).
        given: the inputs, or arrays like them. made: shape and type of each output array, and whether another task uses it.
        held: arrays whose addresses the table has.
        threads: the most that share a launch.

    Attributes:
        looked_at: (number, value) of each input for whose value the plan is specialized.
        arena_bytes: the memory in bytes that a run needs besides its outputs.
    """

    def __init__(
        self,
        table: Array,
        patches: Sequence[tuple[int, int, int]],
        given: Sequence[Array],
        made: tuple[tuple[tuple[int, ...], np.dtype[Any], bool], ...],
        arena_bytes: int,
        outputs: tuple[Output, ...],
        looked_at: tuple[tuple[int, Array], ...],
        held: tuple[Array, ...],
        threads: int,
    ) -> None:
        self.looked_at = tuple((i, value.tobytes()) for i, value in looked_at)
        self.arena_bytes = arena_bytes
        self._table = table
        self._types = [*(x.dtype for x in given), *(dtype for _, dtype, _ in made), np.dtype(np.uint8)]
        self._binding = launches.binding([*given, *[None] * (len(made) + 1)], patches)
        self._made = tuple((s, d, math.prod(s) * d.itemsize >= LARGE, sent) for s, d, sent in made)
        self._sent = tuple(i for i, (_, _, large, sent) in enumerate(self._made) if large and sent)
        self._outputs = outputs
        self._plain = all(o.made == i and o.view is None for i, o in enumerate(outputs)) and len(outputs) == len(made)
        self._held = held
        self._threads = threads
        self._begin = launches.loops()["begin"]
        self._tables: list[Array] = []  # copies that no thread runs now
        self._arena = (max(1, arena_bytes),), np.dtype(np.uint8), arena_bytes >= LARGE

    def knows(self, inputs: Sequence[Any]) -> bool:
        """Whether the values for which the plan is specialized are those of these inputs."""
        return all(inputs[i].tobytes() == value for i, value in self.looked_at)

    def run(self, inputs: tuple[Any, ...]) -> list[Any] | None:
        """Run it and return its outputs. None: the arrays do not fit the plan, or a kernel failed; nothing has changed."""
        if self.looked_at and not self.knows(inputs):
            return None
        made = [_memory(*x) for x in self._made]
        arrays = (*inputs, *made, _memory(*self._arena))
        try:
            if list(map(_type_of, arrays)) != self._types:
                return None
        except AttributeError:  # no array
            return None
        try:
            table = self._tables.pop()
        except IndexError:
            table = self._table.copy()
        fits = self._begin(id(arrays), self._binding, table) < 0
        done = fits and run(table, self._threads)
        self._tables.append(table)
        if not done:
            return None
        for i in self._sent:
            if is_shared(made[i]):
                made[i].flags.writeable = False
        return made if self._plain else [o.take(inputs, made) for o in self._outputs]


def _memory(shape: tuple[int, ...], dtype: np.dtype[Any], large: bool, sent: bool = False) -> Array:
    if not large:
        return np.empty(shape, dtype)
    shared = to_send(shape, dtype) if sent else None
    return buffers.empty(shape, dtype) if shared is None else shared
