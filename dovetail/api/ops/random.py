"""`dt.random`: random numbers that do not depend on placement."""

from ...graph.core.default_graph import set_random_seed
from ...graph.ops.nn.candidate_sampling import (
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
from ...graph.ops.random.random import (
    categorical,
    multinomial,
    random_crop,
    random_normal as normal,
    random_shuffle as shuffle,
    random_uniform as uniform,
    truncated_normal,
)
from ...graph.ops.random.random_common import get_seed
from ...graph.ops.random.stateless_random import (
    stateless_random_normal as stateless_normal,
    stateless_random_uniform as stateless_uniform,
    stateless_truncated_normal,
)

__all__ = [
    "all_candidate_sampler",
    "categorical",
    "fixed_unigram_candidate_sampler",
    "get_seed",
    "log_uniform_candidate_sampler",
    "multinomial",
    "normal",
    "random_crop",
    "set_random_seed",
    "shuffle",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
    "truncated_normal",
    "uniform",
    "uniform_candidate_sampler",
]
