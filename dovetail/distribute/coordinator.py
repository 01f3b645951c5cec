"""`ClusterCoordinator`: one client dispatches function calls to the free workers of a cluster.

The workers and parameter servers run plain servers (`dovetail server`). A scheduled function builds nodes. It is called once per worker,
under the worker's device. Each scheduled call runs these nodes and feeds the arguments. A thread per worker takes calls from one queue and
runs them in its own session.

A call whose worker dies returns to the queue, so each call runs at least once. The other workers continue. The worker gets calls again when
it and the parameter servers answer, because its session uses no other tasks and places only the nodes of its own calls. When a parameter
server dies, its variables are lost, and the call raises an error.

If the strategy's resolver is elastic (`RayCluster.resolver`), workers that join the cluster also get calls, and workers that leave it get
none.
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
# Maximum length of the queue. `schedule` blocks while the queue is full.
MAX_QUEUED = 256
# Pause of a worker's thread after a call failed, in seconds.
RETRY_S = 0.5
TABLE_INITIALIZER_TYPES = frozenset({"InitializeTableFromTextFileV2", "InitializeTableV2", "LookupTableImportV2"})
"""Types of nodes that initialize tables."""
CANCELLED = "The corresponding function is cancelled. Please reschedule the function."


class RemoteValue:
    """The future result of a call that `ClusterCoordinator.schedule` scheduled. `fetch()` waits for it."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._value: Any = None
        self._error: OpError | None = None

    def fetch(self) -> Any:
        """Wait for the call, and return its result as arrays.

        Raises:
            OpError: the call failed.
            CancelledError: the call was cancelled because another one failed.
        """
        while not self._ready.wait(1.0):
            pass
        if self._error is not None:
            raise self._error
        return self._value

    def _set(self, value: Any = None, error: OpError | None = None) -> None:
        self._value, self._error = value, error
        self._ready.set()


class _Call:
    """One scheduled call: the traced function, the values of its feeds, and its result."""

    def __init__(self, traced: _Traced, values: list[Any]) -> None:
        self.traced, self.values, self.result = traced, values, RemoteValue()


class _Traced:
    """A traced function: the fetches and feeds of each worker.

    Args:
        build: function of a worker's number that builds the nodes of this worker, and returns its fetches and feeds.
    """

    def __init__(self, build: Callable[[int], tuple[Any, list[Tensor]]]) -> None:
        self.build = build
        self.results: list[Any] = []
        self.feeds: list[list[Tensor]] = []

    def add(self, n: int) -> None:
        """Builds the nodes of another worker."""
        result, feeds = self.build(n)
        self.results.append(result)
        self.feeds.append(feeds)


class ClusterCoordinator:
    """Dispatches function calls to the workers of a `ParameterServerStrategy`'s cluster. Retries the calls of workers that die.

    Args:
        strategy: a `ParameterServerStrategy` whose resolver has no task, so that this process is a client.

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
        # Workers by number, in the order in which they joined. Numbers are not reused.
        self._targets: list[tuple[int, str]] = []
        self._removed: set[int] = set()
        # The initializers of each worker's resources, in the order in which they run, and how many of them have run.
        self._worker_initializers: list[list[Any]] = []
        self._initializers_run: list[int] = []
        self._initialized_tables: list[set[Any]] = []  # initializers of tables that have run on each worker
        self._resource_makers: list[Callable[[int], None]] = []  # functions that create the resources of another worker
        self._traced: dict[Any, _Traced] = {}
        self._initialized: set[Any] = set()
        self._local: list[Any] = []  # local variables on parameter servers
        self._session: Any = None
        self._stale_sessions: list[Any] = []  # sessions from before a parameter server was lost
        self._sessions: list[Any] = []  # the sessions of the workers' threads
        self._changed = threading.Condition()
        self._queue: deque[_Call] = deque()
        self._running = 0
        self._error: OpError | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._last_spec: Any = None
        self._update_workers(strategy._spec)
        strategy._coordinator = self

    def _update_workers(self, spec: Any) -> None:
        """Adds the workers that joined the cluster since the last call, and removes those that left it."""
        if spec is self._last_spec:
            return
        self._last_spec = spec
        targets = [(i, f"zmq://{spec.task_address('worker', i)}") for i in spec.task_indices("worker")]
        with self._changed:
            self._removed |= {n for n, target in enumerate(self._targets) if target not in targets}
            here = [target for n, target in enumerate(self._targets) if n not in self._removed]
            self._changed.notify_all()
        for index, target in targets:
            if (index, target) in here:
                continue
            n = len(self._targets)
            self._targets.append((index, target))
            self._worker_initializers.append([])
            self._initializers_run.append(0)
            self._initialized_tables.append(set())
            self._sessions.append(None)
            for make in (*self._resource_makers, *(traced.add for traced in self._traced.values())):
                make(n)
            thread = threading.Thread(
                target=self._run_worker, args=(n, index, target), name=f"dovetail-worker-{index}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _refresh_workers(self) -> None:
        if self.strategy._resolver.is_elastic:
            self._update_workers(self.strategy._resolver.cluster_spec())

    @staticmethod
    def of(strategy: Any) -> ClusterCoordinator:
        """Returns the last coordinator of a strategy if it is open and belongs to the default graph, or else a new one."""
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
            kwargs: keyword arguments of the same kinds.

        Raises:
            TypeError: `fn` is not callable, or returns None.
            ValueError: an argument is a `RemoteValue` or a data set.
            OpError: an earlier call has failed. Each error is raised once.
            CancelledError: the coordinator is closed.
        """
        if not callable(fn):
            raise TypeError(f"`coordinator.schedule` needs a function that builds nodes, not {fn!r}")
        given = [list(args), dict(kwargs or {})]
        leaves = flatten(given)
        if any(isinstance(v, PerWorkerDataset) for v in leaves):
            raise ValueError(
                "A data set cannot be an argument of a scheduled function. Pass an iterator: iter(dataset)"
            )
        if any(isinstance(v, RemoteValue) for v in leaves):
            raise ValueError("RemoteValues cannot be arguments of a scheduled function. Fetch them first")
        self._raise_error()
        self._refresh_workers()
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
                self._changed.wait(1.0)
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
            self._refresh_workers()
        self._raise_error()

    def _drained(self) -> bool:
        """Waits until all calls are done, at most a second. Returns whether they are."""
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

        A result with an `initializer` is initialized on the worker, and again after the worker has restarted.
        """
        values = PerWorkerValues([])

        def make(n: int) -> None:
            with self._graph.as_default(), self._on_worker(n):
                value = fn()
            values._values.append(value)
            start = getattr(value, "initializer", None)
            if isinstance(start, Node):
                self._initialize_on(n, [start])

        return self._make_on_each_worker(make, values)

    def _make_on_each_worker(self, make: Callable[[int], None], made: T) -> T:
        """Calls `make` for each worker, and later for each worker that joins. Returns `made`."""
        for n in range(len(self._targets)):
            make(n)
        self._resource_makers.append(make)
        return made

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Create a data set for each worker. It runs in the worker's process, which reads its files and calls its functions.

        Args:
            dataset_fn: a data set, or a function that returns one and is called once per worker. The data set is a `Dataset`, or the
                result of `strategy.experimental_distribute_dataset` or `distribute_datasets_from_function`. The function of the latter can
                select the worker's shard by its `InputContext`:
                `dataset.shard(context.num_input_pipelines, context.input_pipeline_id)`. Tables and variables that the function creates
                belong to the worker, and are initialized before its iterators start.

        Returns:
            The data sets. Pass `iter(...)` of them to `schedule`.

        Raises:
            TypeError: `dataset_fn` returns something else.
            InvalidArgumentError: the data set has a Python function, which cannot leave this process.

        >>> iterator = iter(coordinator.create_per_worker_dataset(lambda: Dataset.range(100).shuffle(100).repeat().batch(8)))
        >>> coordinator.schedule(lambda numbers: dt.reduce_sum(next(numbers)), args=(iterator,))
        """
        found = PerWorkerDataset([], self._iterators)

        def make(n: int) -> None:
            known = set(global_variables())
            with self._graph.as_default(), self._on_worker(n), self._input_pipeline_of(n):
                made = dataset_fn() if callable(dataset_fn) else dataset_fn
            found._datasets.append(checked_dataset(made, f"/job:worker/task:{self._targets[n][0]}"))
            mine = [v for v in global_variables() if v not in known]
            self._initialized.update(mine)
            self._initialize_on(n, [v.initializer for v in mine])

        return self._make_on_each_worker(make, found)

    def _iterators(self, dataset: PerWorkerDataset) -> PerWorkerIterator:
        values = PerWorkerIterator([])

        def make(n: int) -> None:
            with self._graph.as_default(), self._on_worker(n), self._input_pipeline_of(n):
                iterator = dataset._datasets[n].make_initializable_iterator()
            values._values.append(iterator)
            self._initialize_on(n, [iterator.initializer])

        return self._make_on_each_worker(make, values)

    @contextlib.contextmanager
    def _input_pipeline_of(self, n: int) -> Iterator[None]:
        """A block in which the input pipeline of one worker is built."""
        self.strategy._input_pipeline = (len(self._targets), n)
        try:
            yield
        finally:
            self.strategy._input_pipeline = None

    def _initialize_on(self, n: int, initializers: list[Node]) -> None:
        """Lets a worker run initializers before its next call, and again after it has restarted."""
        if initializers:
            with self._changed:
                self._worker_initializers[n].append(initializers)

    @property
    def session(self) -> Any:
        """A session of this client with the parameter servers, for reading and assigning variables.

        After a call has failed because a parameter server was lost, this is a new session. Restore the variables in it.
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
            _close(session)  # ends calls that wait forever
        for thread in self._threads:
            thread.join()
        for session in (*self._stale_sessions, self._session):
            _close(session)

    def __enter__(self) -> ClusterCoordinator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- building ---------------------------------------------------------------------------------------------------

    def _on_worker(self, n: int) -> Any:
        return self._graph.device(f"/job:worker/task:{self._targets[n][0]}")

    def _trace(self, fn: Callable[..., Any], given: Any, leaves: list[Any], fed: list[Any]) -> _Traced:
        """Builds the function's nodes on each worker, and initializes new variables."""

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
                        f"{fn!r} returns None. A worker runs only the nodes that the function returns and those that they depend on, so "
                        "return tensors or nodes, such as the training op"
                    )
                self._register_local_variables(
                    [v for v in self._graph.get_collection(GraphKeys.LOCAL_VARIABLES) if v not in known], n
                )
                return map_structure(lambda leaf: convert(leaf) if _is_fed(leaf) else leaf, found), inputs

        traced = _Traced(build)
        for n in range(len(self._targets)):
            traced.add(n)
        with self._graph.as_default():
            self._initialize()
        return traced

    def _register_local_variables(self, variables: list[Any], n: int) -> None:
        """Registers the local variables of a worker's nodes, such as totals of metrics, for initialization.

        The worker initializes those that are placed on it, and this client the others.
        """
        there = [v for v in variables if DeviceSpec.from_string(v.device or "").job == "worker"]
        self._initialize_on(n, [v.initializer for v in there])
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

    def _run_worker(self, n: int, index: int, target: str) -> None:
        """The function of a worker's thread: takes calls from the queue, and runs them."""
        is_lost = False
        while (call := self._next(n)) is not None:
            result = None
            outcome: OpError | None = None
            try:
                if self._sessions[n] is None:
                    self._connect(n, target)
                if is_lost:
                    is_lost = False
                    logger.warning("/job:worker/task:%d answers again", index)
                self._run_initializers(n)
                feeds = dict(zip(call.traced.feeds[n], call.values, strict=True))
                result = self._sessions[n].run(call.traced.results[n], feeds)
            except (UnavailableError, AbortedError) as e:
                outcome = e
                if "/job:ps" not in e.message and not self._closed:  # the worker died
                    if not is_lost and n not in self._removed:
                        is_lost = True
                        logger.warning(
                            "/job:worker/task:%d is lost. Another worker will run its call. %s", index, e.message
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
            except Exception as e:  # an error of the session, such as a wrong shape
                outcome = CancelledError.of(f"{type(e).__name__}: {e}")
            if self._closed and outcome is not None:
                outcome = CancelledError.of(CANCELLED)
            call.result._set(result, outcome)
            with self._changed:
                self._running -= 1
                if isinstance(
                    outcome, (UnavailableError, AbortedError)
                ):  # a parameter server and its variables are lost
                    if self._session is not None:
                        self._stale_sessions.append(self._session)
                        self._session = None
                    self._initialized_tables = [set() for _ in self._initialized_tables]
                if outcome is not None and self._error is None:
                    self._error = outcome
                    self._cancel()
                self._changed.notify_all()
        _close(self._sessions[n])

    def _next(self, n: int) -> _Call | None:
        """Waits for the next call of a worker, and returns it. None: the coordinator is closed, or the worker was removed."""
        with self._changed:
            while not self._queue and not self._closed and n not in self._removed:
                self._changed.wait(1.0)
            if n in self._removed:
                return None
            if self._closed:
                self._cancel()  # a call that a lost worker has put back
                return None
            self._running += 1
            self._changed.notify_all()
            return self._queue.popleft()

    def _connect(self, n: int, target: str) -> None:
        """Creates the session of a worker's thread. `close` closes it."""
        config = _config()
        config.device_filters = ["/job:ps", f"/job:worker/task:{self._targets[n][0]}"]
        session = Session(target, graph=self._graph, config=config)
        with self._changed:
            if self._closed:
                _close(session)
                raise CancelledError.of(CANCELLED)
            self._sessions[n] = session
        self._initializers_run[n] = 0
        self._initialized_tables[n] = set()

    def _run_initializers(self, n: int) -> None:
        """Runs the initializers that the worker has not run since it started. Tables come first, because data sets use them."""
        kept = self._graph.get_collection(GraphKeys.TABLE_INITIALIZERS)
        if tables := [t for t in kept if t not in self._initialized_tables[n] and self._initializes_table_of(t, n)]:
            self._sessions[n].run(tables)
            self._initialized_tables[n].update(tables)
        while self._initializers_run[n] < len(self._worker_initializers[n]):
            self._sessions[n].run(self._worker_initializers[n][self._initializers_run[n]])
            self._initializers_run[n] += 1

    def _initializes_table_of(self, initializer: Any, n: int) -> bool:
        """Whether a node initializes a table that a worker may use, which excludes the tables of other workers."""
        place = DeviceSpec.from_string(initializer.device or "")
        return initializer.type in TABLE_INITIALIZER_TYPES and (
            place.job != "worker" or place.task in (None, self._targets[n][0])
        )

    def _cancel(self) -> None:
        while self._queue:
            self._queue.popleft().result._set(error=CancelledError.of(CANCELLED))

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
    # The graph has nodes on all workers. Only the nodes that a step needs are placed.
    return ConfigProto(wait_for_cluster_s=5.0, graph_options=GraphOptions(place_pruned_graph=True))


def _close(session: Any) -> None:
    if session is not None:
        with contextlib.suppress(OpError):  # it is gone already
            session.close()


__all__ = ["ClusterCoordinator", "PerWorkerValues", "RemoteValue"]
