"""`dt.keras.constraints`: functions that are applied to a weight after each update."""

from __future__ import annotations

from typing import Any

from ....graph.core.graph import Tensor
from ....graph.ops.math.arithmetic import maximum, sqrt, square
from ....graph.ops.math.clip import clip_by_value
from ....graph.ops.math.reduce import reduce_sum
from .backend import epsilon
from .registry import Configured, Registry


class Constraint(Configured):
    """Base of the constraints."""

    def __call__(self, w: Tensor) -> Tensor:
        """What the weight becomes."""
        raise NotImplementedError


class NonNeg(Constraint):
    """Nothing below zero."""

    def __call__(self, w: Tensor) -> Tensor:
        return maximum(w, 0.0)


class MaxNorm(Constraint):
    """No larger L2 norm along some axes than `max_value`."""

    def __init__(self, max_value: float = 2.0, axis: Any = 0) -> None:
        self.max_value, self.axis = max_value, axis

    def __call__(self, w: Tensor) -> Tensor:
        norms = sqrt(reduce_sum(square(w), self.axis, keepdims=True))
        found: Tensor = w * (clip_by_value(norms, 0.0, self.max_value) / (epsilon() + norms))
        return found

    def get_config(self) -> dict[str, Any]:
        """See `Constraint.get_config`."""
        return {"max_value": self.max_value, "axis": self.axis}


class UnitNorm(Constraint):
    """An L2 norm of one along some axes."""

    def __init__(self, axis: Any = 0) -> None:
        self.axis = axis

    def __call__(self, w: Tensor) -> Tensor:
        return w / (epsilon() + sqrt(reduce_sum(square(w), self.axis, keepdims=True)))

    def get_config(self) -> dict[str, Any]:
        """See `Constraint.get_config`."""
        return {"axis": self.axis}


non_neg, max_norm, unit_norm = NonNeg, MaxNorm, UnitNorm
_registry = Registry("constraint", NonNeg, MaxNorm, UnitNorm)
serialize, deserialize, get = _registry.serialize, _registry.deserialize, _registry.get

__all__ = [
    "Constraint",
    "MaxNorm",
    "NonNeg",
    "UnitNorm",
    "deserialize",
    "get",
    "max_norm",
    "non_neg",
    "serialize",
    "unit_norm",
]
