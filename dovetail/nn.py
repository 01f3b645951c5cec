"""`dt.nn`: what neural networks are made of."""

from .graph.ops.activations import (
    crelu,
    elu,
    gelu,
    leaky_relu,
    log_sigmoid,
    relu,
    relu6,
    selu,
    silu,
    softplus,
    softsign,
    swish,
)
from .graph.ops.candidate_sampling import (
    fixed_unigram_candidate_sampler,
    log_uniform_candidate_sampler,
    nce_loss,
    sampled_softmax_loss,
    uniform_candidate_sampler,
)
from .graph.ops.conv import (
    atrous_conv2d,
    conv1d,
    conv2d,
    conv2d_backprop_filter,
    conv2d_backprop_input,
    conv2d_transpose,
    depthwise_conv2d,
    depthwise_conv2d_native,
    separable_conv2d,
)
from .graph.ops.counting import zero_fraction
from .graph.ops.embedding import (
    embedding_lookup,
)
from .graph.ops.math import (
    sigmoid,
    tanh,
)
from .graph.ops.nn import (
    bias_add,
    dropout,
    relu_layer,
    xw_plus_b,
)
from .graph.ops.normalization import (
    batch_normalization,
    fused_batch_norm,
    l2_loss,
    l2_normalize,
    layer_norm,
    moments,
)
from .graph.ops.pooling import (
    avg_pool,
    avg_pool as avg_pool2d,
    max_pool,
    max_pool as max_pool2d,
)
from .graph.ops.response_normalization import (
    local_response_normalization,
    local_response_normalization as lrn,
)
from .graph.ops.softmax import (
    log_softmax,
    sigmoid_cross_entropy_with_logits,
    softmax,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from .graph.ops.sorting import (
    in_top_k,
    top_k,
)
from .graph.ops.sparse_math import (
    embedding_lookup_sparse,
    safe_embedding_lookup_sparse,
)
from .rnn import (
    bidirectional_dynamic_rnn,
    dynamic_rnn,
    rnn_cell,
    static_bidirectional_rnn,
    static_rnn,
)

__all__ = [
    "atrous_conv2d",
    "avg_pool",
    "avg_pool2d",
    "batch_normalization",
    "bias_add",
    "bidirectional_dynamic_rnn",
    "conv1d",
    "conv2d",
    "conv2d_backprop_filter",
    "conv2d_backprop_input",
    "conv2d_transpose",
    "crelu",
    "depthwise_conv2d",
    "depthwise_conv2d_native",
    "dropout",
    "dynamic_rnn",
    "elu",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "fixed_unigram_candidate_sampler",
    "fused_batch_norm",
    "gelu",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "local_response_normalization",
    "log_sigmoid",
    "log_softmax",
    "log_uniform_candidate_sampler",
    "lrn",
    "max_pool",
    "max_pool2d",
    "moments",
    "nce_loss",
    "relu",
    "relu6",
    "relu_layer",
    "rnn_cell",
    "safe_embedding_lookup_sparse",
    "sampled_softmax_loss",
    "selu",
    "separable_conv2d",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy_with_logits",
    "static_bidirectional_rnn",
    "static_rnn",
    "swish",
    "tanh",
    "top_k",
    "uniform_candidate_sampler",
    "weighted_cross_entropy_with_logits",
    "xw_plus_b",
    "zero_fraction",
]
