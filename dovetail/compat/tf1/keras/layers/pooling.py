"""Poolings: the largest, or the mean, of neighbours or of everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .....graph.core.graph import Tensor
from .....graph.ops.array.shapes import expand_dims, squeeze, transpose
from .....graph.ops.math.cast import cast
from .....graph.ops.math.reduce import reduce_max, reduce_mean, reduce_sum
from .....graph.ops.nn.pooling import avg_pool, max_pool
from .base import Layer
from .convolution import data_format_of, several


class _Pooling(Layer):
    """What poolings of windows share.

    Args:
        pool_size: size of the windows. strides: how far apart they are; None: `pool_size`.
        padding: "valid" or "same".
        data_format: "channels_last" or "channels_first".
    """

    _rank = 2
    _pool: Callable[..., Tensor]

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: str = "valid",
        data_format: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pool_size = several(pool_size, self._rank, "pool_size")
        self.strides = self.pool_size if strides is None else several(strides, self._rank, "strides")
        self.padding, self.data_format = padding.lower(), data_format_of(data_format)
        if self.padding not in ("valid", "same"):
            raise ValueError(f"padding must be 'valid' or 'same', not {padding!r}")

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        if self._rank == 1:
            x = inputs if self.data_format == "channels_last" else transpose(inputs, [0, 2, 1])
            sizes, strides = [1, 1, *self.pool_size, 1], [1, 1, *self.strides, 1]
            y = squeeze(type(self)._pool(expand_dims(x, 1), sizes, strides, self.padding.upper()), [1])
            return y if self.data_format == "channels_last" else transpose(y, [0, 2, 1])
        if self.data_format == "channels_last":
            sizes, strides, form = [1, *self.pool_size, 1], [1, *self.strides, 1], "NHWC"
        else:
            sizes, strides, form = [1, 1, *self.pool_size], [1, 1, *self.strides], "NCHW"
        return type(self)._pool(inputs, sizes, strides, self.padding.upper(), data_format=form)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {
            **super().get_config(),
            "pool_size": list(self.pool_size),
            "strides": list(self.strides),
            "padding": self.padding,
            "data_format": self.data_format,
        }


class MaxPooling2D(_Pooling):
    """The largest of each window of an image. Arguments: `pool_size`, `strides`, `padding`, `data_format`."""

    _pool = staticmethod(max_pool)


class AveragePooling2D(_Pooling):
    """The mean of each window of an image; arguments as of `MaxPooling2D`."""

    _pool = staticmethod(avg_pool)


class MaxPooling1D(_Pooling):
    """The largest of each window of steps; arguments as of `MaxPooling2D`."""

    _rank = 1
    _pool = staticmethod(max_pool)


class AveragePooling1D(_Pooling):
    """The mean of each window of steps; arguments as of `MaxPooling2D`."""

    _rank = 1
    _pool = staticmethod(avg_pool)


class _Global(Layer):
    """One number per channel, from everywhere."""

    _rank = 2
    _reduce: Callable[..., Tensor]

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format, self.keepdims = data_format_of(data_format), keepdims

    @property
    def _axes(self) -> list[int]:
        start = 1 if self.data_format == "channels_last" else 2
        return list(range(start, start + self._rank))

    def call(self, inputs: Tensor) -> Tensor:
        """See `Layer.call`."""
        return type(self)._reduce(inputs, self._axes, keepdims=self.keepdims)

    def get_config(self) -> dict[str, Any]:
        """See `Layer.get_config`."""
        return {**super().get_config(), "data_format": self.data_format, "keepdims": self.keepdims}


class GlobalMaxPooling2D(_Global):
    """The largest number of each channel of an image."""

    _reduce = staticmethod(reduce_max)


class GlobalAveragePooling2D(_Global):
    """The mean of each channel of an image."""

    _reduce = staticmethod(reduce_mean)


class GlobalMaxPooling1D(_Global):
    """The largest number of each channel over the steps."""

    _rank = 1
    _reduce = staticmethod(reduce_max)


class GlobalAveragePooling1D(_Global):
    """The mean of each channel over the steps; masked steps do not count."""

    _rank = 1
    _reduce = staticmethod(reduce_mean)
    supports_masking = True

    def call(self, inputs: Tensor, mask: Any = None) -> Tensor:
        """See `Layer.call`."""
        if mask is None:
            return super().call(inputs)
        (axis,) = self._axes
        kept = cast(expand_dims(mask, 2 if axis == 1 else 1), inputs.dtype)
        return reduce_sum(inputs * kept, axis, keepdims=self.keepdims) / reduce_sum(kept, axis, keepdims=self.keepdims)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """See `Layer.compute_mask`."""
        return None


MaxPool2D, AvgPool2D, MaxPool1D, AvgPool1D = MaxPooling2D, AveragePooling2D, MaxPooling1D, AveragePooling1D

__all__ = [
    "AveragePooling1D",
    "AveragePooling2D",
    "AvgPool1D",
    "AvgPool2D",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPooling1D",
    "MaxPooling2D",
]
