"""Primary/backup replication: the values of a parameter server's variables are kept by a second task, too.

Theory of operation. With `DOVETAIL_PS_REPLICAS=2`, task i of the job `ps` is the *primary* of its variables, and task i+1 (of the last
one: task 0) is their *backup*. Replication is passive (N. Budhiraja, K. Marzullo, F. Schneider, S. Toueg: The primary-backup approach,
1993): values are sent, not operations. So it is the same for every op that changes a variable, for an optimizer's slots as for the
weights, and there is one order of updates: the primary's.

    op           changes a variable: its name, and the rows if no others change, are noted (`VariableState.on_change`)
    step         ends on the primary; if the backup lacks anything that has changed here, the end waits
    batch        the present values of what was noted; the notes are cleared first, so what changes meanwhile is in the next batch
    backup       takes a batch whole or not at all, and answers
    step         is reported to its client

So what a client was told is in two processes. One batch is under way at a time; steps that end meanwhile share the next (group commit).
A batch that is lost is sent again: values may arrive twice, and numbers tell an old batch.

Other tasks may read the variables in memory (one-sided reads), but not change them: the primary would not know. Inside a step, tasks see
values that the backup does not have yet. Only the end of a step is a promise.

Failures. There is no promotion, hence no vote and no split brain: a task's name stays the primary, and whatever runs the cluster starts
a task that has ended again, anywhere.

- The backup dies. Ends of steps wait for it, `COMMIT_TIMEOUT_S` at most, and then fail with UnavailableError. It comes back without the
  copy, says so, and gets all variables. If nothing changes, an empty batch each `BEAT_S` finds out.
- The primary dies. Its steps fail as those of any lost task do. The process that is started for it claims the copy, and takes the values
  before it registers a program or answers a master: so no session sees a variable without a value, or an older one.
- A process that was stopped and taken for dead goes on: since the claim, the backup refuses its batches, and so it confirms nothing.
- Both die, or the second before it has the whole copy again: the primary begins without values, and a checkpoint is restored.

Only variables are kept: queues, accumulators, tables, iterators and sessions' own variables (`isolate_session_state`) are lost with
their task.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.dtypes import Array, as_dtype
from ...graph.core.errors import AbortedError, OpError, UnavailableError, invalid
from ...graph.core.settings import setting
from ...graph.resources.resource_manager import Resources
from ...graph.resources.variable import VariableState
from ...placer.cluster.spec import ClusterSpec, check_ps_replicas
from ..rpc.dispatch import RequestExecutor
from ..timeouts import BEAT_S, COMMIT_TIMEOUT_S, RETRY_S, WARN_S
from ..wire.messages import Message
from .executor import Finish, Outcome

logger = logging.getLogger(__name__)

PS_JOB = "ps"
PART_TENSORS, PART_BYTES = 4_096, 64 << 20  # of one message: what is larger comes in parts

Key: TypeAlias = tuple[str, str]
"""The container and name of a variable."""
Entry: TypeAlias = tuple[Key, Array | None, Array]
"""A variable, the rows of it that are given (None: all), and their values."""
Call: TypeAlias = Callable[[Message], Message]
"""Sends a request to the backup, and gives its reply. OpError: there is none."""


def backup_of(cluster: ClusterSpec, job: str, index: int) -> str | None:
    """The task that keeps a copy of this task's variables; None: none does.

    Raises:
        InvalidArgumentError: `DOVETAIL_PS_REPLICAS` asks for what the cluster cannot do.
    """
    replicas = setting("DOVETAIL_PS_REPLICAS")
    if replicas == 1 or job != PS_JOB:
        return None
    servers = cluster.task_indices(job)
    try:
        check_ps_replicas(replicas, len(servers))
    except ValueError as e:
        raise invalid(str(e)) from None
    after = servers[(servers.index(index) + 1) % len(servers)]
    return f"/job:{job}/replica:0/task:{after}"


def in_parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """The entries in lists of a message's size; at least one list."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        if part and (len(part) >= PART_TENSORS or size + entry[2].nbytes > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry[2].nbytes
    yield part


def packed(entries: Sequence[Entry]) -> tuple[list[list[Any]], tuple[Array, ...]]:
    """Entries as a field and the tensors of a message."""
    fields = [[*key, as_dtype(values.dtype).name, rows is not None] for key, rows, values in entries]
    return fields, tuple([t for _, rows, values in entries for t in (rows, values) if t is not None])


def unpacked(message: Message) -> list[tuple[Entry, str]]:
    """The entries of a message, with their element types. InvalidArgumentError: it is malformed."""
    tensors, out = iter(message.tensors), []
    try:
        for container, name, dtype, by_rows in message.fields["entries"]:
            rows = np.asarray(next(tensors)) if by_rows else None
            out.append((((container, name), rows, np.asarray(next(tensors))), as_dtype(dtype).name))
    except (TypeError, ValueError, StopIteration) as e:
        raise invalid(f"A {message.kind} message is malformed: {e!r}") from None
    return out


class _Copy:
    """What a backup has of one primary. `whole`: it has all of it."""

    def __init__(self) -> None:
        self.owner = 0  # the incarnation that may change it; 0: any
        self.number = 0
        self.whole = False
        self.values: dict[Key, Array] = {}
        self.coming = 0  # the number of the latest batch of which a part has come ...
        self.parts: list[list[Entry]] = []  # ... and its parts, until it is whole


class Copies:
    """The copies that a task keeps for primaries. Thread-safe."""

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}
        self._lock = threading.Lock()

    def take(self, message: Message) -> bool:
        """Take a part of a batch. Whether the copy is whole, or will be with the parts that follow; if not, all must be sent.

        Raises:
            AbortedError: another process has claimed the copy. InvalidArgumentError: the message is malformed.
        """
        f = message.fields  # copies, since what came may lie in the primary's memory
        entries = [(key, rows, np.array(values)) for (key, rows, values), _ in unpacked(message)]
        with self._lock:
            copy = self._copies.setdefault(f["task"], _Copy())
            if copy.owner not in (0, f["incarnation"]):
                raise AbortedError.of(
                    f"Another process was started for {f['task']}, and has its variables: this one confirms no updates any more. Stop it"
                )
            copy.owner = f["incarnation"]
            if f["number"] <= copy.number or f["number"] < copy.coming:
                return copy.whole  # it was late: a later one is here
            parts = copy.parts if f["number"] == copy.coming else []
            if not (copy.whole or f["whole"]) or (f["part"] and f["part"] != len(parts)):
                return False
            copy.coming, copy.parts = f["number"], [*(parts if f["part"] else []), entries]
            if f["last"]:
                copy.number = f["number"]
                parts, copy.parts = copy.parts, []
                copy.whole = self._apply({} if f["whole"] else copy.values, parts, copy)
                return copy.whole
            return True

    @staticmethod
    def _apply(values: dict[Key, Array], parts: Iterable[Iterable[Entry]], copy: _Copy) -> bool:
        """Store a batch; whether all of it fits."""
        for key, rows, new in itertools.chain.from_iterable(parts):
            if rows is None:
                values[key] = new
            elif key in values and values[key].shape[1:] == new.shape[1:] and len(rows) == len(new):
                values[key][rows] = new
            else:
                return False
        copy.values = values
        return True

    def claim(self, message: Message) -> tuple[bool, bool, list[Entry]]:
        """A new process of a primary asks for its copy: whether there is one, whether this part is the last, and the part."""
        f = message.fields
        with self._lock:
            copy = self._copies.setdefault(f["task"], _Copy())
            if copy.owner != f["incarnation"]:
                copy.owner, copy.number, copy.coming, copy.parts = f["incarnation"], 0, 0, []
            if not copy.whole:
                copy.values = {}
                return False, True, []
            parts = list(in_parts((key, None, value) for key, value in copy.values.items()))
            number = f["part"]
            if not 0 <= number < len(parts):
                raise invalid(f"The copy of {f['task']} has {len(parts)} parts, no part {number}")
            return True, number == len(parts) - 1, parts[number]


class CopyHandlers:
    """Requests of primaries."""

    def __init__(self, executor: RequestExecutor, incarnation: int) -> None:
        self._executor, self._incarnation = executor, incarnation
        self._copies = Copies()

    def on_request(self, peer: bytes, message: Message) -> None:
        self._executor.answer(self._executor.copies, peer, message, getattr(self, f"_{message.kind}"))

    on_replicate = on_recover = on_request

    def _replicate(self, message: Message) -> Message:
        return message.reply(whole=self._copies.take(message), incarnation=self._incarnation)

    def _recover(self, message: Message) -> Message:
        """A primary was started again."""
        whole, last, part = self._copies.claim(message)
        entries, tensors = packed(part)
        return message.reply(tensors, whole=whole, last=last, entries=entries)


class Replicator:
    """A primary's side: it takes its values from the backup, and then sends it what changes.

    Args:
        task, incarnation: of this process. backup: the task that keeps the copy.
    """

    def __init__(self, task: str, backup: str, incarnation: int, resources: Resources, call: Call) -> None:
        self.backup = backup
        self._task, self._incarnation = task, incarnation
        self._resources = resources
        self._call = call
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._changed: dict[Key, list[Array] | None] = {}  # the rows; None: all
        self._waiting: list[tuple[float, Callable[[OpError | None], None]]] = []  # for the next batch, since when
        self._sent_for: list[tuple[float, Callable[[OpError | None], None]]] = []  # for the batch under way
        self._is_sending = self._closed = False
        self._version: int | None = None  # of the resources that the backup has a copy of
        self._numbers = itertools.count(1)
        self._warn_at = 0.0
        self.confirmed_by = 0  # the incarnation of the backup's process that has confirmed the last batch; 0: none has
        self.is_ready = False  # whether the variables have the values that the backup had
        self._thread = threading.Thread(target=self._run, name="dovetail-replication", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End. Steps that wait fail."""
        with self._lock:
            self._closed = True
            self._wake.notify()

    def check_ready(self) -> None:
        """UnavailableError until the variables have their values."""
        if not self.is_ready:
            raise UnavailableError.of(
                f"{self._task} was started, and waits for the values of its variables from its backup, {self.backup}. Run again later"
            )

    # --- steps -------------------------------------------------------------------------------------------------------

    def after(self, finish: Finish) -> Finish:
        """What ends a part of a step once the backup has what has changed; in place of its result comes the error if that fails."""

        def end(outcome: Outcome) -> None:
            if isinstance(outcome, OpError):
                finish(outcome)
            else:
                self._commit(lambda error: finish(outcome if error is None else error))

        return end

    def _commit(self, done: Callable[[OpError | None], None]) -> None:
        with self._lock:
            if not self._closed and (self._changed or self._is_sending):
                (self._waiting if self._changed else self._sent_for).append((time.monotonic(), done))
                self._wake.notify()
                return
        done(self._stopping() if self._closed else None)

    def _stopping(self) -> OpError:
        return AbortedError.of(f"The server of {self._task} is stopping")

    def _mark(self, container: str, name: str, rows: Array | None) -> None:
        with self._lock:
            known = self._changed.get((container, name), [])
            self._changed[container, name] = None if rows is None or known is None else [*known, np.ravel(rows)]

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._tried(self._recover) is not None:
            time.sleep(RETRY_S)
            if self._closed:
                return
        self._resources.watch(self._mark)
        self.is_ready = True
        while self._next_batch():
            pass

    def _next_batch(self) -> bool:
        """Send what has changed; False: the end."""
        with self._lock:
            if not (self._changed or self._closed):
                self._wake.wait(BEAT_S)
            changed, self._changed = self._changed, {}
            self._sent_for, self._waiting = self._waiting, []
            self._is_sending = not self._closed
        error = self._stopping() if self._closed else self._tried(lambda: self._send(changed))
        now = time.monotonic()
        if error is not None:
            self.confirmed_by = 0
        with self._lock:
            ended, self._sent_for, self._is_sending = self._sent_for, [], False
            if error is not None:
                for key, rows in changed.items():
                    other = self._changed.get(key, [])
                    self._changed[key] = None if rows is None or other is None else rows + other
            if isinstance(error, UnavailableError):  # it may come back
                self._waiting += [w for w in ended if now - w[0] < COMMIT_TIMEOUT_S]
                ended = [w for w in ended if now - w[0] >= COMMIT_TIMEOUT_S]
        for _, done in ended:
            try:
                done(error)
            except Exception:
                logger.exception("%s: while a step ended", self._task)
        if error is not None and not self._closed:
            time.sleep(RETRY_S)
        return not self._closed

    def _tried(self, work: Callable[[], None]) -> OpError | None:
        """Do it; the error of the steps that depend on it."""
        try:
            work()
        except OpError as e:
            if time.monotonic() >= self._warn_at:
                self._warn_at = time.monotonic() + WARN_S
                logger.warning("%s: its backup %s: %s", self._task, self.backup, e.message)
            kind = UnavailableError if isinstance(e, UnavailableError) else AbortedError
            return kind.of(
                f"{self._task} has done its part of this step, but its backup {self.backup} has not confirmed it, so it may be lost with "
                f"this task: {e.message}"
            )
        return None

    def _recover(self) -> None:
        """Take the values from the backup."""
        found: list[tuple[Entry, str]] = []
        for part in itertools.count():
            fields = {"task": self._task, "incarnation": self._incarnation, "part": part}
            reply = self._call(Message("recover", fields))
            found += unpacked(reply)
            if reply.fields["last"]:
                break
        if not reply.fields["whole"]:  # what has come already is of a backup that was started again meanwhile
            return
        for ((container, name), _, value), dtype in found:

            def make(name: str = name, dtype: str = dtype) -> VariableState:
                return VariableState(name, as_dtype(dtype))

            self._resources.get_or_create(container, name, VariableState, make).assign(value)
        self._version = self._resources.version
        logger.warning("%s: its %d variables are those that %s kept", self._task, len(found), self.backup)

    def _send(self, changed: Mapping[Key, list[Array] | None]) -> None:
        """Make the copy of the backup that of now."""
        if self._version == self._resources.version and self._sent(map(self._entry, changed.items()), False):
            return
        version = self._resources.version
        names = [(c, n) for c, n, r in self._resources if isinstance(r, VariableState)]
        if not self._sent((self._entry((key, None)) for key in names), True):
            raise UnavailableError.of("the copy could not be made whole")
        self._version = version

    def _sent(self, entries: Iterable[Entry | None], whole: bool) -> bool:
        """Send a batch; whether the backup's copy is whole now."""
        number, parts = next(self._numbers), in_parts(filter(None, entries))
        part, following = next(parts), next(parts, None)
        for index in itertools.count():
            described, tensors = packed(part)
            fields = {
                "task": self._task, "incarnation": self._incarnation, "number": number, "part": index,
                "last": following is None, "whole": whole, "entries": described,
            }  # fmt: skip
            reply = self._call(Message("replicate", fields, tensors)).fields
            if not reply["whole"]:
                self.confirmed_by = 0
                return False
            if following is None:
                self.confirmed_by = reply["incarnation"]
                break
            part, following = following, next(parts, None)
        return True

    def _entry(self, item: tuple[Key, list[Array] | None]) -> Entry | None:
        """The present value of a variable, or of rows of it; None: it has none."""
        key, parts = item
        state = self._resources.find(*key)
        if not isinstance(state, VariableState):
            return None  # it was cleared, and the next batch has all
        with state.lock:  # a change that was noted, and is still being made
            pass
        if not state.is_initialized:
            return None
        if parts is not None:
            rows = np.unique(np.concatenate(parts))
            with state:  # a reference to the whole would make the next update copy it
                value = state._there()
                rows = rows[(rows >= 0) & (rows < len(value))]
                if 2 * len(rows) < len(value):
                    return key, rows, value[rows]
                del value
        return key, None, np.asarray(state.read())
