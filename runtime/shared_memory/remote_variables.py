"""A task's service for variables in shared memory: what it publishes, what it reads of other tasks, and messages where that fails.

The placer says which values could be read where they lie (`placer/partition/one_sided_reads.py`); published variables are how
(`variable_publisher.py`). The master brings owner and reader together: the owner names a page of its memory (`page`), and the reader
tries to map it (`sees`), once for the two in a session. Then the owner publishes the variables (`post`), and the reader gets their
records' addresses with its program (`reader`).

A value that cannot be read when a step begins is requested with a `want`, which names the variable. The owner sends it as a tensor of
the step, on its usual channel. Or it answers with `denied` and an error, which ends the step: the variable has no value yet, or the
session is unknown (any more). Wants are repeated while the tensor is overdue (`loss_detection.py`): asking twice does no harm.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from ...codegen.ir.partition import Posted, RecvTensor
from ...graph.core.dtypes import DType, as_dtype
from ...graph.core.errors import AbortedError, InvalidArgumentError, OpError, from_code
from ...graph.core.graph import Node
from ...graph.ops.state.accumulators import ACCUMULATOR
from ...graph.resources.accumulator import AccumulatorKind
from ...graph.resources.resource_manager import Resources, VariableState
from ...placer.partition.partitioned_graph import task_of
from ..shared_memory.pool import mapper, pool_of_process
from .record_layout import RecordAddress, can_publish
from .segment import Reference
from .shared_variable import RemoteVariable
from .variable_publisher import VariablePublisher
from .variable_reader import ProcessHandle, VariableReaders, reader_of

_GONE = (
    "The accumulator '{name}' of {task} is not any more where this step found it: its container was cleared, or its session was closed "
    "there. Run again."
)

Want = dict[str, Any]
"""What a `want` message says of one variable: see `wants`."""


class _Session(Protocol):
    """What is kept of a session here."""

    resources: Resources


class RemoteVariables:
    """Those of one task. Safe to use from several threads.

    Args:
        task: its name. default_container: where its variables are that name no container.
        opens: whether others may change its variables: not where these may lie in the memory of GPUs.
    """

    def __init__(self, task: str, default_container: str, opens: bool = True) -> None:
        self.posts = VariablePublisher()
        self._task = task
        self._default_container = default_container
        self._opens = opens
        self._wanted: dict[int, dict[int, RecvTensor]] = {}  # step -> what it has asked for, by channel
        self._lock = threading.Lock()

    # --- what others read --------------------------------------------------------------------------------------------

    def page(self) -> list[int] | None:
        """A page of this process's memory for others to try; None: nothing of it can be read directly."""
        pool = pool_of_process()
        return pool.page().to_fields() if pool is not None and can_publish() else None

    def post(self, handle: str, session: _Session, names: Iterable[Sequence[str]]) -> list[RecordAddress | None]:
        """Post a session's variables, each named by container and name; None: that one cannot be."""
        post, container = self.posts.post, self._default_container
        return [post(handle, session.resources, c or container, name) for c, name in names]

    def open(self, handle: str, session: _Session, names: Sequence[Sequence[str]]) -> list[RecordAddress | None]:
        """Let others change a session's variables, each named by container and name; None, for all: not all of them can be opened.

        An accumulator, which is made if there is none, is named by `accumulator_name`, and opened or not by itself.
        """
        if any(len(n) > 2 for n in names):
            opened = iter(self.open(handle, session, [n for n in names if len(n) == 2]))
            return [next(opened) if len(n) == 2 else self._open_accumulator(handle, session, n) for n in names]
        by_container: dict[str, list[str]] = {}
        for c, name in names:
            by_container.setdefault(c or self._default_container, []).append(name)
        found: dict[tuple[str, str], RecordAddress] = {}
        for container, own in by_container.items():
            places = self.posts.open(handle, session.resources, container, own) if self._opens else None
            if places is None:
                return [None] * len(names)
            found.update(((container, n), p) for n, p in zip(own, places, strict=True))
        return [found[c or self._default_container, name] for c, name in names]

    def _open_accumulator(self, handle: str, session: _Session, fields: Sequence[str]) -> RecordAddress | None:
        container, name, dtype, dims, reduction = fields
        try:
            shape = tuple([int(n) for n in dims.split(",") if n])
            kind = AccumulatorKind(False, as_dtype(dtype), shape, reduction)
        except (TypeError, ValueError) as e:
            raise InvalidArgumentError(None, None, f"A post message is malformed: {e}") from None
        if not self._opens:
            return None
        posts, container = self.posts, container or self._default_container
        with contextlib.suppress(InvalidArgumentError):  # the name is something else's: the step itself says so
            return posts.open_accumulator(handle, session.resources, container, name, kind)
        return None

    def values(self, session: _Session | None, wants: Iterable[Want]) -> dict[int | str, Any]:
        """What a `want` asks for, by channel.

        Raises:
            AbortedError: the session is not known here. FailedPreconditionError: a variable has no value.
            InvalidArgumentError: it is another one than the one meant, or the message is malformed.
        """
        if session is None:
            raise AbortedError(
                None, None,
                f"{self._task} does not know the session of this step: the task was restarted, or the session was closed or "
                "reset. What it held is lost; initialise or restore its variables and run again.",
            )  # fmt: skip
        found: dict[int | str, Any] = {}
        for want in wants:
            try:
                channel, container, name, dtype = (want[k] for k in ("channel", "container", "name", "dtype"))
                if type(channel) is not int or not isinstance(container, str) or not isinstance(name, str):
                    raise TypeError(f"{want!r:.80}")
                if want.get("sum"):
                    raise AbortedError(None, None, _GONE.format(name=name, task=self._task))
                wanted = as_dtype(dtype)
            except (TypeError, KeyError, ValueError) as e:
                raise InvalidArgumentError(None, None, f"A want message is malformed: {e}") from None
            state = session.resources.get_or_create(
                container or self._default_container, name, VariableState, partial(VariableState, name, wanted)
            )
            if state.dtype is not wanted:
                raise InvalidArgumentError(
                    None, None,
                    f"Trying to access variable '{name}' as {wanted.name}, but another graph made it as {state.dtype.name}: use "
                    "another name, another container, or the same type",
                )  # fmt: skip
            found[channel] = state.read()
        return found

    def close_session(self, handle: str) -> None:
        """Nobody reads any more for this session only."""
        self.posts.close_session(handle)

    # --- what is read of others --------------------------------------------------------------------------------------

    @staticmethod
    def sees(page: Any) -> bool:
        """Whether this process can read another one's variables, whose page this is."""
        if pool_of_process() is None or not can_publish():
            return False
        try:
            reference = Reference.from_fields(page)
            ProcessHandle(reference.pid)
            mapper().map(reference)
        except ValueError:
            return False
        return True

    @staticmethod
    def reader(receives: Sequence[RecvTensor]) -> Callable[[], list[Any]]:
        """What reads posted variables, and finds those that are to be changed; as `ReaderOf` of lowering."""

        def find(receive: RecvTensor) -> Any:
            posted = receive.posted
            assert posted is not None
            try:
                place = RecordAddress.from_fields(posted.place)
                if receive.reached is not None:
                    kind = kind_of(receive.reached)
                    return RemoteVariable(place, kind, posted.name, task_of(receive.source), mapper())
                return reader_of(place, receive.dtype.np, mapper())
            except ValueError:  # Unreadable among them: it has gone since the master asked
                return None

        return VariableReaders(map(find, receives))

    def wants(self, step: int, receives: Iterable[RecvTensor]) -> dict[tuple[str, int], list[Want]]:
        """What to ask for, by the task to ask and the incarnation that it must have; remembered until `forget`."""
        out: dict[tuple[str, int], list[Want]] = {}
        with self._lock:
            wanted = self._wanted.setdefault(step, {})
            for r in receives:
                assert r.posted is not None
                wanted[r.channel] = r
                key = task_of(r.source), r.posted.incarnation
                want = {"channel": r.channel, "container": r.posted.container, "name": r.posted.name}
                if r.reached is not None and r.reached.type == ACCUMULATOR:
                    want["sum"] = True
                out.setdefault(key, []).append(want | {"dtype": r.dtype.name})
        return out

    def overdue(self, step: int, channels: Iterable[Any]) -> list[RecvTensor]:
        """Which of the tensors that are overdue have been asked for, and are to be again."""
        wanted = self._wanted.get(step)
        return [wanted[c] for c in channels if c in wanted] if wanted else []

    def denied(self, step: int, channels: Sequence[Any], code: str, message: str) -> OpError | None:
        """The error with which a step ends that was denied a variable; None: it has asked for none."""
        wanted = self._wanted.get(step, {})
        receive = next((wanted[c] for c in channels if c in wanted), None)
        if receive is None:
            return None
        posted = receive.posted
        assert isinstance(posted, Posted)
        where = f"\n  node '{posted.node}' ({posted.op}), made at {posted.source}, on {receive.source}"
        error = from_code(code, message + (where if code != "ABORTED" else ""), posted.node)
        error.task = task_of(receive.source)
        return error

    def forget(self, step: int) -> None:
        """A step has ended."""
        if self._wanted:
            with self._lock:
                self._wanted.pop(step, None)

    def close(self) -> None:
        """The server stops."""
        self.posts.close()


def accumulator_name(container: str, name: str, kind: AccumulatorKind) -> tuple[str, str, str, str, str]:
    """What an accumulator of known shape is called in a message that has it opened."""
    return container, name, kind.dtype.name, ",".join(map(str, kind.shape or ())), kind.reduction


def kind_of(node: Node) -> DType | AccumulatorKind:
    """What a node stands for that is reached in another task: a variable of this type, or an accumulator of this kind."""
    attrs = node.attrs
    dtype: DType = attrs["dtype"]
    return AccumulatorKind(False, dtype, attrs["shape"], attrs["reduction_type"]) if node.type == ACCUMULATOR else dtype


__all__ = ["RemoteVariables", "Want", "accumulator_name", "kind_of"]
