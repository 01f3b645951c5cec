"""Learning rates that depend on the global step, under TensorFlow 1's names: each gives a scalar tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph.build import TensorLike, convert
from ..graph.dtypes import FLOATS, float32
from ..graph.node import Tensor
from ..graph.ops.arithmetic import maximum, minimum, power as power_of
from ..graph.ops.cast import cast
from ..graph.ops.compare import equal, greater, less_equal, where_v2
from ..graph.ops.gathering import gather
from ..graph.ops.math import ceil, cos, exp, floor, log
from ..graph.ops.random import random_normal
from ..graph.ops.reduce import reduce_sum


def _start(learning_rate: TensorLike, global_step: Any) -> tuple[Tensor, Tensor]:
    """Rate and step as scalars of one floating type."""
    if global_step is None:
        raise ValueError("global_step is required for a learning rate that decays.")
    rate = convert(learning_rate, name="learning_rate")
    if rate.dtype.base not in FLOATS:
        rate = cast(rate, float32)
    return rate, cast(convert(global_step), rate.dtype.base)


def _part(step: Tensor, decay_steps: Any, staircase: bool) -> Tensor:
    part = step / cast(convert(decay_steps), step.dtype.base)
    return floor(part) if staircase else part


def exponential_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * decay_rate ** (global_step / decay_steps)`; with `staircase`, the exponent is cut to a whole number."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "ExponentialDecay"):
        base = cast(convert(decay_rate), rate.dtype.base)
        return rate * power_of(base, _part(step, decay_steps, staircase))


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "NaturalExpDecay"):
        return rate * exp(-cast(convert(decay_rate), rate.dtype.base) * _part(step, decay_steps, staircase))


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "InverseTimeDecay"):
        result: Tensor = rate / (cast(convert(decay_rate), rate.dtype.base) * _part(step, decay_steps, staircase) + 1.0)
        return result


def polynomial_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    end_learning_rate: Any = 0.0001,
    power: Any = 1.0,
    cycle: bool = False,
    name: str | None = None,
) -> Tensor:
    """From `learning_rate` to `end_learning_rate` in `decay_steps` steps, by a power of what is left of them.

    After them it stays there; with `cycle` it starts again from the same rate, over twice, three times... the steps.
    """
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "PolynomialDecay"):
        steps = cast(convert(decay_steps), rate.dtype.base)
        end = cast(convert(end_learning_rate), rate.dtype.base)
        if cycle:
            steps = steps * where_v2(equal(step, 0.0), 1.0, ceil(step / steps))
        else:
            step = minimum(step, steps)
        exponent = cast(convert(power), rate.dtype.base)
        result: Tensor = (rate - end) * power_of(1.0 - step / steps, exponent) + end
        return result


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Tensor:
    """`values[i]` up to and including step `boundaries[i]`; after the last one the last value.

    Raises:
        ValueError: not one value more than boundaries.
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"The length of boundaries should be 1 less than the length of values: {len(boundaries)}, {len(values)}"
        )
    step = convert(x)
    with step.graph.name_scope(name or "PiecewiseConstant"):
        rates = convert(list(values))
        passed = greater(step, cast(convert(list(boundaries)), step.dtype.base))
        return gather(rates, reduce_sum(cast(passed, "int32")))


def cosine_decay(
    learning_rate: TensorLike, global_step: Any, decay_steps: Any, alpha: float = 0.0, name: str | None = None
) -> Tensor:
    """Half a wave of the cosine, from `learning_rate` to `alpha` of it in `decay_steps` steps (Loshchilov and Hutter, 2017)."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "CosineDecay"):
        steps = cast(convert(decay_steps), rate.dtype.base)
        wave = 0.5 * (1.0 + cos(math.pi * minimum(step, steps) / steps))
        return rate * ((1.0 - alpha) * wave + alpha)


def cosine_decay_restarts(
    learning_rate: TensorLike,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """Cosine decay that starts again: each time over `t_mul` times as many steps, from `m_mul` times the rate."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "SGDRDecay"):
        done = step / cast(convert(first_decay_steps), rate.dtype.base)
        if t_mul == 1.0:
            restart = floor(done)
            part = done - restart
        else:
            restart = floor(log(1.0 - done * (1.0 - t_mul)) / math.log(t_mul))
            before = (1.0 - power_of(cast(convert(t_mul), rate.dtype.base), restart)) / (1.0 - t_mul)
            part = (done - before) / power_of(cast(convert(t_mul), rate.dtype.base), restart)
        high = power_of(cast(convert(m_mul), rate.dtype.base), restart)
        wave = 0.5 * high * (1.0 + cos(math.pi * part))
        return rate * ((1.0 - alpha) * wave + alpha)


def linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> Tensor:
    """A line to zero times `num_periods` waves of the cosine (Bello et al., 2017)."""
    return _linear_cosine(learning_rate, global_step, decay_steps, num_periods, alpha, beta, None, name)


def noisy_linear_cosine_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    initial_variance: float = 1.0,
    variance_decay: float = 0.55,
    num_periods: float = 0.5,
    alpha: float = 0.0,
    beta: float = 0.001,
    name: str | None = None,
) -> Tensor:
    """The same with normal noise, whose variance is `initial_variance / (1 + global_step) ** variance_decay`."""
    noise = initial_variance, variance_decay
    return _linear_cosine(learning_rate, global_step, decay_steps, num_periods, alpha, beta, noise, name)


def _linear_cosine(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    periods: float,
    alpha: float,
    beta: float,
    noise: tuple[float, float] | None,
    name: str | None,
) -> Tensor:
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "LinearCosineDecay"):
        steps = cast(convert(decay_steps), rate.dtype.base)
        step = minimum(step, steps)
        line = (steps - step) / steps
        if noise is not None:
            deviation = (noise[0] / (1.0 + step) ** noise[1]) ** 0.5
            line = line + deviation * random_normal([], dtype=rate.dtype.base)
        wave = 0.5 * (1.0 + cos(2.0 * math.pi * periods * step / steps))
        result: Tensor = rate * ((alpha + line) * wave + beta)
        return result


def linear_warmup(learning_rate: TensorLike, global_step: Any, warmup_steps: Any, name: str | None = None) -> Tensor:
    """From 0 to `learning_rate` in `warmup_steps` steps, and then as it is: a number, or another schedule. TensorFlow has no such name."""
    rate, step = _start(learning_rate, global_step)
    with rate.graph.name_scope(name or "LinearWarmup"):
        steps = maximum(cast(convert(warmup_steps), rate.dtype.base), np.float32(1e-30))
        return where_v2(less_equal(step, steps), rate * step / steps, rate)


__all__ = [
    "cosine_decay",
    "cosine_decay_restarts",
    "exponential_decay",
    "inverse_time_decay",
    "linear_cosine_decay",
    "linear_warmup",
    "natural_exp_decay",
    "noisy_linear_cosine_decay",
    "piecewise_constant",
    "polynomial_decay",
]
