"""`ClusterCoordinator`: one client dispatches function calls to the workers of a cluster, to whichever is free.

The workers and parameter servers run plain servers (`dovetail server`). A scheduled function builds nodes. It is called once
per worker, under the worker's device. Each time the function is scheduled, these nodes are run with the arguments fed. A thread per
worker takes calls from one queue and runs them in a session of its own.

A call whose worker dies returns to the queue, so each call runs at least once. The other workers continue. The worker gets calls
again when it and the parameter servers answer: its session uses no other tasks, and places only the nodes of its own calls. When a
parameter server dies, its variables are lost, and the user gets an error.

Where the strategy's resolver is elastic (`RayCluster.resolver`), new workers of the cluster get calls, too, and removed
workers get none.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..graph.core.build import convert, placeholder, to_array
from ..graph.core.default_graph import GraphKeys, get_default_graph
from ..graph.core.device import DeviceSpec
from ..graph.core.dtypes import as_dtype, string
from ..graph.core.errors import AbortedError, CancelledError, OpError, UnavailableError
from ..graph.core.graph import Node, Tensor
from ..graph.core.nest import describe, flatten, map_structure, pack
from ..graph.ops.state.variables import is_variable_initialized
from ..graph.variables.builds import build as model_build
from ..graph.variables.scope import get_variable_scope, variable_scope
from ..graph.variables.store import AUTO_REUSE, global_variables
from ..runtime.config import ConfigProto, GraphOptions
from ..runtime.session.session import Session
from .parameter_server import ParameterServerStrategy
from .per_worker import PerWorkerDataset, PerWorkerIterator, PerWorkerValues, checked_dataset
from .values import DistributedVariable

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_QUEUED = 256  # calls that wait for a worker; `schedule` then waits
RETRY_S = 0.5
FILLS = frozenset({"InitializeTableFromTextFileV2", "InitializeTableV2", "LookupTableImportV2"})
"""Initializers of tables."""
CANCELLED = "The corresponding function is cancelled. Please reschedule the function."


class RemoteValue:
    """The future result of a call of `ClusterCoordinator.schedule`; `fetch()` waits for it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: OpError | None = None

    def fetch(self) -> Any:
        """Wait for the call, and return its result as arrays.

        Raises:
            OpError: the call failed. CancelledError: it was cancelled because another one failed.
        """
        while not self._ready.wait(1.0):
            pass
        if self._error is not None:
            raise self._error
        return self._value

    def _settle(self, value: Any = None, error: OpError | None = None) -> None:
        self._value, self._error = value, error
        self._ready.set()


class _Call:
    """One scheduled call: what to fetch on each worker, and what to feed."""

    def __init__(self, traced: _Traced, values: list[Any]) -> None:
        self.traced, self.values, self.result = traced, values, RemoteValue()


class _Traced:
    """A function's nodes, by worker: what to fetch and what to feed.

    Args:
        build: builds the nodes of a worker, by its number among all that there have been.
    """

    def __init__(self, build: Callable[[int], tuple[Any, list[Tensor]]]) -> None:
        self.build = build
        self.results: list[Any] = []
        self.feeds: list[list[Tensor]] = []

    def add(self, n: int) -> None:
        """Build the nodes of another worker."""
        result, feeds = self.build(n)
        self.results.append(result)
        self.feeds.append(feeds)


class ClusterCoordinator:
    """Dispatches function calls to the workers of a `ParameterServerStrategy`'s cluster, and retries those of workers that die.

    Args:
        strategy: a `ParameterServerStrategy` whose resolver has no task: this process is a client.

    Raises:
        ValueError: the strategy has no cluster, or is of another type.

    >>> coordinator = ClusterCoordinator(strategy)
    >>> with strategy.scope():
    ...     v = dt.get_variable("v", initializer=0.0)
    >>> for _ in range(10):
    ...     coordinator.schedule(lambda: v.assign_add(1.0))
    >>> coordinator.join()
    >>> coordinator.fetch(coordinator.schedule(lambda: v.read_value()))
    10.0
    """

    def __init__(self, strategy: Any) -> None:
        if not isinstance(strategy, ParameterServerStrategy) or "worker" not in strategy._spec.jobs:
            raise ValueError(
                f"ClusterCoordinator needs a ParameterServerStrategy with a cluster of ps and workers, not {strategy!r}"
            )
        self.strategy = strategy
        self._graph = get_default_graph()
        # Workers by number: in the order in which they were taken up. A number is not used again.
        self._targets: list[tuple[int, str]] = []
        self._let_go: set[int] = set()
        # Initializers of what workers hold, in the order in which they run, and how many of them have run there.
        self._per_worker: list[list[Any]] = []
        self._started: list[int] = []
        self._filled: list[set[Any]] = []  # initializers of tables that have run there
        self._more: list[Callable[[int], None]] = []  # makes what another worker holds
        self._traced: dict[Any, _Traced] = {}
        self._initialized: set[Any] = set()
        self._local: list[Any] = []  # local variables that parameter servers keep
        self._session: Any = None
        self._past: list[Any] = []  # sessions of before a parameter server was lost
        self._sessions: list[Any] = []  # of the workers' threads
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._running = 0
        self._error: OpError | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._known: Any = None
        self._take_workers(strategy._spec)
        strategy._coordinator = self

    def _take_workers(self, spec: Any) -> None:
        """Add the workers of a cluster that the last cluster did not have, and drop those that it does not have any more."""
        if spec is self._known:
            return
        self._known = spec
        targets = [(i, f"zmq://{spec.task_address('worker', i)}") for i in spec.task_indices("worker")]
        with self._changed:
            self._let_go |= {n for n, target in enumerate(self._targets) if target not in targets}
            here = [target for n, target in enumerate(self._targets) if n not in self._let_go]
            self._changed.notify_all()
        for index, target in targets:
            if (index, target) in here:
                continue
            n = len(self._targets)
            self._targets.append((index, target))
            self._per_worker.append([])
            self._started.append(0)
            self._filled.append(set())
            self._sessions.append(None)
            for make in (*self._more, *(traced.add for traced in self._traced.values())):
                make(n)
            thread = threading.Thread(
                target=self._work, args=(n, index, target), name=f"dovetail-worker-{index}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _look_for_workers(self) -> None:
        if self.strategy._resolver.is_elastic:
            self._take_workers(self.strategy._resolver.cluster_spec())

    @staticmethod
    def of(strategy: Any) -> ClusterCoordinator:
        """The coordinator of a strategy in the default graph: the last open one, or a new one."""
        found: ClusterCoordinator | None = getattr(strategy, "_coordinator", None)
        return found if found is not None and found.serves(get_default_graph()) else ClusterCoordinator(strategy)

    def serves(self, graph: Any) -> bool:
        """Whether the coordinator is open and builds its calls in this graph."""
        return not self._closed and self._graph is graph

    # --- scheduling -------------------------------------------------------------------------------------------------

    def schedule(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> RemoteValue:
        """Schedule a function call on some worker, and return its future result. Blocks only while the queue of calls is full.

        Args:
            fn: builds nodes from its arguments, and returns tensors, nodes or a structure of them. It is traced once per worker and
                combination of argument types, so schedule the same function object each time.
            args: numbers and arrays, which are fed; tensors; and `PerWorkerValues`, of which each worker gets its own value.
            kwargs: keyword arguments, likewise.

        Raises:
            TypeError: `fn` is not callable, or returns None. ValueError: an argument is a `RemoteValue`.
            OpError: an earlier call has failed. It is raised once.
        """
        if not callable(fn):
            raise TypeError(f"`coordinator.schedule` takes a function that builds nodes, not {fn!r}")
        given = [list(args), dict(kwargs or {})]
        leaves = flatten(given)
        if any(isinstance(v, PerWorkerDataset) for v in leaves):
            raise ValueError("A data set is no argument of a scheduled function: make an iterator of it, iter(dataset)")
        if any(isinstance(v, RemoteValue) for v in leaves):
            raise ValueError("RemoteValues cannot be arguments of a scheduled function: fetch them first")
        self._raise_error()
        self._look_for_workers()
        fed = [to_array(v) if _is_fed(v) else None for v in leaves]
        key = (
            fn,
            describe(given),
            tuple(v if a is None else (a.dtype.str, a.ndim) for v, a in zip(leaves, fed, strict=True)),
        )
        if key not in self._traced:
            self._traced[key] = self._trace(fn, given, leaves, fed)
        call = _Call(self._traced[key], [a for a in fed if a is not None])
        with self._changed:
            while len(self._queue) >= MAX_QUEUED and self._error is None and not self._closed:
                self._changed.wait(1.0)  # the next call looks for workers
            if self._closed:
                raise CancelledError.of("The coordinator is closed")
            self._queue.append(call)
            self._changed.notify_all()
        return call.result

    def join(self) -> None:
        """Wait until all calls are done.

        Raises:
            OpError: the first error of a call, raised once. Queued calls are cancelled.
        """
        while not self._drained():
            self._look_for_workers()
        self._raise_error()

    def _drained(self) -> bool:
        """Wait a second at most until all calls are done."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._running, 1.0)

    def done(self) -> bool:
        """Whether all calls are done. Errors as in `join`."""
        self._raise_error()
        with self._changed:
            return not self._queue and not self._running

    def fetch(self, val: Any) -> Any:
        """Wait for a `RemoteValue`, or for those in a structure, and return the results."""
        return map_structure(lambda v: v.fetch() if isinstance(v, RemoteValue) else v, val)

    def create_per_worker_resource(self, fn: Callable[[], Any]) -> PerWorkerValues:
        """Call `fn()` for each worker, under its device, to create tensors, queues or iterators.

        Results with an `initializer` are initialized on the worker, again after it has restarted.
        """
        values = PerWorkerValues([])

        def make(n: int) -> None:
            with self._graph.as_default(), self._on_worker(n):
                value = fn()
            values._values.append(value)
            start = getattr(value, "initializer", None)
            if isinstance(start, Node):
                self._start_on(n, [start])

        return self._on_each_worker(make, values)

    def _on_each_worker(self, make: Callable[[int], None], made: T) -> T:
        """Make something for each worker, also for those that are taken up later."""
        for n in range(len(self._targets)):
            make(n)
        self._more.append(make)
        return made

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """A data set for each worker. It runs in the worker's process, which reads its files and calls its functions.

        Args:
            dataset_fn: returns a `Dataset`, or a result of `strategy.experimental_distribute_dataset` or
                `distribute_datasets_from_function`; or such a data set itself. It is called once for each worker. With
                `distribute_datasets_from_function`, it can select the worker's shard by its `InputContext`:
                `dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`. Tables and variables that it creates belong to
                the worker, and are initialized before its iterators start.

        Returns:
            The data sets. `iter(...)` of them is an argument for `schedule`.

        Raises:
            InvalidArgumentError: the data set has a Python function, which cannot leave this process.

        >>> iterator = iter(coordinator.create_per_worker_dataset(lambda: Dataset.range(100).shuffle(100).repeat().batch(8)))
        >>> coordinator.schedule(lambda numbers: dt.reduce_sum(next(numbers)), args=(iterator,))
        """
        found = PerWorkerDataset([], self._iterators)

        def make(n: int) -> None:
            known = set(global_variables())
            with self._graph.as_default(), self._on_worker(n), self._input_of(n):
                made = dataset_fn() if callable(dataset_fn) else dataset_fn
            found._datasets.append(checked_dataset(made, f"/job:worker/task:{self._targets[n][0]}"))
            mine = [v for v in global_variables() if v not in known]
            self._initialized.update(mine)
            self._start_on(n, [v.initializer for v in mine])

        return self._on_each_worker(make, found)

    def _iterators(self, dataset: PerWorkerDataset) -> PerWorkerIterator:
        values = PerWorkerIterator([])

        def make(n: int) -> None:
            with self._graph.as_default(), self._on_worker(n), self._input_of(n):
                iterator = dataset._datasets[n].make_initializable_iterator()
            values._values.append(iterator)
            self._start_on(n, [iterator.initializer])

        return self._on_each_worker(make, values)

    @contextlib.contextmanager
    def _input_of(self, n: int) -> Iterator[None]:
        """While input for one of the workers is made."""
        self.strategy._input_pipeline = (len(self._targets), n)
        try:
            yield
        finally:
            self.strategy._input_pipeline = None

    def _start_on(self, n: int, initializers: list[Node]) -> None:
        """Have a worker run initializers, now and whenever it comes back."""
        if initializers:
            with self._changed:
                self._per_worker[n].append(initializers)

    @property
    def session(self) -> Any:
        """A session of this client with the parameter servers, for reading and assigning variables.

        It is another one after a call has failed because a parameter server was lost: restore the variables by it.
        """
        if self._session is None:
            self._session = Session(self.strategy.session_target, graph=self._graph, config=_config())
        return self._session

    def close(self) -> None:
        """Close the sessions on all workers. Queued and running calls are cancelled."""
        with self._changed:
            self._closed = True
            self._cancel()
            open_now = list(self._sessions)
            self._changed.notify_all()
        for session in open_now:
            _close(session)  # what waits in it for ever ends now
        for thread in self._threads:
            thread.join()
        for session in (*self._past, self._session):
            _close(session)

    def __enter__(self) -> ClusterCoordinator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- building ---------------------------------------------------------------------------------------------------

    def _on_worker(self, n: int) -> Any:
        return self._graph.device(f"/job:worker/task:{self._targets[n][0]}")

    def _trace(self, fn: Callable[..., Any], given: Any, leaves: list[Any], fed: list[Any]) -> _Traced:
        """Build the function's nodes on each worker, and initialize the variables that are new."""

        def build(n: int) -> tuple[Any, list[Tensor]]:
            with (
                self._graph.as_default(), self.strategy.scope(), self._on_worker(n),
                variable_scope(get_variable_scope(), reuse=AUTO_REUSE),
            ):  # fmt: skip
                mine: list[Any] = []
                inputs = []
                for leaf, array in zip(leaves, fed, strict=True):
                    if array is not None:
                        leaf = placeholder(_dtype_of(array), [None] * array.ndim)
                        inputs.append(leaf)
                    mine.append(leaf._values[n] if isinstance(leaf, PerWorkerValues) else leaf)
                args, kwargs = pack(given, mine)
                known = set(self._graph.get_collection(GraphKeys.LOCAL_VARIABLES))
                with model_build(self._graph, object()):
                    found = fn(*args, **kwargs)
                if any(leaf is None for leaf in flatten(found)):
                    raise TypeError(
                        f"{fn!r} returns None, and a worker runs only what the function returns and what that needs: return tensors or "
                        "nodes, such as the node that trains"
                    )
                self._take_local(
                    [v for v in self._graph.get_collection(GraphKeys.LOCAL_VARIABLES) if v not in known], n
                )
                return map_structure(lambda leaf: convert(leaf) if _is_fed(leaf) else leaf, found), inputs

        traced = _Traced(build)
        for n in range(len(self._targets)):
            traced.add(n)
        with self._graph.as_default():
            self._initialize()
        return traced

    def _take_local(self, variables: list[Any], n: int) -> None:
        """Have the local variables of a worker's nodes initialized, such as the totals of metrics: on the worker those that it keeps."""
        there = [v for v in variables if DeviceSpec.from_string(v.device or "").job == "worker"]
        self._start_on(n, [v.initializer for v in there])
        self._local += [v for v in variables if v not in there]

    def _initialize(self) -> None:
        new = [v for v in (*global_variables(), *self._local) if v not in self._initialized]
        if not new:
            return
        session = self.session
        copies = [c for v in new for c in (v.values if isinstance(v, DistributedVariable) else [v])]
        there = session.run([is_variable_initialized(c.handle) for c in copies])
        session.run([c.initializer for c, known in zip(copies, there, strict=True) if not known])
        self._initialized.update(new)

    # --- workers ----------------------------------------------------------------------------------------------------

    def _work(self, n: int, index: int, target: str) -> None:
        """What a worker's thread does: take calls, and run them."""
        is_lost = False
        while (call := self._next(n)) is not None:
            result = None
            outcome: OpError | None = None
            try:
                if self._sessions[n] is None:
                    self._connect(n, target)
                if is_lost:
                    is_lost = False
                    logger.warning("/job:worker/task:%d is back", index)
                self._run_initializers(n)
                feeds = dict(zip(call.traced.feeds[n], call.values, strict=True))
                result = self._sessions[n].run(call.traced.results[n], feeds)
            except (UnavailableError, AbortedError) as e:
                outcome = e
                if "/job:ps" not in e.message and not self._closed:  # the worker died: another one executes it
                    if not is_lost and n not in self._let_go:
                        is_lost = True
                        logger.warning(
                            "/job:worker/task:%d is lost: another worker runs its call. %s", index, e.message
                        )
                    _close(self._sessions[n])
                    self._sessions[n] = None
                    with self._changed:
                        self._running -= 1
                        self._queue.appendleft(call)
                        self._changed.notify_all()
                    time.sleep(RETRY_S)
                    continue
            except OpError as e:
                outcome = e
            except Exception as e:  # the session's own complaint, say of a wrong shape
                outcome = CancelledError.of(f"{type(e).__name__}: {e}")
            if self._closed and outcome is not None:
                outcome = CancelledError.of(CANCELLED)
            call.result._settle(result, outcome)
            with self._changed:
                self._running -= 1
                if isinstance(outcome, (UnavailableError, AbortedError)):  # what a parameter server held is lost
                    if self._session is not None:
                        self._past.append(self._session)
                        self._session = None
                    self._filled = [set() for _ in self._filled]
                if outcome is not None and self._error is None:
                    self._error = outcome
                    self._cancel()
                self._changed.notify_all()
        _close(self._sessions[n])

    def _next(self, n: int) -> _Call | None:
        """The next call of a worker, when there is one; None when the coordinator is closed, or has let the worker go."""
        with self._changed:
            while not self._queue and not self._closed and n not in self._let_go:
                self._changed.wait(1.0)
            if n in self._let_go:
                return None
            if self._closed:
                self._cancel()  # a call that a lost worker has put back
                return None
            self._running += 1
            self._changed.notify_all()
            return self._queue.popleft()

    def _connect(self, n: int, target: str) -> None:
        """A session for a worker's thread, which `close` closes."""
        config = _config()
        config.device_filters = ["/job:ps", f"/job:worker/task:{self._targets[n][0]}"]
        session = Session(target, graph=self._graph, config=config)
        with self._changed:
            if self._closed:
                _close(session)
                raise CancelledError.of(CANCELLED)
            self._sessions[n] = session
        self._started[n] = 0
        self._filled[n] = set()

    def _run_initializers(self, n: int) -> None:
        """Run those that the worker has not run since it is there. Tables come first: data sets use them."""
        kept = self._graph.get_collection(GraphKeys.TABLE_INITIALIZERS)
        if tables := [t for t in kept if t not in self._filled[n] and self._fills_for(t, n)]:
            self._sessions[n].run(tables)
            self._filled[n].update(tables)
        while self._started[n] < len(self._per_worker[n]):
            self._sessions[n].run(self._per_worker[n][self._started[n]])
            self._started[n] += 1

    def _fills_for(self, initializer: Any, n: int) -> bool:
        """Whether a node fills a table that a worker uses: any but those of other workers."""
        place = DeviceSpec.from_string(initializer.device or "")
        return initializer.type in FILLS and (place.job != "worker" or place.task in (None, self._targets[n][0]))

    def _cancel(self) -> None:
        while self._queue:
            self._queue.popleft().result._settle(error=CancelledError.of(CANCELLED))

    def _raise_error(self) -> None:
        with self._changed:
            error, self._error = self._error, None
        if error is not None:
            raise error


def _is_fed(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex, str, bytes, np.ndarray, np.generic))


def _dtype_of(array: Any) -> Any:
    return string if array.dtype == object else as_dtype(array.dtype)


def _config() -> Any:
    # The graph has nodes on all workers. Steps touch only those that they need, and only those are placed.
    return ConfigProto(wait_for_cluster_s=5.0, graph_options=GraphOptions(place_pruned_graph=True))


def _close(session: Any) -> None:
    if session is not None:
        with contextlib.suppress(OpError):  # it is gone already
            session.close()


__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue"]
