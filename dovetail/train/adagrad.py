"""Adagrad (Duchi, Hazan and Singer, 2011): each weight's rate falls with the gradients that it has seen.

`accum += gradient**2; var -= learning_rate * gradient / sqrt(accum)`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.node import Tensor
from ..graph.ops.training import apply_update
from .optimizer import Optimizer, as_type


class AdagradOptimizer(Optimizer):
    """Adagrad. Its slot is `accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        initial_accumulator_value: where the sums of squares start; positive.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    Raises:
        ValueError: the initial value is not positive.
    """

    def __init__(
        self,
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._initial = initial_accumulator_value

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        from ..graph.initializers import constant_initializer

        for v in var_list:
            start, dtype = constant_initializer(self._initial), v.dtype.base
            self._get_or_make_slot_with_initializer(v, start, v.get_shape(), dtype, "accumulator", self._name)

    def _prepare(self) -> None:
        rate = self._learning_rate() if callable(self._learning_rate) else self._learning_rate
        self._learning_rate_tensor = convert(rate, name="learning_rate")

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        rate = as_type(self._learning_rate_tensor, variable.dtype)
        places = [variable, self.get_slot(variable, "accumulator")]
        return apply_update("Adagrad", places, gradient, {"lr": rate}, indices=indices)
