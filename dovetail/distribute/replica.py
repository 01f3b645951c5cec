"""Synchronous replicas: a function is called once per replica, and replicas synchronize in merge calls.

`run_replicas` calls the function once per replica, under the replica's device and name scope. When the function calls `merge_call`, it is
suspended until the other replicas have reached the same call. The merge function then runs once, in cross-replica context, on the arguments
of all replicas, and each replica continues with its part of the result.

A function that can be suspended needs its own stack, so each replica has a thread if there are several. Only one thread runs at a time, in
the order of replicas, so the graph is deterministic. A suspended thread releases the graph's lock, so `run` may be called in the body of a
loop, which holds it. A single replica runs in the caller's thread.

The open blocks of the graph (names, devices, control edges) are swapped when another replica's thread resumes. The first replica creates
the variables for all replicas. The others request theirs in the same order and receive these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph.core.build import convert
from ..graph.core.default_graph import GraphKeys, get_default_graph
from ..graph.core.graph import Graph, Tensor
from ..graph.core.scopes import Scopes, open_blocks
from ..graph.variables.builds import build
from ..graph.variables.scope import VariableScope, _open
from ..graph.variables.store import VariableStore
from .context import StrategyProtocol, contexts, get_replica_context as current_replica, set_contexts, strategy_context
from .values import DistributedVariable, regroup, select

# Seconds after which a suspended thread gives up, because its caller no longer exists.
SUSPENDED_S = 3600.0


class _Stopped(BaseException):
    """Raised in a suspended replica when another one failed, to unwind its function."""


class ReplicaId(int):
    """A replica's number. A session can fetch it, because in TensorFlow it is a tensor."""

    def _as_graph_element(self) -> Tensor:
        return convert(int(self), name="replica_id")


class ReplicaContext:
    """The context of a replica: its number, and communication with other replicas.

    Attributes:
        strategy: the strategy of the replica.
    """

    def __init__(self, strategy: StrategyProtocol, local_id: int, run: _Run | None) -> None:
        self.strategy = strategy
        self._local_id = local_id
        self._run = run
        self._made = 0  # how many of the first replica's variables this replica has received
        self._counts: dict[int, dict[str, int]] = {}

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of the replica among all synchronous replicas, including those of other workers."""
        return ReplicaId(self.strategy._first_replica + self._local_id)

    @property
    def replica_id(self) -> int:
        """The same as `replica_id_in_sync_group` (TensorFlow 1's name)."""
        return self.replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of synchronous replicas."""
        return self.strategy.num_replicas_in_sync

    @property
    def distribution_strategy(self) -> StrategyProtocol:
        """The same as `strategy` (TensorFlow 1's name)."""
        return self.strategy

    @property
    def devices(self) -> tuple[str, ...]:
        """The replica's device, in a tuple."""
        return (self.strategy._devices[self._local_id],)

    def counts(self, shared: dict[str, int]) -> dict[str, int]:
        """Returns this replica's counts of default names. All replicas start from the same counts; those of the first one are kept."""
        if self._run is None:
            return shared
        before = self._run.counts_before.setdefault(id(shared), dict(shared))
        return self._counts.setdefault(id(shared), dict(before)) if self._local_id else shared

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Wait for all replicas, call a function once in cross-replica context, and return this replica's part of the result.

        Args:
            merge_fn: called as `merge_fn(strategy, *args, **kwargs)`.
            args: its arguments. Those that differ between replicas are passed as `PerReplica`.
            kwargs: its keyword arguments, in the same way.

        Raises:
            RuntimeError: another replica does not make the call, or the call is in a branch or loop.
        """
        if self._run is None:
            with strategy_context(self.strategy, None):
                return merge_fn(self.strategy, *args, **dict(kwargs or {}))
        return self._run.merge_call(self, merge_fn, tuple(args), dict(kwargs or {}))

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the sum or mean of the values of all replicas, in each replica.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, or its name.
            value: a tensor, or a structure of tensors.
            options: accepted without effect.
        """
        return self.merge_call(lambda strategy, v: strategy._all_reduce(reduce_op, v), (value,))

    def all_gather(self, value: Any, axis: int = 0, options: Any = None) -> Any:
        """Return the values of all replicas, concatenated along an axis, in each replica."""
        return self.merge_call(lambda strategy, v: strategy.gather(v, axis), (value,))

    def __enter__(self) -> ReplicaContext:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def get_replica_context() -> ReplicaContext | None:
    """Returns the context of the current replica, or None in cross-replica context.

    Outside every scope, this is the only replica of the default strategy.
    """
    found: ReplicaContext | None = current_replica()
    return found


def run_replicas(
    strategy: StrategyProtocol, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Calls `fn` once per replica of this process, with merge calls, and returns all results."""
    if not callable(fn):
        raise TypeError(f"A strategy runs a function in each replica, such as `lambda: step(x)`, not {fn!r}")
    graph = get_default_graph()
    if strategy.num_replicas_in_sync > 1:
        return _Run(strategy, graph).all(fn, args, kwargs)
    name, device = graph.scopes.name, strategy._devices[0]
    with (
        graph.name_scope(f"{name}/" if name else None),
        graph.device(device),
        strategy_context(strategy, strategy._only_replica),
    ):
        return fn(*select(0, list(args)), **select(0, dict(kwargs)))


class _Replica:
    """The state of one replica during a run: its open blocks and its progress."""

    def __init__(self, context: ReplicaContext, scopes: Scopes) -> None:
        self.context = context
        self.scopes = scopes
        self.is_running = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.merge: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
        self.variable_scope: VariableScope | None = None  # the variable scope of its merge call


class _Run:
    """One call of `run_replicas`."""

    def __init__(self, strategy: StrategyProtocol, graph: Graph) -> None:
        self.strategy, self.graph = strategy, graph
        self.made: list[DistributedVariable] = []  # variables, in the order in which the first replica created them
        self.counts_before: dict[int, dict[str, int]] = {}  # by the identity of the counts: see `ReplicaContext.counts`
        self._requested_names: list[str] = []  # the names of these variables, with their variable scopes
        self._replicas: list[_Replica] = []
        self._regularized: dict[tuple[Tensor, int], Any] = {}  # by the loss of the first copy, and the replica
        self._abandoned = False
        self._flow = graph.scopes.flow
        self._switched = threading.Condition(graph._lock)

    def all(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs all replicas. Raises the first error of a replica."""
        graph, outer = self.graph, self.graph.scopes
        around, variables = contexts(), _open(graph)
        session, counts = list(open_blocks.sessions), dict(variables.counts)
        threads = []
        for i in range(len(self.strategy._devices)):
            replica = _Replica(ReplicaContext(self.strategy, i, self), outer.copy())
            start = (
                replica,
                around,
                session,
                variables.scope,
                counts,
                fn,
                select(i, list(args)),
                select(i, dict(kwargs)),
            )
            self._replicas.append(replica)
            threads.append(threading.Thread(target=self._body, args=start, name=f"dovetail-replica-{i}", daemon=True))
        for thread in threads:
            thread.start()
        try:
            while not all(r.done for r in self._replicas):
                for replica in self._replicas:
                    self._resume(replica)
                self._merge(outer)
        except BaseException:
            self._abandoned = True
            for replica in self._replicas:
                while not replica.done:
                    self._resume(replica, check=False)
            raise
        finally:
            self._enter(outer)
            for thread in threads:
                thread.join()
        return regroup([r.result for r in self._replicas])

    def _enter(self, scopes: Scopes) -> None:
        """Sets the open blocks of the graph."""
        self.graph.scopes = scopes

    def _resume(self, replica: _Replica, check: bool = True) -> None:
        """Resumes a replica until its next merge call or its end."""
        self._enter(replica.scopes)
        with build(self.graph, ("replica", replica.context._local_id)):
            self._switch_to(replica, True)
            with self._switched:
                self._switched.wait_for(lambda: not replica.is_running)
        if check and replica.error is not None:
            raise replica.error

    def _body(
        self, replica: _Replica, around: Any, sessions: list[Any], scope: VariableScope, counts: dict[str, int],
        fn: Callable[..., Any], args: Any, kwargs: Any,
    ) -> None:  # fmt: skip
        """The function of a replica's thread."""
        self._wait_until_resumed(replica)
        graph, number = self.graph, replica.context._local_id
        set_contexts(around)
        open_blocks.sessions = sessions
        try:
            with graph.as_default():
                self._enter(replica.scopes)
                variables = _open(graph)
                variables.scope, variables.counts = _reusing(scope) if number else scope, dict(counts)
                name = f"replica_{number}" if number else (f"{graph.scopes.name}/" if graph.scopes.name else None)
                with graph.name_scope(name), graph.device(self.strategy._devices[number]):
                    if not self._abandoned:
                        with strategy_context(self.strategy, replica.context):
                            self._regularize_own_copies(number)
                            replica.result = fn(*args, **kwargs)
        except _Stopped:
            pass
        except BaseException as e:
            replica.error = e
        replica.done = True
        self._switch_to(replica, False)

    def _switch_to(self, replica: _Replica, to_replica: bool) -> None:
        """Marks a replica's thread as running or suspended."""
        with self._switched:
            replica.is_running = to_replica
            self._switched.notify_all()

    def _wait_until_resumed(self, replica: _Replica) -> None:
        with self._switched:
            self._switched.wait_for(lambda: replica.is_running, SUSPENDED_S)
        self._enter(replica.scopes)

    def merge_call(
        self, context: ReplicaContext, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Implements `ReplicaContext.merge_call`: suspends the replica until the merge function has run."""
        replica = self._replicas[context._local_id]
        if replica.scopes.flow is not self._flow:
            raise RuntimeError(
                "merge_call called in a branch or a loop. Operations that synchronize replicas (an optimizer's apply_gradients, an "
                "all_reduce, an aggregated assignment) must be outside `cond` and `while_loop`"
            )
        replica.merge, replica.variable_scope = (fn, args, kwargs), _open(self.graph).scope
        self._switch_to(replica, False)
        self._wait_until_resumed(replica)
        if self._abandoned:
            raise _Stopped
        self._regularize_own_copies(context._local_id)
        return replica.result

    def _regularize_own_copies(self, replica: int) -> None:
        """Replaces the regularization losses of the first replica's copies by those of this replica's copies."""
        graph, store = self.graph, VariableStore.of(self.graph)
        losses = graph.get_collection_ref(GraphKeys.REGULARIZATION_LOSSES)
        for i, loss in enumerate(losses if replica else ()):
            found = store.regularizations.get(loss) if isinstance(loss, Tensor) else None
            if found is None or not isinstance(found[0], DistributedVariable) or len(found[0].values) == 1:
                continue
            if (loss, replica) not in self._regularized:
                with graph.control_dependencies(None):
                    self._regularized[loss, replica] = found[1]()
            losses[i] = self._regularized[loss, replica]
            store.of_copies.add(losses[i])

    def _merge(self, outer: Scopes) -> None:
        """Runs the merge function of the call that all replicas have reached. Does nothing if all replicas have ended."""
        if all(r.done for r in self._replicas):
            return
        if any(r.done for r in self._replicas):
            here = [r.context._local_id for r in self._replicas if not r.done]
            raise RuntimeError(
                f"The replicas {here} call merge_call (an optimizer's apply_gradients, an all_reduce, or an aggregated assignment), but "
                "the others ended without this call. All replicas must make the same merge calls, in the same order"
            )
        first = self._replicas[0]
        assert first.merge is not None
        fn = first.merge[0]
        merged = [r.merge for r in self._replicas if r.merge is not None]
        args, kwargs = regroup([list(m[1]) for m in merged]), regroup([m[2] for m in merged])
        scopes = outer.copy()
        scopes.name, scopes.control = first.scopes.name, first.scopes.control
        self._enter(scopes)
        variables = _open(self.graph)
        around, variables.scope = variables.scope, first.variable_scope or variables.scope
        try:
            with strategy_context(self.strategy, None):
                result = fn(self.strategy, *args, **kwargs)
        finally:
            variables.scope = around
        for r in self._replicas:
            r.merge, r.result = None, select(r.context._local_id, result)

    def variable(
        self, context: ReplicaContext, name: str | None, make: Callable[[], DistributedVariable]
    ) -> DistributedVariable:
        """Returns the next variable of a replica. The first replica creates it by `make`, and the others receive it."""
        wanted = "/".join(filter(None, (_open(self.graph).scope.name, name or "Variable")))
        if context._local_id == 0:
            self.made.append(make())
            self._requested_names.append(wanted)
            return self.made[-1]
        named = set(VariableStore.of(self.graph).variables.values())  # `get_variable` finds these by itself
        while context._made < len(self.made) and self.made[context._made] in named:
            context._made += 1
        if context._made == len(self.made):
            raise RuntimeError(
                f"Replica {context._local_id} creates a variable that the first replica did not create. All replicas must create the "
                "same variables, in the same order"
            )
        first = self._requested_names[context._made]
        if first != wanted:
            raise RuntimeError(
                f"Replica {context._local_id} creates a variable '{wanted}' where the first replica created '{first}'. All replicas must "
                "create the same variables, in the same order, so their names must not depend on the replica"
            )
        context._made += 1
        return self.made[context._made - 1]


def _reusing(scope: VariableScope) -> VariableScope:
    """Returns the variable scope of the replicas after the first one, which reuses its variables."""
    return VariableScope(
        True, scope.name, scope.initializer, scope.regularizer, scope.caching_device, scope.partitioner,
        scope.custom_getter, scope.original_name_scope, scope.dtype, scope.use_resource, scope.constraint,
    )  # fmt: skip
