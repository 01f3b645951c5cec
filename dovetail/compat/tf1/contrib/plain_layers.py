"""Layers of `tf.contrib.layers` and slim without variables of their own, and layers made of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....graph.control_flow.cond_while import cond
from ....graph.core.build import convert
from ....graph.core.constant_value import static_value
from ....graph.core.default_graph import name_scope
from ....graph.core.dtypes import float32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.gather import one_hot
from ....graph.ops.math.cast import cast
from ....graph.ops.nn.dense import dropout as _dropout
from ....graph.ops.nn.softmax import softmax as _softmax
from ....graph.variables.scope import variable_scope
from .. import layers as core
from .arg_scope import add_arg_scope
from .networks import Function, order_of
from .utils import collect_named_outputs


@add_arg_scope
def max_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Tensor:
    """The largest of each window of images."""
    return _pooled(
        core.MaxPooling2D, "MaxPool2D", inputs, kernel_size, stride, padding, data_format, outputs_collections, scope
    )


@add_arg_scope
def avg_pool2d(
    inputs: Any,
    kernel_size: Any,
    stride: Any = 2,
    padding: str = "VALID",
    data_format: str = "NHWC",
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Tensor:
    """The mean of each window of images."""
    return _pooled(
        core.AveragePooling2D,
        "AvgPool2D",
        inputs,
        kernel_size,
        stride,
        padding,
        data_format,
        outputs_collections,
        scope,
    )


def _pooled(
    kind: Any,
    name: str,
    inputs: Any,
    size: Any,
    stride: Any,
    padding: str,
    data_format: str,
    collections: Any,
    scope: Any,
) -> Tensor:
    with name_scope(scope or name) as within:
        y = kind(size, stride, padding.lower(), order_of(data_format))(convert(inputs))
        return collect_named_outputs(collections, within.rstrip("/"), y)


@add_arg_scope
def dropout(
    inputs: Any,
    keep_prob: Any = 0.5,
    noise_shape: Any = None,
    is_training: Any = True,
    outputs_collections: Any = None,
    scope: str | None = None,
    seed: int | None = None,
) -> Tensor:
    """While `is_training` (a bool, or a bool tensor): elements set to 0 at random, the others scaled by `1 / keep_prob`."""
    with name_scope(scope or "Dropout") as within:
        x = convert(inputs)
        y = either(is_training, lambda: _dropout(x, keep_prob, noise_shape, seed), lambda: x)
        return collect_named_outputs(outputs_collections, within.rstrip("/"), y)


def either(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """One of two, now where the condition is known now, else by `dt.cond`."""
    known = static_value(condition) if isinstance(condition, Tensor) else condition
    if known is None:
        return cond(condition, yes, no)
    return yes() if known else no()


@add_arg_scope
def flatten(inputs: Any, outputs_collections: Any = None, scope: str | None = None) -> Tensor:
    """All axes but the first as one."""
    with name_scope(scope or "Flatten") as within:
        return collect_named_outputs(outputs_collections, within.rstrip("/"), core.flatten(inputs))


@add_arg_scope
def one_hot_encoding(
    labels: Any,
    num_classes: int,
    on_value: float = 1.0,
    off_value: float = 0.0,
    outputs_collections: Any = None,
    scope: str | None = None,
) -> Tensor:
    """`[..., num_classes]` of numbers of classes: `on_value` at the class, `off_value` elsewhere."""
    with name_scope(scope or "OneHotEncoding") as within:
        classes = convert(labels)
        if classes.dtype.base.name == "int32":
            classes = cast(classes, int64)
        y = one_hot(classes, num_classes, on_value, off_value, dtype=float32)
        return collect_named_outputs(outputs_collections, within.rstrip("/"), y)


@add_arg_scope
def softmax(logits: Any, scope: str | None = None) -> Tensor:
    """The softmax along the last axis."""
    with name_scope(scope or "softmax"):
        return _softmax(logits)


# --- layers of layers ------------------------------------------------------------------------------------------------


@add_arg_scope
def repeat(inputs: Any, repetitions: int, layer: Function, *args: Any, **kwargs: Any) -> Any:
    """A layer so many times, each on the output of the one before, with scopes of their own: `conv/conv_1`, `conv/conv_2`, ...

    >>> net = repeat(net, 3, conv2d, 256, [3, 3], scope="conv3")
    """
    with variable_scope(kwargs.pop("scope", None), "Repeat", [inputs]) as within:
        name = kwargs.pop("name", None) or within.name.rpartition("/")[2]
        for i in range(repetitions):
            inputs = layer(inputs, *args, scope=f"{name}_{i + 1}", **kwargs)
        return inputs


@add_arg_scope
def stack(inputs: Any, layer: Function, stack_args: Sequence[Any], **kwargs: Any) -> Any:
    """A layer once for each of `stack_args`, the arguments behind its input, each on the output of the one before.

    >>> net = stack(net, fully_connected, [32, 64, 128], scope="fc")
    """
    with variable_scope(kwargs.pop("scope", None), "Stack", [inputs]) as within:
        name = within.name.rpartition("/")[2]
        for i, own in enumerate(stack_args):
            own = own if isinstance(own, (list, tuple)) else [own]
            inputs = layer(inputs, *own, scope=f"{name}_{i + 1}", **kwargs)
        return inputs


__all__ = [
    "avg_pool2d",
    "dropout",
    "either",
    "flatten",
    "max_pool2d",
    "one_hot_encoding",
    "repeat",
    "softmax",
    "stack",
]
