"""Types of `dovetail.random`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.random import *
from dovetail.api.ops.random import (
    all_candidate_sampler as all_candidate_sampler, categorical as categorical, fixed_unigram_candidate_sampler as
    fixed_unigram_candidate_sampler, get_seed as get_seed, log_uniform_candidate_sampler as log_uniform_candidate_sampler, multinomial
    as multinomial, normal as normal, random_crop as random_crop, set_random_seed as set_random_seed, shuffle as shuffle,
    stateless_normal as stateless_normal, stateless_truncated_normal as stateless_truncated_normal, stateless_uniform as
    stateless_uniform, truncated_normal as truncated_normal, uniform as uniform, uniform_candidate_sampler as uniform_candidate_sampler,
)
