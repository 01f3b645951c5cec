"""Types of `dovetail.random`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.compat.tf1.ops.candidate_sampling import (
    all_candidate_sampler as all_candidate_sampler, fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler as log_uniform_candidate_sampler, uniform_candidate_sampler as uniform_candidate_sampler,
)
from dovetail.graph.core.default_graph import set_random_seed as set_random_seed
from dovetail.graph.ops.random.random import (
    categorical as categorical, multinomial as multinomial, random_normal as normal, random_crop as random_crop, random_shuffle as
    shuffle, truncated_normal as truncated_normal, random_uniform as uniform,
)
from dovetail.graph.ops.random.random_common import get_seed as get_seed
from dovetail.graph.ops.random.stateless_random import (
    stateless_random_normal as stateless_normal, stateless_truncated_normal as stateless_truncated_normal, stateless_random_uniform as
    stateless_uniform,
)
__all__ = [
    "categorical", "get_seed", "multinomial", "normal", "random_crop", "set_random_seed", "shuffle", "stateless_normal",
    "stateless_truncated_normal", "stateless_uniform", "truncated_normal", "uniform",
]
