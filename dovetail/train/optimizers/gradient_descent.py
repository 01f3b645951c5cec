"""Plain gradient descent: `var -= learning_rate * gradient`."""

from __future__ import annotations

from .optimizer import Hyperparameter
from .rules import RuleOptimizer


class GradientDescentOptimizer(RuleOptimizer):
    """Gradient descent.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        use_locking: see `Optimizer`.
        name: name of its nodes.

    >>> train_op = GradientDescentOptimizer(0.1).minimize(loss)
    """

    rule = "GradientDescent"
    scalars = {"alpha": "learning_rate"}

    def __init__(self, learning_rate: Hyperparameter, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate)
