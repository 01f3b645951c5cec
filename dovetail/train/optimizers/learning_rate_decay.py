"""Learning rates that depend on the global step, under TensorFlow 1's names: each returns a scalar tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...graph.core.build import TensorLike, convert
from ...graph.core.dtypes import FLOATS, as_dtype, float32, int32, int64
from ...graph.core.graph import Tensor
from ...graph.ops.array.gather import gather
from ...graph.ops.math.arithmetic import maximum, minimum, power as power_of
from ...graph.ops.math.cast import cast
from ...graph.ops.math.compare import equal, greater, less_equal, where_v2
from ...graph.ops.math.elementwise import ceil, cos, exp, floor, log
from ...graph.ops.math.reduce import reduce_sum
from ...graph.ops.random.random import random_normal


@contextmanager
def _scope(
    learning_rate: TensorLike, global_step: Any, name: str | None, default_name: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """The scope of a schedule, with rate and step as scalars of one floating type."""
    if global_step is None:
        raise ValueError("global_step is required for a learning rate that decays.")
    rate = convert(learning_rate, name="learning_rate")
    if rate.dtype.base not in FLOATS:
        rate = cast(rate, float32)
    step = _like(rate, global_step)
    with rate.graph.name_scope(name or default_name):
        yield rate, step


def _like(rate: Tensor, x: Any) -> Tensor:
    """A number or tensor in the rate's type."""
    found: Tensor = cast(convert(x), rate.dtype.base)
    return found


def _part(step: Tensor, decay_steps: Any, staircase: bool) -> Tensor:
    part = step / _like(step, decay_steps)
    return floor(part) if staircase else part


def exponential_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * decay_rate ** (global_step / decay_steps)`.

    Args:
        learning_rate: the initial rate, a number or scalar tensor.
        global_step: a variable or scalar tensor that counts updates.
        decay_steps: number of steps in which the rate is multiplied by `decay_rate`; a number or scalar tensor.
        decay_rate: a number or scalar tensor.
        staircase: round `global_step / decay_steps` down, so that the rate decreases in steps.
        name: name scope; None: the name of the function.

    Returns:
        A scalar of the type of `learning_rate`; float32 for an integer.

    Raises:
        ValueError: `global_step` is None.

    >>> step = dt.train.get_or_create_global_step()
    >>> rate = dt.train.exponential_decay(0.1, step, decay_steps=1000, decay_rate=0.96)
    """
    with _scope(learning_rate, global_step, name, "ExponentialDecay") as (rate, step):
        base = _like(rate, decay_rate)
        return rate * power_of(base, _part(step, decay_steps, staircase))


def natural_exp_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate * exp(-decay_rate * global_step / decay_steps)`; arguments as in `exponential_decay`."""
    with _scope(learning_rate, global_step, name, "NaturalExpDecay") as (rate, step):
        return rate * exp(-_like(rate, decay_rate) * _part(step, decay_steps, staircase))


def inverse_time_decay(
    learning_rate: TensorLike,
    global_step: Any,
    decay_steps: Any,
    decay_rate: Any,
    staircase: bool = False,
    name: str | None = None,
) -> Tensor:
    """`learning_rate / (1 + decay_rate * global_step / decay_steps)`; arguments as in `exponential_decay`."""
    with _scope(learning_rate, global_step, name, "InverseTimeDecay") as (rate, step):
        result: Tensor = rate / (_like(rate, decay_rate) * _part(step, decay_steps, staircase) + 1.0)
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
    with _scope(learning_rate, global_step, name, "PolynomialDecay") as (rate, step):
        steps = _like(rate, decay_steps)
        end = _like(rate, end_learning_rate)
        if cycle:
            steps = steps * where_v2(equal(step, 0.0), 1.0, ceil(step / steps))
        else:
            step = minimum(step, steps)
        exponent = _like(rate, power)
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


def cosine_decay(
    learning_rate: TensorLike, global_step: Any, decay_steps: Any, alpha: float = 0.0, name: str | None = None
) -> Tensor:
    """Half a cosine wave, from `learning_rate` to `alpha * learning_rate` in `decay_steps` steps (Loshchilov and Hutter, 2017).

    Other arguments as in `exponential_decay`.
    """
    with _scope(learning_rate, global_step, name, "CosineDecay") as (rate, step):
        steps = _like(rate, decay_steps)
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
    """`cosine_decay` with restarts: each period has `t_mul` times the steps and `m_mul` times the initial rate of the previous one."""
    with _scope(learning_rate, global_step, name, "SGDRDecay") as (rate, step):
        done = step / _like(rate, first_decay_steps)
        if t_mul == 1.0:
            restart = floor(done)
            part = done - restart
        else:
            restart = floor(log(1.0 - done * (1.0 - t_mul)) / math.log(t_mul))
            before = (1.0 - power_of(_like(rate, t_mul), restart)) / (1.0 - t_mul)
            part = (done - before) / power_of(_like(rate, t_mul), restart)
        high = power_of(_like(rate, m_mul), restart)
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
    with _scope(learning_rate, global_step, name, "LinearCosineDecay") as (rate, step):
        steps = _like(rate, decay_steps)
        step = minimum(step, steps)
        line = (steps - step) / steps
        if noise is not None:
            deviation = (noise[0] / (1.0 + step) ** noise[1]) ** 0.5
            line = line + deviation * random_normal([], dtype=rate.dtype.base)
        wave = 0.5 * (1.0 + cos(2.0 * math.pi * periods * step / steps))
        result: Tensor = rate * ((alpha + line) * wave + beta)
        return result


def linear_warmup(learning_rate: TensorLike, global_step: Any, warmup_steps: Any, name: str | None = None) -> Tensor:
    """Linear from 0 to `learning_rate` in `warmup_steps` steps, then `learning_rate`: a number or another schedule. Not in TensorFlow 1."""
    with _scope(learning_rate, global_step, name, "LinearWarmup") as (rate, step):
        steps = maximum(_like(rate, warmup_steps), np.float32(1e-30))
        return where_v2(less_equal(step, steps), rate * step / steps, rate)
