"""Gradient descent with momentum: `accum = momentum * accum + gradient; var -= learning_rate * accum`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.node import Tensor
from ..graph.ops.training import apply_update
from .optimizer import Optimizer, as_type


class MomentumOptimizer(Optimizer):
    """Gradient descent with momentum. Its slot is `momentum`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        momentum: how much of the last direction is kept; as `learning_rate`.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.
        use_nesterov: look ahead, as Sutskever et al., 2013 describe; the variable then holds the value looked
            ahead to.

    >>> train_op = MomentumOptimizer(0.1, 0.9).minimize(loss)
    """

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate
        self._momentum = momentum
        self._use_nesterov = use_nesterov

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        for v in var_list:
            self._zeros_slot(v, "momentum", self._name)

    def _prepare(self) -> None:
        rate = self._learning_rate() if callable(self._learning_rate) else self._learning_rate
        self._learning_rate_tensor = convert(rate, name="learning_rate")
        momentum = self._momentum() if callable(self._momentum) else self._momentum
        self._momentum_tensor = convert(momentum, name="momentum")

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        return apply_update(
            "Momentum",
            [variable, self.get_slot(variable, "momentum")],
            gradient,
            {
                "lr": as_type(self._learning_rate_tensor, variable.dtype),
                "momentum": as_type(self._momentum_tensor, variable.dtype),
            },
            indices=indices,
            flags={"use_nesterov": self._use_nesterov},
        )
