"""`Input`: where a functional model begins."""

from __future__ import annotations

from typing import Any

from .....graph.core.build import placeholder
from .....graph.core.default_graph import get_default_graph
from .....graph.core.graph import Tensor
from ..backend import GraphState, floatx
from .base import Call, Layer, shape_of, sizes_of


class InputLayer(Layer):
    """What an `Input` stands for in a model."""

    def __init__(
        self,
        input_shape: Any = None,
        batch_size: int | None = None,
        dtype: Any = None,
        name: str | None = None,
        batch_input_shape: Any = None,
        input_tensor: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name or GraphState.of(get_default_graph()).unique_name("input"), **kwargs)
        self.built = True
        if input_tensor is None:
            if batch_input_shape is None:
                batch_input_shape = (batch_size, *(() if input_shape is None else sizes_of(input_shape)))
            input_tensor = placeholder(dtype or floatx(), list(batch_input_shape), name=self.name)
        self.dtype = input_tensor.dtype.base
        self.batch_input_shape = shape_of(input_tensor)
        call = Call(self, (), {}, input_tensor)
        self._calls.append(call)
        GraphState.of(input_tensor.graph).calls[input_tensor] = call

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        config = super().get_config()
        del config["trainable"]
        return config


def Input(
    shape: Any = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: Any = None,
    batch_shape: Any = None,
    tensor: Tensor | None = None,
) -> Tensor:
    """A tensor with which a functional model begins: a placeholder.

    Args:
        shape: its shape without the batch; None where a size may vary.
        batch_shape: with the batch.
        batch_size: size of the batch, where it is fixed.
        dtype: element type; None: `keras.backend.floatx()`.
        tensor: a tensor to use instead of a new placeholder.

    Raises:
        ValueError: no shape.

    >>> x = dt.keras.Input([28, 28, 1])
    >>> model = dt.keras.Model(x, dt.keras.layers.Flatten()(x))
    """
    if shape is None and batch_shape is None and tensor is None:
        raise ValueError("Input needs a `shape` (without the batch) or a `batch_shape`")
    layer = InputLayer(shape, batch_size, dtype, name, batch_shape, tensor)
    made: Tensor = layer.output
    return made
