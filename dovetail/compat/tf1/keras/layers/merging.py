"""Layers that put several tensors together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from .....graph.core.graph import Tensor
from .....graph.ops.array.concat_stack import concat
from .....graph.ops.array.shapes import expand_dims, squeeze, transpose
from .....graph.ops.linalg.linalg import matmul
from .....graph.ops.math.arithmetic import maximum, minimum
from .....graph.ops.math.compare import logical_and
from .....graph.ops.math.reduce import reduce_sum
from .....graph.ops.nn.normalization import l2_normalize
from .base import Layer


class _Merge(Layer):
    """A function of a list of tensors of one shape (or that broadcast)."""

    supports_masking = True

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """See `Layer.call`."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
            raise ValueError(f"'{self.name}' takes a list of at least two tensors")
        return self._merged(list(inputs))

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """See `Layer.compute_mask`: steps that all have."""
        found = [m for m in mask or () if m is not None]
        return reduce(logical_and, found) if found else None


class Add(_Merge):
    """Their sum."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return reduce(lambda a, b: a + b, inputs)


class Subtract(_Merge):
    """The first minus the second."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        if len(inputs) != 2:
            raise ValueError(f"'{self.name}' takes two tensors, not {len(inputs)}")
        return inputs[0] - inputs[1]


class Multiply(_Merge):
    """Their product, element by element."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return reduce(lambda a, b: a * b, inputs)


class Average(_Merge):
    """Their mean."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return reduce(lambda a, b: a + b, inputs) * (1.0 / len(inputs))


class Maximum(_Merge):
    """The largest of them, element by element."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return reduce(maximum, inputs)


class Minimum(_Merge):
    """The smallest of them, element by element."""

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return reduce(minimum, inputs)


class Concatenate(_Merge):
    """One after another along an axis."""

    def __init__(self, axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axis = axis

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        return concat(inputs, self.axis)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "axis": self.axis}


class Dot(_Merge):
    """Products of two tensors along an axis of each; with `normalize` cosines."""

    def __init__(self, axes: Any, normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.axes, self.normalize = axes, normalize

    def _merged(self, inputs: list[Tensor]) -> Tensor:
        x, y = inputs
        axes = [self.axes, self.axes] if isinstance(self.axes, int) else list(self.axes)
        a, b = (i % (t.shape.rank or 1) for i, t in zip(axes, inputs, strict=True))
        if self.normalize:
            x, y = l2_normalize(x, a), l2_normalize(y, b)
        if x.shape.rank == y.shape.rank == 2:
            return reduce_sum(x * y, 1, keepdims=True)
        x = expand_dims(x, 1) if x.shape.rank == 2 else x if a == 2 else transpose(x, [0, 2, 1])
        small = y.shape.rank == 2
        y = expand_dims(y, 2) if small else y if b == 1 else transpose(y, [0, 2, 1])
        found = matmul(x, y)
        return squeeze(found, [2]) if small else squeeze(found, [1]) if inputs[0].shape.rank == 2 else found

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "axes": self.axes, "normalize": self.normalize}


def add(inputs: Sequence[Tensor], **kwargs: Any) -> Any:
    """`Add()(inputs)`."""
    return Add(**kwargs)(inputs)


def concatenate(inputs: Sequence[Tensor], axis: int = -1, **kwargs: Any) -> Any:
    """`Concatenate(axis)(inputs)`."""
    return Concatenate(axis, **kwargs)(inputs)


def multiply(inputs: Sequence[Tensor], **kwargs: Any) -> Any:
    """`Multiply()(inputs)`."""
    return Multiply(**kwargs)(inputs)


def average(inputs: Sequence[Tensor], **kwargs: Any) -> Any:
    """`Average()(inputs)`."""
    return Average(**kwargs)(inputs)


__all__ = [
    "Add",
    "Average",
    "Concatenate",
    "Dot",
    "Maximum",
    "Minimum",
    "Multiply",
    "Subtract",
    "add",
    "average",
    "concatenate",
    "multiply",
]
