"""Gradient descent, `var -= learning_rate * gradient`, and with momentum:

`accum = momentum * accum + gradient; var -= learning_rate * accum`
"""

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


class MomentumOptimizer(RuleOptimizer):
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

    rule = "Momentum"
    slots = {"accum": ("momentum", 0)}
    scalars = {"lr": "learning_rate", "momentum": "momentum"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        momentum: Hyperparameter,
        use_locking: bool = False,
        name: str = "Momentum",
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate, momentum=momentum)
        self.flags = {"use_nesterov": use_nesterov}
