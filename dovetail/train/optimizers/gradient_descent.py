"""Gradient descent, `var -= learning_rate * gradient`, also with momentum, and FTRL.

Momentum: `accum = momentum * accum + gradient; var -= learning_rate * accum`.

FTRL-proximal (McMahan et al., 2013): for sparse linear models; the penalty of the absolute value makes weights exactly zero.
"""

from __future__ import annotations

from .optimizer import Hyperparameter
from .rules import RuleOptimizer, not_negative


class GradientDescentOptimizer(RuleOptimizer):
    """Gradient descent: `var -= learning_rate * gradient`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        use_locking: see `Optimizer`.
        name: name of its nodes.

    >>> train_op = GradientDescentOptimizer(0.1).minimize(loss)
    """

    rule = "GradientDescent"
    scalars = {"alpha": "learning_rate"}

    def __init__(self, learning_rate: Hyperparameter, use_locking: bool = False, name: str = "GradientDescent") -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate)


class MomentumOptimizer(RuleOptimizer):
    """Gradient descent with momentum: `accum = momentum * accum + gradient; var -= learning_rate * accum`. Its slot is `momentum`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        momentum: decay of the accumulated gradient; types as `learning_rate`.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.
        use_nesterov: Nesterov momentum (Sutskever et al., 2013); the variable then has the look-ahead value.

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


class FtrlOptimizer(RuleOptimizer):
    """FTRL-proximal (McMahan et al., 2013), for sparse linear models. Its slots are `accum` and `linear`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        learning_rate_power: the rate is multiplied by the sum of squares to this power; at most 0.
        initial_accumulator_value: initial value of the sums of squares, at least 0.
        l1_regularization_strength: factor of the L1 penalty, at least 0.
        l2_regularization_strength: factor of the L2 penalty, at least 0.
        l2_shrinkage_regularization_strength: factor of an L2 penalty of the weights' magnitude, at least 0; the other L2 penalty only
            stabilizes.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    Raises:
        ValueError: a setting is below 0, or `learning_rate_power` is above 0.
    """

    rule = "Ftrl"
    slots = {"accum": ("accum", "initial"), "linear": ("linear", 0)}
    scalars = {"lr": "lr", "l1": "l1", "l2": "l2"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyperparameter = 0.0,
        l2_regularization_strength: Hyperparameter = 0.0,
        use_locking: bool = False,
        name: str = "Ftrl",
        accum_name: str | None = None,
        linear_name: str | None = None,
        l2_shrinkage_regularization_strength: Hyperparameter = 0.0,
    ) -> None:
        if learning_rate_power > 0:
            raise ValueError(f"learning_rate_power {learning_rate_power} needs to be negative or zero")
        l1, l2 = l1_regularization_strength, l2_regularization_strength
        not_negative(
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1,
            l2_regularization_strength=l2,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
        )
        super().__init__(
            use_locking, name, lr=learning_rate, initial=initial_accumulator_value, l1=l1, l2=l2,
            l2_shrinkage=l2_shrinkage_regularization_strength, lr_power=learning_rate_power,
        )  # fmt: skip
        self._slot_op_names = {"accum": accum_name or name, "linear": linear_name or name}
        if learning_rate_power != -0.5 or l2_shrinkage_regularization_strength != 0:
            self.rule = "FtrlV2"
            self.scalars = {**self.scalars, "l2_shrinkage": "l2_shrinkage", "lr_power": "lr_power"}
