"""Adagrad (Duchi, Hazan and Singer, 2011): each weight's rate falls with the gradients that it has seen.

`accum += gradient**2; var -= learning_rate * gradient / sqrt(accum)`
"""

from __future__ import annotations

from typing import Any

from .rules import RuleOptimizer


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
        learning_rate: Any,
        initial_accumulator_value: float = 0.1,
        use_locking: bool = False,
        name: str = "Adagrad",
    ) -> None:
        if initial_accumulator_value <= 0.0:
            raise ValueError(f"initial_accumulator_value must be positive: {initial_accumulator_value}")
        super().__init__(use_locking, name, learning_rate=learning_rate, initial=initial_accumulator_value)
