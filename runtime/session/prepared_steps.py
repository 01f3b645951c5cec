"""The cache of a session's prepared signatures, and the interface to the backend that runs its steps.

A signature identifies a kind of step: its fetches, targets and feeds. It is prepared at its first run. When a task has been restarted,
its registered programs and variables are lost: the session raises AbortedError once, and then prepares its signatures again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from ...graph.core.dtypes import resource
from ...graph.core.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    NotFoundError,
    OpError,
    UnavailableError,
)
from ...graph.core.graph import Graph, Node
from ...graph.core.settings import setting
from ...graph.core.shape import Dims
from ...placer.cluster.spec import DeviceInfo
from ...placer.cost.shapes import produced_batches
from ...placer.partition.prune import named, needed
from ...placer.plan import Plan
from ..config import RunMetadata, RunOptions
from ..observability.step_notes import Gathered
from .fetches import Fetches, given_back

if TYPE_CHECKING:
    from ..master.master import Signature, TaskPart

SCHEMES = ("zmq", "grpc")  # the second is what TensorFlow's programs write; the wire is the same


def address_of(target: str) -> str:
    """`host:port` of a session target.

    Raises:
        NotFoundError: the target has another form.
    """
    scheme, _, address = target.partition("://")
    if address and scheme in SCHEMES:
        return address
    raise NotFoundError.of(
        f"No session can be made for target {target!r}: use '' for this process, or a server's target, 'zmq://host:port'"
    )


class Backend(Protocol):
    """Runs the steps of a `Session`: in this process, or on a cluster.

    Attributes:
        devices: the devices of all tasks.
        is_local: whether it is in this process, so that only `Session.close` releases its programs.
        is_replicated: whether parameter servers' variables are kept by second tasks (`DOVETAIL_PS_REPLICAS`).
    """

    devices: tuple[DeviceInfo, ...]
    is_local: bool
    is_replicated: bool

    def extend(self, graph: Graph) -> None:
        """Send the nodes that were added to the graph to the master."""

    def prepare(self, signature: Signature, warm: bool = False, deterministic: bool = False) -> list[TaskPart]:
        """Make a signature ready to run; `warm`: with all its kernels compiled; `deterministic`: see `KernelOptions`."""

    def plan(self, graph: Graph, signature: Signature, program: str) -> Plan:
        """The plan of a signature, or of the prepared one with handle `program`; `graph` is the session's graph."""

    def run(
        self, parts: Sequence[TaskPart], feeds: Mapping[str, Any], timeout_s: float | None,
        gathered: Gathered | None = None,
    ) -> Mapping[str, Any]:  # fmt: skip
        """Run one step, and return the values of all fetches by name. With `gathered`, the step is traced into it."""

    def close(self) -> None:
        """End the session."""


_shape_of = attrgetter("shape")

CLOSED = "Attempted to use a closed Session. Make a new one, or close it later: run its steps inside the `with` block."


def _changes_variables(node: Node) -> bool:
    """Whether a node changes a variable: it takes a reference or handle of one, and does not only read it.

    The epoch counter of an input pipeline does not count: training steps wait for steps that fill queues.
    """
    if not node.opdef.changes_state or node.type == "CountUpTo":
        return False
    return any(t.dtype.is_ref or (t.dtype is resource and t.op.type == "VarHandleOp") for t in node.inputs)


class StepGate:
    """Allows a consistent read of all variables of a session: while it is closed, no step that changes variables runs or starts.

    Steps that change no variables, such as those that fill queues, do not enter: the steps that the gate waits for may need them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below
        self._moved = threading.Condition(self._lock)
        self._running = 0  # steps that have entered
        self._holder = 0  # the thread that has closed the gate; its steps pass

    def enter(self) -> bool:
        """Enter a step; waits while another thread keeps the gate closed. Returns whether the step must `leave`."""
        with self._lock:
            if self._holder:
                self._moved.wait_for(lambda: self._holder in (0, threading.get_ident()))
            entered = not self._holder
            self._running += entered
            return entered

    def leave(self) -> None:
        with self._lock:
            self._running -= 1
            if self._holder:
                self._moved.notify_all()

    @contextlib.contextmanager
    def closed(self, timeout_s: float) -> Iterator[None]:
        """A block in which no step changes variables but those of this thread. DeadlineExceededError: one does not end in time."""
        with self._lock:
            self._moved.wait_for(lambda: not self._holder)
            self._holder = threading.get_ident()
        try:
            with self._lock:
                if not self._moved.wait_for(lambda: not self._running, timeout_s):
                    raise DeadlineExceededError.of(
                        f"A step of this session that changes variables has not ended in {timeout_s:g} s, so there was no moment "
                        "between steps. A step that waits for another one that changes variables (SyncReplicasOptimizer) never "
                        "leaves one"
                    )
            yield
        finally:
            with self._lock:
                self._holder = 0
                self._moved.notify_all()


@dataclass(slots=True)
class _SignatureState:
    """What a session knows of a signature.

    Attributes:
        changes: whether its steps change variables.
        parts: the prepared parts; None: it is to be prepared.
        shapes: those of the feeds of the last step, in the signature's order; empty before the first one.
    """

    signature: Signature
    changes: bool
    parts: list[TaskPart] | None = None
    shapes: Sequence[Dims] = ()

    def fed(self) -> dict[str, Dims]:
        """The shapes of the last step's feeds, by name."""
        return dict(zip(self.signature[2], self.shapes, strict=False))


class PreparedSteps:
    """The prepared signatures of a session."""

    def __init__(self, graph: Graph, backend: Backend) -> None:
        self.is_closed = False
        self._graph = graph
        self._backend = backend
        self._lock = threading.Lock()
        self._signatures: dict[Signature, _SignatureState] = {}
        self._first_orders: dict[tuple[frozenset[str], ...], Signature] = {}  # names -> their signature that came first
        self._incarnations: dict[str, int] = {}  # task -> its incarnation at the last registration there
        # Tasks that may have been restarted: the caller has got an error since, and they have not done a step since.
        self._doubtful: set[str] = set()
        self._last: tuple[_SignatureState, list[TaskPart], Plan | None] | None = None  # the plan of its trace
        # The last program that was traced, what it was fed, and its plan.
        self._traced_plan: tuple[str, dict[str, Dims], Plan] | None = None
        self.gate = StepGate()

    def run(
        self, fetches: Fetches, feeds: Mapping[str, Any], options: RunOptions | None,
        metadata: RunMetadata | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Run a step, preparing it first if it is new. Returns the values of its fetches by name."""
        fetched, values = fetches.tensors, {}
        if not feeds.keys().isdisjoint(fetched):  # fed tensors are not sent to the tasks
            values = {n: feeds[n] for n in fetched if n in feeds}
            fetched = tuple(n for n in fetched if n not in feeds)
        if metadata is not None:
            metadata.clear()
        if fetched or fetches.targets:
            key = fetched, fetches.targets, tuple(feeds)
            state = self._signatures.get(key) or self._state_of(key)
            entered = state.changes and self.gate.enter()
            try:
                parts = state.parts
                if parts is None:
                    parts = self.prepare(state.signature)
                    if self.is_closed:  # meanwhile: `close` has not seen these programs
                        raise RuntimeError(CLOSED)
                state.shapes = list(map(_shape_of, feeds.values()))
                self._last = state, parts, None
                timeout_s = gathered = None
                if options is not None:
                    timeout_s = options.timeout_in_ms / 1e3 if options.timeout_in_ms > 0 else None
                    if metadata is not None and options.trace_level != RunOptions.NO_TRACE:
                        gathered = Gathered()
                values.update(self._backend.run(parts, feeds, timeout_s, gathered))
                if self._doubtful:
                    self._doubtful.difference_update([p.task for p in parts])
                if metadata is not None and options is not None:
                    self._fill(metadata, state, parts, gathered, options.output_partition_graphs)
            except OpError as e:
                # The session was closed before the step began.
                if self.is_closed and self._backend.is_local and isinstance(e, AbortedError):
                    raise RuntimeError(CLOSED) from None
                if self.is_closed and not isinstance(e, CancelledError):
                    raise CancelledError(e.node_def, e.op, f"The session was closed while the step ran ({e})") from None
                if isinstance(e, UnavailableError) or (isinstance(e, AbortedError) and state.parts is not None):
                    self._doubtful = set(self._incarnations)
                if isinstance(e, AbortedError):
                    # A task was restarted and has lost its programs, so the next run must register them again.
                    self._forget()
                raise self._with_node(e) from None
            finally:
                if entered:
                    self.gate.leave()
        return given_back(values, feeds.values())

    def _state_of(self, key: Signature) -> _SignatureState:
        found = self._signatures.get(key)
        if found is None:
            changing = set(filter(_changes_variables, self._graph.nodes))
            changes = bool(changing) and not changing.isdisjoint(needed(self._graph, *named(self._graph, *key[:2])))
            found = self._signatures.setdefault(key, _SignatureState(key, changes))
        return found

    def _forget(self, tasks: Collection[str] | None = None) -> None:
        """Let signatures be prepared again: those that have parts on these tasks; None: all."""
        for state in list(self._signatures.values()):
            if state.parts is not None and (tasks is None or any(p.task in tasks for p in state.parts)):
                state.parts = None

    def prepare(self, key: Signature, warm: bool = False) -> list[TaskPart]:
        """Make a signature ready to run; `warm`: with all its kernels compiled.

        Signatures that differ in the order of their fetches, targets or feeds share the programs of the first one.
        """
        with self._lock:
            first = self._first_orders.setdefault(tuple(map(frozenset, key)), key)
            parts = self._state_of(first).parts
            if parts is None or warm:  # else another thread was faster, or the order is another one
                deterministic = self._graph.is_mirrored or bool(setting("DOVETAIL_DETERMINISTIC"))
                try:
                    self._backend.extend(self._graph)
                    parts = self._backend.prepare(first, warm, deterministic)
                except OpError as e:
                    raise self._with_node(e) from None
                self._notice_restarts(parts)
            self._state_of(first).parts = self._state_of(key).parts = parts
        return parts

    def plan(self, key: Signature, given: Mapping[str, Dims]) -> Plan:
        """The plan of a signature, prepared or not, for the given shapes of feeds, and for those that steps were fed last."""
        state = self._signatures.get(key)
        plan = self._plan_of(key, None if state is None else state.parts)
        seen = {name: dims for k in list(self._signatures.values()) for name, dims in k.fed().items() if name in key[2]}
        return plan.resized({**seen, **({} if state is None else state.fed()), **given})

    @property
    def last_plan(self) -> Plan | None:
        """The plan of the last step, for the sizes that it was fed, and those of data sets' batches; None before the first one."""
        if self._last is None:
            return None
        state, parts, traced = self._last
        if traced is not None:
            return traced
        plan = self._plan_of(state.signature, parts)
        return plan.resized(produced_batches(plan.partitioned.nodes, self._backend.is_local) | state.fed())

    def _plan_of(self, key: Signature, parts: list[TaskPart] | None) -> Plan:
        try:
            if not parts:
                self._backend.extend(self._graph)
            return self._backend.plan(self._graph, key, parts[0].program if parts else "")
        except OpError as e:
            raise self._with_node(e) from None

    def _fill(
        self,
        metadata: RunMetadata,
        state: _SignatureState,
        parts: list[TaskPart],
        gathered: Gathered | None,
        partitions: bool,
    ) -> None:
        if gathered is None and not partitions:
            return
        traced_as = parts[0].program, state.fed()
        if self._traced_plan is None or self._traced_plan[:2] != traced_as:
            self._traced_plan = (*traced_as, self._plan_of(state.signature, parts).resized(traced_as[1]))
        plan = self._traced_plan[2]
        if partitions:
            metadata.partition_graphs = dict(plan.partitions)
        if gathered is not None:
            from ..observability.trace import traced  # loaded only for tracing: it also draws and predicts

            metadata.trace = traced(gathered, plan)
            self._last = state, parts, metadata.trace.plan

    def _notice_restarts(self, parts: Sequence[TaskPart]) -> None:
        """Drop the registrations with processes that have ended. AbortedError: they have, and the caller has not been warned."""
        known, now = self._incarnations, {p.task: p.incarnation for p in parts}
        restarted = [task for task in now if known.get(task, now[task]) != now[task]]
        known.update(now)
        if not restarted:
            return
        self._forget(restarted)
        sudden = [task for task in restarted if task not in self._doubtful]
        self._doubtful.difference_update(restarted)
        if sudden:
            raise AbortedError.of(
                f"{', '.join(sudden)} was restarted since this session used it last: its variables are lost. Initialise or restore "
                "them and run again."
            )

    def _with_node(self, error: OpError) -> OpError:
        """The same error, with the graph's node instead of its name."""
        if isinstance(error.op, str) and error.op in self._graph:
            error.op = self._graph.get_operation_by_name(error.op)
            error.node_def = error.op
        return error
