"""Moving averages of variables: what a model is evaluated with often does better than where training stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.default_graph import get_default_graph
from ..graph.dtypes import FLOATS
from ..graph.graph_keys import GraphKeys
from ..graph.ops.arithmetic import minimum
from ..graph.ops.cast import cast
from ..graph.ops.passing import group
from ..graph.ops.state import assign_sub
from ..graph.variable_lists import moving_average_variables, trainable_variables
from ..graph.variables import Variable
from .slot_creator import create_slot


class ExponentialMovingAverage:
    """Keeps a shadow of each variable: `shadow = decay * shadow + (1 - decay) * variable`, on the variable's device.

    Args:
        decay: a number near 1.
        num_updates: a tensor that counts updates, or None; with it the decay is at most `(1 + num_updates) / (10 + num_updates)`.
        name: end of the shadows' names.

    >>> average = ExponentialMovingAverage(0.99)
    >>> with control_dependencies([train_op]):
    ...     train_op = average.apply()
    >>> saver = Saver(average.variables_to_restore())  # restores the averages into the variables
    """

    def __init__(
        self, decay: Any, num_updates: Any = None, zero_debias: bool = False, name: str = "ExponentialMovingAverage"
    ) -> None:
        if zero_debias:
            raise ValueError("zero_debias is not there: shadows start at the variables' first values")
        self._decay, self._count, self._name = decay, num_updates, name
        self._shadows: dict[Variable, Any] = {}

    @property
    def name(self) -> str:
        """End of the shadows' names."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Any:
        """A node that moves the shadows; they are made here.

        Args:
            var_list: variables; None: all that are trained.

        Raises:
            TypeError: something is no variable of a floating type.
        """
        chosen = trainable_variables() if var_list is None else list(var_list)
        graph = get_default_graph()
        for v in chosen:
            if not isinstance(v, Variable) or v.dtype.base not in FLOATS:
                raise TypeError(f"Only variables of floating types have moving averages, not {v!r}")
            if v not in self._shadows:
                with graph.init_scope():
                    self._shadows[v] = create_slot(v, v.initialized_value(), self._name)
                graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, v)
        moved = []
        with graph.name_scope(self._name) as scope:
            decay = convert(self._decay, name="decay")
            if self._count is not None:
                now = self._count.read_value() if isinstance(self._count, Variable) else convert(self._count)
                count = cast(
                    now, decay.dtype.base
                )  # after what the averages wait for, as the variables' own values are
                decay = minimum(decay, (1.0 + count) / (10.0 + count))
            for v in chosen:
                shadow = self._shadows[v]
                with graph.colocate_with(v):
                    rest = 1.0 - cast(decay, v.dtype.base)
                    moved.append(assign_sub(shadow, (convert(shadow) - v.read_value()) * rest))
            return group(*moved, name=scope)

    def average(self, var: Any) -> Any:
        """The shadow of a variable, or None."""
        return self._shadows.get(var)

    def average_name(self, var: Any) -> str:
        """Name under which a variable's shadow is saved."""
        kept = self._shadows.get(var)
        return str(kept.op.name) if kept is not None else f"{var.op.name}/{self._name}"

    def variables_to_restore(self, moving_avg_variables: Sequence[Any] | None = None) -> dict[str, Any]:
        """Name in a checkpoint -> variable, for a `Saver` that restores averages into the variables; others as they are."""
        averaged = moving_avg_variables
        if averaged is None:
            averaged = list(dict.fromkeys([*trainable_variables(), *moving_average_variables()]))
        graph = get_default_graph()
        shadows = set(self._shadows.values())
        found = {self.average_name(v): v for v in averaged}
        rest = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
        found.update({v.op.name: v for v in rest if v not in set(averaged) and v not in shadows})
        return found


__all__ = ["ExponentialMovingAverage"]
