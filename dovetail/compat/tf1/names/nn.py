"""Names of `dt.nn` that only programs of TensorFlow 1 use: recurrent networks, and losses over sampled classes."""

from ..ops.candidate_sampling import (
    all_candidate_sampler,
    compute_accidental_hits,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    nce_loss,
    sampled_softmax_loss,
    uniform_candidate_sampler,
)
from ..rnn import (
    bidirectional_dynamic_rnn,
    dynamic_rnn,
    raw_rnn,
    rnn_cell,
    static_bidirectional_rnn,
    static_rnn,
    static_state_saving_rnn,
)
