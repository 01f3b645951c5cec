"""Plain gradient descent: `var -= learning_rate * gradient`."""

from __future__ import annotations

from typing import Any

from ..graph.build import convert
from ..graph.node import Tensor
from ..graph.ops.training import apply_update
from .optimizer import Optimizer, as_type


class GradientDescentOptimizer(Optimizer):
    """Gradient descent.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        use_locking: see `Optimizer`.
        name: name of its nodes.

    >>> train_op = GradientDescentOptimizer(0.1).minimize(loss)
    """

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name)
        self._learning_rate = learning_rate

    def _prepare(self) -> None:
        rate = self._learning_rate() if callable(self._learning_rate) else self._learning_rate
        self._learning_rate_tensor = convert(rate, name="learning_rate")

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        rate = as_type(self._learning_rate_tensor, variable.dtype)
        return apply_update("GradientDescent", [variable], gradient, {"alpha": rate}, indices=indices)
