"""`dt.random`: random numbers that do not depend on where they are made."""

from .graph.graph import (
    set_random_seed,
)
from .graph.ops.random import (
    categorical,
    multinomial,
    random_normal as normal,
    random_shuffle as shuffle,
    random_uniform as uniform,
    stateless_random_normal as stateless_normal,
    stateless_random_uniform as stateless_uniform,
    stateless_truncated_normal,
    truncated_normal,
)

__all__ = [
    "categorical",
    "multinomial",
    "normal",
    "set_random_seed",
    "shuffle",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
]
