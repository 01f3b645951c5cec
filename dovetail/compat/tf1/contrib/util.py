"""What is known of tensors before the graph runs (`tf.contrib.util`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.core.build import convert
from ....graph.core.constant_value import static_dims, static_value
from ....graph.core.shape import TensorShape


def constant_value(tensor: Any) -> np.ndarray[Any, Any] | None:
    """A tensor's value, if it is known before the graph runs; else None. The array is yours."""
    found = static_value(convert(tensor))
    return None if found is None else np.array(found)


def constant_value_as_shape(tensor: Any) -> TensorShape:
    """The shape that a vector of sizes stands for, as far as it is known; -1 stands for an unknown size."""
    return TensorShape(static_dims(convert(tensor)))


__all__ = ["constant_value", "constant_value_as_shape"]
