"""What calls a user's function on elements: traced once as a graph, run by threads that keep the order or run ahead."""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator as Walk
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..graph.build import convert, placeholder
from ..graph.graph import Graph
from ..graph.node import Tensor
from ..runtime.session import Session
from .spec import Component, Element, as_array, flatten, pack

if TYPE_CHECKING:
    from .dataset import Dataset


class Traced:
    """A function of an element as a graph of its own."""

    def __init__(self, dataset: Dataset, function: Callable[..., Any]) -> None:
        self._graph = Graph()
        with self._graph.as_default():
            self._inputs = [placeholder(c.dtype, c.dims) for c in dataset._components]
            given = pack(dataset._structure, self._inputs)
            found = function(*given) if isinstance(given, tuple) else function(given)
            self._outputs: list[Tensor] = [convert(t) for t in flatten(found)]
        self.structure = pack(found, [0] * len(self._outputs))
        self.components = [Component(t.dtype.base, t.dims) for t in self._outputs]
        self._lock = threading.Lock()
        self._call: Callable[..., Any] | None = None

    def callable(self) -> Callable[[Element], Element]:
        """The function, of arrays."""
        with self._lock:
            if self._call is None:
                self._call = Session(graph=self._graph).make_callable(self._outputs, self._inputs)
        call, types = self._call, [c.dtype for c in self.components]
        return lambda element: [as_array(v, t) for v, t in zip(call(*element), types, strict=True)]


def in_order(
    pool: ThreadPoolExecutor, call: Callable[[Element], Element], elements: Walk[Element], ahead: int
) -> Walk[Element]:
    """The function of each element, in the order of the elements; up to `ahead` calls run at a time."""
    waiting = deque(pool.submit(call, e) for e in itertools.islice(elements, ahead))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(call, e) for e in itertools.islice(elements, 1))
            yield done
    finally:
        for future in waiting:
            future.cancel()


def ahead(elements: Walk[Element], size: int) -> Walk[Element]:
    """The elements, made by a thread that is up to `size` of them ahead and ends with the walk."""
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(size)
    stopped = threading.Event()

    def put(kind: str, what: Any) -> None:
        while not stopped.is_set():
            try:
                ready.put((kind, what), timeout=0.1)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for element in elements:
                put("element", element)
                if stopped.is_set():
                    return
            put("end", None)
        except BaseException as e:
            put("error", e)

    threading.Thread(target=work, daemon=True, name="dataset-prefetch").start()
    try:
        while True:
            kind, what = ready.get()
            if kind == "error":
                raise what
            if kind == "end":
                return
            yield what
    finally:
        stopped.set()
