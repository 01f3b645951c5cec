"""`dt.keras.initializers`: what weights start with, under Keras' names."""

from __future__ import annotations

from typing import Any

from ....graph.variables.initializers import (
    Constant,
    GlorotNormal,
    GlorotUniform,
    Identity,
    Initializer,
    Ones,
    Orthogonal,
    RandomNormal as _RandomNormal,
    RandomUniform as _RandomUniform,
    TruncatedNormal as _TruncatedNormal,
    VarianceScaling,
    Zeros,
)
from .registry import Registry


class RandomNormal(_RandomNormal):
    """Normally distributed numbers."""

    def __init__(
        self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None, dtype: Any = "float32"
    ) -> None:
        super().__init__(mean, stddev, seed, dtype)


class TruncatedNormal(_TruncatedNormal):
    """Normally distributed numbers no further than two standard deviations from the mean."""

    def __init__(
        self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None, dtype: Any = "float32"
    ) -> None:
        super().__init__(mean, stddev, seed, dtype)


class RandomUniform(_RandomUniform):
    """Numbers evenly spread over [minval, maxval)."""

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None, dtype: Any = "float32"
    ) -> None:
        super().__init__(minval, maxval, seed, dtype)


class _Scaled(VarianceScaling):
    """A `VarianceScaling` whose only argument is the seed."""

    _config = ("seed", "dtype")
    _scaling: tuple[float, str, str]

    def __init__(self, seed: int | None = None, dtype: Any = "float32") -> None:
        super().__init__(*self._scaling, seed, dtype)


class HeNormal(_Scaled):
    """Truncated normal, variance 2 / inputs: for relu (He et al., 2015)."""

    _scaling = (2.0, "fan_in", "truncated_normal")


class HeUniform(_Scaled):
    """Uniform, variance 2 / inputs: for relu (He et al., 2015)."""

    _scaling = (2.0, "fan_in", "uniform")


class LecunNormal(_Scaled):
    """Truncated normal, variance 1 / inputs (LeCun et al., 1998)."""

    _scaling = (1.0, "fan_in", "truncated_normal")


class LecunUniform(_Scaled):
    """Uniform, variance 1 / inputs (LeCun et al., 1998)."""

    _scaling = (1.0, "fan_in", "uniform")


_registry = Registry(
    "initializer",
    Constant, GlorotNormal, GlorotUniform, HeNormal, HeUniform, Identity, LecunNormal, LecunUniform, Ones, Orthogonal,
    RandomNormal, RandomUniform, TruncatedNormal, VarianceScaling, Zeros, uniform=RandomUniform, normal=RandomNormal,
)  # fmt: skip
serialize, deserialize = _registry.serialize, _registry.deserialize


def get(identifier: Any) -> Any:
    """The initializer that is meant: by name (`"he_normal"`), by config, as a class or an object; None is None."""
    return _registry.get(identifier)


zeros, ones, constant, identity, orthogonal = Zeros, Ones, Constant, Identity, Orthogonal
glorot_uniform, glorot_normal, variance_scaling = GlorotUniform, GlorotNormal, VarianceScaling
he_normal, he_uniform, lecun_normal, lecun_uniform = HeNormal, HeUniform, LecunNormal, LecunUniform
random_normal, random_uniform, truncated_normal = RandomNormal, RandomUniform, TruncatedNormal

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "deserialize",
    "get",
    "serialize",
]
