"""`dt.keras.utils`: small helpers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.core.default_graph import set_random_seed as _set_graph_seed
from .coordinated import DatasetCreator
from .data import Sequence
from .registry import custom_object_scope, get_custom_objects, register_keras_serializable


def to_categorical(y: Any, num_classes: int | None = None, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Class numbers as one-hot rows: shape `y.shape + (num_classes,)`, without a last axis of size 1.

    >>> to_categorical([0, 2], 3)
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    labels = np.asarray(y, np.int64)
    shape = labels.shape[:-1] if labels.ndim > 1 and labels.shape[-1] == 1 else labels.shape
    count = int(labels.max()) + 1 if num_classes is None else num_classes
    out = np.zeros((labels.size, count), dtype)
    out[np.arange(labels.size), labels.reshape(-1)] = 1
    return out.reshape(*shape, count)


def normalize(x: Any, axis: int = -1, order: int = 2) -> np.ndarray[Any, Any]:
    """An array whose rows along an axis have norm 1; rows of zeros stay."""
    array = np.asarray(x, np.float64)
    norms = np.linalg.norm(array, order, axis, keepdims=True)
    return np.asarray(array / np.where(norms == 0, 1, norms))


def set_random_seed(seed: int) -> None:
    """Make runs repeat: the seed of the default graph (weights, dropout, the order of rows) and of NumPy and Python."""
    import random

    random.seed(seed)
    np.random.seed(seed)
    _set_graph_seed(seed)


class experimental:  # noqa: N801  (TensorFlow's name)
    """`dt.keras.utils.experimental`."""

    DatasetCreator = DatasetCreator


__all__ = [
    "Sequence",
    "custom_object_scope",
    "get_custom_objects",
    "normalize",
    "register_keras_serializable",
    "set_random_seed",
    "to_categorical",
]
