"""Types of `dovetail.nn`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.api.ops.math import sigmoid as sigmoid, tanh as tanh
from dovetail.compat.tf1.ops.candidate_sampling import (
    all_candidate_sampler as all_candidate_sampler, compute_accidental_hits as compute_accidental_hits, fixed_unigram_candidate_sampler
    as fixed_unigram_candidate_sampler, log_uniform_candidate_sampler as log_uniform_candidate_sampler, nce_loss as nce_loss,
    sampled_softmax_loss as sampled_softmax_loss, uniform_candidate_sampler as uniform_candidate_sampler,
)
from dovetail.compat.tf1.ops.nn_functions import (
    atrous_conv2d as atrous_conv2d, atrous_conv2d_transpose as atrous_conv2d_transpose, batch_norm_with_global_normalization as
    batch_norm_with_global_normalization, conv2d_backprop_filter as conv2d_backprop_filter, conv2d_backprop_input as
    conv2d_backprop_input, conv_transpose as conv_transpose, depthwise_conv2d_native_backprop_filter as
    _depthwise_conv2d_backprop_filter, depthwise_conv2d_native_backprop_input as _depthwise_conv2d_backprop_input,
    depthwise_conv2d_native_backprop_filter as depthwise_conv2d_native_backprop_filter, depthwise_conv2d_native_backprop_input as
    depthwise_conv2d_native_backprop_input, log_poisson_loss as log_poisson_loss, normalize_moments as normalize_moments, relu_layer as
    relu_layer, sufficient_statistics as sufficient_statistics, weighted_moments as weighted_moments, xw_plus_b as xw_plus_b,
)
from dovetail.compat.tf1.rnn import (
    bidirectional_dynamic_rnn as bidirectional_dynamic_rnn, dynamic_rnn as dynamic_rnn, raw_rnn as raw_rnn, rnn_cell as rnn_cell,
    static_bidirectional_rnn as static_bidirectional_rnn, static_rnn as static_rnn, static_state_saving_rnn as static_state_saving_rnn,
)
from dovetail.graph.ops.array.embedding import embedding_lookup as embedding_lookup
from dovetail.graph.ops.array.sorting import in_top_k as in_top_k, top_k as top_k
from dovetail.graph.ops.array.space_depth import (
    depth_to_space as depth_to_space, space_to_batch as space_to_batch, space_to_depth as space_to_depth,
)
from dovetail.graph.ops.math.special_functions import zero_fraction as zero_fraction
from dovetail.graph.ops.nn.activations import (
    crelu as crelu, elu as elu, gelu as gelu, leaky_relu as leaky_relu, log_sigmoid as log_sigmoid, relu as relu, relu6 as relu6, selu
    as selu, silu as silu, softplus as softplus, softsign as softsign, swish as swish,
)
from dovetail.graph.ops.nn.conv import (
    conv1d as conv1d, conv2d as conv2d, conv2d_transpose as conv2d_transpose, depthwise_conv2d as depthwise_conv2d,
    depthwise_conv2d_native as depthwise_conv2d_native, separable_conv2d as separable_conv2d,
)
from dovetail.graph.ops.nn.dense import bias_add as bias_add, dropout as dropout
from dovetail.graph.ops.nn.normalization import (
    batch_normalization as batch_normalization, fused_batch_norm as fused_batch_norm, l2_loss as l2_loss, l2_normalize as l2_normalize,
    layer_norm as layer_norm, local_response_normalization as local_response_normalization, local_response_normalization as lrn, moments
    as moments,
)
from dovetail.graph.ops.nn.pooling import avg_pool as avg_pool, avg_pool as avg_pool2d, max_pool as max_pool, max_pool as max_pool2d
from dovetail.graph.ops.nn.softmax import (
    log_softmax as log_softmax, sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits, softmax as softmax,
    softmax_cross_entropy_with_logits as softmax_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2 as
    softmax_cross_entropy_with_logits_v2, sparse_softmax_cross_entropy_with_logits as sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits as weighted_cross_entropy_with_logits,
)
from dovetail.graph.ops.nn.spatial import (
    avg_pool1d as avg_pool1d, avg_pool3d as avg_pool3d, avg_pool_v2 as avg_pool_v2, conv1d_transpose as conv1d_transpose, conv3d as
    conv3d, conv3d_transpose as conv3d_transpose, convolution as convolution, dilation2d as dilation2d, erosion2d as erosion2d,
    max_pool1d as max_pool1d, max_pool3d as max_pool3d, max_pool_v2 as max_pool_v2, pool as pool,
)
from dovetail.graph.ops.sparse.math import (
    embedding_lookup_sparse as embedding_lookup_sparse, safe_embedding_lookup_sparse as safe_embedding_lookup_sparse,
)
depthwise_conv2d_backprop_filter = _depthwise_conv2d_backprop_filter
depthwise_conv2d_backprop_input = _depthwise_conv2d_backprop_input
__all__ = [
    "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "avg_pool_v2", "batch_normalization", "bias_add", "conv1d",
    "conv1d_transpose", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "convolution", "crelu", "depth_to_space",
    "depthwise_conv2d", "depthwise_conv2d_native", "dilation2d", "dropout", "elu", "embedding_lookup", "embedding_lookup_sparse",
    "erosion2d", "fused_batch_norm", "gelu", "in_top_k", "l2_loss", "l2_normalize", "layer_norm", "leaky_relu",
    "local_response_normalization", "log_sigmoid", "log_softmax", "lrn", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_pool_v2", "moments", "pool", "relu", "relu6", "safe_embedding_lookup_sparse", "selu", "separable_conv2d", "sigmoid",
    "sigmoid_cross_entropy_with_logits", "silu", "softmax", "softmax_cross_entropy_with_logits", "softmax_cross_entropy_with_logits_v2",
    "softplus", "softsign", "space_to_batch", "space_to_depth", "sparse_softmax_cross_entropy_with_logits", "swish", "tanh", "top_k",
    "weighted_cross_entropy_with_logits", "zero_fraction",
]
