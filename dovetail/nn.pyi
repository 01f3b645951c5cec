"""Types of `dovetail.nn`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from dovetail.api.ops.nn import *
from dovetail.api.ops.nn import (
    all_candidate_sampler as all_candidate_sampler, atrous_conv2d as atrous_conv2d, atrous_conv2d_transpose as atrous_conv2d_transpose,
    avg_pool as avg_pool, avg_pool1d as avg_pool1d, avg_pool2d as avg_pool2d, avg_pool3d as avg_pool3d, avg_pool_v2 as avg_pool_v2,
    batch_norm_with_global_normalization as batch_norm_with_global_normalization, batch_normalization as batch_normalization, bias_add
    as bias_add, bidirectional_dynamic_rnn as bidirectional_dynamic_rnn, compute_accidental_hits as compute_accidental_hits, conv1d as
    conv1d, conv1d_transpose as conv1d_transpose, conv2d as conv2d, conv2d_backprop_filter as conv2d_backprop_filter,
    conv2d_backprop_input as conv2d_backprop_input, conv2d_transpose as conv2d_transpose, conv3d as conv3d, conv3d_transpose as
    conv3d_transpose, conv_transpose as conv_transpose, convolution as convolution, crelu as crelu, depth_to_space as depth_to_space,
    depthwise_conv2d as depthwise_conv2d, depthwise_conv2d_backprop_filter as depthwise_conv2d_backprop_filter,
    depthwise_conv2d_backprop_input as depthwise_conv2d_backprop_input, depthwise_conv2d_native as depthwise_conv2d_native,
    depthwise_conv2d_native_backprop_filter as depthwise_conv2d_native_backprop_filter, depthwise_conv2d_native_backprop_input as
    depthwise_conv2d_native_backprop_input, dilation2d as dilation2d, dropout as dropout, dynamic_rnn as dynamic_rnn, elu as elu,
    embedding_lookup as embedding_lookup, embedding_lookup_sparse as embedding_lookup_sparse, erosion2d as erosion2d,
    fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler, fused_batch_norm as fused_batch_norm, gelu as gelu, in_top_k as
    in_top_k, l2_loss as l2_loss, l2_normalize as l2_normalize, layer_norm as layer_norm, leaky_relu as leaky_relu,
    local_response_normalization as local_response_normalization, log_poisson_loss as log_poisson_loss, log_sigmoid as log_sigmoid,
    log_softmax as log_softmax, log_uniform_candidate_sampler as log_uniform_candidate_sampler, lrn as lrn, max_pool as max_pool,
    max_pool1d as max_pool1d, max_pool2d as max_pool2d, max_pool3d as max_pool3d, max_pool_v2 as max_pool_v2, moments as moments,
    nce_loss as nce_loss, normalize_moments as normalize_moments, pool as pool, raw_rnn as raw_rnn, relu as relu, relu6 as relu6,
    relu_layer as relu_layer, rnn_cell as rnn_cell, safe_embedding_lookup_sparse as safe_embedding_lookup_sparse, sampled_softmax_loss
    as sampled_softmax_loss, selu as selu, separable_conv2d as separable_conv2d, sigmoid as sigmoid, sigmoid_cross_entropy_with_logits
    as sigmoid_cross_entropy_with_logits, silu as silu, softmax as softmax, softmax_cross_entropy_with_logits as
    softmax_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2 as softmax_cross_entropy_with_logits_v2, softplus as
    softplus, softsign as softsign, space_to_batch as space_to_batch, space_to_depth as space_to_depth,
    sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits, static_bidirectional_rnn as
    static_bidirectional_rnn, static_rnn as static_rnn, static_state_saving_rnn as static_state_saving_rnn, sufficient_statistics as
    sufficient_statistics, swish as swish, tanh as tanh, top_k as top_k, uniform_candidate_sampler as uniform_candidate_sampler,
    weighted_cross_entropy_with_logits as weighted_cross_entropy_with_logits, weighted_moments as weighted_moments, xw_plus_b as
    xw_plus_b, zero_fraction as zero_fraction,
)
