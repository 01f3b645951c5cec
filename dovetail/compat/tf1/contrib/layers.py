"""Layers, initializers and regularizers of `tf.contrib.layers`."""

from ....graph.ops.sparse.math import safe_embedding_lookup_sparse
from . import utils
from .networks import (
    bias_add,
    conv1d,
    conv2d,
    conv2d_transpose,
    convolution,
    convolution1d,
    convolution2d,
    convolution2d_transpose,
    fully_connected,
    separable_conv2d,
    separable_convolution2d,
)
from .norms import batch_norm, instance_norm, layer_norm
from .plain_layers import avg_pool2d, dropout, flatten, max_pool2d, one_hot_encoding, repeat, softmax, stack
from .regularizers import (
    apply_regularization,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    sum_regularizer,
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from .training import OPTIMIZERS as OPTIMIZER_CLS_NAMES, SUMMARIES as OPTIMIZER_SUMMARIES, optimize_loss

__all__ = [
    "OPTIMIZER_CLS_NAMES",
    "OPTIMIZER_SUMMARIES",
    "apply_regularization",
    "avg_pool2d",
    "batch_norm",
    "bias_add",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "convolution",
    "convolution1d",
    "convolution2d",
    "convolution2d_transpose",
    "dropout",
    "flatten",
    "fully_connected",
    "instance_norm",
    "l1_l2_regularizer",
    "l1_regularizer",
    "l2_regularizer",
    "layer_norm",
    "max_pool2d",
    "one_hot_encoding",
    "optimize_loss",
    "repeat",
    "safe_embedding_lookup_sparse",
    "separable_conv2d",
    "separable_convolution2d",
    "softmax",
    "stack",
    "sum_regularizer",
    "utils",
    "variance_scaling_initializer",
    "xavier_initializer",
    "xavier_initializer_conv2d",
]
