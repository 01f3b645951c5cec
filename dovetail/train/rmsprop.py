"""RMSProp (Tieleman and Hinton, 2012): the gradient divided by a running root mean square of itself.

`ms = decay * ms + (1 - decay) * gradient**2; mom = momentum * mom + learning_rate * gradient / sqrt(ms +
epsilon); var -= mom`; the centred form subtracts the square of the running mean under the root (Graves, 2013,
arXiv:1308.0850).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.node import Tensor
from ..graph.ops.training import apply_update
from .optimizer import Optimizer, as_type


class RMSPropOptimizer(Optimizer):
    """RMSProp. Its slots are `rms` (which starts at one), `momentum`, and `mg` when centred.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        decay: how much of the mean square is kept; as `learning_rate`.
        momentum: how much of the last step is kept; as `learning_rate`.
        epsilon: added under the root.
        use_locking: see `Optimizer`.
        centered: divide by the running standard deviation instead.
        name: name of its nodes and slots.
    """

    def __init__(
        self,
        learning_rate: Any,
        decay: Any = 0.9,
        momentum: Any = 0.0,
        epsilon: Any = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        name: str = "RMSProp",
    ) -> None:
        super().__init__(use_locking, name)
        self._settings = {
            "learning_rate": learning_rate,
            "decay": decay,
            "momentum": momentum,
            "epsilon": epsilon,
        }
        self._tensors: dict[str, Tensor] = {}
        self._centered = centered

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        from ..graph.initializers import ones_initializer

        for v in var_list:
            self._get_or_make_slot_with_initializer(
                v, ones_initializer(), v.get_shape(), v.dtype.base, "rms", self._name
            )
            if self._centered:
                self._zeros_slot(v, "mg", self._name)
            self._zeros_slot(v, "momentum", self._name)

    def _prepare(self) -> None:
        for name, setting in self._settings.items():
            self._tensors[name] = convert(setting() if callable(setting) else setting, name=name)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        names = {"lr": "learning_rate", "rho": "decay", "momentum": "momentum", "epsilon": "epsilon"}
        scalars = {scalar: as_type(self._tensors[name], variable.dtype) for scalar, name in names.items()}
        slots = ("mg", "rms", "momentum") if self._centered else ("rms", "momentum")
        places = [variable, *(self.get_slot(variable, slot) for slot in slots)]
        rule = "CenteredRMSProp" if self._centered else "RMSProp"
        return apply_update(rule, places, gradient, scalars, indices=indices)
