"""Proximal optimizers (Duchi and Singer, 2009): a step down the gradient, then the penalties, which may make weights exactly zero."""

from __future__ import annotations

from .optimizer import Hyperparameter
from .rules import RuleOptimizer, not_negative


class ProximalGradientDescentOptimizer(RuleOptimizer):
    """Gradient descent with penalties of the absolute values and the squares of weights.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        l1_regularization_strength, l2_regularization_strength: penalties; not negative.
        use_locking: see `Optimizer`. name: name of its nodes.
    """

    rule = "ProximalGradientDescent"
    scalars = {"alpha": "lr", "l1": "l1", "l2": "l2"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        l1_regularization_strength: Hyperparameter = 0.0,
        l2_regularization_strength: Hyperparameter = 0.0,
        use_locking: bool = False,
        name: str = "ProximalGradientDescent",
    ) -> None:
        l1, l2 = l1_regularization_strength, l2_regularization_strength
        not_negative(l1_regularization_strength=l1, l2_regularization_strength=l2)
        super().__init__(use_locking, name, lr=learning_rate, l1=l1, l2=l2)


class ProximalAdagradOptimizer(RuleOptimizer):
    """Adagrad with the same penalties. Its slot is `accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        initial_accumulator_value: where the sums of squares start; positive.
        l1_regularization_strength, l2_regularization_strength: penalties; not negative.
        use_locking: see `Optimizer`. name: name of its nodes and slots.
    """

    rule = "ProximalAdagrad"
    slots = {"accum": ("accumulator", "initial")}
    scalars = {"lr": "lr", "l1": "l1", "l2": "l2"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyperparameter = 0.0,
        l2_regularization_strength: Hyperparameter = 0.0,
        use_locking: bool = False,
        name: str = "ProximalAdagrad",
    ) -> None:
        if initial_accumulator_value <= 0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        l1, l2 = l1_regularization_strength, l2_regularization_strength
        not_negative(l1_regularization_strength=l1, l2_regularization_strength=l2)
        super().__init__(use_locking, name, lr=learning_rate, initial=initial_accumulator_value, l1=l1, l2=l2)
