"""Adam (Kingma and Ba, 2015) and AdamW. The step is the mean gradient divided by the root mean square, both with bias correction.

The variables `beta1_power` and `beta2_power` hold powers of beta1 and beta2 for the bias correction. They are colocated with the first
variable by name, and are multiplied after all updates. As in TensorFlow, a sparse gradient moves all rows: a row without a gradient
follows its decaying mean gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.build import convert
from ...graph.core.graph import Node, Tensor
from ...graph.ops.array.dynamic_partition import unique
from ...graph.ops.state.scatter_state import scatter
from ...graph.ops.state.training import apply_update
from .optimizer import Hyperparameter, as_type
from .rules import RuleOptimizer


class AdamOptimizer(RuleOptimizer):
    """Adam (Kingma and Ba, 2015). Its slots are `m` and `v`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        beta1: decay of the mean gradient; types as `learning_rate`.
        beta2: decay of the mean square; types as `learning_rate`.
        epsilon: added to the root before dividing ("epsilon hat" of the paper).
        use_locking: see `Optimizer`.
        name: name of its nodes and slots.

    >>> train_op = AdamOptimizer(1e-3).minimize(loss)
    """

    rule = "Adam"
    slots = {"m": ("m", 0), "v": ("v", 0)}
    scalars = {"lr": "learning_rate", "beta1": "beta1", "beta2": "beta2", "epsilon": "epsilon"}

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        use_locking: bool = False,
        name: str = "Adam",
    ) -> None:
        super().__init__(use_locking, name, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon)

    def _get_beta_accumulators(self) -> tuple[Any, Any]:
        return self._get_non_slot_variable("beta1_power"), self._get_non_slot_variable("beta2_power")

    def _create_slots(self, var_list: Sequence[Any]) -> None:
        first = min(var_list, key=lambda v: str(v.name))
        for name in ("beta1", "beta2"):
            setting = self._settings[name]
            self._create_non_slot_variable(setting() if callable(setting) else setting, f"{name}_power", first)
        super()._create_slots(var_list)

    def _scalars(self, variable: Any) -> dict[str, Tensor]:
        powers = [convert(power) for power in self._get_beta_accumulators()]
        beta1_power, beta2_power = (as_type(power, variable.dtype) for power in powers)
        return {"beta1_power": beta1_power, "beta2_power": beta2_power, **super()._scalars(variable)}

    def _finish(self, update_ops: Sequence[Node], name_scope: str) -> Node:
        beta1_power, beta2_power = self._get_beta_accumulators()
        graph = beta1_power.graph
        with graph.control_dependencies(update_ops), graph.colocate_with(beta1_power):
            # Read them after the updates. Concurrent workers would otherwise multiply the values from the start of their steps.
            moved = [
                power.assign(power.read_value() * as_type(self._tensors[name], power.dtype), read_value=False)
                for name, power in (("beta1", beta1_power), ("beta2", beta2_power))
            ]
        return super()._finish([*update_ops, *moved], name_scope)


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): Adam's step and `var -= learning_rate * weight_decay * var`.

    With a sparse gradient, only the rows in it decay, before Adam's step, as in TensorFlow's `DecoupledWeightDecayExtension`; the moments
    update all rows, as in `AdamOptimizer`. `tf.keras.optimizers.AdamW` decays all rows, as Keras does.

    Args:
        weight_decay: number, scalar tensor, or function that returns one. The other arguments are those of `AdamOptimizer`.

    >>> train_op = AdamWOptimizer(1e-3, weight_decay=0.01).minimize(loss)
    """

    rule = "AdamW"
    scalars = {**AdamOptimizer.scalars, "weight_decay": "weight_decay"}

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        weight_decay: Hyperparameter = 0.01,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._settings["weight_decay"] = weight_decay

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        if indices is None:
            return super()._apply(variable, gradient, None)
        scalars = self._scalars(variable)
        kept = 1.0 - scalars["lr"] * scalars.pop("weight_decay")
        with variable.graph.control_dependencies([gradient]):  # the gradient may depend on the old rows
            decayed = scatter("Mul", variable, unique(indices).y, kept)
        with variable.graph.control_dependencies([decayed]):
            return apply_update("Adam", self._variable_and_slots(variable), gradient, scalars, indices=indices)
