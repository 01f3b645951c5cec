"""Sharing one kernel's work among threads that may come late, or not at all.

The work is cut into more ranges than there are threads, and whoever is free takes the next one. The caller works, too: on a
machine whose other cores are busy it does everything itself and waits for nobody who has not begun. Nobody ever spins.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeAlias

PARALLEL_NS = 300_000.0  # work that takes longer is shared: handing some to a thread costs about 50,000 ns
_PER_THREAD = 4  # ranges; more even the load out better, and cost a call each

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"


@cache
def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="dovetail-kernel")


def ranges_of(length: int, nanoseconds: float, threads: int) -> Ranges:
    """Ranges that make up `0..length`, for work that one thread would need so long for."""
    if threads <= 1 or 2 * nanoseconds < 2 * PARALLEL_NS:
        return ((0, length),)
    parts = max(1, min(_PER_THREAD * threads, length, int(2 * nanoseconds / PARALLEL_NS)))
    edges = [length * i // parts for i in range(parts + 1)]
    return tuple(zip(edges[:-1], edges[1:], strict=True))


def share(function: Callable[..., Any], arguments: Sequence[Any], ranges: Ranges, threads: int) -> None:
    """Call `function(*arguments, lo, hi)` for all ranges, on up to so many threads; it must let go of the GIL."""
    if len(ranges) == 1:
        function(*arguments, *ranges[0])
        return
    following = itertools.count()

    def work() -> None:
        while (i := next(following)) < len(ranges):
            function(*arguments, *ranges[i])

    helpers = [_pool().submit(work) for _ in range(min(threads, len(ranges)) - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():  # it has begun
            helper.result()
