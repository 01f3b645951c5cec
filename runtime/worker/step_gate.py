"""What lets a session be still: no step that changes variables runs, and none begins, while they are all read.

Steps that change no variables, such as those that fill queues, go on: a step that is waited for may wait for them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterator

from ...graph.core.errors import DeadlineExceededError

_LOOK_S = 0.001


class StepGate:
    """The steps of a session that run.

    Args:
        changes: whether a step of this kind changes variables.
    """

    def __init__(self, changes: Callable[[Hashable], bool]) -> None:
        self._changes = changes
        self._running: dict[object, Hashable] = {}  # a step, what kind it is
        self._turn = threading.Lock()
        self._closed: threading.Event | None = None  # set when the gate opens again
        self._holder = 0  # the thread that has closed it; its own steps pass

    def enter(self, kind: Hashable) -> object:
        """A step begins; it waits where the gate is closed to it. Gives what `leave` takes."""
        step = object()
        self._running[step] = kind  # first, so that closing the gate sees it
        while (closed := self._closed) is not None and self._holder != threading.get_ident() and self._changes(kind):
            del self._running[step]
            closed.wait()
            self._running[step] = kind
        return step

    def leave(self, step: object) -> None:
        """The step has ended."""
        del self._running[step]

    @contextlib.contextmanager
    def closed(self, timeout_s: float) -> Iterator[None]:
        """A block in which no step changes variables but those of this thread. DeadlineExceededError: one does not end in time."""
        with self._turn:
            opened = threading.Event()
            self._holder, self._closed = threading.get_ident(), opened
            try:
                deadline = time.monotonic() + timeout_s
                while any(self._changes(kind) for kind in list(self._running.values())):
                    if time.monotonic() > deadline:
                        raise DeadlineExceededError(
                            None, None,
                            f"A step of this session that changes variables has not ended in {timeout_s:g} s, so there was no moment "
                            "between steps. A step that waits for another one that changes variables (SyncReplicasOptimizer) never "
                            "leaves one",
                        )  # fmt: skip
                    time.sleep(_LOOK_S)
                yield
            finally:
                self._closed = None
                opened.set()


__all__ = ["StepGate"]
