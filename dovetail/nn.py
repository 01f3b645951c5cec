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
from .graph.ops.math import (
    sigmoid,
    tanh,
)
from .graph.ops.nn import (
    bias_add,
    dropout,
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

__all__ = [
    "batch_normalization",
    "bias_add",
    "crelu",
    "dropout",
    "elu",
    "fused_batch_norm",
    "gelu",
    "in_top_k",
    "l2_loss",
    "l2_normalize",
    "layer_norm",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "moments",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "sigmoid_cross_entropy_with_logits",
    "silu",
    "softmax",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2",
    "softplus",
    "softsign",
    "sparse_softmax_cross_entropy_with_logits",
    "swish",
    "tanh",
    "top_k",
    "weighted_cross_entropy_with_logits",
    "xw_plus_b",
]
