"""Learning rate schedules, under TensorFlow 1's names. Each returns a scalar tensor that depends on the global step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...graph.core.build import TensorLike, convert
from ...graph.core.dtypes import FLOATS, float32
from ...graph.core.graph import Tensor
from ...graph.ops.math.arithmetic import maximum, minimum, power as power_of
from ...graph.ops.math.cast import cast
from ...graph.ops.math.compare import less_equal, where_v2
from ...graph.ops.math.elementwise import cos, floor


@contextmanager
def schedule_scope(
    learning_rate: TensorLike, global_step: Any, name: str | None, default_name: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """A name scope for the nodes of a schedule. Yields the rate and the step as scalars of one floating type."""
    if global_step is None:
        raise ValueError("global_step is required for a learning rate that decays.")
    rate = convert(learning_rate, name="learning_rate")
    if rate.dtype.base not in FLOATS:
        rate = cast(rate, float32)
    step = as_rate_type(rate, global_step)
    with rate.graph.name_scope(name or default_name):
        yield rate, step


def as_rate_type(rate: Tensor, x: Any) -> Tensor:
    """Casts a number or tensor to the rate's type."""
    found: Tensor = cast(convert(x), rate.dtype.base)
    return found


def decay_progress(step: Tensor, decay_steps: Any, staircase: bool) -> Tensor:
    """Returns `step / decay_steps`, rounded down if `staircase`."""
    part = step / as_rate_type(step, decay_steps)
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
    with schedule_scope(learning_rate, global_step, name, "ExponentialDecay") as (rate, step):
        base = as_rate_type(rate, decay_rate)
        return rate * power_of(base, decay_progress(step, decay_steps, staircase))


def cosine_decay(
    learning_rate: TensorLike, global_step: Any, decay_steps: Any, alpha: float = 0.0, name: str | None = None
) -> Tensor:
    """Half a cosine wave, from `learning_rate` to `alpha * learning_rate` in `decay_steps` steps (Loshchilov and Hutter, 2017).

    Args:
        learning_rate: the initial rate, a number or scalar tensor.
        global_step: a variable or scalar tensor that counts updates.
        decay_steps: number of steps of the decay; a number or scalar tensor.
        alpha: the final rate as a fraction of the initial one.
        name: name scope; None: the name of the function.

    Raises:
        ValueError: `global_step` is None.
    """
    with schedule_scope(learning_rate, global_step, name, "CosineDecay") as (rate, step):
        steps = as_rate_type(rate, decay_steps)
        wave = 0.5 * (1.0 + cos(math.pi * minimum(step, steps) / steps))
        return rate * ((1.0 - alpha) * wave + alpha)


def linear_warmup(learning_rate: TensorLike, global_step: Any, warmup_steps: Any, name: str | None = None) -> Tensor:
    """Increases the rate linearly from 0 to `learning_rate` in `warmup_steps` steps. TensorFlow 1 has no such function.

    Args:
        learning_rate: the rate after the warmup, a number or another schedule.
        global_step: a variable or scalar tensor that counts updates.
        warmup_steps: number of steps; a number or scalar tensor.
        name: name scope; None: the name of the function.

    Raises:
        ValueError: `global_step` is None.

    >>> rate = linear_warmup(cosine_decay(0.1, step, 10_000), step, warmup_steps=500)
    """
    with schedule_scope(learning_rate, global_step, name, "LinearWarmup") as (rate, step):
        steps = maximum(as_rate_type(rate, warmup_steps), np.float32(1e-30))
        return where_v2(less_equal(step, steps), rate * step / steps, rate)
