"""Executors: what a hand-written kernel asks for is done now, or recorded as launches of a native plan.

Such a kernel is more than one compiled function: it allocates, puts arrays in order, adds padding and shares its work among threads.
It asks an `Executor` for each of these, so it is written once:

    Executor  allocates, copies, calls functions
    Recorder  the arrays are placeholders, and each request becomes launches of a plan (`planner`)

The bits are the same: both copy, and call the same functions with the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....graph.resources.buffer_pool import buffers
from ..thread_pool import Ranges, ranges_of
from .planner import NS_PER_COPIED, NotPlannableError, Planner, Value, sum_source
from .table import flat, is_ready, loops
from .worker_pool import share, share_units

Array: TypeAlias = np.ndarray[Any, Any]


class Executor:
    """What kernels may ask for, done at once. Arrays that they pass are views of their inputs, or of memory from here."""

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Memory, which may have been used before."""
        return buffers.empty(tuple(shape), dtype)

    def fixed(self, x: Array) -> Array:
        """An array of the kernel's own, which never changes, as others are."""
        return x

    def copy(self, x: Array, into: Array, threads: int = 1) -> None:
        """Copy an array; both may be strided. `threads`: the most threads that may share it."""
        if x.flags.c_contiguous and into.flags.c_contiguous and is_ready():
            ranges = ranges_of(x.nbytes, x.nbytes * NS_PER_COPIED, threads)
            share(loops()["copy"], (into.ctypes.data, x.ctypes.data), ranges, threads)
        else:
            np.copyto(into, x)

    def clear(self, x: Array) -> None:
        """Fill an array with zeros."""
        x.fill(0)

    def ordered(self, x: Array) -> Array:
        """The array itself where it is contiguous, else a copy."""
        return np.ascontiguousarray(x)

    def added(self, x: Array, axis: int) -> Array:
        """The sum along an axis, one after the other."""
        first, *others = np.moveaxis(x, axis, 0)
        total: Array = first.copy()
        for part in others:
            total += part
        return total

    def share(self, function: Any, arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
        """Call a compiled function for all ranges (`worker_pool.share`)."""
        share(function, arguments, ranges, threads)

    def share_units(
        self, function: Any, arrays: Sequence[Array], numbers: Sequence[Any], units: int, threads: int
    ) -> None:
        """Call a compiled function whose threads take units of work (`worker_pool.share_units`)."""
        share_units(function, arrays, numbers, units, threads)


EAGER = Executor()


class Recorder(Executor):
    """Records into a plan."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._values: list[Value] = []  # whose memory the kernel's arrays are views of

    def take(self, value: Value) -> Array:
        """The placeholder of an input tensor of the kernel."""
        value = self._planner.in_memory(value)
        self._values.append(value)
        return value.array  # type: ignore[no-any-return]

    def value_of(self, x: Array) -> Value:
        """A placeholder as a tensor of the plan."""
        for value in self._values:
            found = self._planner.view(x, value)
            if found is not None:
                return found
        raise NotPlannableError("an array that NumPy has copied")

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """A placeholder for memory."""
        return self.take(self._planner.made(tuple(shape), np.dtype(dtype)))

    def fixed(self, x: Array) -> Array:
        """A copy that belongs to the plan."""
        return self.take(Value(x))

    def copy(self, x: Array, into: Array, threads: int = 1) -> None:
        """Have it copied."""
        self._planner.copy(self.value_of(x), self.value_of(into), threads)

    def clear(self, x: Array) -> None:
        """Have it filled with zeros, which are copied."""
        if x.size:
            self.copy(np.broadcast_to(self.fixed(np.zeros(1, x.dtype)), x.shape), x)

    def ordered(self, x: Array) -> Array:
        """The array itself if it is contiguous, else a contiguous copy."""
        if x.flags.c_contiguous:
            return x
        out = self.empty(x.shape, x.dtype)
        self.copy(x, out)
        return out

    def added(self, x: Array, axis: int) -> Array:
        """The output array of the sum along an axis."""
        axis %= x.ndim
        out = self.empty((*x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)
        sizes = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
        function = self._planner.compiled(sum_source(x.dtype.name))
        self.share(function, (self.ordered(x), out, sizes), ((0, sizes[0]),), 1)
        return out

    def share(self, function: Any, arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
        """Have the function called."""
        self._planner.launch(function, self._words(arguments), ranges, threads)

    def share_units(
        self, function: Any, arrays: Sequence[Array], numbers: Sequence[Any], units: int, threads: int
    ) -> None:
        """Have the function called."""
        self._planner.launch_units(function, self._words(arrays), flat(numbers), units, threads)

    def _words(self, arguments: Sequence[Any]) -> list[Any]:
        words: list[Any] = []
        for x in arguments:
            words += self._planner.vector(self.value_of(x)) if isinstance(x, np.ndarray) else flat([x])
        return words


def record_by(planner: Planner, call: Callable[..., Any], inputs: Sequence[Value], known: int = -1) -> Sequence[Value]:
    """Record what a kernel does; gives its outputs.

    Args:
        call: `call(*arrays, executor=...)` returns an array or several, or None for unsupported arrays.
        known: the input whose value it reads, if there is one.

    Raises:
        NotPlannableError: the kernel does not support these arrays, or a plan cannot record its calls.
    """
    executor = Recorder(planner)
    arrays = [np.asarray(planner.known(v)) if i == known else executor.take(v) for i, v in enumerate(inputs)]
    made = call(*arrays, executor=executor)
    if made is None:
        raise NotPlannableError("sizes that the kernel does not take")
    return [executor.value_of(x) for x in (made if isinstance(made, tuple) else (made,))]
