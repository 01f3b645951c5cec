"""Optimizers that only programs of TensorFlow 1 use: Adagrad by dual averaging, and proximal optimizers.

Proximal optimizers (Duchi and Singer, 2009): a step down the gradient, then the penalties, which may make weights exactly zero.
"""

from __future__ import annotations

from typing import Any

from ....graph.ops.array.identity_and_placeholders import identity
from ....train.optimizers.optimizer import Hyperparameter
from ....train.optimizers.rules import RuleOptimizer, not_negative


class AdagradDAOptimizer(RuleOptimizer):
    """Adagrad by dual averaging, for sparse linear models: each step computes the weights from the sums of all gradients.

    Its slots are `gradient_accumulator` and `gradient_squared_accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        global_step: the variable that counts updates.
        initial_gradient_squared_accumulator_value: initial value of the sums of squares, above 0.
        l1_regularization_strength: factor of the L1 penalty, at least 0.
        l2_regularization_strength: factor of the L2 penalty, at least 0.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    Raises:
        ValueError: the initial value of the sums is not positive, or a penalty is negative.

    >>> AdagradDAOptimizer(0.1, step, l1_regularization_strength=0.01).minimize(loss, global_step=step)
    """

    rule = "DualAveraging"
    slots = {
        "gradient_accumulator": ("gradient_accumulator", 0),
        "gradient_squared_accumulator": ("gradient_squared_accumulator", "initial"),
    }
    scalars = {"lr": "learning_rate", "l1": "l1", "l2": "l2", "global_step": "global_step"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        global_step: Any,
        initial_gradient_squared_accumulator_value: float = 0.1,
        l1_regularization_strength: Hyperparameter = 0.0,
        l2_regularization_strength: Hyperparameter = 0.0,
        use_locking: bool = False,
        name: str = "AdagradDA",
    ) -> None:
        initial, l1, l2 = (
            initial_gradient_squared_accumulator_value,
            l1_regularization_strength,
            l2_regularization_strength,
        )
        if initial <= 0.0:
            raise ValueError(f"initial_gradient_squared_accumulator_value must be positive: {initial}")
        not_negative(l1_regularization_strength=l1, l2_regularization_strength=l2)
        super().__init__(
            use_locking, name, learning_rate=learning_rate, initial=initial, l1=l1, l2=l2,
            global_step=lambda: identity(global_step) + 1,
        )  # fmt: skip


class ProximalGradientDescentOptimizer(RuleOptimizer):
    """Gradient descent with L1 and L2 penalties of the variables (Duchi and Singer, 2009).

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        l1_regularization_strength: factor of the L1 penalty, at least 0.
        l2_regularization_strength: factor of the L2 penalty, at least 0.
        use_locking: see `Optimizer`.
        name: name of its nodes.
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
    """Adagrad with L1 and L2 penalties of the variables. Its slot is `accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        initial_accumulator_value: initial value of the sums of squares, above 0.
        l1_regularization_strength: factor of the L1 penalty, at least 0.
        l2_regularization_strength: factor of the L2 penalty, at least 0.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.
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
