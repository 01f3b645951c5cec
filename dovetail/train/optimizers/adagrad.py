"""Adagrad (Duchi, Hazan and Singer, 2011): each weight's rate falls with the gradients that it has seen.

`accum += gradient**2; var -= learning_rate * gradient / sqrt(accum)`
"""

from __future__ import annotations

from typing import Any

from ...graph.ops.array.identity_and_placeholders import identity
from .optimizer import Hyperparameter
from .rules import RuleOptimizer, not_negative


class AdagradOptimizer(RuleOptimizer):
    """Adagrad. Its slot is `accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        initial_accumulator_value: where the sums of squares start; positive.
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    Raises:
        ValueError: the initial value is not positive.
    """

    rule = "Adagrad"
    slots = {"accum": ("accumulator", "initial")}
    scalars = {"lr": "learning_rate"}

    def __init__(
        self,
        learning_rate: Hyperparameter,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(use_locking, name, learning_rate=learning_rate, initial=initial_accumulator_value)


class AdagradDAOptimizer(RuleOptimizer):
    """Adagrad by dual averaging, for sparse linear models: weights follow from the sums of all gradients; each step penalises them again.

    Its slots are `gradient_accumulator` and `gradient_squared_accumulator`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        global_step: the global step: how many updates there were.
        initial_gradient_squared_accumulator_value: where the sums of squares start; positive.
        l1_regularization_strength, l2_regularization_strength: penalties; not negative.
        use_locking: see `Optimizer`. name: name of its nodes and slots.

    Raises:
        ValueError: the initial value is not positive, or a penalty is negative.

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
