"""Queues of elements, which steps enqueue and dequeue.

A queue has two lists of waiting requests: enqueues and closes, and dequeues. Each is served in the order of arrival, one element at a
time, as far as room and elements allow. So an `enqueue_many` of more elements than fit continues as room appears. A `dequeue_many` holds
its elements until it has all. A PriorityQueue waits until all elements of a `dequeue_many` are there, unless it is full, because an
element of higher priority may still arrive. Elements are numbered when they are enqueued. If the step of a dequeue ends, its elements are
put back in the order of their numbers, so that the dequeue has no effect.

A close waits among the enqueues. Earlier enqueues still finish, and later ones fail. After the close, dequeues get the remaining
elements, and fail if too few are left.

`_Fifo`, `_RandomShuffle` and `_PriorityHeap` choose the next element.
"""

from __future__ import annotations

import bisect
import heapq
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core.dtypes import Array, DType
from ..core.errors import CancelledError, OutOfRangeError, ResourceExhaustedError, invalid
from ..core.settings import setting
from ..core.shape import Dims, compatible, text
from .async_request import AsyncResource, Request, check_room

Tuple = tuple[Array, ...]

UNBOUNDED = 2**31 - 1  # the meaning of a capacity below 1, as in TensorFlow


class Element(NamedTuple):
    """An element of a queue: its number in the order of enqueues, and its components."""

    number: int
    components: Tuple


@dataclass(frozen=True, slots=True)
class QueueKind:
    """The properties that two programs must agree on to share a queue.

    Attributes:
        op: the op that makes the queue, such as "FIFOQueueV2".
        capacity: maximum number of elements.
        dtypes: element type of each component.
        shapes: shape of each component. None if components may have any shape.
        min_after_dequeue: number of elements that a RandomShuffleQueue keeps for shuffling.
        seed: two numbers. (0, 0) means a random seed.
    """

    op: str
    capacity: int
    dtypes: tuple[DType, ...]
    shapes: tuple[Dims, ...] | None
    min_after_dequeue: int = 0
    seed: tuple[int, int] = (0, 0)

    @property
    def label(self) -> str:
        """The kind for messages, such as `FIFOQueue`."""
        return self.op.removesuffix("V2")

    def check_same(self, other: QueueKind, name: str) -> None:
        """InvalidArgumentError if another program's queue of that name differs. The message names the first difference."""
        for field, what in (
            ("op", "type"),
            ("capacity", "capacity"),
            ("dtypes", "component types"),
            ("shapes", "component shapes"),
            ("min_after_dequeue", "min_after_dequeue"),
            ("seed", "random seeds"),
        ):
            mine, theirs = getattr(self, field), getattr(other, field)
            if mine != theirs and not (field == "seed" and theirs == (0, 0)):  # (0, 0) matches any seed
                raise invalid(
                    f"Shared queue '{name}' has {what} {_words(mine)} but requested {what} was {_words(theirs)}"
                )


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_words(v) for v in value) + "]"
    return value.name if isinstance(value, DType) else str(value)


# --- the order of elements -------------------------------------------------------------------------------------------


class _Store(Protocol):
    def add(self, element: Element) -> None: ...
    def pop(self) -> Element: ...
    def put_back(self, elements: Sequence[Element]) -> None: ...
    def __len__(self) -> int: ...


class _Fifo:
    """The next element is the oldest."""

    def __init__(self) -> None:
        self._elements: deque[Element] = deque()

    def add(self, element: Element) -> None:
        self._elements.append(element)

    def pop(self) -> Element:
        return self._elements.popleft()

    def put_back(self, elements: Sequence[Element]) -> None:
        for e in reversed(elements):
            if not self._elements or e.number < self._elements[0].number:
                self._elements.appendleft(e)
            else:
                self._elements.insert(bisect.bisect(self._elements, e.number, key=lambda x: x.number), e)

    def __len__(self) -> int:
        return len(self._elements)


class _RandomShuffle:
    """The next element is random."""

    def __init__(self, seed: tuple[int, int]) -> None:
        self._random = random.Random(f"{seed[0]},{seed[1]}") if any(seed) else random.Random()
        self._elements: list[Element] = []

    def add(self, element: Element) -> None:
        self._elements.append(element)

    def pop(self) -> Element:
        elements = self._elements
        at = self._random.randrange(len(elements))
        elements[at], elements[-1] = elements[-1], elements[at]
        return elements.pop()

    def put_back(self, elements: Sequence[Element]) -> None:
        self._elements.extend(elements)

    def __len__(self) -> int:
        return len(self._elements)


class _PriorityHeap:
    """The next element is the one with the lowest first component. Of equal ones, it is the oldest."""

    def __init__(self) -> None:
        self._elements: list[tuple[int, int, Element]] = []

    @staticmethod
    def key(element: Element) -> tuple[int, int]:
        """The sort key: the priority value, then the number."""
        return int(element.components[0]), element.number

    def add(self, element: Element) -> None:
        heapq.heappush(self._elements, (*self.key(element), element))

    def pop(self) -> Element:
        return heapq.heappop(self._elements)[2]

    def put_back(self, elements: Sequence[Element]) -> None:
        for e in elements:
            self.add(e)

    def __len__(self) -> int:
        return len(self._elements)


# --- requests --------------------------------------------------------------------------------------------------------


class EnqueueRequest(Request):
    """An enqueue. `left` has the elements that are not added yet, oldest first."""

    __slots__ = ("bytes", "left")

    def __init__(self, what: str, components: Iterable[Tuple]) -> None:
        super().__init__(what)
        self.left = deque(components)
        self.bytes = sum(_size(e) for e in self.left)


class CloseRequest(Request):
    """A close, which waits among the enqueues."""

    __slots__ = ()


class DequeueRequest(Request):
    """A dequeue of `count` elements, and the elements that it already has."""

    __slots__ = ("count", "dtypes", "fewer", "held", "many", "pads", "shapes")

    def __init__(self, queue: Queue, count: int, *, many: bool, fewer: bool = False) -> None:
        super().__init__(f"{count} element{'s' * (count != 1)} of {queue}")
        self.count, self.many, self.fewer = count, many, fewer
        self.dtypes, self.shapes, self.pads = queue.kind.dtypes, queue.kind.shapes, queue.pads
        self.held: list[Element] = []

    def finished(self, value: list[Element]) -> Any:
        """The components, stacked for a `dequeue_many`. A single array if there is one component."""
        if not self.many:
            arrays: Sequence[Array] = value[0].components
        else:
            arrays = [self._stacked(i, [e.components[i] for e in value]) for i in range(len(self.dtypes))]
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def _stacked(self, component: int, arrays: list[Array]) -> Array:
        assert self.shapes is not None
        dims = self.shapes[component]
        if not arrays:
            return np.zeros((0, *(d or 0 for d in dims or ())), self.dtypes[component].np)
        if self.pads and any(a.shape != arrays[0].shape for a in arrays):
            shape = tuple(max(a.shape[axis] for a in arrays) for axis in range(arrays[0].ndim))
            out = np.zeros((len(arrays), *shape), arrays[0].dtype)
            if out.dtype == object:
                out.fill(b"")
            for row, a in zip(out, arrays, strict=True):
                row[tuple(slice(0, n) for n in a.shape)] = a
            return out
        return np.stack(arrays)


# --- the queue -------------------------------------------------------------------------------------------------------


class Queue(AsyncResource[Any]):
    """A queue: its elements, and the two lists of waiting requests."""

    def __init__(self, name: str, kind: QueueKind) -> None:
        super().__init__()
        self.name = name
        self.kind = kind
        self.is_closed = False
        self.pads = kind.label == "PaddingFIFOQueue"
        self._text = f"{kind.label} '{name}'"
        self._types = [d.np for d in kind.dtypes]
        self._sorts = kind.label == "PriorityQueue"
        self._store: _Store = (
            _RandomShuffle(kind.seed)
            if kind.label == "RandomShuffleQueue"
            else _PriorityHeap()
            if self._sorts
            else _Fifo()
        )
        self._capacity = kind.capacity if kind.capacity > 0 else UNBOUNDED
        self._gives: deque[EnqueueRequest | CloseRequest] = deque()
        self._takes: deque[DequeueRequest] = deque()
        self._count = 0
        self._bytes = 0
        self._limit = int(setting("DOVETAIL_QUEUE_MB")) << 20

    def __str__(self) -> str:
        return self._text

    def __len__(self) -> int:
        return len(self._store)

    @property
    def waiting(self) -> int:
        """The number of requests that wait for room or for elements."""
        return len(self._gives) + len(self._takes)

    # --- requests of kernels ---------------------------------------------------------------------------------------

    def enqueue(self, elements: Sequence[Sequence[Array]]) -> Any:
        """Add elements in order, as room appears.

        Raises:
            InvalidArgumentError: the number, type or shape of components is wrong.
            CancelledError: the queue is closed.
            ResourceExhaustedError: the queue would hold more bytes than DOVETAIL_QUEUE_MB allows.
        """
        for e in elements:
            self._check(e)
        return self.ask(EnqueueRequest(f"room in {self}", [tuple(e) for e in elements]))

    def dequeue(self) -> Any:
        """Take one element."""
        return self.ask(DequeueRequest(self, 1, many=False))

    def dequeue_many(self, count: int, *, fewer: bool = False) -> Any:
        """Take `count` elements, and stack them. With `fewer`, take the remaining elements if the queue is closed.

        Raises:
            InvalidArgumentError: `count` is negative, or the queue was made without shapes.
            OutOfRangeError: the queue is closed, and too few elements are left.
        """
        if count < 0:
            raise invalid(f"{self}: the number of elements must not be negative, is {count}")
        if self.kind.shapes is None:
            raise invalid(f"{self} was made without shapes, so only single elements can be taken")
        return self.ask(DequeueRequest(self, count, many=True, fewer=fewer))

    def close(self, cancel_pending_enqueues: bool = False) -> Any:
        """Accept no more elements after the waiting enqueues. With `cancel_pending_enqueues`, the waiting enqueues fail."""
        if cancel_pending_enqueues:

            def event() -> None:
                for request in list(self._gives):
                    self._withdraw(request)
                    if isinstance(request, CloseRequest):
                        request.answer()
                    else:
                        request.refuse(CancelledError.of("Enqueue operation was cancelled"))
                self.is_closed = True
                self._serve()

            self.perform(event)
            return ()
        return self.ask(CloseRequest(f"the enqueues that wait for room in {self}"))

    def _check(self, components: Sequence[Array]) -> None:
        dtypes = [c.dtype for c in components]
        if dtypes != self._types:
            raise invalid(
                f"{self} holds elements of types {_words(self.kind.dtypes)}, not [{', '.join(str(d) for d in dtypes)}]"
            )
        for i, (c, dims) in enumerate(zip(components, self.kind.shapes or (), strict=False)):
            if not compatible(c.shape, dims):
                raise invalid(
                    f"Shape mismatch in tuple component {i} of {self}. Expected {text(dims)}, got {text(c.shape)}"
                )

    # --- rules of `AsyncResource` ----------------------------------------------------------------------------------

    def _admit(self, request: EnqueueRequest | CloseRequest | DequeueRequest) -> None:
        if isinstance(request, DequeueRequest):
            check_room(self._takes, request.what)
            self._takes.append(request)
            return
        check_room(self._gives, request.what)
        if isinstance(request, EnqueueRequest):
            if self._limit and self._bytes + request.bytes > self._limit:
                raise ResourceExhaustedError.of(
                    f"{self} holds {self._bytes >> 20} MiB in {len(self._store)} elements, and {request.bytes >> 10} KiB more "
                    f"pass its limit of {self._limit >> 20} MiB (DOVETAIL_QUEUE_MB): give it a smaller capacity, or "
                    "take elements out faster",
                )
            self._bytes += request.bytes
        self._gives.append(request)

    def _serve(self) -> None:
        while self._serve_gives() or self._serve_takes():
            pass

    def _serve_gives(self) -> bool:
        """Serve the enqueues. Returns whether a change may affect dequeues."""
        changed = False
        while self._gives:
            head = self._gives[0]
            if isinstance(head, CloseRequest):
                self.is_closed = changed = True
                head.answer()
            elif self.is_closed:
                self._bytes -= head.bytes
                head.refuse(CancelledError.of(f"{self} is closed."))
            else:
                while head.left and len(self._store) < self._capacity:
                    components = head.left.popleft()
                    head.bytes -= _size(components)
                    self._store.add(Element(self._count, components))
                    self._count += 1
                    changed = True
                if head.left:
                    break
                head.answer()
            self._gives.popleft()
        return changed

    def _serve_takes(self) -> bool:
        """Serve the dequeues. Returns whether a change may affect enqueues."""
        changed = False
        while self._takes:
            head = self._takes[0]
            kept = 0 if self.is_closed else self.kind.min_after_dequeue
            wanted = min(head.count - len(head.held), self._capacity)
            if self._sorts and not self.is_closed and len(self._store) < wanted:
                break
            while len(head.held) < head.count and len(self._store) > kept:
                element = self._store.pop()
                self._bytes -= _size(element.components)
                head.held.append(element)
                changed = True
            if len(head.held) == head.count or (self.is_closed and head.fewer and head.held):
                if self._sorts:  # the elements may have been taken in several events
                    head.held.sort(key=_PriorityHeap.key)
                head.answer(head.held)
            elif self.is_closed:
                self._put_back(head.held)
                size = len(self._store)
                head.refuse(
                    OutOfRangeError.of(f"{self} is closed and has insufficient elements (requested {head.count}, current size {size})",
                    )
                )  # fmt: skip
            else:
                break
            self._takes.popleft()
        return changed

    def _withdraw(self, request: EnqueueRequest | CloseRequest | DequeueRequest) -> None:
        if isinstance(request, DequeueRequest):
            self._takes.remove(request)
            self._put_back(request.held)
            return
        self._gives.remove(request)
        if isinstance(request, EnqueueRequest):
            self._bytes -= request.bytes

    def _take_back(self, request: EnqueueRequest | CloseRequest | DequeueRequest, value: Any) -> None:
        if isinstance(request, DequeueRequest):
            self._put_back(value)

    def _put_back(self, elements: list[Element]) -> None:
        self._store.put_back(elements)
        self._bytes += sum(_size(e.components) for e in elements)

    def _waiting(self) -> Iterator[Any]:
        yield from self._gives
        yield from self._takes


def _size(components: Tuple) -> int:
    return sum([c.nbytes for c in components])
