"""Readers: records of files whose names come from a queue, and whole files.

A reader's format is a Python function from a file's name to its records. Like a `py_func`, it stays in the process that built the graph,
and so do the nodes that read. So a graph that is sent to another machine cannot read files there.
"""

from __future__ import annotations

import glob
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.default_graph import get_default_graph
from ...core.dtypes import Array, int64, resource, string, text_array
from ...core.errors import NotFoundError, PermissionDeniedError, invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, Trait, define_on_host, typed_attr
from ...resources.async_request import ChainedRequest, Request
from ...resources.queue import Queue
from ...resources.resource_manager import Context
from ..control.python_function import function_of, process_nonce, register
from ..math.static_operands import as_bytes
from ..state.queues import as_resource, define_fact, free, need_handle, need_scalar

Record = tuple[str, bytes]
"""A key, which names the file and the position in it, and the record."""
Format = Callable[[str], Iterator[Record]]

ALL = 2**31


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
            self._files.append(self._records_of(_name_of(name)))
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


def _check_own(process: str, context: Context) -> None:
    if process != process_nonce():
        raise PermissionDeniedError(
            context.node_name, None,
            "Files are read and written only by the client's own process, where its graph was built, and this is another one. "
            "Put the node on the client's task, or feed what is in the file.",
        )  # fmt: skip


# --- making one -------------------------------------------------------------------------------------------------------


def _infer_reader(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:

    for name in ("token", "process", "shared_name"):
        typed_attr(attrs, name, str)
    return [(resource, ())]


def _reader(context: Context, *, token: str, process: str, shared_name: str) -> Reader:
    _check_own(process, context)

    def new() -> Reader:
        records_of = function_of(token)
        assert records_of is not None, "the graph of a node that runs is there"
        return Reader(records_of)

    found: Reader = context.resources.get_or_create(context.container, shared_name or context.node_name, Reader, new)
    return found


define_on_host("ReaderV2", _infer_reader, _reader, cost=free, traits=Trait.STATE_HANDLE | Trait.HOST_ONLY)


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


def _text(value: str | bytes) -> Array:
    return text_array([as_bytes(value)], ())


def _one(records: list[Record]) -> tuple[Array, Array]:
    ((key, record),) = records
    return _text(key), _text(record)


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


define_on_host("ReaderResetV2", _infer_reset, _reset, cost=free, traits=Trait.HOST_ONLY)
define_fact("ReaderNumRecordsProducedV2", Reader, int64, lambda reader: reader.produced, Trait.HOST_ONLY)
define_fact("ReaderNumWorkUnitsCompletedV2", Reader, int64, lambda reader: reader.completed, Trait.HOST_ONLY)


# --- whole files ------------------------------------------------------------------------------------------------------


def _infer_file(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "process", str)
    for t in inputs:
        need_scalar(t, (string,), "a file's name or content")
    return [(string, ())]


def _infer_matching(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "process", str)
    if inputs[0].dtype.base is not string:
        raise TypeError(f"a pattern must be text, not {inputs[0].dtype.base.name}")
    return [(string, (None,))]


def _infer_write(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _infer_file(inputs, attrs)
    return []


def _name_of(value: Any) -> str:
    item = value.item() if isinstance(value, np.ndarray) else value
    return as_bytes(item).decode()


def _read_file(context: Context, filename: Array, *, process: str) -> Array:
    _check_own(process, context)
    try:
        return _text(Path(_name_of(filename)).read_bytes())
    except OSError as e:
        raise NotFoundError(context.node_name, None, f"{_name_of(filename)}; {e.strerror}") from e


def _write_file(context: Context, filename: Array, contents: Array, *, process: str) -> tuple[()]:
    _check_own(process, context)
    path, item = Path(_name_of(filename)), contents.item()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_bytes(item))
    except OSError as e:
        raise NotFoundError(context.node_name, None, f"{path}; {e.strerror}") from e
    return ()


def _matching(context: Context, pattern: Array, *, process: str) -> Array:
    _check_own(process, context)
    found = sorted({name for p in pattern.reshape(-1) for name in glob.glob(_name_of(p)) if Path(name).is_file()})  # noqa: PTH207
    return text_array(name.encode() for name in found)


for _name, _infer, _of_files in (
    ("ReadFile", _infer_file, _read_file),
    ("WriteFile", _infer_write, _write_file),
    ("MatchingFiles", _infer_matching, _matching),
):
    define_on_host(_name, _infer, _of_files, traits=Trait.HOST_ONLY)


def read_file(filename: TensorLike, name: str | None = None) -> Tensor:
    """The content of a file of the client's machine, a string scalar. In a step: NotFoundError where it cannot be read.

    >>> image = read_file("digit.raw")
    """
    return apply("ReadFile", (convert(filename, string, name="filename"),), {"process": process_nonce()}, name)


def write_file(filename: TensorLike, contents: TensorLike, name: str | None = None) -> Node:
    """A node that writes a file of the client's machine, and makes the folders that it is in."""
    operands = convert(filename, string, name="filename"), convert(contents, string, name="contents")
    return make("WriteFile", operands, {"process": process_nonce()}, name)


def matching_files(pattern: TensorLike, name: str | None = None) -> Tensor:
    """Names of the client's files that match a pattern, or one of several, sorted: string `[n]`.

    >>> matching_files("/data/*.csv")
    """
    return apply("MatchingFiles", (convert(pattern, string, name="pattern"),), {"process": process_nonce()}, name)
