"""`dt.keras.regularizers`: functions of a weight (or an output) whose result joins the loss."""

from __future__ import annotations

from typing import Any

from ....graph.core.build import convert
from ....graph.core.graph import Tensor
from ....graph.ops.math.arithmetic import absolute, square
from ....graph.ops.math.reduce import reduce_sum
from .registry import Configured, Registry


class Regularizer(Configured):
    """Base of the regularizers."""

    def __call__(self, x: Any) -> Tensor:
        """A scalar to add to the loss."""
        raise NotImplementedError


class L1L2(Regularizer):
    """`l1 * sum(|x|) + l2 * sum(x ** 2)`."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1, self.l2 = float(l1), float(l2)

    def __call__(self, x: Any) -> Tensor:
        value = convert(x)
        total = convert(0.0, value.dtype.base)
        if self.l1:
            total = total + self.l1 * reduce_sum(absolute(value))
        if self.l2:
            total = total + self.l2 * reduce_sum(square(value))
        return total

    def get_config(self) -> dict[str, Any]:
        """See `Regularizer.get_config`."""
        return {"l1": self.l1, "l2": self.l2}


class L1(L1L2):
    """`l1 * sum(|x|)`."""

    def __init__(self, l1: float = 0.01) -> None:
        super().__init__(l1=l1)

    def get_config(self) -> dict[str, Any]:
        """See `Regularizer.get_config`."""
        return {"l1": self.l1}


class L2(L1L2):
    """`l2 * sum(x ** 2)`."""

    def __init__(self, l2: float = 0.01) -> None:
        super().__init__(l2=l2)

    def get_config(self) -> dict[str, Any]:
        """See `Regularizer.get_config`."""
        return {"l2": self.l2}


def l1_l2(l1: float = 0.01, l2: float = 0.01) -> L1L2:
    """`l1 * sum(|x|) + l2 * sum(x ** 2)`."""
    return L1L2(l1, l2)


l1, l2 = L1, L2
_registry = Registry("regularizer", L1, L2, L1L2)
serialize, deserialize, get = _registry.serialize, _registry.deserialize, _registry.get

__all__ = ["L1", "L1L2", "L2", "Regularizer", "deserialize", "get", "l1", "l1_l2", "l2", "serialize"]
