"""Initializers and regularizers of `tf.contrib.layers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.default_graph import GraphKeys, get_default_graph, name_scope
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.math.arithmetic import absolute, add_n
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.nn.normalization import l2_loss
from ....graph.variables.initializers import (
    glorot_normal_initializer,
    glorot_uniform_initializer,
    variance_scaling_initializer as core_scaling,
)


def xavier_initializer(uniform: bool = True, seed: int | None = None, dtype: Any = float32) -> Any:
    """Glorot's initializer (AISTATS 2010): `dt.glorot_uniform_initializer`, or the normal one."""
    return (glorot_uniform_initializer if uniform else glorot_normal_initializer)(seed, dtype)


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
    factor: float = 2.0, mode: str = "FAN_IN", uniform: bool = False, seed: int | None = None, dtype: Any = float32
) -> Any:
    """`dt.variance_scaling_initializer` with other names and defaults: He's initializer (ICCV 2015).

    Args:
        factor: of the variance.
        mode: "FAN_IN", "FAN_OUT" or "FAN_AVG": what it is divided by.
        uniform: uniformly distributed; else normally, truncated.
    """
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise TypeError(f"Unknown mode {mode!r} [FAN_IN, FAN_OUT, FAN_AVG]")
    return core_scaling(factor, mode.lower(), "uniform" if uniform else "truncated_normal", seed, dtype)


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Tensor | None]:
    """A function of weights: `scale * sum(w ** 2) / 2`; None for scale 0.

    >>> w = dt.get_variable("w", [10, 10], regularizer=dt.contrib.layers.l2_regularizer(1e-4))
    """
    _check_scale(scale)

    def penalty(weights: Any) -> Tensor | None:
        if not scale:
            return None
        with name_scope(scope or "l2_regularizer"):
            found: Tensor = l2_loss(convert(weights)) * scale
            return found

    return penalty


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Tensor | None]:
    """A function of weights: `scale * sum(abs(w))`; None for scale 0."""
    _check_scale(scale)

    def penalty(weights: Any) -> Tensor | None:
        if not scale:
            return None
        with name_scope(scope or "l1_regularizer"):
            found: Tensor = reduce_sum(absolute(convert(weights))) * scale
            return found

    return penalty


def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Callable[[Any], Tensor | None]:
    """The sum of `l1_regularizer(scale_l1)` and `l2_regularizer(scale_l2)`."""
    return sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)], scope or "l1_l2_regularizer")


def sum_regularizer(regularizer_list: Sequence[Any], scope: str | None = None) -> Callable[[Any], Tensor | None]:
    """The sum of several regularizers; those that are None are left out."""

    def penalty(weights: Any) -> Tensor | None:
        with name_scope(scope or "sum_regularizer"):
            parts = [p for p in (r(weights) for r in regularizer_list if r is not None) if p is not None]
            return add_n(parts) if parts else None

    return penalty


def apply_regularization(regularizer: Callable[[Any], Any], weights_list: Sequence[Any] | None = None) -> Tensor:
    """The sum of a regularizer over weights; it joins the regularization losses.

    Args:
        weights_list: None: those of the collection `WEIGHTS`.

    Raises:
        ValueError: there are no weights.
    """
    weights = weights_list or get_default_graph().get_collection(GraphKeys.WEIGHTS)
    if not weights:
        raise ValueError("No weights to regularize.")
    total = add_n([p for p in map(regularizer, weights) if p is not None] or [convert(0.0)])
    get_default_graph().add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total


def _check_scale(scale: float) -> None:
    if not isinstance(scale, (int, float)) or scale < 0:
        raise ValueError(f"scale must be a number of at least 0, not {scale!r}")


__all__ = [
    "apply_regularization",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "sum_regularizer",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]
