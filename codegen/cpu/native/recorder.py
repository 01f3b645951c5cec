"""What hand-written kernels ask for, recorded as launches of a native plan.

Such a kernel is more than one compiled function: it allocates, puts arrays in order, adds padding and shares its work among threads. It
does so on placeholders, with the methods of a `Recorder`; each request becomes launches of a plan (`planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..work_ranges import Ranges
from .planner import NotPlannableError, Planner, Value
from .table import flat

Array: TypeAlias = np.ndarray[Any, Any]


class Recorder:
    """Records into a plan. Arrays that kernels pass are views of their inputs, or of memory from here."""

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
        """A placeholder for memory, which may have been used before."""
        return self.take(self._planner.made(tuple(shape), np.dtype(dtype)))

    def fixed(self, x: Array) -> Array:
        """An array of the kernel's own, which never changes, as others are."""
        return self.take(Value(x))

    def copy(self, x: Array, into: Array, threads: int = 1) -> None:
        """Have an array copied; both may be strided. `threads`: the most threads that may share it."""
        self._planner.copy(self.value_of(x), self.value_of(into), threads)

    def fill(self, x: Array, byte: int) -> None:
        """Have a contiguous array filled with a byte."""
        self._planner.fill(self.value_of(x), byte)

    def clear(self, x: Array) -> None:
        """Have an array filled with zeros."""
        if x.flags.c_contiguous and x.size:
            self.fill(x, 0)
        elif x.size:
            self.copy(np.broadcast_to(self.fixed(np.zeros(1, x.dtype)), x.shape), x)

    def ordered(self, x: Array) -> Array:
        """The array itself if it is contiguous, else a contiguous copy."""
        if x.flags.c_contiguous:
            return x
        out = self.empty(x.shape, x.dtype)
        self.copy(x, out)
        return out

    def share(self, function: Any, arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
        """Have a compiled `function(*arguments, lo, hi)` called for all ranges, on up to `threads` threads."""
        self._planner.launch(function, self._words(arguments), ranges, threads)

    def share_units(
        self, function: Any, arrays: Sequence[Array], numbers: Sequence[Any], units: int, threads: int
    ) -> None:
        """Have a compiled `function(*arrays, counters, *numbers, thread, units)` called on up to `threads` threads.

        Each takes units until none is left. `thread` is the number of the thread; the caller's is 0. The threads count taken and finished
        units in `counters`, without the GIL. So units can be small, and the caller continues as soon as the last one is finished.
        """
        self._planner.launch_units(function, self._words(arrays), flat(numbers), units, threads)

    def _words(self, arguments: Sequence[Any]) -> list[Any]:
        words: list[Any] = []
        for x in arguments:
            words += self._planner.vector(self.value_of(x)) if isinstance(x, np.ndarray) else flat([x])
        return words


def record_by(planner: Planner, call: Callable[..., Any], inputs: Sequence[Value], known: int = -1) -> Sequence[Value]:
    """Record what a kernel does; gives its outputs.

    Args:
        call: `call(recorder, *arrays)` returns an array or several, or None for unsupported arrays.
        known: the input whose value it reads, if there is one.

    Raises:
        NotPlannableError: the kernel does not support these arrays, or a plan cannot record its calls.
    """
    recorder = Recorder(planner)
    arrays = [np.asarray(planner.known(v)) if i == known else recorder.take(v) for i, v in enumerate(inputs)]
    made = call(recorder, *arrays)
    if made is None:
        raise NotPlannableError("sizes that the kernel does not take")
    return [recorder.value_of(x) for x in (made if isinstance(made, tuple) else (made,))]
