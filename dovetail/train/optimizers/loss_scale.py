"""Loss scaling, which prevents underflow of float16 gradients (Micikevicius et al., 2018, arXiv:1710.03740).

The loss is multiplied by a scale before gradients are computed, and the gradients are divided by it before they are applied. A dynamic
scale is halved when a gradient is not finite, and this step updates no variable. It is doubled after `increment_period` finite steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...graph.control_flow.cond_while import cond
from ...graph.core.build import convert
from ...graph.core.default_graph import GraphKeys
from ...graph.core.dtypes import float32, int64
from ...graph.core.graph import Node, Tensor
from ...graph.ops.array.identity_and_placeholders import group, no_op
from ...graph.ops.math.arithmetic import maximum
from ...graph.ops.math.cast import cast
from ...graph.ops.math.compare import greater_equal, logical_and, where_v2
from ...graph.ops.math.elementwise import is_finite
from ...graph.ops.math.reduce import reduce_all
from ...graph.ops.state.variables import assign
from ...graph.tensors.indexed_slices import IndexedSlices, map_values
from ...graph.variables.variable import Variable
from .optimizer import Optimizer, WrapperOptimizer


class FixedLossScale:
    """A constant loss scale.

    Args:
        loss_scale_value: the scale.

    Raises:
        ValueError: the scale is below 1.
    """

    def __init__(self, loss_scale_value: float) -> None:
        if loss_scale_value < 1:
            raise ValueError(f"loss_scale_value must be at least 1, not {loss_scale_value}")
        self._value = float(loss_scale_value)

    def __call__(self) -> Tensor:
        """The scale, a float32 scalar."""
        return convert(self._value, float32)

    def update(self, finite: Tensor) -> Node:
        """A node that updates the scale after a step. `finite`: whether all gradients were finite."""
        node: Node = no_op()
        return node


class DynamicLossScale(FixedLossScale):
    """A loss scale that shrinks when a gradient is not finite, and grows after a number of finite steps.

    Args:
        initial_loss_scale: initial value.
        increment_period: number of consecutive finite steps before it grows.
        multiplier: factor by which it grows and shrinks.
    """

    def __init__(
        self, initial_loss_scale: float = 2.0**15, increment_period: int = 2000, multiplier: float = 2.0
    ) -> None:
        super().__init__(initial_loss_scale)
        self._period, self._multiplier = increment_period, multiplier
        self._scale: Any = None
        self._good: Any = None

    def __call__(self) -> Tensor:
        if self._scale is None:
            kept = [GraphKeys.GLOBAL_VARIABLES]
            self._scale = Variable(self._value, trainable=False, collections=kept, name="current_loss_scale")
            self._good = Variable(convert(0, int64), trainable=False, collections=kept, name="good_steps")
        scale: Tensor = self._scale.read_value()
        return scale

    def update(self, finite: Tensor) -> Node:
        self()  # creates the variables
        scale, good = self._scale.read_value(), self._good.read_value() + 1
        grows = logical_and(finite, greater_equal(good, self._period))
        larger = scale * self._multiplier
        larger = where_v2(is_finite(larger), larger, scale)
        new = where_v2(finite, where_v2(grows, larger, scale), maximum(scale / self._multiplier, 1.0))
        count = where_v2(logical_and(finite, good < self._period), good, 0)
        with finite.graph.control_dependencies([new.op, count.op]):
            node: Node = group(assign(self._scale, new), assign(self._good, count))
        return node


class LossScaleOptimizer(WrapperOptimizer):
    """Wraps an optimizer, and scales its loss.

    Args:
        optimizer: the wrapped optimizer.
        loss_scale: a number, "dynamic", a `FixedLossScale` or a `DynamicLossScale`.

    Raises:
        ValueError: `loss_scale` is none of these.

    >>> opt = LossScaleOptimizer(AdamOptimizer(1e-3), "dynamic")
    >>> train_op = opt.minimize(loss)
    """

    def __init__(self, optimizer: Optimizer, loss_scale: Any = "dynamic") -> None:
        super().__init__(optimizer, False, f"{optimizer.get_name()}_loss_scaled")
        if loss_scale == "dynamic":
            loss_scale = DynamicLossScale()
        elif isinstance(loss_scale, (int, float)):
            loss_scale = FixedLossScale(loss_scale)
        if not isinstance(loss_scale, FixedLossScale):
            raise ValueError(f"loss_scale must be a number, 'dynamic' or a loss scale, not {loss_scale!r}")
        self._loss_scale = loss_scale

    def compute_gradients(
        self, loss: Tensor | Callable[[], Tensor], *args: Any, **kwargs: Any
    ) -> list[tuple[Any, Any]]:
        """Gradients of the loss, computed from the scaled loss and divided by the scale."""
        if callable(loss):
            loss = loss()
        scale = self._loss_scale()
        found = self._opt.compute_gradients(loss * cast(scale, loss.dtype.base), *args, **kwargs)

        def divided(values: Tensor) -> Tensor:
            result: Tensor = values / cast(scale, values.dtype.base)
            return result

        return [(g if g is None else map_values(divided, g), v) for g, v in found]

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Node:
        """A node that applies the gradients if all are finite, and otherwise only updates the scale."""
        pairs = list(grads_and_vars)
        values = [g.values if isinstance(g, IndexedSlices) else convert(g) for g, _ in pairs if g is not None]
        if not values:
            raise ValueError("No gradients provided for any variable.")
        finite = reduce_all(is_finite(values[0]))
        for g in values[1:]:
            finite = logical_and(finite, reduce_all(is_finite(g)))
        optimizer = self._opt

        def apply() -> Tensor:
            with finite.graph.control_dependencies([optimizer.apply_gradients(pairs, global_step, name)]):
                return convert(True)

        applied = cond(finite, apply, lambda: convert(False))
        updated = self._loss_scale.update(finite)
        node: Node = group(applied, updated)
        return node
