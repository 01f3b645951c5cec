"""Layers that look at one sample's numbers as they come: `Dense`, `Flatten`, `Dropout`, `Embedding` and their like."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .....graph.control_flow.cond_while import cond
from .....graph.core.build import convert
from .....graph.core.dtypes import int32
from .....graph.core.graph import Tensor
from .....graph.ops.array.concat_stack import stack
from .....graph.ops.array.embedding import embedding_lookup
from .....graph.ops.array.padding import tile
from .....graph.ops.array.shapes import expand_dims, reshape, shape, transpose
from .....graph.ops.linalg.einsum import tensordot
from .....graph.ops.linalg.linalg import matmul
from .....graph.ops.math.arithmetic import multiply
from .....graph.ops.math.cast import cast
from .....graph.ops.math.compare import not_equal
from .....graph.ops.math.reduce import reduce_any
from .....graph.ops.nn.dense import bias_add, dropout
from .. import activations, constraints, initializers, regularizers
from ..registry import Registry
from .base import Layer, Shape

_functions = Registry("function")


def weighted_config(layer: Any, *names: str) -> dict[str, Any]:
    """The config of a layer's initializers, regularizers and constraints: `kernel_initializer` and so on."""
    config = {}
    for name in names:
        for kind, module in (("initializer", initializers), ("regularizer", regularizers), ("constraint", constraints)):
            key = f"{name}_{kind}"
            if hasattr(layer, key):
                written: Any = module
                config[key] = written.serialize(getattr(layer, key))
    return config


class Dense(Layer):
    """A fully connected layer: `activation(x @ kernel + bias)`, along the last axis.

    Args:
        units: size of the output's last axis.
        activation: name or function; None: none.
        use_bias: whether a bias is added.
        kernel_initializer: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.
        bias_initializer: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.
        kernel_regularizer: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.
        bias_regularizer: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.
        kernel_constraint: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.
        bias_constraint: names or objects of `keras.initializers`, `keras.regularizers`, `keras.constraints`.

    Raises:
        ValueError: the last size of the input is unknown.
    """

    supports_masking = True

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        self.units = int(units)
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self.bias: Any = None
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.kernel_regularizer = regularizers.get(kernel_regularizer)
        self.bias_regularizer = regularizers.get(bias_regularizer)
        self.kernel_constraint = constraints.get(kernel_constraint)
        self.bias_constraint = constraints.get(bias_constraint)

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        size = known(self, input_shape, -1)
        if self.use_bias and len(input_shape) < 2:
            raise ValueError(
                f"'{self.name}' takes a batch of rows, and its input has the shape {input_shape}: dt.expand_dims(x, 0) makes it one row"
            )
        self.kernel = self.add_weight(
            "kernel", [size, self.units], None, self.kernel_initializer, self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )  # fmt: skip
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                [self.units],
                None,
                self.bias_initializer,
                self.bias_regularizer,
                constraint=self.bias_constraint,
            )

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        rank = inputs.shape.rank or 2
        y = matmul(inputs, self.kernel) if rank == 2 else tensordot(inputs, self.kernel, [[rank - 1], [0]])
        if self.use_bias:
            y = bias_add(y, self.bias)
        out: Tensor = self.activation(y)
        return out

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": activations.serialize(self.activation),
            "use_bias": self.use_bias,
            **weighted_config(self, "kernel", "bias"),
        }


class Activation(Layer):
    """A function of each element, such as "relu".

    Args:
        activation: name or function.
    """

    supports_masking = True

    def __init__(self, activation: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.activation = activations.get(activation)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        found: Tensor = self.activation(inputs)
        return found

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "activation": activations.serialize(self.activation)}


class ReLU(Layer):
    """max(x, 0), with a slope below zero and a largest value, if wanted."""

    supports_masking = True

    def __init__(self, max_value: float | None = None, negative_slope: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_value, self.negative_slope = max_value, negative_slope

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return activations.relu(inputs, self.negative_slope, self.max_value)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "max_value": self.max_value, "negative_slope": self.negative_slope}


class LeakyReLU(ReLU):
    """x above zero, a part of it below."""

    def __init__(self, negative_slope: float = 0.3, **kwargs: Any) -> None:
        super().__init__(None, negative_slope, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        config = super().get_config()
        del config["max_value"]
        return config


class Softmax(Layer):
    """exp(x) / sum(exp(x)) along an axis."""

    supports_masking = True

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return activations.softmax(inputs, self.axis)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "axis": self.axis}


class Dropout(Layer):
    """While training: elements set to 0 at random, the others scaled up (Srivastava et al., 2014).

    Args:
        rate: share of the elements, in [0, 1): a number, or a tensor.
        noise_shape: shape of the random choices, broadcast to the input's; None: its own.
        seed: seed of the choices; None: from the graph's, `dt.set_random_seed`.
    """

    supports_masking = True

    def __init__(self, rate: Any, noise_shape: Any = None, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(rate, (int, float)) and not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1), not {rate}")
        self.rate, self.noise_shape, self.seed = rate, noise_shape, seed

    def call(self, inputs: Tensor, training: Any = None) -> Tensor:
        """See `Layer.call`."""
        found: Tensor = either(
            training,
            lambda: dropout(inputs, rate=self.rate, noise_shape=self._noise_shape(inputs), seed=self.seed),
            lambda: inputs,
        )
        return found

    def _noise_shape(self, inputs: Tensor) -> Any:
        return self.noise_shape

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        config = {**super().get_config(), "rate": self.rate, "seed": self.seed}
        return config if self.noise_shape is None else {**config, "noise_shape": list(self.noise_shape)}


class SpatialDropout1D(Dropout):
    """Dropout of whole channels, the same for all steps."""

    def _noise_shape(self, inputs: Tensor) -> Any:
        return [None, 1, None]


def _with_samples(x: Tensor, sizes: list[int]) -> Tensor:
    """As many samples as `x` has, empty ones too, each of these sizes, of which one may be -1."""
    rows = x.shape.as_list()[0]
    return reshape(x, stack([shape(x)[0], *sizes]) if rows is None else [rows, *sizes])


class Flatten(Layer):
    """All axes but the first as one."""

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        rest = inputs.shape.as_list()[1:]
        features = -1 if None in rest else math.prod(d or 0 for d in rest)
        return reshape(inputs, [-1, features]) if features > 0 else _with_samples(inputs, [features])


class Reshape(Layer):
    """Another shape for each sample; one size may be -1."""

    def __init__(self, target_shape: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target_shape = tuple(int(d) for d in target_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        target = list(self.target_shape)
        rest = inputs.shape.as_list()[1:]
        if None not in rest:
            whole, part = math.prod(d or 0 for d in rest), math.prod(n for n in target if n != -1)
            if -1 in target and part and whole % part == 0:  # so that the size is known
                target[target.index(-1)] = whole // part
            elif -1 in target or whole != part:
                raise ValueError(
                    f"The layer '{self.name}' cannot reshape a sample of shape {tuple(rest)} to {self.target_shape}: "
                    f"it has {whole} elements"
                )
            if whole:
                return reshape(inputs, [-1, *target])
        return _with_samples(inputs, target)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "target_shape": list(self.target_shape)}


class Permute(Layer):
    """Each sample's axes in another order; they are counted from 1."""

    def __init__(self, dims: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dims = tuple(dims)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return transpose(inputs, [0, *self.dims])

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "dims": list(self.dims)}


class RepeatVector(Layer):
    """[batch, features] -> [batch, n, features]."""

    def __init__(self, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n = n

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return tile(expand_dims(inputs, 1), [1, self.n, 1])

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "n": self.n}


class Lambda(Layer):
    """Any function of tensors. A saved model names it: the function comes from `custom_objects` then."""

    def __init__(self, function: Callable[..., Any], arguments: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = _functions.get(function)
        self.arguments = dict(arguments or {})

    def call(self, inputs: Any) -> Any:
        """See `Layer.call`."""
        return self.function(inputs, **self.arguments)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "function": _functions.serialize(self.function), "arguments": self.arguments}


class Rescaling(Layer):
    """`x * scale + offset`: say `1 / 255` for bytes."""

    def __init__(self, scale: float, offset: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale, self.offset = scale, offset

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        found: Tensor = multiply(cast(inputs, self.dtype), self.scale) + self.offset
        return found

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "scale": self.scale, "offset": self.offset}


class Embedding(Layer):
    """A row of a table for each whole number; its gradient is made of rows, too.

    Args:
        input_dim: rows of the table.
        output_dim: size of a row.
        mask_zero: whether 0 is padding that later layers leave out.

    Raises:
        InvalidArgumentError (in a step): a number outside [0, input_dim).
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        input_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        if input_length is not None:
            kwargs.setdefault("input_shape", (input_length,))
        super().__init__(**kwargs)
        self.input_dim, self.output_dim, self.mask_zero = int(input_dim), int(output_dim), mask_zero
        self.supports_masking = mask_zero
        starts = "random_uniform" if embeddings_initializer == "uniform" else embeddings_initializer
        self.embeddings_initializer = initializers.get(starts)
        self.embeddings_regularizer = regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = constraints.get(embeddings_constraint)

    def build(self, input_shape: Shape) -> None:
        """See `Layer.build`."""
        self.embeddings = self.add_weight(
            "embeddings", [self.input_dim, self.output_dim], None, self.embeddings_initializer, self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
        )  # fmt: skip

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        ids = cast(inputs, int32) if inputs.dtype.is_floating else inputs
        return embedding_lookup(self.embeddings, ids)

    def compute_mask(self, inputs: Tensor, mask: Any = None) -> Any:
        """See `Layer.compute_mask`."""
        return not_equal(inputs, convert(0, inputs.dtype)) if self.mask_zero else None

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "mask_zero": self.mask_zero,
            **weighted_config(self, "embeddings"),
        }


class Masking(Layer):
    """Steps whose features all have one value are padding, which later layers leave out."""

    supports_masking = True

    def __init__(self, mask_value: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask_value = mask_value

    def compute_mask(self, inputs: Tensor, mask: Any = None) -> Any:
        """See `Layer.compute_mask`."""
        return reduce_any(not_equal(inputs, self.mask_value), -1)

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        kept = cast(reduce_any(not_equal(inputs, self.mask_value), -1, keepdims=True), inputs.dtype)
        return multiply(inputs, kept)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "mask_value": self.mask_value}


def either(training: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`yes()` while training, else `no()`; a branch in the graph where only the step tells."""
    if isinstance(training, Tensor):
        return cond(training, yes, no)
    return yes() if training else no()


def known(layer: Layer, input_shape: Shape, axis: int) -> int:
    """A size that a layer's weights depend on. ValueError: it is unknown."""
    size = input_shape[axis]
    if size is None:
        raise ValueError(
            f"'{layer.name}' needs to know the size of its input's axis {axis}: its shape is {input_shape}"
        )
    return size


__all__ = [
    "Activation",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "Lambda",
    "LeakyReLU",
    "Masking",
    "Permute",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "Softmax",
    "SpatialDropout1D",
]
