"""`dt.nn`: operations of neural networks."""

from ...graph.ops.array.embedding import embedding_lookup
from ...graph.ops.array.sorting import in_top_k, top_k
from ...graph.ops.array.space_depth import depth_to_space, space_to_batch, space_to_depth
from ...graph.ops.math.elementwise import sigmoid, tanh
from ...graph.ops.math.special_functions import zero_fraction
from ...graph.ops.nn.activations import (
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
from ...graph.ops.nn.conv import (
    conv1d,
    conv2d,
    conv2d_transpose,
    depthwise_conv2d,
    depthwise_conv2d_native,
    separable_conv2d,
)
from ...graph.ops.nn.dense import bias_add, dropout
from ...graph.ops.nn.normalization import (
    batch_normalization,
    fused_batch_norm,
    l2_loss,
    l2_normalize,
    layer_norm,
    local_response_normalization,
    local_response_normalization as lrn,
    moments,
)
from ...graph.ops.nn.pooling import avg_pool, avg_pool as avg_pool2d, max_pool, max_pool as max_pool2d
from ...graph.ops.nn.softmax import (
    log_softmax,
    sigmoid_cross_entropy_with_logits,
    softmax,
    softmax_cross_entropy_with_logits,
    softmax_cross_entropy_with_logits_v2,
    sparse_softmax_cross_entropy_with_logits,
    weighted_cross_entropy_with_logits,
)
from ...graph.ops.nn.spatial import (
    avg_pool1d,
    avg_pool3d,
    avg_pool_v2,
    conv1d_transpose,
    conv3d,
    conv3d_transpose,
    convolution,
    dilation2d,
    erosion2d,
    max_pool1d,
    max_pool3d,
    max_pool_v2,
    pool,
)
from ...graph.ops.sparse.math import embedding_lookup_sparse, safe_embedding_lookup_sparse
from ...public_paths import exported as _exported, old_name as _old_name


def __getattr__(name: str) -> object:
    """A name that only TensorFlow 1 programs use."""
    return _old_name("dovetail.nn", name)


__all__ = _exported(globals())
