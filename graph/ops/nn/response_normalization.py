"""Normalisation across neighbouring channels, as AlexNet has it (Krizhevsky et al., NIPS 2012, section 3.3)."""

from __future__ import annotations

import numpy as np

from ...core.build import TensorLike, constant, convert
from ...core.dtypes import FLOATS
from ...core.graph import Tensor
from ..array.shapes import reshape, shape
from ..linalg.linalg import matmul
from ..math.arithmetic import multiply, power, square
from ..math.common import allowed
from ..math.static_operands import need_rank, op_scope


def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Each element over a power of what stands in the channels around it: `x / (bias + alpha * sum(x ** 2)) ** beta`.

    Args:
        input: `[batch, height, width, channels]` of a floating type, the number of channels known.
        depth_radius: how many channels to each side the sum takes.
        bias, alpha, beta: as in the formula.

    Returns:
        Shape and type as `input`.

    Raises:
        ValueError: not four axes, or an unknown number of channels. TypeError: not of a floating type.

    >>> norm = dt.nn.lrn(pool, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    """
    with op_scope(name, "LRN", input):
        x = convert(input, name="input")
        dtype = allowed(x.dtype.base, FLOATS)
        need_rank(x.dims, 4, "input")
        channels = None if x.dims is None else x.dims[3]
        if channels is None:
            raise ValueError(f"the number of channels of {x!r} must be known")
        # Sums over a window of channels are a product with a band of ones.
        apart = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
        band = constant((apart <= depth_radius).astype(np.float32), dtype)
        squares = matmul(reshape(square(x), [-1, channels]), band)
        around = reshape(squares, x.dims if x.dims is not None and None not in x.dims else shape(x))
        result = multiply(x, power(bias + alpha * around, -beta))
        result.set_shape(x.dims)
        return result


__all__ = ["local_response_normalization"]
