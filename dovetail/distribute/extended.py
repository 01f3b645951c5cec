"""`strategy.extended`: methods of a strategy for authors of training loops and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from ..graph.control_flow.cond_while import while_loop
from ..graph.core.build import convert
from ..graph.core.default_graph import get_default_graph
from ..graph.core.graph import Tensor
from ..graph.core.nest import flatten
from ..graph.ops.array.identity_and_placeholders import group
from ..graph.variables.variable import without_creators
from .context import StrategyProtocol, get_replica_context, get_strategy
from .reduction import ReduceOp, copy_to_each, device_of
from .values import DistributedVariable, PerReplica, select


class Extended:
    """Methods of a strategy for authors of training loops and optimizers (TensorFlow's `StrategyExtended`).

    Attributes:
        experimental_enable_get_next_as_optional: whether replicas may get empty batches. Batch normalization does not update its averages
            for an empty batch.
    """

    def __init__(self, strategy: StrategyProtocol) -> None:
        self._strategy = strategy
        self.experimental_enable_get_next_as_optional = False
        self._beside: list[tuple[str, ...]] = []  # the devices of open `colocate_vars_with` blocks, innermost last

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices of this process's replicas."""
        return self._strategy._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices of a variable's copies. A device function is represented by the name of its class."""
        return tuple(d if isinstance(d, str) else type(d).__name__ for d in self._strategy._variable_devices())

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process initializes the variables."""
        return getattr(self._strategy, "_is_chief", True)

    should_checkpoint = should_save_summary = experimental_should_init

    @property
    def experimental_between_graph(self) -> bool:
        """Whether each worker builds its own graph."""
        return getattr(self._strategy, "_own", None) is not None

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """`Strategy.run`."""
        return self._strategy.run(fn, args, kwargs)

    def experimental_run_steps_on_iterator(
        self, fn: Callable[..., Any], iterator: Any, iterations: Any = 1, initial_loop_values: Any = None
    ) -> MultiStepContext:
        """Build a loop that runs several training steps in one step of a session.

        Args:
            fn: function of a `MultiStepContext` and an element, called across replicas; it usually calls `call_for_each_replica`. The
                nodes that it returns run in each iteration.
            iterator: returns the elements, one for each iteration.
            iterations: number of iterations.
            initial_loop_values: initial values of the outputs, in the structure of the outputs of the last step.

        Returns:
            The context, whose `run_op` runs the loop.
        """
        self._strategy._require_cross_replica()
        with self._strategy._current():
            return run_steps(self._strategy, fn, iterator, iterations, initial_loop_values)

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any = None) -> Any:
        """Reduce a value over all replicas.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, or its name.
            value: a `PerReplica`, or a value that is the same for all replicas.
            destinations: a variable, a tensor or a device, whose device receives the result. If there are several devices, as for mirrored
                variables, the result is a `PerReplica` with a value on each device.
            options: accepted without effect.
        """
        strategy = self._strategy
        strategy._require_cross_replica()
        with strategy._current():
            return copy_to_each(strategy._reduced(ReduceOp.of(reduce_op), value, device_of(destinations)), destinations)

    def batch_reduce_to(
        self, reduce_op: Any, value_destination_pairs: Sequence[tuple[Any, Any]], options: Any = None
    ) -> list[Any]:
        """Like `reduce_to`, for several pairs of value and destination."""
        return [self.reduce_to(reduce_op, value, destination) for value, destination in value_destination_pairs]

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(copy, *args, **kwargs)` for each copy of a variable, on its device.

        Args:
            var: the variable.
            fn: function of a copy.
            args: further arguments. Of a `PerReplica`, each call gets the value of its replica.
            kwargs: keyword arguments of the same kinds.
            group: return one node for all calls. If False, return the results of the calls.
        """
        self._strategy._require_cross_replica()
        copies = var.values if isinstance(var, DistributedVariable) else (var,)
        graph, results = get_default_graph(), []
        for i, copy in enumerate(copies):
            name = "update" if not i else f"update_{i}"
            with graph.colocate_with(copy), graph.name_scope(name), self._plain_variables():
                results.append(fn(copy, *select(i, list(args)), **select(i, dict(kwargs or {}))))
        return self._strategy.group(PerReplica(results)) if group else PerReplica(results)

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:  # fmt: skip
        """Call `fn(*args, **kwargs)` on the device of `colocate_with`."""
        device = device_of(colocate_with)
        with get_default_graph().device(device) if device else nullcontext():
            result = fn(*args, **dict(kwargs or {}))
        return self._strategy.group(result) if group else result

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """A context whose variables get the devices of `colocate_with_variable`, a variable of this strategy.

        Raises:
            ValueError: the argument is not a variable of this strategy.
        """
        found = colocate_with_variable
        if not isinstance(found, DistributedVariable) or found.distribute_strategy is not self._strategy:
            raise ValueError(
                "`colocate_vars_with` must only be passed a variable created in this tf.distribute.Strategy.scope(), not "
                f"{found!r}"
            )
        self._beside.append(tuple(v.device for v in found.values))
        try:
            yield
        finally:
            self._beside.pop()

    def value_container(self, value: Any) -> Any:
        """Returns the variable of which `value` is a copy, or `value` if there is none."""
        for name in ("variables", "local_variables"):
            for v in get_default_graph().get_collection(name):
                if isinstance(v, DistributedVariable) and any(value is copy for copy in v.values):
                    return v
        return value

    def read_var(self, v: Any) -> Any:
        """Returns a variable's value."""
        return v.value() if hasattr(v, "value") else v

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Returns the value itself: it is sent to each device that uses it."""
        return tensor

    # --- for the strategy -------------------------------------------------------------------------------------------

    def _places(self) -> tuple[str, ...] | None:
        """Returns the devices of the innermost `colocate_vars_with` block, or None."""
        return self._beside[-1] if self._beside else None

    @contextmanager
    def _plain_variables(self) -> Iterator[None]:
        """A block in which the strategy does not mirror variables, for example for the slots of a copy."""
        with without_creators(lambda creator: creator == self._strategy._make):
            yield


class MultiStepContext:
    """Collects the outputs of the function in `experimental_run_steps_on_iterator`.

    Attributes:
        run_op: the node that runs all steps.
        last_step_outputs: name -> value of the last step. It is a tensor if it was reduced, or else a value per replica.
        non_tensor_outputs: name -> value that is not a tensor, set when the loop was built.
    """

    def __init__(self) -> None:
        self.run_op: Any = None
        self.last_step_outputs: dict[str, Any] = {}
        self.non_tensor_outputs: dict[str, Any] = {}

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Output a value of the last step.

        Args:
            name: key in `last_step_outputs`.
            output: the value. In a replica, or with `reduce_op`, it is the value of each replica.
            reduce_op: how the replicas' values are reduced. None: they are not reduced, which is allowed only in cross-replica context.

        Raises:
            ValueError: it is called in a replica without `reduce_op`.
        """
        replica = get_replica_context()
        if replica is None:
            self._set(name, output, reduce_op)
        elif reduce_op is None:
            raise ValueError(
                f"set_last_step_output({name!r}) in a replica needs reduce_op=dt.distribute.ReduceOp.SUM or MEAN"
            )
        else:
            replica.merge_call(lambda strategy, value: self._set(name, value, reduce_op), (output,))

    def _set(self, name: str, output: Any, reduce_op: Any) -> None:
        self.last_step_outputs[name] = output if reduce_op is None else get_strategy().reduce(reduce_op, output)

    def set_non_tensor_output(self, name: str, output: Any) -> None:
        """Output a value that is not a tensor. In replicas, the output is the tuple of their values."""
        replica = get_replica_context()
        if replica is None:
            self.non_tensor_outputs[name] = output
            return

        def across(strategy: StrategyProtocol, value: Any) -> None:
            self.non_tensor_outputs[name] = strategy.experimental_local_results(value)

        replica.merge_call(across, (output,))


def run_steps(
    strategy: StrategyProtocol, fn: Callable[..., Any], iterator: Any, iterations: Any, initial_loop_values: Any
) -> MultiStepContext:
    """Implements `Extended.experimental_run_steps_on_iterator`."""
    context, shapes = MultiStepContext(), dict[str, int]()

    def body(i: Tensor, *before: Tensor) -> list[Tensor]:
        done = fn(context, iterator.get_next())
        outputs: list[Tensor] = []
        for name in sorted(context.last_step_outputs):
            values = [convert(v) for v in strategy.experimental_local_results(context.last_step_outputs[name])]
            shapes[name] = len(values)
            outputs += values
        after = [x for x in flatten(strategy.experimental_local_results(done)) if x is not None]
        with get_default_graph().control_dependencies(after):
            return [i + 1, *outputs]

    first = [convert(v) for v in flatten(initial_loop_values or {})]
    count, *found = while_loop(
        lambda i, *values: i < iterations, body, [convert(0), *first], parallel_iterations=1, back_prop=False,
        return_same_structure=True,
    )  # fmt: skip
    context.run_op = group(count, *found)
    for name in sorted(context.last_step_outputs):
        values, found = found[: shapes[name]], found[shapes[name] :]
        context.last_step_outputs[name] = values[0] if len(values) == 1 else PerReplica(values)
    return context
