"""Learning rates that depend on the global step, under names that only TensorFlow 1 has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.build import TensorLike, convert
from ....graph.core.dtypes import as_dtype, int32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.gather import gather
from ....graph.ops.math.arithmetic import minimum, power as power_of
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, where_v2
from ....graph.ops.math.elementwise import ceil, cos, exp, floor, log
from ....graph.ops.math.reduce import reduce_sum
from ....graph.ops.random.random import random_normal
from ....train.optimizers.learning_rate_decay import as_rate_type, decay_progress, schedule_scope


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`; arguments as in `exponential_decay`."""
    with schedule_scope(learning_rate, global_step, name, "NaturalExpDecay") as (rate, step):
        return rate * exp(-as_rate_type(rate, decay_rate) * decay_progress(step, decay_steps, staircase))


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`; arguments as in `exponential_decay`."""
    with schedule_scope(learning_rate, global_step, name, "InverseTimeDecay") as (rate, step):
        result: Tensor = rate / (as_rate_type(rate, decay_rate) * decay_progress(step, decay_steps, staircase) + 1.0)
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
    """Polynomial decay: `end_learning_rate + (learning_rate - end_learning_rate) * (1 - global_step / decay_steps) ** power`.

    After `decay_steps` steps the rate is constant. With `cycle`, `decay_steps` is instead multiplied by the smallest integer that makes it
    at least `global_step`. Other arguments as in `exponential_decay`.
    """
    with schedule_scope(learning_rate, global_step, name, "PolynomialDecay") as (rate, step):
        steps = as_rate_type(rate, decay_steps)
        end = as_rate_type(rate, end_learning_rate)
        if cycle:
            steps = steps * where_v2(equal(step, 0.0), 1.0, ceil(step / steps))
        else:
            step = minimum(step, steps)
        exponent = as_rate_type(rate, power)
        result: Tensor = (rate - end) * power_of(1.0 - step / steps, exponent) + end
        return result


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Tensor:
    """`values[i]` up to and including step `boundaries[i]`, and the last value after the last boundary.

    Raises:
        ValueError: there is not one value more than boundaries; the types of boundaries and `x` differ; or those of values do.
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"The length of boundaries should be 1 less than the length of values: {len(boundaries)}, {len(values)}"
        )
    step = convert(x)
    with step.graph.name_scope(name or "PiecewiseConstant"):
        if len({_is_floating(v) for v in values}) > 1:
            raise ValueError(f"Values must have elements all with the same dtype, not {list(values)}")
        rates, bounds = convert(list(values)), convert(list(boundaries))
        if bounds.dtype.base is not step.dtype.base and (bounds.dtype.base, step.dtype.base) != (int32, int64):
            raise ValueError(
                f"Boundaries ({bounds.dtype.base.name}) must have the same dtype as x ({step.dtype.base.name})"
            )
        passed = greater(step, cast(bounds, step.dtype.base))
        return gather(rates, reduce_sum(cast(passed, "int32")))


def _is_floating(value: Any) -> bool:
    return as_dtype(getattr(value, "dtype", None) or np.asarray(value).dtype).base.is_floating


def cosine_decay_restarts(
    learning_rate: TensorLike,
    global_step: Any,
    first_decay_steps: Any,
    t_mul: float = 2.0,
    m_mul: float = 1.0,
    alpha: float = 0.0,
    name: str | None = None,
) -> Tensor:
    """`cosine_decay` with restarts: each period has `t_mul` times the steps and `m_mul` times the initial rate of the previous one."""
    with schedule_scope(learning_rate, global_step, name, "SGDRDecay") as (rate, step):
        done = step / as_rate_type(rate, first_decay_steps)
        if t_mul == 1.0:
            restart = floor(done)
            part = done - restart
        else:
            restart = floor(log(1.0 - done * (1.0 - t_mul)) / math.log(t_mul))
            before = (1.0 - power_of(as_rate_type(rate, t_mul), restart)) / (1.0 - t_mul)
            part = (done - before) / power_of(as_rate_type(rate, t_mul), restart)
        high = power_of(as_rate_type(rate, m_mul), restart)
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
    """`learning_rate * ((alpha + linear) * cosine + beta)`, with `linear` from 1 to 0 and `num_periods` cosine waves (Bello et al., 2017).

    Other arguments as in `exponential_decay`.
    """
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
    """`linear_cosine_decay` with normal noise on `linear`, whose variance is `initial_variance / (1 + global_step) ** variance_decay`."""
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
    with schedule_scope(learning_rate, global_step, name, "LinearCosineDecay") as (rate, step):
        steps = as_rate_type(rate, decay_steps)
        step = minimum(step, steps)
        line = (steps - step) / steps
        if noise is not None:
            deviation = (noise[0] / (1.0 + step) ** noise[1]) ** 0.5
            line = line + deviation * random_normal([], dtype=rate.dtype.base)
        wave = 0.5 * (1.0 + cos(2.0 * math.pi * periods * step / steps))
        result: Tensor = rate * ((alpha + line) * wave + beta)
        return result
