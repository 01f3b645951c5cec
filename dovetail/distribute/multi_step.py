"""Several training steps in one step of a session: a loop around what all replicas do (TensorFlow 1's `MultiStepContext`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph.control_flow.cond_while import while_loop
from ..graph.core.build import convert
from ..graph.core.default_graph import get_default_graph
from ..graph.core.graph import Tensor
from ..graph.core.nest import flatten
from ..graph.ops.array.identity_and_placeholders import group
from .context import StrategyProtocol, get_replica_context, get_strategy
from .values import PerReplica


class MultiStepContext:
    """The outputs of the function of `experimental_run_steps_on_iterator`, besides its updates.

    Attributes:
        run_op: the node that runs all steps.
        last_step_outputs: by name, what the last step set: a tensor where it was reduced, else a value per replica.
        non_tensor_outputs: by name, what else it set, when the loop was built.
    """

    def __init__(self) -> None:
        self.run_op: Any = None
        self.last_step_outputs: dict[str, Any] = {}
        self.non_tensor_outputs: dict[str, Any] = {}

    def set_last_step_output(self, name: str, output: Any, reduce_op: Any = None) -> None:
        """Give out a value of the last step.

        Args:
            name: by which it is found. output: the value; in a replica, or with `reduce_op`, that of each replica.
            reduce_op: how the replicas' values become one; None: they do not, which can only be said across replicas.

        Raises:
            ValueError: in a replica without `reduce_op`.
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
        """Output a value that is no tensor; with replicas, a tuple of their values."""
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
    """Build a loop that calls `fn(context, next element)`: see `Extended.experimental_run_steps_on_iterator`."""
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


__all__ = ["MultiStepContext", "run_steps"]
