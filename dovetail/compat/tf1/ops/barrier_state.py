"""Barriers: elements that are assembled from components, by key, and taken when they are complete.

Each `insert_many` adds one component of some keys. A key with all its components is ready. Ready elements are taken in the order in
which their keys first arrived. A take waits until its number of elements is ready; takes are served in the order of arrival.

After a close, only keys that have a component can be completed, and takes that can never be filled fail. With
`cancel_pending_enqueues`, all inserts fail, and incomplete elements are dropped.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....graph.core.dtypes import Array, DType, text_array
from ....graph.core.errors import CancelledError, OutOfRangeError, invalid
from ....graph.core.shape import Dims, compatible, text
from ....graph.resources.async_request import AsyncResource, Request, check_room

Ready = tuple[int, bytes, tuple[Array, ...]]  # index, key, components

_FIRST_INDEX = -(2**63)  # as in TensorFlow: indices only give the order


class TakeMany(Request):
    """A take of `count` complete elements; with `small`, of fewer if the barrier is closed and no more are left."""

    __slots__ = ("barrier", "count", "small")

    def __init__(self, barrier: Barrier, count: int, small: bool) -> None:
        super().__init__(f"{count} elements of {barrier}")
        self.barrier, self.count, self.small = barrier, count, small

    def finished(self, value: list[Ready]) -> tuple[Array, ...]:
        """(indices, keys, components...), stacked."""
        keys = text_array(k for _, k, _ in value)
        columns = []
        for i, (dtype, dims) in enumerate(zip(self.barrier.dtypes, self.barrier.shapes, strict=True)):
            parts = [c[i] for _, _, c in value]
            empty = np.zeros((0, *(d or 0 for d in dims or ())), dtype.np)
            columns.append(np.stack(parts) if parts else empty)
        return np.array([i for i, _, _ in value], np.int64), keys, *columns


class Barrier(AsyncResource[TakeMany]):
    """Elements by key, and the takes that wait."""

    def __init__(self, name: str, dtypes: tuple[DType, ...], shapes: tuple[Dims, ...]) -> None:
        super().__init__()
        self.name, self.dtypes, self.shapes = name, dtypes, shapes
        self.is_closed = False
        self._is_cancelled = False
        self._partial: dict[bytes, tuple[int, list[Array | None]]] = {}
        self._ready: list[Ready] = []
        self._next = _FIRST_INDEX
        self._takes: deque[TakeMany] = deque()

    def __str__(self) -> str:
        return f"Barrier '{self.name}'"

    @property
    def ready_size(self) -> int:
        """The number of complete elements."""
        return len(self._ready)

    @property
    def incomplete_size(self) -> int:
        """The number of incomplete elements."""
        return len(self._partial)

    def insert_many(self, component: int, keys: Sequence[bytes], values: Array) -> None:
        """Add one component of each key.

        Raises:
            InvalidArgumentError: a key has it already, or a value does not fit. CancelledError: it is closed. Nothing has
                changed then.
        """
        if not 0 <= component < len(self.dtypes):
            raise invalid(f"{self} has {len(self.dtypes)} components, there is no {component}")
        if len(values) != len(keys):
            raise invalid(f"{self}: {len(keys)} keys, but {len(values)} values")
        if not compatible(values.shape[1:], self.shapes[component]):
            raise invalid(
                f"Shape mismatch in component {component} of {self}. "
                f"Expected {text(self.shapes[component])}, got {text(values.shape[1:])}"
            )
        self.perform(lambda: self._insert(component, keys, values))

    def _insert(self, component: int, keys: Sequence[bytes], values: Array) -> None:
        if self._is_cancelled:
            raise CancelledError(None, None, f"{self} is closed.")
        if len(set(keys)) != len(keys):
            raise invalid(f"{self}: a key is given twice")
        for key in keys:
            found = self._partial.get(key)
            if found is None and self.is_closed:
                raise CancelledError(None, None, f"{self} is closed, and key {key!r} is new")
            if found is not None and found[1][component] is not None:
                raise invalid(f"{self}: key {key!r} already has a value for component {component}")
        for row, key in enumerate(keys):
            if key not in self._partial:
                self._partial[key] = self._next, [None] * len(self.dtypes)
                self._next += 1
            number, parts = self._partial[key]
            parts[component] = values[row, ...]
            whole = [p for p in parts if p is not None]
            if len(whole) == len(parts):
                del self._partial[key]
                heapq.heappush(self._ready, (number, key, tuple(whole)))
        self._serve()

    def take_many(self, count: int, allow_small_batch: bool) -> Any:
        """`count` whole elements: (indices, keys, components...). OutOfRangeError when there will never be so many."""
        if count < 1:
            raise invalid(f"{self}: the number of elements must be positive, is {count}")
        return self.ask(TakeMany(self, count, allow_small_batch))

    def close(self, cancel_pending_enqueues: bool) -> None:
        """Accept no new keys; with `cancel_pending_enqueues`, no inserts at all."""

        def event() -> None:
            self.is_closed = True
            if cancel_pending_enqueues:
                self._is_cancelled = True
                self._partial.clear()
            self._serve()

        self.perform(event)

    # --- the rules -------------------------------------------------------------------------------------------------

    def _admit(self, request: TakeMany) -> None:
        check_room(self._takes, request.what)
        self._takes.append(request)

    def _serve(self) -> None:
        while self._takes:
            head = self._takes[0]
            no_more = self.is_closed and not self._partial
            if len(self._ready) >= head.count or (no_more and head.small and self._ready):
                count = min(head.count, len(self._ready))
                self._takes.popleft()
                head.answer([heapq.heappop(self._ready) for _ in range(count)])
            elif self.is_closed and len(self._ready) + len(self._partial) < (1 if head.small else head.count):
                self._takes.popleft()
                head.refuse(
                    OutOfRangeError(
                        None, None,
                        f"{self} is closed and has insufficient elements "
                        f"(requested {head.count}, total size {len(self._ready) + len(self._partial)})",
                    )
                )  # fmt: skip
            else:
                break

    def _withdraw(self, request: TakeMany) -> None:
        self._takes.remove(request)

    def _take_back(self, request: TakeMany, value: list[Ready]) -> None:
        for element in value:
            heapq.heappush(self._ready, element)

    def _waiting(self) -> Iterator[TakeMany]:
        yield from self._takes
