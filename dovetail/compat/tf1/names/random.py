"""Names of `dt.random` that only programs of TensorFlow 1 use."""

from ..ops.candidate_sampling import (
    all_candidate_sampler,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    uniform_candidate_sampler,
)
