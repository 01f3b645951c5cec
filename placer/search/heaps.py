"""Binary heaps in arrays, for compiled loops: of events by time, and of small numbers.

Codes and keys are given as `np.int64`, whatever type they are kept as: what is called is compiled once for each type.
"""

from __future__ import annotations

import numpy as np

from .jit import compiled, inlined
from .types import Floats, Ints


@inlined
def push(times: Floats, codes: Ints, size: int, time: float, code: int | np.int64) -> int:
    """Into a heap ordered by (time, code)."""
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time or (times[up] == time and codes[up] <= code):
            break
        times[i], codes[i] = times[up], codes[up]
        i = up
    times[i], codes[i] = time, code
    return size + 1


@inlined
def pop(times: Floats, codes: Ints, size: int) -> int:
    """Remove the first; it is read before from position 0."""
    size -= 1
    time, code = times[size], codes[size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        right = down + 1
        if right < size and (
            times[right] < times[down] or (times[right] == times[down] and codes[right] < codes[down])
        ):
            down = right
        if time < times[down] or (time == times[down] and code <= codes[down]):
            break
        times[i], codes[i] = times[down], codes[down]
        i = down
    times[i], codes[i] = time, code
    return size


@inlined
def push_ready(heap: Ints, base: int, size: int, key: int) -> None:
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if heap[base + up] <= key:
            break
        heap[base + i] = heap[base + up]
        i = up
    heap[base + i] = key


@inlined
def pop_ready(heap: Ints, base: int, size: int) -> int:
    first, size = heap[base], size - 1
    key = heap[base + size]
    i = 0
    while True:
        down = 2 * i + 1
        if down >= size:
            break
        if down + 1 < size and heap[base + down + 1] < heap[base + down]:
            down += 1
        if key <= heap[base + down]:
            break
        heap[base + i] = heap[base + down]
        i = down
    heap[base + i] = key
    return int(first)


@compiled
def sort(m: int, keys: Floats, heap: Floats, order: Ints) -> None:
    """Put 0..m-1 into the order of their keys; equal keys, in that of the numbers. `heap` is used up."""
    codes, size = np.empty(m, np.int32), 0
    for k in range(m):
        size = push(heap, codes, size, keys[k], np.int64(k))
    for c in range(m):
        order[c] = codes[0]
        size = pop(heap, codes, size)
