"""Optimizers under the names that `tf.contrib.opt` had for them; they live in `dt.train`."""

from __future__ import annotations

from typing import Any

from .... import train
from ....train import LARSOptimizer


class AdamWOptimizer(train.AdamWOptimizer):
    """`dt.train.AdamWOptimizer` with its arguments in TensorFlow's order: how fast weights decay comes first.

    >>> train_op = dt.contrib.opt.AdamWOptimizer(0.01, learning_rate=1e-3).minimize(loss)
    """

    def __init__(
        self,
        weight_decay: Any,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, weight_decay, use_locking, name)


__all__ = ["AdamWOptimizer", "LARSOptimizer"]
