"""Synchronous replicas: a function builds its nodes once per replica, and replicas synchronize in merge calls.

Theory of operation. `run_replicas` calls the function once per replica, each time under the replica's device and name scope.
Where the function calls `merge_call`, it stops, and the other replicas are built up to the same call. Then the merge function
runs once, across replicas, on the arguments of all of them, and each replica continues with its part of the result. A function
that can stop in the middle needs a stack of its own, so with more than one replica each has a thread. Only one thread runs at
a time, in the order of replicas, so the graph is deterministic. A waiting thread releases the graph's lock, so `run` may be
called in the body of a loop, which holds it. A single replica is built in the caller's thread.

The open blocks of the graph (names, devices, control edges) are swapped when another replica's thread resumes. The first
replica makes the variables for all replicas. The others request theirs in the same order and get these.
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
from .context import StrategyProtocol, contexts, entered, get_replica_context as current_replica, set_contexts
from .values import DistributedVariable, regroup, select

TURN_S = 3600.0  # a thread that is not resumed for so long belongs to a caller that is gone


class _Stopped(BaseException):
    """Another replica failed: this one's function is left, through its own `finally` blocks."""


class ReplicaId(int):
    """A replica's number. A session can fetch it, as in TensorFlow, where it is a tensor."""

    def _as_graph_element(self) -> Tensor:
        return convert(int(self), name="replica_id")


class ReplicaContext:
    """A replica's view of its strategy: its number, and communication with other replicas.

    Attributes:
        strategy: the strategy that runs it.
    """

    def __init__(self, strategy: StrategyProtocol, local_id: int, run: _Run | None) -> None:
        self.strategy = strategy
        self._local_id = local_id
        self._run = run
        self._made = 0  # of the variables that the first replica has made, those that it has been given
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
        """The counts of default names for this replica. All replicas start from the first one's counts; only the first's are kept."""
        if self._run is None:
            return shared
        before = self._run.counts_before.setdefault(id(shared), dict(shared))
        return self._counts.setdefault(id(shared), dict(before)) if self._local_id else shared

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Wait for all replicas, call `merge_fn(strategy, *args, **kwargs)` once, across replicas, and return this replica's result.

        Arguments that differ between replicas are passed as `PerReplica`.

        Raises:
            RuntimeError: another replica does not make the call, or the call is in a branch or loop.
        """
        if self._run is None:
            with entered(self.strategy, None):
                return merge_fn(self.strategy, *args, **dict(kwargs or {}))
        return self._run.meet(self, merge_fn, tuple(args), dict(kwargs or {}))

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """The sum or mean of the values of all replicas, in each replica. Structures of tensors are reduced leaf by leaf."""
        return self.merge_call(lambda strategy, v: strategy._all_reduce(reduce_op, v), (value,))

    def all_gather(self, value: Any, axis: int = 0, options: Any = None) -> Any:
        """The values of all replicas, concatenated along an axis, in each replica."""
        return self.merge_call(lambda strategy, v: strategy.gather(v, axis), (value,))

    def __enter__(self) -> ReplicaContext:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


def get_replica_context() -> ReplicaContext | None:
    """The context of the current replica; None across replicas. Outside every scope: that of the default strategy."""
    found: ReplicaContext | None = current_replica()
    return found


def run_replicas(
    strategy: StrategyProtocol, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call `fn` once per replica of this process, with merge calls, and return all results."""
    graph = get_default_graph()
    if strategy.num_replicas_in_sync > 1:
        return _Run(strategy, graph).all(fn, args, kwargs)
    name, device = graph.scopes.name, strategy._devices[0]
    with (
        graph.name_scope(f"{name}/" if name else None),
        graph.device(device),
        entered(strategy, strategy._only_replica),
    ):
        return fn(*select(0, list(args)), **select(0, dict(kwargs)))


class _Replica:
    """One replica that is being built: its thread, its open blocks, and its progress."""

    def __init__(self, context: ReplicaContext, scopes: Scopes) -> None:
        self.context = context
        self.scopes = scopes
        self.has_turn = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.merge: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None = None
        self.variable_scope: VariableScope | None = None  # in which it has come to the merge call


class _Run:
    """One call of `run_replicas`."""

    def __init__(self, strategy: StrategyProtocol, graph: Graph) -> None:
        self.strategy, self.graph = strategy, graph
        self.made: list[DistributedVariable] = []  # variables, in the order in which the first replica made them
        self.counts_before: dict[int, dict[str, int]] = {}  # by the counts' identity: see `ReplicaContext.counts`
        self._asked: list[str] = []  # the variable names that it requested, with their variable scopes
        self._replicas: list[_Replica] = []
        self._regularized: dict[tuple[Tensor, int], Any] = {}  # by the first copy's loss and the replica
        self._abandoned = False
        self._flow = graph.scopes.flow
        self._turns = threading.Condition(graph._lock)

    def all(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Build all replicas; the first error of one of them is raised."""
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
                    self._give_turn(replica)
                self._merge(outer)
        except BaseException:
            self._abandoned = True
            for replica in self._replicas:
                while not replica.done:
                    self._give_turn(replica, check=False)
            raise
        finally:
            self._enter(outer)
            for thread in threads:
                thread.join()
        return regroup([r.result for r in self._replicas])

    def _enter(self, scopes: Scopes) -> None:
        """Make these the graph's open blocks."""
        self.graph.scopes = scopes

    def _give_turn(self, replica: _Replica, check: bool = True) -> None:
        """Let a replica run until it meets the others or ends."""
        self._enter(replica.scopes)
        with build(self.graph, ("replica", replica.context._local_id)):
            self._turn_goes(replica, True)
            with self._turns:
                self._turns.wait_for(lambda: not replica.has_turn)
        if check and replica.error is not None:
            raise replica.error

    def _body(
        self, replica: _Replica, around: Any, sessions: list[Any], scope: VariableScope, counts: dict[str, int],
        fn: Callable[..., Any], args: Any, kwargs: Any,
    ) -> None:  # fmt: skip
        """What a replica's thread does."""
        self._await_turn(replica)
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
                        with entered(self.strategy, replica.context):
                            self._regularize_own_copies(number)
                            replica.result = fn(*args, **kwargs)
        except _Stopped:
            pass
        except BaseException as e:
            replica.error = e
        replica.done = True
        self._turn_goes(replica, False)

    def _turn_goes(self, replica: _Replica, to_replica: bool) -> None:
        """Resume a replica's thread, or suspend it."""
        with self._turns:
            replica.has_turn = to_replica
            self._turns.notify_all()

    def _await_turn(self, replica: _Replica) -> None:
        with self._turns:
            self._turns.wait_for(lambda: replica.has_turn, TURN_S)
        self._enter(replica.scopes)

    def meet(
        self, context: ReplicaContext, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A replica has come to a merge call: it stops until the others have, and the call is done."""
        replica = self._replicas[context._local_id]
        if replica.scopes.flow is not self._flow:
            raise RuntimeError(
                "merge_call called in a branch or a loop: what all replicas do together (an optimizer's apply_gradients, an "
                "all_reduce, an assignment that is aggregated) must stand outside `cond` and `while_loop`"
            )
        replica.merge, replica.variable_scope = (fn, args, kwargs), _open(self.graph).scope
        self._turn_goes(replica, False)
        self._await_turn(replica)
        if self._abandoned:
            raise _Stopped
        self._regularize_own_copies(context._local_id)
        return replica.result

    def _regularize_own_copies(self, replica: int) -> None:
        """Put the losses that regularize this replica's copies in place of those of the first replica's copies."""
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
        """Run the merge call that all replicas have reached; do nothing when all have ended."""
        if all(r.done for r in self._replicas):
            return
        if any(r.done for r in self._replicas):
            here = [r.context._local_id for r in self._replicas if not r.done]
            raise RuntimeError(
                f"The replicas {here} call merge_call (an optimizer's apply_gradients, an all_reduce, or an assignment that is "
                "aggregated), and the others have ended without: every replica must come to the same calls, in the same order"
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
            with entered(self.strategy, None):
                result = fn(self.strategy, *args, **kwargs)
        finally:
            variables.scope = around
        for r in self._replicas:
            r.merge, r.result = None, select(r.context._local_id, result)

    def variable(
        self, context: ReplicaContext, name: str | None, make: Callable[[], DistributedVariable]
    ) -> DistributedVariable:
        """The variable that a replica makes now, by a name: made by the first replica, given to the others."""
        wanted = "/".join(filter(None, (_open(self.graph).scope.name, name or "Variable")))
        if context._local_id == 0:
            self.made.append(make())
            self._asked.append(wanted)
            return self.made[-1]
        named = set(VariableStore.of(self.graph).variables.values())  # `get_variable` finds these by itself
        while context._made < len(self.made) and self.made[context._made] in named:
            context._made += 1
        if context._made == len(self.made):
            raise RuntimeError(
                f"Replica {context._local_id} makes a variable that the first replica has not made: all replicas must "
                "make the same variables, in the same order"
            )
        first = self._asked[context._made]
        if first != wanted:
            raise RuntimeError(
                f"Replica {context._local_id} makes a variable '{wanted}' where the first replica has made '{first}': all replicas "
                "must make the same variables, in the same order, so their names must not depend on the replica"
            )
        context._made += 1
        return self.made[context._made - 1]


def _reusing(scope: VariableScope) -> VariableScope:
    """The scope of the replicas after the first: they find the variables that it made."""
    return VariableScope(
        True, scope.name, scope.initializer, scope.regularizer, scope.caching_device, scope.partitioner,
        scope.custom_getter, scope.original_name_scope, scope.dtype, scope.use_resource, scope.constraint,
    )  # fmt: skip
