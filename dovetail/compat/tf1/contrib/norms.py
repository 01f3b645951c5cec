"""Normalizing layers of `tf.contrib.layers` and slim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....graph.core.build import convert
from ....graph.core.default_graph import GraphKeys, control_dependencies, get_default_graph
from ....graph.core.dtypes import bfloat16, float16, float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import ones, zeros
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.shapes import reshape, shape, size
from ....graph.ops.math.cast import cast
from ....graph.ops.nn.normalization import batch_normalization, fused_batch_norm, moments
from ....graph.ops.state.variables import assign_sub
from ....graph.variables.initializers import ones_initializer, zeros_initializer
from .arg_scope import add_arg_scope
from .networks import Function, channels_of, finished, layer_scope, order_of
from .plain_layers import either
from .utils import get_variable_collections
from .variables import model_variable

_BEGIN = {
    "beta": zeros_initializer(),
    "gamma": ones_initializer(),
    "moving_mean": zeros_initializer(),
    "moving_variance": ones_initializer(),
}


@add_arg_scope
def batch_norm(
    inputs: Any,
    decay: float = 0.999,
    center: bool = True,
    scale: bool = False,
    epsilon: float = 0.001,
    activation_fn: Function | None = None,
    param_initializers: Mapping[str, Any] | None = None,
    param_regularizers: Mapping[str, Any] | None = None,
    updates_collections: str | Sequence[str] | None = GraphKeys.UPDATE_OPS,
    is_training: Any = True,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    fused: bool | None = None,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Tensor:
    """Each channel with mean 0 and variance 1: by the batch in training, else by the moving averages.

    Args:
        inputs: `[batch, channels]` or `[batch, height, width, channels]`; the channels second for "NCHW".
        decay: how much of the averages stays in each step.
        epsilon: added to the variance.
        center: whether there are `beta` and `gamma`.
        scale: whether there are `beta` and `gamma`.
        activation_fn: function of the output; None: none.
        param_initializers: mappings from "beta", "gamma", "moving_mean", "moving_variance".
        param_regularizers: mappings from "beta", "gamma", "moving_mean", "moving_variance".
        updates_collections: the collections of the nodes that move the averages, which are to be run with the training op;
            None: they run before the output is there.
        is_training: a bool, or a bool tensor.
        fused: one node does it in any case; with False the average of variances is of the biased ones, as in TensorFlow.
        reuse: as of `fully_connected`.
        variables_collections: as of `fully_connected`.
        outputs_collections: as of `fully_connected`.
        trainable: as of `fully_connected`.
        scope: as of `fully_connected`.

    Returns:
        as the input.

    Raises:
        ValueError: the input has another rank, or the number of channels is unknown.
    """
    x = convert(inputs)
    order = "NCHW" if order_of(data_format) == "channels_first" else "NHWC"
    if x.shape.rank not in (2, 4):
        raise ValueError(f"Inputs {x.name} has unsupported rank: expected 2 or 4 but got {x.shape.rank}")
    channels = channels_of(x, data_format)
    own = float32 if x.dtype.base in (float16, bfloat16) else x.dtype.base
    begin, regularizers = {**_BEGIN, **(param_initializers or {})}, param_regularizers or {}
    with layer_scope(scope, "BatchNorm", x, reuse, {}, variables_collections) as within:

        def made(name: str, trained: bool) -> Any:
            return model_variable(
                name, shape=[channels], dtype=own, initializer=begin[name], regularizer=regularizers.get(name),
                trainable=trained, collections=get_variable_collections(variables_collections, name),
            )  # fmt: skip

        beta = made("beta", trainable) if center else zeros([channels], own)
        gamma = made("gamma", trainable) if scale else ones([channels], own)
        within.set_partitioner(None)  # moving averages are updated as a whole
        mean, variance = made("moving_mean", False), made("moving_variance", False)
        images = (
            reshape(x, [-1, 1, 1, channels] if order == "NHWC" else [-1, channels, 1, 1]) if x.shape.rank == 2 else x
        )

        def by_batch() -> Any:
            y, found, unbiased = fused_batch_norm(images, gamma, beta, epsilon=epsilon, data_format=order)
            if fused is not False:
                return y, found, unbiased
            count = cast(size(images), own) / channels
            return y, found, unbiased * ((count - 1.0) / count)

        def by_averages() -> Any:
            found = fused_batch_norm(
                images, gamma, beta, mean, variance, epsilon=epsilon, data_format=order, is_training=False
            )
            return found[0], identity(mean), identity(variance)

        y, new_mean, new_variance = either(is_training, by_batch, by_averages)

        def moved(average: Any, value: Tensor) -> Any:
            step = either(is_training, lambda: convert(1 - decay, own), lambda: convert(0.0, own))
            return assign_sub(average, (average - value) * step)

        if is_training is not False:
            updates = [moved(mean, new_mean), moved(variance, new_variance)]
            if updates_collections is None:
                with control_dependencies(updates):
                    y = identity(y)
            else:
                into = [updates_collections] if isinstance(updates_collections, str) else list(updates_collections)
                for update in updates:
                    get_default_graph().add_to_collections(into, update)
        if x.shape.rank == 2:
            y = reshape(y, shape(x))
        y.set_shape(x.shape)
        return finished(y, within, None, None, activation_fn, outputs_collections)


@add_arg_scope
def layer_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    activation_fn: Function | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    begin_norm_axis: int = 1,
    begin_params_axis: int = -1,
    scope: Any = None,
) -> Tensor:
    """Each row with mean 0 and variance 1 (Ba, Kiros, Hinton, 2016); arguments as of `batch_norm`, and:

    Args:
        begin_norm_axis: the first of the axes that are normalized together.
        begin_params_axis: the first of the axes for whose elements there is a `beta` and a `gamma` each.

    Raises:
        ValueError: an axis does not exist, or has no known size.
    """
    x = convert(inputs)
    rank = x.shape.rank
    if rank is None or not -rank <= begin_norm_axis < rank or not -rank <= begin_params_axis < rank:
        raise ValueError(f"begin_norm_axis and begin_params_axis must be axes of inputs of shape {x.shape}")
    sizes = x.shape.as_list()[begin_params_axis:]
    if None in sizes:
        raise ValueError(f"Inputs {x.name}: shape is not fully defined behind axis {begin_params_axis}: {x.shape}")
    with layer_scope(scope, "LayerNorm", x, reuse, {}, variables_collections) as within:
        params = [
            model_variable(
                name, shape=sizes, dtype=x.dtype.base, initializer=_BEGIN[name], trainable=trainable,
                collections=get_variable_collections(variables_collections, name),
            ) if wanted else None
            for name, wanted in (("beta", center), ("gamma", scale))
        ]  # fmt: skip
        axes = list(range(begin_norm_axis % rank, rank))
        wide = cast(x, float32) if x.dtype.base in (float16, bfloat16) else x
        mean, variance = moments(wide, axes, keepdims=True)
        epsilon = 1e-3 if x.dtype.base is float16 else 1e-12
        y = cast(batch_normalization(wide, mean, variance, params[0], params[1], epsilon), x.dtype.base)
        y.set_shape(x.shape)
        return finished(y, within, None, None, activation_fn, outputs_collections)


@add_arg_scope
def instance_norm(
    inputs: Any,
    center: bool = True,
    scale: bool = True,
    epsilon: float = 1e-6,
    activation_fn: Function | None = None,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: Any = None,
    variables_collections: Any = None,
    outputs_collections: Any = None,
    trainable: bool = True,
    data_format: str = "NHWC",
    scope: Any = None,
) -> Tensor:
    """Each channel of each image with mean 0 and variance 1 (Ulyanov, Vedaldi, Lempitsky, 2017); arguments as of `batch_norm`.

    Raises:
        ValueError: there is no axis between batch and channels, or the channels' size is not known.
    """
    x = convert(inputs)
    rank = x.shape.rank
    if rank is None or rank < 3:
        raise ValueError(f"instance_norm needs a batch, axes to normalize over, and channels, not {x!r}")
    first = order_of(data_format) == "channels_first"
    channels = channels_of(x, data_format)
    begin = {**_BEGIN, **(param_initializers or {})}
    with layer_scope(scope, "InstanceNorm", x, reuse, {}, variables_collections) as within:
        params = [
            model_variable(
                name, shape=[channels], dtype=x.dtype.base, initializer=begin[name], trainable=trainable,
                collections=get_variable_collections(variables_collections, name),
            ) if wanted else None
            for name, wanted in (("beta", center), ("gamma", scale))
        ]  # fmt: skip
        if first:
            params = [None if p is None else reshape(p, [channels] + [1] * (rank - 2)) for p in params]
        mean, variance = moments(x, list(range(2, rank) if first else range(1, rank - 1)), keepdims=True)
        y = batch_normalization(x, mean, variance, params[0], params[1], epsilon)
        y.set_shape(x.shape)
        return finished(y, within, None, None, activation_fn, outputs_collections)


__all__ = ["batch_norm", "instance_norm", "layer_norm"]
