"""Names of `dt.nn` that only programs of TensorFlow 1 use: recurrent networks, losses over sampled classes, and old functions."""

from ..ops.candidate_sampling import (
    all_candidate_sampler,
    compute_accidental_hits,
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    nce_loss,
    sampled_softmax_loss,
    uniform_candidate_sampler,
)
from ..ops.nn_functions import (
    atrous_conv2d,
    atrous_conv2d_transpose,
    batch_norm_with_global_normalization,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv_transpose,
    depthwise_conv2d_native_backprop_filter,
    depthwise_conv2d_native_backprop_filter as depthwise_conv2d_backprop_filter,
    depthwise_conv2d_native_backprop_input,
    depthwise_conv2d_native_backprop_input as depthwise_conv2d_backprop_input,
    log_poisson_loss,
    normalize_moments,
    relu_layer,
    sufficient_statistics,
    weighted_moments,
    xw_plus_b,
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
