"""Adadelta (Zeiler, 2012, arXiv:1212.5701): each weight's step is as large as its steps were, measured by its gradients.

`accum = rho * accum + (1 - rho) * gradient**2; step = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * gradient`
`accum_update = rho * accum_update + (1 - rho) * step**2; var -= learning_rate * step`
"""

from __future__ import annotations

from .optimizer import Hyperparameter
from .rules import RuleOptimizer


class AdadeltaOptimizer(RuleOptimizer):
    """Adadelta. Its slots are `accum` and `accum_update`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one; the paper has 1.0.
        rho: how much of the mean squares is kept; as `learning_rate`. epsilon: added under both roots.
        use_locking: see `Optimizer`. name: name of its nodes and slots.
    """

    rule = "Adadelta"
    slots = {"accum": ("accum", 0), "accum_update": ("accum_update", 0)}
    scalars = {"lr": "lr", "rho": "rho", "epsilon": "epsilon"}

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        rho: Hyperparameter = 0.95,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adadelta",
    ) -> None:
        super().__init__(use_locking, name, lr=learning_rate, rho=rho, epsilon=epsilon)
