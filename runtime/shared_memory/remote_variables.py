"""A task's service for variables in shared memory: it publishes variables, reads those of others, and falls back to messages.

A published variable has a record, at an address that does not change. While its value can be shared, the record's `OwnSharedVariable`
holds it (`shared_variable.py`). The record is empty if the variable has no value, if the value is larger than `MOST_BYTES` or outside of
shared memory (the pool is full), and after variable, session or server are gone.

The placer says which values could be read in place (`placer/partition/one_sided_reads.py`). The master connects owner and reader. The
owner names a page of its memory (`expose_memory`), and the reader tries to map it (`map_memory`), once per pair and session. Then the
owner publishes the variables (`publish`), and the reader gets the addresses of their records.

If a value cannot be read when a step begins, the reader requests it with a `want`, which names the variable. The owner sends it as a
tensor of the step, on its usual channel. Or it answers `denied` with an error, which ends the step: the variable has no value yet, or the
session is unknown. An overdue `want` is repeated (`failure_detection.py`); it is idempotent.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...codegen.ir.partition import Posted, RecvTensor
from ...graph.core.dtypes import DType, as_dtype
from ...graph.core.errors import AbortedError, InvalidArgumentError, OpError, from_code, invalid
from ...graph.core.graph import Node
from ...graph.core.interpreter_state import process_id
from ...graph.ops.state.accumulators import ACCUMULATOR
from ...graph.resources.accumulator import Accumulator, AccumulatorKind, DenseAccumulator
from ...graph.resources.resource_manager import Resources
from ...graph.resources.shared_storage import Publishable
from ...placer.partition.partitioned_graph import task_of
from ..shared_memory.pool import mapper, pool_of_process
from .segment import PAGE, MappingError, Reference, is_alive, new_segment
from .shared_variable import (
    NUMBER,
    RECORD_BYTES,
    RECORDS,
    LockFile,
    OwnSharedVariable,
    RecordAddress,
    can_publish,
    words_of,
)
from .variable_reader import ProcessHandle, RemoteVariable, VariableReaders, reader_of

_GONE = (
    "The accumulator '{name}' of {task} is not any more where this step found it: its container was cleared, or its session was closed "
    "there. Run again."
)

Want: TypeAlias = dict[str, Any]
"""A variable in a `want` message: see `RECORDS` of `wire/schema.py`."""
VariableName: TypeAlias = Sequence[Any]
"""A variable in a `publish` message: container, name; for an accumulator also its element type, shape and reduction, else None."""


class RemoteVariables:
    """The shared variables of one task. Thread-safe.

    Args:
        default_container: the container of variables that name none.
        opens: whether others may use its variables; false where variables may lie in GPU memory.
        wake: tells a task that there are enough gradients for what it waits for (`VariablePublisher.look`).
    """

    def __init__(
        self, task: str, default_container: str, opens: bool = True, wake: Callable[[str], None] = lambda task: None
    ) -> None:
        self.publisher = VariablePublisher()
        self._task = task
        self._default_container = default_container
        self._opens = opens
        self._wake = wake

    # --- the owner's side --------------------------------------------------------------------------------------------

    def page(self) -> list[int] | None:
        """A page of this process's memory that others map as a test; None: its memory cannot be mapped."""
        pool = pool_of_process()
        return list(pool.page()) if pool is not None and can_publish() else None

    def publish(
        self, handle: str, resources: Resources, names: Sequence[VariableName], writable: bool, keeps: bool = False
    ) -> list[RecordAddress | None]:
        """Publish a session's variables, given by container and name, for others to read, or also to change if `writable`.

        None for one that cannot be published. If one cannot be changed by others, all variables are None. An accumulator is given with
        its `sum`, made if needed, and published independently of the others. `keeps`: only this task changes variables.
        """
        if not self._opens:
            return [None for _ in names]
        found: list[tuple[bool, RecordAddress | None]] = []  # whether it is a variable, and its record
        for container, name, described in names:
            where, place = (handle, resources, container or self._default_container, name), None
            kind = None if described is None else _described_kind(*described)
            # An InvalidArgumentError: the name is another resource's, which the step itself reports.
            with contextlib.suppress(InvalidArgumentError):
                if kind is not None or (writable and not keeps):
                    place = self.publisher.open(*where, kind)
                elif not writable:
                    place = self.publisher.publish(*where)
            found.append((kind is None, place))
        if writable and (True, None) in found:
            return [None if is_variable else place for is_variable, place in found]
        return [place for _, place in found]

    def values(self, resources: Resources | None, wants: Iterable[Want]) -> dict[int | str, Any]:
        """The values that a `want` requests, by channel.

        Raises:
            AbortedError: the session is unknown. FailedPreconditionError: a variable has no value.
            InvalidArgumentError: the variable is not the expected one, or the message is malformed.
        """
        if resources is None:
            raise unknown_error(self._task, "the session of this step")
        found: dict[int | str, Any] = {}
        for want in wants:
            name = want["name"]
            if want["is_sum"]:
                raise AbortedError.of(_GONE.format(name=name, task=self._task))
            try:
                dtype = as_dtype(want["dtype"])
            except (TypeError, ValueError) as e:
                raise invalid(f"A want message is malformed: {e}") from None
            container = want["container"] or self._default_container
            found[want["channel"]] = resources.variable(container, name, dtype).read()
        return found

    # --- the reader's side -------------------------------------------------------------------------------------------

    @staticmethod
    def sees(page: Any) -> bool:
        """Whether this process can map the memory of the process with this page."""
        if pool_of_process() is None or not can_publish():
            return False
        try:
            reference = Reference(*page)
            ProcessHandle(reference.pid)
            mapper.map(reference)
        except MappingError:
            return False
        return True

    def reader(self, receives: Sequence[RecvTensor]) -> Callable[[], list[Any]]:
        """A function that reads published variables, and finds shared ones; the `ReaderOf` of `codegen/lower`."""

        def find(receive: RecvTensor) -> Any:
            posted = receive.posted
            assert posted is not None
            try:
                place = RecordAddress(*posted.place)
                if receive.reached is not None:
                    kind = kind_of(receive.reached)
                    task = task_of(receive.source)
                    return RemoteVariable(place, kind, posted.name, task, mapper, partial(self._wake, task))
                return reader_of(place, receive.dtype.np, mapper)
            except (MappingError, TypeError):  # the variable was withdrawn meanwhile, or the address is none
                return None

        return VariableReaders(map(find, receives))

    @staticmethod
    def ended(wanted: Iterable[RecvTensor]) -> set[str]:
        """The tasks of these variables whose processes have ended."""
        return {task_of(r.source) for r in wanted if r.posted is not None and not is_alive(r.posted.place[0])}


def wants_of(receives: Iterable[RecvTensor]) -> dict[tuple[str, int], list[Want]]:
    """The `want` entries of variables that could not be read, by (task, incarnation)."""
    out: dict[tuple[str, int], list[Want]] = {}
    for r in receives:
        assert r.posted is not None
        key = task_of(r.source), r.posted.incarnation
        is_sum = r.reached is not None and r.reached.type == ACCUMULATOR
        want = {"channel": r.channel, "container": r.posted.container, "name": r.posted.name}
        out.setdefault(key, []).append(want | {"dtype": r.dtype.name, "is_sum": is_sum})
    return out


def denied_error(receive: RecvTensor, code: str, message: str) -> OpError:
    """The error of a step whose `want` for this variable was denied."""
    posted = receive.posted
    assert isinstance(posted, Posted)
    where = f"\n  node '{posted.node}' ({posted.op}), created at {posted.source}, on {receive.source}"
    error = from_code(code, message + (where if code != "ABORTED" else ""), posted.node)
    error.task = task_of(receive.source)
    return error


def unknown_error(task: str, what: str) -> AbortedError:
    """The error of a step that needs what a task does not have any more."""
    return AbortedError.of(
        f"{task} does not know {what}: the task was restarted, or the session was closed or reset. What it held is lost. If it held "
        "variables, restore or initialise them; then run again."
    )


def name_of(node: Node, container: str, name: str) -> VariableName:
    """How a `publish` message names a variable or accumulator of known shape."""
    if node.type != ACCUMULATOR:
        return container, name, None
    attrs = node.attrs
    return container, name, (attrs["dtype"].name, attrs["shape"] or (), attrs["reduction_type"])


def kind_of(node: Node) -> DType | AccumulatorKind:
    """The type of a resource of another task: a variable's element type, or an accumulator's kind."""
    attrs = node.attrs
    dtype: DType = attrs["dtype"]
    return AccumulatorKind(False, dtype, attrs["shape"], attrs["reduction_type"]) if node.type == ACCUMULATOR else dtype


def _described_kind(dtype: str, shape: Sequence[int], reduction: str) -> AccumulatorKind:
    """An accumulator's kind in a `publish` message. InvalidArgumentError: it is malformed."""
    try:
        return AccumulatorKind(False, as_dtype(dtype), tuple(shape), reduction)
    except (TypeError, ValueError) as e:
        raise invalid(f"A publish message is malformed: {e}") from None


class VariablePublisher:
    """All published variables of one task. Each belongs to the sessions that requested it. Thread-safe."""

    def __init__(self) -> None:
        self._shared: weakref.WeakSet[DenseAccumulator] = weakref.WeakSet()  # accumulators that are, or were, shared
        self._free: list[tuple[memoryview, RecordAddress, LockFile]] = []  # unused records
        self._segments: list[tuple[int, LockFile]] = []  # descriptors
        self._published: dict[tuple[int, str, str], _Published] = {}
        self._closed = False
        self._pid = process_id()
        self._lock = threading.Lock()

    def publish(
        self, session: str, resources: Resources, container: str, name: str, what: str = "variable"
    ) -> RecordAddress | None:
        """Publish the variable of that name, which need not exist yet; None: that is impossible."""
        key = id(resources), container, name
        with self._lock:
            if self._closed:
                return None
            found = self._published.get(key)
            if found is None:
                if not self._free:
                    self._make_records()
                if not self._free:
                    return None
                words, place, lock_file = self._free.pop()
                place = place._replace(number=secrets.randbits(62) | 1)
                value = OwnSharedVariable(place, words, f"The {what} '{name}' of this task", lock_file)
                found = self._published[key] = _Published(value, resources, set())
                resources.publish(container, name, value.share)
            found.sessions.add(session)
            return found.value.place

    def open(
        self, session: str, resources: Resources, container: str, name: str, kind: AccumulatorKind | None = None
    ) -> RecordAddress | None:
        """Publish a variable for changes by others, or an accumulator of this kind, which is made if needed.

        None: it cannot be shared, or is a variable without a value.

        Raises:
            InvalidArgumentError: the name belongs to another resource, or the accumulator is of another kind.
        """
        if kind is not None:
            if not can_publish() or kind.dtype.np.hasobject:  # no memory can hold Python's objects for others
                return None
            made = resources.get_or_create(container, name, Accumulator, lambda: DenseAccumulator(name, kind))
            made.kind.check_same(kind, name)
            if not isinstance(made, DenseAccumulator):
                return None
        place = self.publish(session, resources, container, name, "variable" if kind is None else "accumulator")
        resource = resources.find(container, name)
        if not isinstance(resource, Publishable):
            return None
        with self._lock:
            found = self._published.get((id(resources), container, name))
            if found is not None and not resource.is_shared:  # the reason why it could not be may be gone
                resources.publish(container, name, found.value.share)
            if found is None or not resource.is_shared:
                return None
            if isinstance(resource, DenseAccumulator):
                self._shared.add(resource)
        return place

    def look(self) -> None:
        """Complete waiting gradient requests for which others have added enough gradients."""
        if self._shared:
            with self._lock:
                shared = list(self._shared)
            for accumulator in shared:
                accumulator.look()

    def close_session(self, session: str) -> None:
        """Withdraw the variables that only this session has requested."""
        with self._lock:
            for key, found in list(self._published.items()):
                found.sessions.discard(session)
                if not found.sessions:
                    self._withdraw(key)

    def close(self) -> None:
        """Withdraw all variables: none can be read from now on."""
        with self._lock:
            self._closed = True
            for key in list(self._published):
                self._withdraw(key)
            for fd, lock_file in self._segments:
                if self._pid == process_id():
                    lock_file.close()
                    with contextlib.suppress(OSError):
                        os.close(fd)
            self._segments.clear()
            self._free.clear()

    def __len__(self) -> int:
        return len(self._published)

    def _withdraw(self, key: tuple[int, str, str]) -> None:
        found = self._published.pop(key)
        found.resources.publish(key[1], key[2], None)
        value = found.value
        value.words[NUMBER] = 0
        if not value.is_stuck and value.lock_file is not None:
            self._free.append((value.words, value.place, value.lock_file))

    def _make_records(self) -> None:
        """Make a segment of unused records, if that is possible."""
        if not can_publish():
            return
        try:
            made = new_segment(RECORD_BYTES, RECORDS)
            place = RecordAddress(process_id(), made.fd, made.number, 0, 0)
            lock_file = LockFile(*place[:3])
        except (OSError, MappingError):
            return
        self._segments.append((made.fd, lock_file))
        for at in range(PAGE, PAGE + RECORDS * RECORD_BYTES, RECORD_BYTES):
            self._free.append((words_of(made.memory, at), place._replace(offset=at), lock_file))


@dataclass(slots=True)
class _Published:
    """A published variable and the sessions that it belongs to."""

    value: OwnSharedVariable
    resources: Resources
    sessions: set[str]
