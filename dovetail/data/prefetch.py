"""Iterators with threads: parallel calls of a function, and prefetching.

They are classes and not generators, because they continue after the error of an element. A step that waits for an element stops waiting
when it is cancelled. Closing or dropping an iterator cancels the work of its threads.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ..graph.resources.cancellation import Cancellation, is_cancelled, wait_for
from .spec import Array, Element

Call: TypeAlias = Callable[[Element, int], list[Array]]


class _Outcome:
    """The result of a call in a thread."""

    __slots__ = ("done", "error", "value")

    def __init__(self, error: BaseException | None = None) -> None:
        self.done = error is not None
        self.value: list[Array] = []
        self.error = error


class ParallelMap:
    """Calls a function of each element and its number, in parallel, and yields the results.

    Args:
        call: the function.
        elements: pairs of an element and its number.
        calls: number of calls that run at a time.
        sloppy: whether results come in order of completion instead of input order.
    """

    def __init__(self, call: Call, elements: Iterator[tuple[Element, int]], calls: int, sloppy: bool = False) -> None:
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

    def __iter__(self) -> ParallelMap:
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
        """Returns the next outcome, or None if it is not ready."""
        candidates = self._waiting if self._sloppy else itertools.islice(self._waiting, 1)
        return next((o for o in candidates if o.done), None)

    def close(self) -> None:
        """End the threads, and cancel the running calls."""
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


class _PrefetchBuffer:
    """The buffer between a prefetching thread and its consumer.

    The thread refers only to this, so a `Prefetcher` that is dropped is freed and ends its thread.
    """

    def __init__(self, elements: Iterator[Element], size: int) -> None:
        self.elements, self.size = elements, size
        self.outcomes: deque[Element | BaseException] = deque()
        self.changed = threading.Condition()
        self.ended = False
        self.cancellation = Cancellation()

    def work(self) -> None:
        """Make elements until there are no more or the work is cancelled."""
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
            close()  # ends the threads of the input
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Prefetcher:
    """Yields the elements of an iterator. A thread computes up to `size` of them ahead."""

    def __init__(self, elements: Iterator[Element], size: int) -> None:
        self._ready = _PrefetchBuffer(elements, size)
        threading.Thread(target=self._ready.work, daemon=True, name="dataset-prefetch").start()

    def __iter__(self) -> Prefetcher:
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
