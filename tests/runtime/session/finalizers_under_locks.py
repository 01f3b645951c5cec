"""Ends sessions and data sets in the middle of what holds a lock of the project, and prints where.

The garbage collector runs wherever a thread allocates memory, so a finalizer may run in a thread that holds any lock, and must not wait
for one of these. Here `threading.Lock` is replaced before the project is imported. When a function takes a lock for the first time,
something is ended there. If that waits for a lock, this program prints the stack and exits with status 1.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[3]
LIMIT_S = 30.0
garbage: list[Callable[[], None]] = []
places: set[str] = set()


def make_lock() -> Any:
    """A lock of the project ends some garbage when it is taken. Other locks are as they were."""
    path = Path(sys._getframe(1).f_code.co_filename)
    is_ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", ".venv")
    return Lock() if is_ours else _thread.allocate_lock()


class Lock:
    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self.release, self.locked = self._lock.release, self._lock.locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        taken = self._lock.acquire(blocking, timeout)
        if taken:
            end_garbage(sys._getframe(1))
        return taken

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=LIMIT_S if thread.is_ending else -1):
            traceback.print_stack()
            os._exit(1)
        end_garbage(sys._getframe(1))

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Thread(threading.local):
    is_ending = False


thread = _Thread()


def end_garbage(frame: FrameType) -> None:
    place = f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_code.co_qualname}"
    if garbage and place not in places and not thread.is_ending:
        places.add(place)
        thread.is_ending = True
        garbage.pop()()
        thread.is_ending = False


def main() -> None:
    import numpy as np

    import dovetail as dt
    from dovetail.data.prefetch import Prefetcher

    def session(target: str) -> Callable[[], None]:
        made = dt.Session(target)
        made.run(dt.constant(1.0) + 1)
        return made.close

    def prefetcher() -> Callable[[], None]:
        made = Prefetcher(iter([[np.zeros(3)]] * 100), 3)
        next(made)
        return made.close

    def program(target: str) -> None:
        variable = dt.get_variable("v", initializer=np.zeros((300, 300)))
        data = dt.data.Dataset.range(50).map(lambda i: dt.cast(i, dt.float64), num_parallel_calls=2).prefetch(2)
        added = dt.assign_add(variable, variable * 0 + data.make_one_shot_iterator().get_next())
        counted = dt.while_loop(lambda i: i < 10, lambda i: i + 1, [dt.constant(0)])
        numbers = dt.FIFOQueue(10, dt.float64)
        fill = numbers.enqueue(dt.reduce_sum(variable))
        with dt.Session(target) as session:
            session.run(dt.global_variables_initializer())
            for _ in range(2):
                session.run([added, counted])
                session.run(fill)
                session.run(numbers.dequeue())
            session.run(
                added, options=dt.RunOptions(trace_level=dt.RunOptions.FULL_TRACE), run_metadata=dt.RunMetadata()
            )

    with dt.LocalCluster({"worker": 1}) as cluster:
        for target in ("", cluster.target("worker", 0)):
            for make in (lambda target=target: session(target), prefetcher):
                with dt.Graph().as_default():
                    places.clear()
                    garbage[:] = [make() for _ in range(30)]
                    program(target)
                    print(len(places), *sorted(places))
                    garbage.clear()


if __name__ == "__main__":
    with mock.patch.object(threading, "Lock", make_lock):
        main()
