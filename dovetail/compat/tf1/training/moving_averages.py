"""Exponential moving averages of variables and other tensors. Models often predict better with averaged variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....distribute.context import get_replica_context, get_strategy
from ....graph.core.build import convert
from ....graph.core.default_graph import GraphKeys, control_dependencies, get_default_graph, name_scope
from ....graph.core.dtypes import FLOATS
from ....graph.core.graph import Tensor
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.ops.math.arithmetic import minimum, power
from ....graph.ops.math.cast import cast
from ....graph.ops.state.variables import assign, assign_sub
from ....graph.variables.initializers import zeros_initializer
from ....graph.variables.ref_and_resource import ResourceVariable
from ....graph.variables.scope import get_variable, get_variable_scope, variable_scope
from ....graph.variables.store import moving_average_variables, trainable_variables
from ....graph.variables.variable import Variable, VariableAggregation
from ....train.optimizers.slot_creator import create_slot, create_zeros_slot


class ExponentialMovingAverage:
    """Maintains a shadow variable of each variable or tensor: `shadow = decay * shadow + (1 - decay) * value`.

    The shadow of a variable is on its device and starts with its initial value; that of a tensor starts at zero.

    Args:
        decay: a number near 1, such as 0.999.
        num_updates: a tensor that counts updates; it limits the decay to `(1 + num_updates) / (10 + num_updates)`. None: no limit.
        zero_debias: correct the bias of shadows of tensors, which start at zero: see `assign_moving_average`.
        name: suffix of the shadows' names.

    >>> average = ExponentialMovingAverage(0.99)
    >>> with control_dependencies([train_op]):
    ...     train_op = average.apply()
    >>> saver = Saver(average.variables_to_restore())  # restores the averages into the variables
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        self._decay, self._count, self._name = decay, num_updates, name
        self._zero_debias = zero_debias
        self._shadows: dict[Variable | Tensor, Any] = {}

    @property
    def name(self) -> str:
        """Suffix of the shadows' names."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Any:
        """A node that updates the shadows, which this method creates.

        Args:
            var_list: variables and tensors; None: all trainable variables.

        Raises:
            TypeError: an element is no variable or tensor of a floating type.
        """
        chosen = trainable_variables() if var_list is None else list(var_list)
        graph = get_default_graph()
        for v in chosen:
            if not isinstance(v, (Variable, Tensor)) or v.dtype.base not in FLOATS:
                raise TypeError(f"Only variables and tensors of floating types have moving averages, not {v!r}")
            if v in self._shadows:
                continue
            with graph.init_scope():
                mean = VariableAggregation.MEAN  # replicas move the shadow together
                if isinstance(v, Variable):
                    self._shadows[v] = create_slot(v, v.initialized_value(), self._name, aggregation=mean)
                    graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, v)
                else:
                    self._shadows[v] = self._shadow_of_tensor(v, mean)
        moved = []
        with graph.name_scope(self._name) as scope:
            decay = convert(self._decay, name="decay")
            if self._count is not None:
                now = self._count.read_value() if isinstance(self._count, Variable) else convert(self._count)
                # After what the averages wait for, as the variables' own values are.
                count = cast(now, decay.dtype.base)
                decay = minimum(decay, (1.0 + count) / (10.0 + count))
            for v in chosen:
                shadow = self._shadows[v]
                if isinstance(v, Tensor):
                    moved.append(assign_moving_average(shadow, v, decay, self._zero_debias))
                    continue
                with graph.colocate_with(v):
                    rest = 1.0 - cast(decay, v.dtype.base)
                    moved.append(assign_sub(shadow, (convert(shadow) - v.read_value()) * rest))
            return group(*moved, name=scope)

    def _shadow_of_tensor(self, tensor: Tensor, aggregation: VariableAggregation) -> Any:
        """A shadow that all replicas share: the names of their tensors differ, so they meet to make it, by the first one's."""

        def make(strategy: Any, tensors: Any) -> Any:
            first = strategy.experimental_local_results(tensors)[0]
            return create_zeros_slot(first, self._name, colocate_with_primary=False, aggregation=aggregation)

        return _made_together(make, tensor)

    def average(self, var: Any) -> Any:
        """The shadow of a variable or tensor, or None."""
        return self._shadows.get(var)

    def average_name(self, var: Any) -> str:
        """The name of a variable's shadow in checkpoints, also if the shadow does not exist."""
        kept = self._shadows.get(var)
        name = f"{var.op.name}/{self._name}"
        return str(kept.op.name) if kept is not None else get_default_graph().unique_name(name, mark_as_used=False)

    def variables_to_restore(self, moving_avg_variables: Sequence[Any] | None = None) -> dict[str, Any]:
        """Name in a checkpoint -> variable, for a `Saver` that restores shadows into their variables, and other variables as usual."""
        averaged = moving_avg_variables
        if averaged is None:
            averaged = list(dict.fromkeys([*trainable_variables(), *moving_average_variables()]))
        graph = get_default_graph()
        shadows = {shadow for v, shadow in self._shadows.items() if isinstance(v, Variable)}
        found = {self.average_name(v): v for v in averaged}
        rest = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        found.update({v.op.name: v for v in rest if v not in set(averaged) and v not in shadows})
        return found


def assign_moving_average(
    variable: Any, value: Any, decay: Any, zero_debias: bool = True, name: str | None = None
) -> Any:
    """Update a moving average: `variable = decay * variable + (1 - decay) * value`.

    Args:
        variable: the average, of a floating type.
        value: a tensor of the same shape.
        decay: a number or scalar tensor.
        zero_debias: correct the bias of a variable that starts at zero: the average is divided by `1 - decay ** updates`. Two slots
            of the variable keep the undivided average and the number of updates: `biased` and `local_step`.
        name: name of the node.

    Returns:
        The new value of the variable, or the reference variable after the update.

    >>> update = assign_moving_average(moving_mean, batch_mean, 0.99, zero_debias=False)
    """
    with name_scope(name or "AssignMovingAvg") as scope:
        rest = cast(convert(1.0 - decay, name="decay"), variable.dtype.base)
        if not zero_debias:
            return assign_sub(variable, (convert(variable) - value) * rest, name=scope)
        biased, count = _made_together(lambda _, v: _debiasing(v), variable)
        with control_dependencies([assign_sub(biased, (convert(biased) - value) * rest), count.assign_add(1.0)]):
            factor = 1.0 - power(1.0 - rest, count.read_value())
            return assign(variable, biased.read_value() / factor, name=scope)


def _made_together(make: Callable[[Any, Any], Any], value: Any) -> Any:
    """What a function of the strategy and a value makes: in replicas, once for all of them."""
    context = get_replica_context()
    return make(get_strategy(), value) if context is None else context.merge_call(make, (value,))


def _debiasing(variable: Any) -> tuple[Any, Any]:
    """The average from zero, and the number of updates, of a variable that forgets that it started there."""
    is_resource = isinstance(variable, ResourceVariable)
    graph = variable.graph
    with variable_scope(variable.op.name) as scope, graph.init_scope(), graph.colocate_with(variable):

        def made(name: str, shape: Any) -> Any:
            if not scope.reuse:
                taken = {v.op.name for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
                base, number = name, 0
                while f"{get_variable_scope().name}/{name}" in taken:
                    number += 1
                    name = f"{base}_{number}"
            return get_variable(
                name, shape, variable.dtype.base, zeros_initializer(), trainable=False, use_resource=is_resource,
                aggregation=VariableAggregation.MEAN,
            )  # fmt: skip

        return made("biased", variable.get_shape()), made("local_step", [])
