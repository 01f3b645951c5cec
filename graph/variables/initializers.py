"""Initializers: the initial values of variables, under TensorFlow 1's names.

An initializer is an object that takes a shape and returns a tensor: `initializer(shape, dtype=None, partition_info=None)`.
The scaled initializers keep the magnitude of activations and gradients constant from layer to layer. This needs a variance of
about one over fan-in, fan-out or their mean (Glorot and Bengio, 2010; He et al., 2015; LeCun et al., 1998).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.build import constant
from ..core.dtypes import DType, as_dtype, float32
from ..core.graph import Tensor
from ..core.shape import static_sizes, text
from ..ops.array import creation
from ..ops.array.diagonal import eye, matrix_diag_part
from ..ops.array.shapes import reshape
from ..ops.array.slicing import slice as slice_of
from ..ops.linalg.linalg import matrix_transpose
from ..ops.linalg.matrix_functions import qr
from ..ops.math.arithmetic import multiply, sign
from ..ops.random import random

# Standard deviation of a standard normal distribution truncated at two standard deviations. The wanted deviation is divided by it.
_TRUNCATED_STDDEV = 0.87962566103423978

_LARGE = 1000  # a constant of this many elements or more is a Fill, not a Const (TensorFlow's limit for zeros)


class Initializer:
    """Base class of all initializers.

    >>> RandomUniform(-1.0, 1.0, seed=3)([2, 3])
    """

    _config: ClassVar[tuple[str, ...]] = ()

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        """Return the initial value.

        Args:
            shape: fully defined static shape.
            dtype: element type. If it is None, the initializer's `dtype`.
            partition_info: a `PartitionInfo` if the value is for a part of a partitioned variable.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, for `from_config`. Element types are names."""
        found = {name: getattr(self, name) for name in self._config}
        return {k: v.name if isinstance(v, DType) else v for k, v in found.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        """The initializer with these arguments."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{k}={v!r}" for k, v in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


def _sizes(shape: Any) -> list[int]:
    return static_sizes(shape, "An initializer needs a fully defined shape, not {}")


def _floating(dtype: Any) -> DType:
    found = as_dtype(dtype).base
    if not found.is_floating:
        raise ValueError(f"Expected floating point type, got {found.name}.")
    return found


class Zeros(Initializer):
    """All zeros, or False for bool."""

    _config: ClassVar[tuple[str, ...]] = ("dtype",)

    def __init__(self, dtype: Any = float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        return creation.zeros(_sizes(shape), self.dtype if dtype is None else dtype)


class Ones(Initializer):
    """All ones, or True for bool."""

    _config: ClassVar[tuple[str, ...]] = ("dtype",)

    def __init__(self, dtype: Any = float32) -> None:
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        return creation.ones(_sizes(shape), self.dtype if dtype is None else dtype)


class Constant(Initializer):
    """A given value.

    Args:
        value: a number, or a list or array of numbers. The numbers fill the shape in row-major order, and the last is repeated.
        dtype: element type.
        verify_shape: raise an error if `value` does not have exactly the variable's shape.

    Raises:
        TypeError: `value` is not numeric.
    """

    _config: ClassVar[tuple[str, ...]] = ("value", "dtype", "verify_shape")

    def __init__(self, value: Any = 0, dtype: Any = float32, verify_shape: bool = False) -> None:
        if not (np.isscalar(value) or isinstance(value, (list, tuple, np.ndarray))):
            raise TypeError(
                f"Invalid type for initial value: {type(value).__name__}. Expected a number, list or array."
            )
        self.value = value
        self.dtype = as_dtype(dtype)
        self.verify_shape = verify_shape

    def __call__(
        self, shape: Any, dtype: Any = None, partition_info: Any = None, verify_shape: bool | None = None
    ) -> Tensor:
        wanted = as_dtype(self.dtype if dtype is None else dtype).base
        sizes = _sizes(shape)
        verify = self.verify_shape if verify_shape is None else verify_shape
        if np.ndim(self.value) == 0 and not verify and math.prod(sizes) >= _LARGE:
            return creation.fill(sizes, constant(self.value, wanted))
        return constant(self.value, wanted, sizes, verify_shape=verify)


class RandomUniform(Initializer):
    """Uniformly distributed numbers in [minval, maxval). An integer type needs `maxval`."""

    _config: ClassVar[tuple[str, ...]] = ("minval", "maxval", "seed", "dtype")

    def __init__(self, minval: Any = 0, maxval: Any = None, seed: int | None = None, dtype: Any = float32) -> None:
        self.minval = minval
        self.maxval = maxval
        self.seed = seed
        self.dtype = as_dtype(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = self.dtype if dtype is None else dtype
        return random.random_uniform(_sizes(shape), self.minval, self.maxval, wanted, self.seed)


class RandomNormal(Initializer):
    """Normally distributed numbers."""

    _config: ClassVar[tuple[str, ...]] = ("mean", "stddev", "seed", "dtype")

    def __init__(self, mean: Any = 0.0, stddev: Any = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        self.mean = mean
        self.stddev = stddev
        self.seed = seed
        self.dtype = _floating(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        return random.random_normal(_sizes(shape), self.mean, self.stddev, wanted, self.seed)


class TruncatedNormal(RandomNormal):
    """Normally distributed numbers within two standard deviations of the mean."""

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        return random.truncated_normal(_sizes(shape), self.mean, self.stddev, wanted, self.seed)


class UniformUnitScaling(Initializer):
    """Uniformly distributed numbers in +- factor * sqrt(3 / fan_in), which keep the variance of the input.

    `VarianceScaling` is its successor.
    """

    _config: ClassVar[tuple[str, ...]] = ("factor", "seed", "dtype")

    def __init__(self, factor: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        self.factor = factor
        self.seed = seed
        self.dtype = _floating(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        inputs = max(float(math.prod(_full_shape(shape, partition_info)[:-1])), 1.0)
        limit = math.sqrt(3 / inputs) * self.factor
        return random.random_uniform(_sizes(shape), -limit, limit, wanted, self.seed)


class VarianceScaling(Initializer):
    """Random numbers with variance `scale / n`, where n is fan-in, fan-out or their mean.

    Args:
        scale: a positive number.
        mode: "fan_in", "fan_out" or "fan_avg", which chooses n. See `compute_fans`.
        distribution: "truncated_normal" (or "normal"), "untruncated_normal" or "uniform".
        seed: random seed.
        dtype: a floating type.

    Raises:
        ValueError: an argument has another value.

    >>> VarianceScaling(2.0, "fan_in", "truncated_normal")([3, 3, 16, 32])   # He et al., 2015
    """

    _config: ClassVar[tuple[str, ...]] = ("scale", "mode", "distribution", "seed", "dtype")

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
        dtype: Any = float32,
    ) -> None:
        if scale <= 0.0:
            raise ValueError(f"`scale` must be positive float, got {scale}")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"mode must be 'fan_in', 'fan_out' or 'fan_avg', not {mode!r}")
        if distribution.lower() not in ("normal", "uniform", "truncated_normal", "untruncated_normal"):
            raise ValueError(
                "distribution must be 'truncated_normal', 'untruncated_normal', 'normal' or 'uniform', "
                f"not {distribution!r}"
            )
        self.scale = scale
        self.mode = mode
        self.distribution = distribution.lower()
        self.seed = seed
        self.dtype = _floating(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        inputs, outputs = compute_fans(_full_shape(shape, partition_info))
        n = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[self.mode]
        variance = self.scale / max(1.0, n)
        sizes = _sizes(shape)
        if self.distribution == "uniform":
            limit = math.sqrt(3.0 * variance)
            return random.random_uniform(sizes, -limit, limit, wanted, self.seed)
        if self.distribution == "untruncated_normal":
            return random.random_normal(sizes, 0.0, math.sqrt(variance), wanted, self.seed)
        return random.truncated_normal(sizes, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV, wanted, self.seed)


class GlorotUniform(VarianceScaling):
    """Uniform, with variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010). The default of `get_variable`."""

    _config: ClassVar[tuple[str, ...]] = ("seed", "dtype")

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "uniform", seed, dtype)


class GlorotNormal(VarianceScaling):
    """Truncated normal, with variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010)."""

    _config: ClassVar[tuple[str, ...]] = ("seed", "dtype")

    def __init__(self, seed: int | None = None, dtype: Any = float32) -> None:
        super().__init__(1.0, "fan_avg", "truncated_normal", seed, dtype)


class Orthogonal(Initializer):
    """A random orthogonal matrix times `gain` (Saxe, McClelland and Ganguli, 2013).

    The last axis is the matrix's columns, and all other axes together are its rows. With fewer rows than columns the rows are
    orthonormal, otherwise the columns.
    """

    _config: ClassVar[tuple[str, ...]] = ("gain", "seed", "dtype")

    def __init__(self, gain: float = 1.0, seed: int | None = None, dtype: Any = float32) -> None:
        self.gain = gain
        self.seed = seed
        self.dtype = _floating(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        sizes = _sizes(shape)
        if len(sizes) < 2:
            raise ValueError(f"The tensor to initialize must be at least two-dimensional, not {text(tuple(sizes))}")
        rows, columns = math.prod(sizes[:-1]), sizes[-1]
        normal = random.random_normal([max(rows, columns), min(rows, columns)], dtype=wanted, seed=self.seed)
        q, r = qr(normal)
        # A QR decomposition is unique except for signs. With a positive diagonal of r, q is uniformly distributed.
        q = multiply(q, sign(matrix_diag_part(r)))
        if rows < columns:
            q = matrix_transpose(q)
        return multiply(self.gain, reshape(q, sizes))


class Identity(Initializer):
    """The identity matrix times `gain`. ValueError if the rank is not 2."""

    _config: ClassVar[tuple[str, ...]] = ("gain", "dtype")

    def __init__(self, gain: float = 1.0, dtype: Any = float32) -> None:
        self.gain = gain
        self.dtype = _floating(dtype)

    def __call__(self, shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        wanted = _floating(self.dtype if dtype is None else dtype)
        full = _full_shape(shape, partition_info)
        if len(full) != 2:
            raise ValueError("Identity matrix initializer can only be used for 2D matrices.")
        matrix = eye(full[0], full[1], dtype=wanted)
        if partition_info is not None:
            matrix = slice_of(matrix, list(partition_info.var_offset), _sizes(shape))
        return matrix if self.gain == 1.0 else multiply(self.gain, matrix)


def lecun_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal, with variance 1 / fan_in (LeCun et al., 1998)."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


def lecun_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform, with variance 1 / fan_in (LeCun et al., 1998)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)


def he_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal, with variance 2 / fan_in, for relu (He et al., 2015)."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


def he_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform, with variance 2 / fan_in, for relu (He et al., 2015)."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


def compute_fans(shape: Sequence[int]) -> tuple[float, float]:
    """Fan-in and fan-out of a weight tensor: the numbers of inputs and outputs of one unit.

    >>> compute_fans([3, 3, 16, 32])   # a convolution with a 3 x 3 kernel
    (144.0, 288.0)
    """
    if len(shape) < 2:
        n = float(shape[0]) if shape else 1.0
        return n, n
    taps = math.prod(shape[:-2])
    return float(taps * shape[-2]), float(taps * shape[-1])


def _full_shape(shape: Any, partition_info: Any) -> list[int]:
    return _sizes(shape if partition_info is None else partition_info.full_shape)


# TensorFlow 1's names, such as `tf.zeros_initializer()`.
zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
uniform_unit_scaling_initializer = UniformUnitScaling
variance_scaling_initializer = VarianceScaling
glorot_uniform_initializer = GlorotUniform
glorot_normal_initializer = GlorotNormal
orthogonal_initializer = Orthogonal
identity_initializer = Identity
