"""Learning rates that follow the number of updates: `dt.keras.optimizers.schedules`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.math.cast import cast
from ....train.optimizers.learning_rate_decay import cosine_decay, exponential_decay
from ..training.learning_rates import inverse_time_decay, piecewise_constant, polynomial_decay
from .registry import Configured, Registry


class LearningRateSchedule(Configured):
    """Base: an object that gives the learning rate for a number of updates, a scalar tensor."""

    _config: tuple[str, ...] = ()

    def __call__(self, step: Any) -> Tensor:
        """The learning rate at that step."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal one."""
        return {name: getattr(self, name) for name in self._config}


class _Staircase(LearningRateSchedule):
    _config = ("initial_learning_rate", "decay_steps", "decay_rate", "staircase")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate, self.decay_steps = initial_learning_rate, decay_steps
        self.decay_rate, self.staircase = decay_rate, staircase


class ExponentialDecay(_Staircase):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`; with `staircase` the exponent is rounded down."""

    def __call__(self, step: Any) -> Tensor:
        return _tensor(
            exponential_decay(
                self.initial_learning_rate, convert(step), self.decay_steps, self.decay_rate, self.staircase
            )
        )


class InverseTimeDecay(_Staircase):
    """`initial_learning_rate / (1 + decay_rate * step / decay_steps)`; with `staircase` the quotient is rounded down."""

    def __call__(self, step: Any) -> Tensor:
        return _tensor(
            inverse_time_decay(
                self.initial_learning_rate, convert(step), self.decay_steps, self.decay_rate, self.staircase
            )
        )


class PolynomialDecay(LearningRateSchedule):
    """From `initial_learning_rate` to `end_learning_rate` within `decay_steps`, by a power; then there, or (`cycle`) again."""

    _config = ("initial_learning_rate", "decay_steps", "end_learning_rate", "power", "cycle")

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate, self.decay_steps = initial_learning_rate, decay_steps
        self.end_learning_rate, self.power, self.cycle = end_learning_rate, power, cycle

    def __call__(self, step: Any) -> Tensor:
        return _tensor(
            polynomial_decay(
                self.initial_learning_rate,
                convert(step),
                self.decay_steps,
                self.end_learning_rate,
                self.power,
                self.cycle,
            )
        )


class CosineDecay(LearningRateSchedule):
    """Half a cosine from `initial_learning_rate` to its share `alpha` within `decay_steps` (Loshchilov and Hutter, 2017)."""

    _config = ("initial_learning_rate", "decay_steps", "alpha")

    def __init__(
        self, initial_learning_rate: float, decay_steps: int, alpha: float = 0.0, name: str | None = None
    ) -> None:
        self.initial_learning_rate, self.decay_steps, self.alpha = initial_learning_rate, decay_steps, alpha

    def __call__(self, step: Any) -> Tensor:
        return _tensor(cosine_decay(self.initial_learning_rate, convert(step), self.decay_steps, self.alpha))


class PiecewiseConstantDecay(LearningRateSchedule):
    """`values[i]` until the step is above `boundaries[i]`; the last value from then on."""

    _config = ("boundaries", "values")

    def __init__(self, boundaries: Sequence[int], values: Sequence[float], name: str | None = None) -> None:
        if len(values) != len(boundaries) + 1:
            raise ValueError(f"{len(boundaries)} boundaries need {len(boundaries) + 1} values, not {len(values)}")
        self.boundaries, self.values = list(boundaries), list(values)

    def __call__(self, step: Any) -> Tensor:
        return _tensor(piecewise_constant(convert(step), self.boundaries, self.values))


def _tensor(rate: Any) -> Tensor:
    value = convert(rate() if callable(rate) else rate)
    return value if value.dtype.base is float32 else cast(value, float32)


_registry = Registry(
    "learning rate schedule", ExponentialDecay, InverseTimeDecay, PolynomialDecay, CosineDecay, PiecewiseConstantDecay
)
serialize, deserialize = _registry.serialize, _registry.deserialize

__all__ = [
    "CosineDecay",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]
