"""Readers: records of files whose names come from a queue.

A reader's format is a Python function from a file's name to its records. Like a `py_func`, it stays in the process that built the graph,
and so do the nodes that read. So a graph that is sent to another machine cannot read files there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import Array, int64, resource, string, text_array
from ....graph.core.errors import invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, Trait, define_on_host, typed_attr
from ....graph.ops.control.python_function import function_of, process_nonce, register
from ....graph.ops.io.files import as_text, check_own, name_of
from ....graph.ops.math.static_operands import no_cost
from ....graph.ops.state.queues import as_resource, define_fact, need_handle, need_scalar
from ....graph.resources.async_request import Request
from ....graph.resources.queue import Queue
from ....graph.resources.resource_manager import Context

Record = tuple[str, bytes]
"""A key, which names the file and the position in it, and the record."""
Format = Callable[[str], Iterator[Record]]

ALL = 2**31


class ChainedRequest(Request):
    """A request with a continuation: its result is `then(result)`, which may be another request."""

    __slots__ = ("_first", "_then")

    def __init__(self, first: Request, then: Callable[[Any], Any]) -> None:
        super().__init__(first.what)
        self._first, self._then = first, then

    def waits_for(self) -> str:
        """As the first request."""
        return self._first.waits_for()

    def when_settled(self, tell: Callable[[], None]) -> bool:
        """As the first request: calls `tell` when that is settled."""
        return self._first.when_settled(tell)

    def result(self) -> Any:
        """`then` of the first request's result."""
        return self._then(self._first.result())

    def cancel(self) -> None:
        """Cancel the first request."""
        self._first.cancel()


class Reader:
    """The state of a reader. Several steps may read at once: each record goes to one of them.

    Attributes:
        produced: how many records it has given. completed: how many files it has finished.
    """

    def __init__(self, records_of: Format) -> None:
        self._records_of = records_of
        self._lock = threading.Lock()
        self._files: deque[Iterator[Record]] = deque()  # more than one if several steps opened files at once
        self.produced = self.completed = 0

    def read(self, queue: Queue, most: int) -> list[Record] | Request:
        """1 to `most` records of one file. It dequeues the next file name when no open file has records."""
        found = self._next(most)
        while not found:
            answer = queue.dequeue()
            if isinstance(answer, Request):
                return ChainedRequest(answer, lambda name: self._begin(name, most) or self.read(queue, most))
            found = self._begin(answer, most)
        return found

    def _begin(self, name: Array, most: int) -> list[Record]:
        with self._lock:
            self._files.append(self._records_of(name_of(name)))
        return self._next(most)

    def _next(self, most: int) -> list[Record]:
        with self._lock:
            while self._files:
                found = list(islice(self._files[0], most))
                if found:
                    self.produced += len(found)
                    return found
                self._files.popleft()
                self.completed += 1
        return []

    def reset(self) -> None:
        """As new."""
        with self._lock:
            self._files.clear()
            self.produced = self.completed = 0


# --- making one -------------------------------------------------------------------------------------------------------


def _infer_reader(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:

    for name in ("token", "process", "shared_name"):
        typed_attr(attrs, name, str)
    return [(resource, ())]


def _reader(context: Context, *, token: str, process: str, shared_name: str) -> Reader:
    check_own(process, context)

    def new() -> Reader:
        records_of = function_of(token)
        assert records_of is not None, "the graph of a node that runs is there"
        return Reader(records_of)

    found: Reader = context.resources.get_or_create(context.container, shared_name or context.node_name, Reader, new)
    return found


define_on_host("ReaderV2", _infer_reader, _reader, cost=no_cost, traits=Trait.STATE_HANDLE | Trait.HOST_ONLY)


def reader(records_of: Format, shared_name: str | None, name: str) -> Tensor:
    """The handle of a new reader of this format."""
    graph = get_default_graph()
    attrs = {"token": register(records_of, graph), "process": process_nonce(), "shared_name": shared_name or ""}
    return graph.create("ReaderV2", (), attrs, name).outputs[0]


# --- reading ----------------------------------------------------------------------------------------------------------


def _infer_read(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for handle in inputs[:2]:
        need_handle(handle)
    return [(string, ()), (string, ())]


def _infer_read_up_to(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _infer_read(inputs, attrs)
    need_scalar(inputs[2], (int64,), "the number of records")
    return [(string, (None,)), (string, (None,))]


def _one(records: list[Record]) -> tuple[Array, Array]:
    ((key, record),) = records
    return as_text(key), as_text(record)


def _several(records: list[Record]) -> tuple[Array, Array]:
    return text_array(key.encode() for key, _ in records), text_array(record for _, record in records)


def _read(context: Context, found: Any, queue: Any, most: int, finish: Callable[[list[Record]], Any]) -> Any:
    mine: Reader = as_resource(found, Reader, context)
    names: Queue = as_resource(queue, Queue, context)
    if names.kind.dtypes != (string,):
        raise invalid(f"A reader takes names of files from a queue of one string, not from {names}", context.node_name)

    def settled(answer: Any) -> Any:
        return ChainedRequest(answer, settled) if isinstance(answer, Request) else finish(answer)

    return settled(mine.read(names, most))


define_on_host(
    "ReaderReadV2",
    _infer_read,
    lambda context, found, queue: _read(context, found, queue, 1, _one),
    traits=Trait.BLOCKING | Trait.HOST_ONLY,
)


def _read_up_to(context: Context, found: Any, queue: Any, count: Array) -> Any:
    if int(count) < 1:
        raise invalid(f"num_records must be at least 1, not {int(count)}", context.node_name)
    return _read(context, found, queue, min(int(count), ALL), _several)


define_on_host("ReaderReadUpToV2", _infer_read_up_to, _read_up_to, traits=Trait.BLOCKING | Trait.HOST_ONLY)


def _infer_reset(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    need_handle(inputs[0])
    return []


def _reset(context: Context, found: Any) -> tuple[()]:
    as_resource(found, Reader, context).reset()
    return ()


define_on_host("ReaderResetV2", _infer_reset, _reset, cost=no_cost, traits=Trait.HOST_ONLY)
define_fact("ReaderNumRecordsProducedV2", Reader, int64, lambda reader: reader.produced, Trait.HOST_ONLY)
define_fact("ReaderNumWorkUnitsCompletedV2", Reader, int64, lambda reader: reader.completed, Trait.HOST_ONLY)
