"""Optimizers for large batches, which scale each variable's step to the variable's norm.

LARS: You, Gitman and Ginsburg, 2017 (arXiv:1708.03888). LAMB: You et al., 2020 (arXiv:1904.00962).
The norms are computed on the variable's device. A sparse gradient is converted to a dense one, because its norm needs all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.build import convert
from ...graph.core.graph import Node, Tensor
from ...graph.ops.math.arithmetic import sqrt
from ...graph.ops.math.compare import greater, where_v2
from ...graph.ops.math.statistics import norm
from ...graph.ops.state.training import apply_update
from ...graph.tensors.indexed_slices import IndexedSlices
from .adam import AdamOptimizer
from .gradient_descent import MomentumOptimizer
from .optimizer import Hyperparameter


def _ratio(above: Tensor, below: Tensor, scale: Any) -> Tensor:
    """Returns `scale * above / below`, or 1 if either is zero."""
    whole = greater(above * below, 0.0)
    ratio: Tensor = where_v2(whole, scale * above / where_v2(whole, below, 1.0), 1.0)
    return ratio


class LARSOptimizer(MomentumOptimizer):
    """Momentum with layer-wise rates (You et al., 2017): `learning_rate * eeta * |var| / (|gradient| + weight_decay * |var| + epsilon)`.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        momentum: as in `MomentumOptimizer`.
        weight_decay: factor of the variable that is added to its gradient.
        eeta: the trust coefficient.
        epsilon: added to the denominator.
        name: name of its nodes and slots.
        skip_list: variables whose names contain one of these strings, such as ["bias"], get plain momentum.
        use_nesterov: as in `MomentumOptimizer`.
    """

    def __init__(
        self,
        learning_rate: Hyperparameter,
        momentum: Hyperparameter = 0.9,
        weight_decay: float = 0.0001,
        eeta: float = 0.001,
        epsilon: float = 0.0,
        name: str = "LARSOptimizer",
        skip_list: Sequence[str] | None = None,
        use_nesterov: bool = False,
    ) -> None:
        if momentum is not None and not callable(momentum) and isinstance(momentum, (int, float)) and momentum < 0:
            raise ValueError(f"momentum should be positive: {momentum}")
        super().__init__(learning_rate, momentum, False, name, use_nesterov)
        self._decay, self._eeta, self._epsilon = weight_decay, eeta, epsilon
        self._skip = tuple(skip_list or ())

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._apply(var, convert(grad), None)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Any:
        scalars = self._scalars(variable)
        if not any(word in variable.name for word in self._skip):
            value = convert(variable)
            weight_norm, gradient_norm = norm(value), norm(gradient)
            denominator = gradient_norm + self._decay * weight_norm + self._epsilon
            scalars["lr"] *= where_v2(greater(gradient_norm, 0.0), _ratio(weight_norm, denominator, self._eeta), 1.0)
            gradient = gradient + self._decay * value
        return apply_update(self.rule, self._variable_and_slots(variable), gradient, scalars, flags=dict(self.flags))


class LAMBOptimizer(AdamOptimizer):
    """Adam with weight decay, whose step for each variable is scaled to the variable's norm (You et al., 2020). Slots `m` and `v`.

    `step = m' / (sqrt(v') + epsilon) + weight_decay * var; var -= learning_rate * |var| / |step| * step`, with m' and v' corrected
    for their start at zero.

    Args:
        learning_rate: number, scalar tensor, or function that returns one.
        beta1: decay of the mean gradient; types as `learning_rate`.
        beta2: decay of the mean square; types as `learning_rate`.
        epsilon: added to the root.
        weight_decay: factor of the variable that is added to its step.
        exclude_from_weight_decay: variables whose names contain one of these strings do not decay.
        name: name of its nodes and slots.
    """

    rule = "Lamb"

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-6,
        weight_decay: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        name: str = "LAMB",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, False, name)
        self._decay = weight_decay
        self._excluded = tuple(exclude_from_weight_decay or ())

    def _apply_sparse(self, grad: IndexedSlices, var: Any) -> Any:
        return self._apply(var, convert(grad), None)

    def _apply(self, variable: Any, gradient: Tensor, indices: Tensor | None) -> Node:
        scalars = self._scalars(variable)
        beta1, beta2 = scalars["beta1"], scalars["beta2"]
        decay = 0.0 if any(word in variable.name for word in self._excluded) else self._decay
        places = self._variable_and_slots(variable)
        # Compute the step of the update, for its norm. If another worker changes the variable in between, the update uses the new
        # values, but this norm is that of the old ones.
        value, m, v = (convert(p) for p in places)
        new_m = beta1 * m + (1.0 - beta1) * gradient
        new_v = beta2 * v + (1.0 - beta2) * gradient * gradient
        mean, square = new_m / (1.0 - scalars["beta1_power"]), new_v / (1.0 - scalars["beta2_power"])
        step = mean / (sqrt(square) + scalars["epsilon"])
        if decay:
            step = step + decay * value
        scalars["lr"] *= _ratio(norm(value), norm(step), 1.0)
        return apply_update(self.rule, places, gradient, {**scalars, "weight_decay": decay})
