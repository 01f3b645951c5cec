"""`dt.train.experimental`: loss scaling under the names that TensorFlow 1.15 has for it."""

from .optimizers.loss_scale import (
    DynamicLossScale,
    FixedLossScale,
    LossScaleOptimizer as MixedPrecisionLossScaleOptimizer,
)

LossScale = FixedLossScale

__all__ = ["DynamicLossScale", "FixedLossScale", "LossScale", "MixedPrecisionLossScaleOptimizer"]
