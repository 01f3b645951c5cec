"""The base of distribution strategies, which train one model with several replicas.

A strategy defines the devices of the replicas of this process (`_devices`), the devices of a variable's copies (`_variable_devices`), and
how values are reduced over the replicas of this process (`_cross_device_ops`) and over other processes (`_reduce_across`). The base class
does the rest: `scope` intercepts the creation of variables, `run` runs the replicas (`replica.py`), and an optimizer in a replica calls
`apply_gradients` below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ..graph.core.build import convert
from ..graph.core.default_graph import GraphKeys, get_default_graph
from ..graph.core.device import canonical_name
from ..graph.core.graph import Node, Tensor
from ..graph.core.nest import flatten, map_structure, pack
from ..graph.ops.array.concat_stack import concat, split
from ..graph.ops.array.identity_and_placeholders import group
from ..graph.ops.array.shapes import shape
from ..graph.ops.math.arithmetic import truediv
from ..graph.ops.math.cast import cast
from ..graph.ops.math.reduce import reduce_sum
from ..graph.variables.variable import VariableAggregation, VariableSynchronization, variable_creator_scope
from .context import (
    contexts,
    get_replica_context,
    get_strategy as current_strategy,
    register_default,
    strategy_context,
)
from .extended import Extended
from .input import DistributedDataset, InputContext
from .reduction import CrossDeviceOps, ReduceOp, ReductionToOneDevice
from .replica import ReplicaContext, run_replicas
from .values import DistributedValues, DistributedVariable, PerReplica, component, select, with_copy_check


class Strategy:
    """Base of the strategies. With one device and one process, it only sets the placement.

    Args:
        devices: the replicas' devices, in order: strings or DeviceSpecs.
        cross_device_ops: how values of several devices are reduced; None: `ReductionToOneDevice`.

    Raises:
        ValueError: there are no devices.
        AssertionError: a device is named twice.

    >>> strategy = MirroredStrategy(["/cpu:0", "/cpu:1"])
    >>> with strategy.scope():
    ...     w = dt.get_variable("w", [10])
    ...     losses = strategy.run(train_step, args=(images, labels))
    ...     loss = strategy.reduce(dt.distribute.ReduceOp.MEAN, losses, axis=None)
    """

    def __init__(self, devices: Sequence[Any] = ("",), cross_device_ops: CrossDeviceOps | None = None) -> None:
        names = tuple(canonical_name(d if isinstance(d, str) else d.to_string()) for d in devices)
        if not names:
            raise ValueError("Got an empty `devices` list. A strategy needs at least one device")
        assert len(set(names)) == len(names), f"Duplicates in devices: {', '.join(names)}"
        self._devices = names
        self._cross_device_ops = cross_device_ops or ReductionToOneDevice()
        self._first_replica = 0
        # (number of input pipelines, number of this one) while a coordinator builds an input pipeline.
        self._input_pipeline: tuple[int, int] | None = None
        self._only_replica = ReplicaContext(self, 0, None)
        self.extended = Extended(self)

    # --- what subclasses may define ---------------------------------------------------------------------------------

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of synchronous replicas, including those of other workers."""
        return len(self._devices)

    def _variable_devices(self) -> Sequence[Any]:
        """Returns the devices, or device functions, of a new variable's copies. If there is one, all replicas share the variable."""
        return self._devices

    def _on_read_devices(self) -> Sequence[Any]:
        """Returns the devices, or device functions, of an ON_READ variable's copies, one per replica."""
        return self._devices

    def _reduce_across(self, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
        """Reduces each value over all processes with synchronous replicas. The base class has only this process."""
        return list(values)

    def _broadcast_first(self, value: Any) -> Any:
        """Returns the value of the first process."""
        return value

    def _gather_across(self, value: Tensor, axis: int) -> Tensor:
        """Returns the values of all processes, concatenated along an axis."""
        return value

    def _broadcast_initial_value(self, value: Any, name: str) -> Any:
        """Returns the initial value of the first process."""
        return value

    def _replica_names(self) -> Sequence[str]:
        """Returns the devices of all synchronous replicas, including those of other processes."""
        return self._devices

    @property
    def cluster_resolver(self) -> Any:
        """The resolver of the cluster; None if there is none."""
        return None

    @property
    def session_target(self) -> str:
        """The target of sessions that run the strategy's graphs. '': this process."""
        return ""

    def update_config_proto(self, config: Any) -> Any:
        """Returns a session's config with the options that this strategy needs."""
        return config

    # --- scopes -----------------------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """A block in which this strategy is current and creates the variables of the default graph.

        Raises:
            RuntimeError: the scope of another strategy is open.
        """
        for other, _ in contexts():
            if other is not self:
                raise RuntimeError(
                    f"Mixing different tf.distribute.Strategy objects: {other!r} is not the same as {self!r}"
                )
        if self._is_open():
            with strategy_context(self, None):
                yield self
            return
        graph = get_default_graph()
        with (
            graph.as_default(),
            variable_creator_scope(self._make),
            self._default_device(),
            strategy_context(self, None),
        ):
            yield self

    def _is_open(self) -> bool:
        """Whether the program is in this strategy's scope, and in the graph for which the scope was opened."""
        return bool(contexts()) and self._make in get_default_graph().scopes.creators

    def _default_device(self) -> Any:
        return nullcontext()

    # --- running ----------------------------------------------------------------------------------------------------

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Call `fn(*args, **kwargs)` once per replica, on the replica's device, and return all results.

        Args:
            fn: the function. All replicas must make the same merge calls: see `ReplicaContext.merge_call`.
            args: its arguments. Of a `PerReplica`, each replica gets its own value.
            kwargs: its keyword arguments, in the same way.
            options: accepted without effect.

        Returns:
            The result of `fn`. Values that differ between replicas become `PerReplica`.

        Raises:
            RuntimeError: it is called inside a replica, or the replicas make different merge calls.
        """
        if any(s is self and replica is not None for s, replica in contexts()[-1:]):
            raise RuntimeError(
                "Method requires being in cross-replica context, use get_replica_context().merge_call(): "
                "strategy.run cannot be called inside the function that strategy.run runs"
            )
        with nullcontext() if self._is_open() else self.scope():
            return run_replicas(self, fn, tuple(args), dict(kwargs or {}))

    experimental_run_v2 = run
    """An older name of `run`."""

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """An older form of `run`. If there is an iterator, its next element is the argument of `fn`."""
        with nullcontext() if self._is_open() else self.scope():
            return self.run(fn, () if input_iterator is None else (input_iterator.get_next(),))

    def call_for_each_replica(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """TensorFlow 1's name of `run`. It accepts `args` and `kwargs` by name, or the arguments of `fn` themselves."""
        if not args and set(kwargs) <= {"args", "kwargs"}:
            return self.run(fn, kwargs.get("args", ()), kwargs.get("kwargs"))
        return self.run(fn, args, kwargs)

    # --- values of several replicas ---------------------------------------------------------------------------------

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Reduce a `PerReplica`, or each one in a structure, over all replicas to one value.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, or its name.
            value: the `PerReplica` or the structure.
            axis: first reduce each replica's value over this axis. The mean is then over elements, not replicas.

        Raises:
            ValueError: `value` is the same for all replicas and cannot be summed.
        """
        op = ReduceOp.of(reduce_op)
        self._require_cross_replica()
        with self._current():
            return pack(value, [self._reduce_one(op, v, axis) for v in flatten(value)])

    def _reduce_one(self, op: ReduceOp, value: Any, axis: int | None) -> Any:
        if isinstance(value, DistributedVariable):
            value = value.values[0] if len(value.values) == 1 else PerReplica(value.values)
        if axis is None:
            return self._reduced(op, value)

        values = value.values if isinstance(value, DistributedValues) else (value,)
        sums, counts = [], []
        for device, v in zip(self._devices, values, strict=False):
            with get_default_graph().device(device):
                tensor = convert(v)
                sums.append(reduce_sum(tensor, axis))
                counts.append(convert(shape(tensor)[axis]))
        total = self._reduced(ReduceOp.SUM, PerReplica(sums))
        if op is ReduceOp.SUM:
            return total

        count = self._reduced(ReduceOp.SUM, PerReplica(counts))
        return truediv(total, cast(count, total.dtype.base))

    def _reduced(self, op: ReduceOp, value: Any, device: str | None = None) -> Any:
        """Reduces a value over all replicas. The result is on one device."""
        if not isinstance(value, DistributedValues) and len(self._devices) == 1 < self.num_replicas_in_sync:
            value = PerReplica([value])  # the value of this process's only replica
        if not isinstance(value, DistributedValues):
            if len(self._devices) == 1 or op is ReduceOp.MEAN or (isinstance(value, (int, float)) and value == 0):
                return value
            raise ValueError(
                f"A non-DistributedValues value {value!r} cannot be reduced with the given reduce op {op.name}: it is the same "
                "for all replicas"
            )
        here = self._cross_device_ops.to_one(value.values, device or self._devices[0], self._local(op))
        return self._reduce_across(op, [here])[0]

    def _local(self, op: ReduceOp) -> ReduceOp:
        """Returns the reduction in this process that precedes `_reduce_across`."""
        return op

    def _all_reduce(self, op: Any, value: Any) -> Any:
        """Reduces a value or structure over all replicas, for each of them."""
        return pack(value, [self._reduced_everywhere(ReduceOp.of(op), v) for v in flatten(value)])

    def _reduced_everywhere(self, op: ReduceOp, value: Any) -> Any:
        """Reduces a value over all replicas. A value that is the same for all replicas counts once per replica."""
        if not isinstance(value, DistributedValues):
            value = PerReplica([value] * len(self._devices))
        return self._reduced(op, value)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the replicas' values along an axis, in order of replicas."""
        self._require_cross_replica()

        def joined(v: Any) -> Any:
            parts = [convert(x) for x in (v.values if isinstance(v, DistributedValues) else [v])]
            return self._gather_across(concat(parts, axis) if len(parts) > 1 else parts[0], axis)

        with self._current(), get_default_graph().device(self._devices[0]):
            return map_structure(joined, value)

    def unwrap(self, value: Any) -> list[Any]:
        """The values of this process's replicas, as a list."""
        if isinstance(value, (DistributedValues, DistributedVariable)):
            return list(value.values)
        return [value]

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of this process's replicas, as a tuple."""
        return tuple(self.unwrap(value))

    def group(self, value: Any, name: str | None = None) -> Node:
        """One node for the nodes of all replicas."""
        node: Node = group(*[v.op if isinstance(v, Tensor) else v for v in self.unwrap(value)], name=name)
        return node

    def experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Any:
        """Call `value_fn(context)` for each replica, and return a `PerReplica`. `context.replica_id_in_sync_group` is its number."""
        values = [value_fn(ReplicaContext(self, i, None)) for i in range(len(self._devices))]
        return PerReplica(values) if len(values) > 1 else values[0]

    def split_batch(self, batch: Any) -> Any:
        """Split a batch, or a structure of tensors with the same batch size, evenly between the replicas of this process, in order.

        The batch size must be a multiple of the number of these replicas. If it is unknown, this is checked when the step runs.
        """
        count = len(self._devices)
        if count == 1:
            return map_structure(convert, batch)

        return map_structure(lambda t: PerReplica(split(convert(t), count, 0)), batch)

    # --- data -------------------------------------------------------------------------------------------------------

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Create a data set whose elements are split between the replicas.

        Args:
            dataset: a `Dataset`. Its elements are global batches.
            options: accepted without effect.

        Raises:
            TypeError: it is not a data set.

        >>> x = strategy.experimental_distribute_dataset(dataset.batch(128)).make_one_shot_iterator().get_next()
        """
        return DistributedDataset(self, dataset)

    def distribute_datasets_from_function(self, dataset_fn: Callable[[InputContext], Any], options: Any = None) -> Any:
        """Create a data set for each process. The replicas of the process get its elements round-robin.

        Args:
            dataset_fn: function that is called once per process. It selects the process's shard by its argument, an `InputContext`, and
                returns a `Dataset` of batches for one replica.
            options: accepted without effect.

        Raises:
            TypeError: it is not a function, or returns something else.

        >>> def pipeline(context):
        ...     mine = files.shard(context.num_input_pipelines, context.input_pipeline_id)
        ...     return mine.batch(context.get_per_replica_batch_size(128))
        >>> x = strategy.distribute_datasets_from_function(pipeline).make_one_shot_iterator().get_next()
        """
        if not callable(dataset_fn):
            raise TypeError(
                f"distribute_datasets_from_function needs a function of an InputContext that returns a Dataset, not {dataset_fn!r}. Pass a "
                "Dataset itself to experimental_distribute_dataset"
            )
        return DistributedDataset(self, dataset_fn(InputContext.of(self)), whole=True)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function
    """An older name of `distribute_datasets_from_function`."""

    def make_input_fn_iterator(self, input_fn: Callable[[InputContext], Any], replication_mode: Any = None) -> Any:
        """An iterator of `distribute_datasets_from_function(input_fn)` (TensorFlow 1's name)."""
        return self.distribute_datasets_from_function(input_fn).make_initializable_iterator()

    def make_dataset_iterator(self, dataset: Any) -> Any:
        """An iterator of `experimental_distribute_dataset(dataset)` (TensorFlow 1's name)."""
        return self.experimental_distribute_dataset(dataset).make_initializable_iterator()

    # --- variables --------------------------------------------------------------------------------------------------

    def _make(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        """Creates a variable with its copies. The scope calls this for `Variable(...)`."""
        context = get_replica_context()
        if context is not None and context._run is not None:
            return context._run.variable(context, kwargs.get("name"), lambda: self._make_copies(next_creator, kwargs))
        return self._make_copies(next_creator, kwargs)

    def _make_copies(self, next_creator: Callable[..., Any], kwargs: dict[str, Any]) -> DistributedVariable:
        synchronization = VariableSynchronization(kwargs.pop("synchronization", None) or VariableSynchronization.AUTO)
        aggregation = VariableAggregation(kwargs.pop("aggregation", None) or VariableAggregation.NONE)
        on_read = synchronization is VariableSynchronization.ON_READ
        if synchronization is VariableSynchronization.NONE and len(self._devices) > 1:
            raise ValueError(
                "`NONE` variable synchronization mode is not supported with "
                f"{type(self).__name__}. Please change the `synchronization` for variable: {kwargs.get('name')}"
            )
        trainable = kwargs.pop("trainable", None)
        trainable = not on_read if trainable is None else bool(trainable)
        collections = kwargs.pop("collections", None)
        names = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        kwargs |= {"trainable": False, "collections": [], "use_resource": True}
        if self.num_replicas_in_sync > len(self._devices):
            kwargs["initial_value"] = self._broadcast_initial_value(
                kwargs.get("initial_value"), kwargs.get("name") or "Variable"
            )
        graph = get_default_graph()
        places = self.extended._places() or (self._on_read_devices() if on_read else self._variable_devices())
        copies: list[Any] = []
        for place in places:
            named: Any = nullcontext()
            if copies:
                first = copies[0]
                kwargs |= {"initial_value": first.initialized_value, "name": f"{first.op.name}/replica_{len(copies)}"}
                kwargs |= {"dtype": first.dtype.base}
                named = graph.name_scope(None)
            with graph.colocate_with(None, ignore_existing=True), graph.device(None), graph.device(place), named:
                copies.append(next_creator(**kwargs))
        if not on_read and (len(copies) > 1 or self.num_replicas_in_sync > len(self._devices)):
            graph.is_mirrored = True
        made = DistributedVariable(self, copies, trainable, synchronization, aggregation)
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        graph.add_to_collections(names, made)
        return made

    def _read_aggregated(self, variable: DistributedVariable) -> Tensor:
        """Returns the value of an ON_READ variable in cross-replica context."""
        with self._current():
            values = []
            for copy in variable.values:
                with get_default_graph().device(copy.device):
                    values.append(copy.value())
            aggregation = variable.aggregation
            if aggregation is VariableAggregation.NONE:
                if self.num_replicas_in_sync == 1:
                    return values[0]
                raise ValueError(
                    f"Could not convert {variable!r} to a tensor: it is synchronized ON_READ and has no aggregation. Read it in "
                    "a replica, or create it with aggregation=dt.VariableAggregation.SUM or MEAN"
                )
            found: Tensor = self._aggregated(aggregation, PerReplica(values), variable)
            return found

    def _aggregated(self, aggregation: VariableAggregation, value: Any, variable: Any = None) -> Any:
        """Aggregates the values that the replicas assign to one value."""
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return self._broadcast_first(value.values[0] if isinstance(value, DistributedValues) else value)
        op = ReduceOp.of(aggregation)
        if self.num_replicas_in_sync > len(self._devices) and not isinstance(value, DistributedValues):
            value = PerReplica([value] * len(self._devices))
        return self._reduced(op, value)

    # --- training ---------------------------------------------------------------------------------------------------

    def apply_gradients(
        self, optimizer: Any, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any, name: Any
    ) -> Node:
        """Applies the mean of all replicas' gradients once to every copy of each variable.

        Optimizers call it in a replica, or in cross-replica context, where a gradient may be a `PerReplica`.
        """
        context = get_replica_context()
        pairs = [(g, v) for g, v in grads_and_vars]
        if context is None:
            return self._apply_merged(optimizer, pairs, global_step, name)
        node: Node = context.merge_call(
            lambda strategy, pairs: strategy._apply_merged(optimizer, pairs, global_step, name), (pairs,)
        )
        return node

    def _apply_merged(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]], global_step: Any, name: Any) -> Node:
        known = [(g, v) for g, v in pairs if g is not None]
        if not known:
            raise ValueError(f"No gradients provided for any variable: {[v.name for _, v in pairs]}.")
        reduced = self._mean_gradients([g for g, _ in known], [v for _, v in known])
        variables = [v for _, v in known]
        clipped = self._clipped(optimizer, reduced, variables)
        copies = []
        for gradient, variable in zip(clipped, variables, strict=True):
            count = len(variable.values) if isinstance(variable, DistributedVariable) else 1
            copies += [(select(i, gradient), component(variable, i)) for i in range(count)]
        graph = get_default_graph()
        there = {id(v) for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
        with self.extended._plain_variables():
            update = with_copy_check(self, variables, optimizer._apply_locally(copies, None, name))
        self._group_slots(variables, there)
        with self.extended._plain_variables():
            if global_step is None:
                node: Node = update
                return node
            with graph.control_dependencies([update]):
                change = global_step.assign_add(1, read_value=False)
                counted: Node = change if isinstance(change, Node) else change.op
                return counted

    def _clipped(self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Clips mean gradients as the optimizer requires. If the gradients are per replica, each replica clips its own."""
        if not any(isinstance(g, DistributedValues) for g in gradients):
            return [g for g, _ in optimizer._clipped(list(zip(gradients, variables, strict=True)))]
        columns = []
        for i, device in enumerate(self._devices):
            with get_default_graph().device(device):
                own = [(select(i, g), v) for g, v in zip(gradients, variables, strict=True)]
                columns.append([g for g, _ in optimizer._clipped(own)])
        return [PerReplica(row) for row in zip(*columns, strict=True)]

    def _group_slots(self, variables: Sequence[Any], there: set[int]) -> None:
        """Groups the new slots of a variable's copies into one variable, so that a checkpoint holds them once."""
        primaries = {
            copy.op.name: v.primary.op.name for v in variables if isinstance(v, DistributedVariable) for copy in v.values[1:]
        }  # fmt: skip
        kept = get_default_graph().get_collection_ref(GraphKeys.GLOBAL_VARIABLES)
        slots: dict[str, list[Any]] = {}
        for v in [v for v in kept if id(v) not in there]:
            # The slot's name is that of the scope in which gradients are applied, followed by the variable's name.
            *parent, slot = v.op.name.split("/")
            for i in range(len(parent)):
                if first := primaries.get("/".join(parent[i:])):
                    parent[i:] = [first]
                    break
            slots.setdefault("/".join([*parent, slot]), []).append(v)
        for copies in slots.values():
            if len(copies) > 1:
                joined = DistributedVariable(
                    self, copies, False, VariableSynchronization.AUTO, VariableAggregation.NONE
                )
                kept[:] = [joined if v is copies[0] else v for v in kept if not any(v is c for c in copies[1:])]

    def _mean_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns the mean of each gradient over all replicas: a value on the device of its variable's first copy, or one per replica."""
        rows = [g.values if isinstance(g, DistributedValues) else (g,) for g in gradients]
        places = [component(v, 0).device or self._devices[0] for v in variables]
        here = self._cross_device_ops.to_all(rows, places, self._devices, self._local(ReduceOp.MEAN))
        return self._reduce_across(ReduceOp.MEAN, here)

    # --- checks -----------------------------------------------------------------------------------------------------

    def _require_cross_replica(self) -> None:
        if any(replica is not None for _, replica in contexts()[-1:]):
            raise RuntimeError(
                "Method requires being in cross-replica context, use get_replica_context().merge_call() "
                "(or get_replica_context().all_reduce) instead"
            )

    def _current(self) -> Any:
        """Returns the scope of this strategy, or a null context if a scope is open."""
        return nullcontext() if contexts() else self.scope()

    def __repr__(self) -> str:
        return f"<dt.distribute.{type(self).__name__} of {self.num_replicas_in_sync} replicas>"


class _DefaultStrategy(Strategy):
    """The strategy outside every scope. It has one replica."""


register_default(_DefaultStrategy)


def get_strategy() -> Strategy:
    """Returns the current strategy. Outside every scope, this is the default strategy, which has one replica."""
    found: Strategy = current_strategy()
    return found
