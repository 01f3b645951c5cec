"""Values that may differ between replicas: `PerReplica`, and `DistributedVariable`, a variable with copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph.core.default_graph import get_default_graph
from ..graph.core.errors import UnimplementedError
from ..graph.core.graph import Node, Tensor
from ..graph.core.nest import children, describe, map_structure
from ..graph.core.settings import setting
from ..graph.ops.array.concat_stack import stack
from ..graph.ops.array.identity_and_placeholders import group
from ..graph.ops.state.collectives import check_same, checksum
from ..graph.tensors.indexed_slices import IndexedSlices
from ..graph.variables.partitioned import SaveSliceInfo
from ..graph.variables.ref_and_resource import ResourceVariable
from ..graph.variables.variable import VariableAggregation, VariableSynchronization
from .context import StrategyProtocol, contexts, get_replica_context

# Updates between two comparisons of copies.
CHECK_INTERVAL = 100


class DistributedValues:
    """A value for each replica.

    Attributes:
        values: the values, in order of replicas.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        lines = "".join(f"\n  {i}: {v!r}" for i, v in enumerate(self.values))
        return f"<dt.distribute.{type(self).__name__}{lines}>"


class PerReplica(DistributedValues):
    """A value for each replica of this process, in order. `Strategy.run` accepts and returns it."""


def select(replica: int, structure: Any) -> Any:
    """Replaces every `PerReplica` in a structure by the value of one replica."""
    return map_structure(lambda v: v.values[replica] if isinstance(v, DistributedValues) else v, structure)


def regroup(results: Sequence[Any]) -> Any:
    """Merges the replicas' results into one structure of `PerReplica`. A value that is the same object for all stays as it is."""
    first = results[0]
    if len(results) == 1 or all(r is first for r in results):
        return first
    if isinstance(first, IndexedSlices):  # one value, although it has children
        return PerReplica(results)
    parts = [children(r) for r in results]
    if any(p is None for p in parts):
        return PerReplica(results)
    for r in results[1:]:
        if type(r) is not type(first):
            raise TypeError(f"The replicas return different structures: {describe(first)} and {describe(r)}")
    joined = [regroup(column) for column in zip(*[p or [] for p in parts], strict=True)]
    if isinstance(first, Mapping):
        return dict(zip(sorted(first), joined, strict=True))
    return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)


class DistributedVariable(ResourceVariable):
    """A variable of a strategy. It has a copy per replica, or one copy that all replicas share.

    In a replica, reads and updates use the replica's copy. In cross-replica context, reads use the first copy, and updates apply to all
    copies.

    Attributes:
        values: the copies, in order of replicas.
    """

    def __init__(
        self,
        strategy: StrategyProtocol,
        values: Sequence[ResourceVariable],
        trainable: bool,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> None:
        self._strategy = strategy
        self.values = tuple(values)
        self._trainable = trainable
        self._constraint = values[0].constraint
        self.synchronization, self.aggregation = synchronization, aggregation
        self._initializers: Node | None = None

    def __getattr__(self, name: str) -> Any:
        # These attributes of a plain variable come from the copy of the current context.
        if name not in ("_handle", "_element", "_is_initialized", "_cached", "_initial_value", "_initializer"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._local_copy, name)

    @property
    def distribute_strategy(self) -> StrategyProtocol:
        """The strategy that created the variable."""
        return self._strategy

    @property
    def primary(self) -> ResourceVariable:
        """The first copy."""
        return self.values[0]

    def _single(self) -> ResourceVariable:
        return self.primary

    @property
    def name(self) -> str:
        """The name of the first copy."""
        return self.values[0].name

    @property
    def save_slice_info(self) -> SaveSliceInfo | None:
        """The slice of the partitioned variable that this part, and each of its copies, is."""
        return self.primary.save_slice_info

    @save_slice_info.setter
    def save_slice_info(self, value: SaveSliceInfo | None) -> None:
        for v in self.values:
            v.save_slice_info = value

    @property
    def _local_copy(self) -> ResourceVariable:
        """The copy of the current context."""
        first: ResourceVariable = self.values[0]
        if len(self.values) == 1:
            return first
        for strategy, replica in reversed(contexts()):
            if strategy is self._strategy and replica is not None:
                found: ResourceVariable = self.values[replica._local_id]
                return found
        return first

    @property
    def initializer(self) -> Node:
        """The node that initializes all copies."""
        if self._starts_by is not None:
            return self._starts_by
        if self._initializers is None:
            if len(self.values) == 1:
                self._initializers = self.values[0].initializer
            else:
                with self.graph.init_scope(), self.graph.name_scope(None):
                    nodes = [v.initializer for v in self.values]
                    self._initializers = group(*nodes, name=f"{self.primary.op.name}/replicas_init")
        return self._initializers

    def load(self, value: Any, session: Any = None) -> None:
        """Assign a value to every copy, immediately."""
        for v in self.values:
            v.load(value, session)

    @property
    def _on_read(self) -> bool:
        return self.synchronization is VariableSynchronization.ON_READ

    @property
    def _is_cross_replica(self) -> bool:
        """Whether the program is not in a replica of its strategy."""
        return not any(s is self._strategy and r is not None for s, r in contexts()[-1:])

    def value(self) -> Tensor:
        """The value as a tensor. In cross-replica context, the copies of an ON_READ variable are aggregated."""
        if self._on_read and self._is_cross_replica:
            return self._strategy._read_aggregated(self)
        return super().value()

    def read_value(self) -> Tensor:
        """A new node that reads the value."""
        if self._on_read and self._is_cross_replica:
            return self._strategy._read_aggregated(self)
        return self._local_copy.read_value()

    def _change(self, op: str, value: Any, name: str | None, read_value: bool) -> Any:
        context = get_replica_context()
        if context is None or context.strategy is not self._strategy:
            node = self._change_all(op, value, name)
            return self.primary._after(node) if read_value else node
        if self._on_read:
            return self._local_copy._change(op, value, name, read_value)
        if self.aggregation is VariableAggregation.NONE:
            if context.num_replicas_in_sync > 1:
                raise ValueError(
                    "You must specify an aggregation method to update a variable in replica context: "
                    f"'{self.name}' has none. Create it with aggregation=dt.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, "
                    "or change it outside `run`."
                )
            return self._local_copy._change(op, value, name, read_value)
        node = context.merge_call(_merged_change, (self, op, name), {"value": value})
        with self.graph.control_dependencies([node]):
            return self._local_copy._after(node) if read_value else node

    def _change_all(self, op: str, value: Any, name: str | None) -> Node:
        """Changes every copy. A `PerReplica` has a value for each copy."""
        values = value.values if isinstance(value, DistributedValues) else [value] * len(self.values)
        if self._on_read and op == "Assign" and self.aggregation is VariableAggregation.SUM:
            values = [v / self._strategy.num_replicas_in_sync for v in values]  # the sum is then the assigned value
        if len(self.values) == 1:
            node: Node = self.values[0]._change(op, values[0], name, False)
            return node
        nodes = []
        for v, x in zip(self.values, values, strict=True):
            with self.graph.colocate_with(None, ignore_existing=True), self.graph.device(v.device):
                nodes.append(v._change(op, x, None, False))
        grouped: Node = group(*nodes, name=name)
        return grouped

    def __repr__(self) -> str:
        return f"<dt.distribute.DistributedVariable '{self.name}' shape={self.shape} copies={len(self.values)}>"


def _merged_change(strategy: StrategyProtocol, variable: DistributedVariable, op: str, name: Any, value: Any) -> Node:
    """Aggregates the replicas' values, and changes every copy of a variable. The node has the name of the first replica's call."""
    aggregated = strategy._aggregated(variable.aggregation, value, variable)
    return variable._change_all(op, aggregated, select(0, name))


def _not_on_copies(name: str) -> Callable[..., Any]:
    plain = getattr(ResourceVariable, name)

    def method(self: DistributedVariable, *args: Any, **kwargs: Any) -> Any:
        if len(self.values) == 1:
            return plain(self.values[0], *args, **kwargs)
        raise UnimplementedError.of(
            f"{name} is not supported for '{self.name}', which has {len(self.values)} copies. "
            f"Change each copy with strategy.extended.update(variable, lambda copy: copy.{name}(...))",
        )

    method.__doc__ = plain.__doc__
    return method


for _name in ("scatter_add", "scatter_sub", "scatter_update", "scatter_mul", "scatter_min", "scatter_max"):
    setattr(DistributedVariable, _name, _not_on_copies(_name))


def component(variable: Any, replica: int) -> Any:
    """Returns a variable's copy on a replica. A plain variable is its own copy."""
    if not isinstance(variable, DistributedVariable):
        return variable
    return variable.values[replica if len(variable.values) > 1 else 0]


def with_copy_check(strategy: StrategyProtocol, variables: Sequence[Any], update: Node) -> Node:
    """Adds the debugging check of DOVETAIL_CHECK: at intervals, a node after `update` compares the copies of all replicas.

    If copies are not bitwise equal, the step fails with an InternalError that names the variable and the replicas. Returns the node, or
    `update` if the check is off or there is nothing to compare.
    """
    count, everywhere = len(strategy._devices), strategy.num_replicas_in_sync
    mirrored = [v for v in variables if isinstance(v, DistributedVariable) and len(v.values) == count]
    if everywhere < 2 or not mirrored or not setting("DOVETAIL_CHECK"):
        return update
    graph, rows = get_default_graph(), []
    with graph.name_scope("compare_replicas"), graph.control_dependencies([update]):
        for i, device in enumerate(strategy._devices):
            with graph.colocate_with(None, ignore_existing=True), graph.device(device):
                rows.append(checksum([v.values[i].read_value() for v in mirrored], CHECK_INTERVAL))
        with graph.colocate_with(None, ignore_existing=True), graph.device(strategy._devices[0]):
            sums = strategy._gather_across(stack(rows), 0)
            with graph.device("/device:CPU:0"):
                return check_same(sums, [v.op.name for v in mirrored], strategy._replica_names())
