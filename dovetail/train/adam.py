"""Adam (Kingma and Ba, 2015): momentum, scaled by a running root mean square, both corrected for their start
at zero.

`beta1_power` and `beta2_power` are variables that hold the powers of beta1 and beta2 for the corrections.
They stand beside the first variable by name and move on after all updates. Like TensorFlow's, a sparse
gradient moves all rows: those that it does not name decay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.build import convert
from ..graph.node import Node, Tensor
from ..graph.ops.training import apply_update
from .optimizer import Optimizer, as_type


class AdamOptimizer(Optimizer):
    """Adam. Its slots are `m` and `v`.

    Args:
        learning_rate: number, scalar tensor, or function that gives one.
        beta1: decay of the mean gradient; as `learning_rate`.
        beta2: decay of the mean square; as `learning_rate`.
        epsilon: added to the root before dividing ("epsilon hat" of the paper).
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    >>> train_op = AdamOptimizer(1e-3).minimize(loss)
    """

    _rule = "Adam"
    _more: tuple[str, ...] = ()  # settings that only a rule of a subclass has

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name)
        self._settings = {"learning_rate": learning_rate, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        self._tensors: dict[str, Tensor] = {}

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        return self._get_non_slot_variable("beta1_power"), self._get_non_slot_variable("beta2_power")

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        first = min(var_list, key=lambda v: str(v.name))
        for name in ("beta1", "beta2"):
            setting = self._settings[name]
            self._create_non_slot_variable(setting() if callable(setting) else setting, f"{name}_power", first)
        for v in var_list:
            self._zeros_slot(v, "m", self._name)
            self._zeros_slot(v, "v", self._name)

    def _prepare(self) -> None:
        for name, setting in self._settings.items():
            self._tensors[name] = convert(setting() if callable(setting) else setting, name=name)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        dtype = variable.dtype
        beta1_power, beta2_power = self._get_beta_accumulators()
        scalars = {
            "beta1_power": convert(beta1_power),
            "beta2_power": convert(beta2_power),
            "lr": self._tensors["learning_rate"],
            "beta1": self._tensors["beta1"],
            "beta2": self._tensors["beta2"],
            "epsilon": self._tensors["epsilon"],
        }
        places = [variable, self.get_slot(variable, "m"), self.get_slot(variable, "v")]
        scalars.update({name: self._tensors[name] for name in self._more})
        scalars = {name: as_type(value, dtype) for name, value in scalars.items()}
        return apply_update(self._rule, places, gradient, scalars, indices=indices)

    def _finish(self, update_ops: Sequence[Node], name_scope: str) -> Node:
        beta1_power, beta2_power = self._get_beta_accumulators()
        graph = beta1_power.graph
        with graph.control_dependencies(update_ops), graph.colocate_with(beta1_power):
            moved = [
                power.assign(convert(power) * as_type(self._tensors[name], power.dtype), read_value=False)
                for name, power in (("beta1", beta1_power), ("beta2", beta2_power))
            ]
        return super()._finish([*update_ops, *moved], name_scope)


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): `var -= learning_rate * weight_decay * var` beside Adam's step.

    Args:
        weight_decay: number, scalar tensor, or function that gives one. The other arguments are Adam's.

    >>> train_op = AdamWOptimizer(1e-3, weight_decay=0.01).minimize(loss)
    """

    _rule = "AdamW"
    _more = ("weight_decay",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        weight_decay: Any = 0.01,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._settings["weight_decay"] = weight_decay
