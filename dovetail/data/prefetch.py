"""Walks with threads: calls that keep the order, and elements that are made ahead.

They are classes, not generators: an error belongs to one element, and the walk continues after it. A step that waits for an element
stops waiting when it is cancelled. What the threads do is cancelled when their walk is closed or dropped.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator as Walk
from typing import TypeAlias

from ..graph.resources.cancellation import Cancellation, is_cancelled, wait_for
from .spec import Array, Element

Call: TypeAlias = Callable[[Element, int], list[Array]]


class _Outcome:
    """The result of a call that a thread makes."""

    __slots__ = ("done", "error", "value")

    def __init__(self, error: BaseException | None = None) -> None:
        self.done = error is not None
        self.value: list[Array] = []
        self.error = error


class InOrder:
    """A function of each element and its number, in their order; up to `calls` of them run at a time.

    Args:
        sloppy: in order of completion instead of input order.
    """

    def __init__(self, call: Call, elements: Walk[tuple[Element, int]], calls: int, sloppy: bool = False) -> None:
        self._elements, self._calls, self._sloppy = elements, calls, sloppy
        self._work: queue.SimpleQueue[tuple[Element, int, _Outcome] | None] = queue.SimpleQueue()
        self._waiting: deque[_Outcome] = deque()
        self._changed = threading.Condition()
        self._cancellation = Cancellation()
        arguments = (call, self._work, self._changed, self._cancellation)
        for _ in range(calls):
            threading.Thread(target=_work, args=arguments, daemon=True, name="dataset-map").start()
        self._submit(calls)

    def _submit(self, count: int) -> None:
        try:
            for element, number in itertools.islice(self._elements, count):
                outcome = _Outcome()
                self._waiting.append(outcome)
                self._work.put((element, number, outcome))
        except BaseException as e:
            if is_cancelled():
                raise
            self._waiting.append(_Outcome(e))

    def __iter__(self) -> InOrder:
        return self

    def __next__(self) -> list[Array]:
        if not self._waiting:
            self.close()
            raise StopIteration
        wait_for(self._changed, self._done)
        outcome = self._done()
        assert outcome is not None
        self._waiting.remove(outcome)
        self._submit(1)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _done(self) -> _Outcome | None:
        """The outcome that comes next, if it is there."""
        candidates = self._waiting if self._sloppy else itertools.islice(self._waiting, 1)
        return next((o for o in candidates if o.done), None)

    def close(self) -> None:
        """Call it for no further elements, and cancel the calls that run."""
        self._cancellation.cancel()
        for _ in range(self._calls):
            self._work.put(None)
        self._calls = 0

    def __del__(self) -> None:
        self.close()


def _work(
    call: Call,
    work: queue.SimpleQueue[tuple[Element, int, _Outcome] | None],
    changed: threading.Condition,
    cancellation: Cancellation,
) -> None:
    """The loop of a worker thread, until it takes the end marker None."""
    while (given := work.get()) is not None:
        element, number, outcome = given
        try:
            outcome.value = cancellation.run(call, element, number)
        except BaseException as e:
            outcome.error = e
        with changed:
            outcome.done = True
            changed.notify_all()
        del given, element, outcome


class _Ready:
    """What a thread has made ahead. The thread knows only this, so that it ends when the walk is dropped."""

    def __init__(self, elements: Walk[Element], size: int) -> None:
        self.elements, self.size = elements, size
        self.outcomes: deque[Element | BaseException] = deque()
        self.changed = threading.Condition()
        self.ended = False
        self.cancellation = Cancellation()

    def work(self) -> None:
        """Make elements until there are no more, or the work is cancelled."""
        self.cancellation.run(self._make)

    def _make(self) -> None:
        while True:
            outcome: Element | BaseException
            try:
                outcome = next(self.elements)
            except StopIteration:
                break
            except BaseException as e:
                outcome = e
            with self.changed:
                self.changed.wait_for(lambda: len(self.outcomes) < self.size or self.cancellation.error is not None)
                if self.cancellation.error is not None:
                    del outcome  # its traceback refers to this frame
                    break
                self.outcomes.append(outcome)
                self.changed.notify_all()
        close = getattr(self.elements, "close", None)
        if close is not None:
            close()  # its threads end, too
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Ahead:
    """The elements of a walk, made by a thread that is up to `size` of them ahead and ends with this."""

    def __init__(self, elements: Walk[Element], size: int) -> None:
        self._ready = _Ready(elements, size)
        threading.Thread(target=self._ready.work, daemon=True, name="dataset-prefetch").start()

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Element:
        ready = self._ready
        wait_for(ready.changed, lambda: ready.outcomes or ready.ended)
        with ready.changed:  # no other thread takes elements
            if not ready.outcomes:
                raise StopIteration
            outcome = ready.outcomes.popleft()
            ready.changed.notify_all()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def close(self) -> None:
        """End the thread."""
        self._ready.cancellation.cancel()
        with self._ready.changed:
            self._ready.changed.notify_all()

    def __del__(self) -> None:
        self.close()


__all__ = ["Ahead", "InOrder"]
