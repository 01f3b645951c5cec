"""Input functions (`dt.estimator.inputs`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....data.dataset import Dataset


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """An input function that gives batches of arrays.

    Args:
        x: features: an array, or a dictionary of arrays; rows are examples. y: labels, likewise; None: there are none.
        batch_size: rows of a batch; the last one may have fewer. num_epochs: how many rounds; None: without end.
        shuffle: whether in random order; must be said. queue_capacity: from among how many rows each is drawn then.
        num_threads: accepted.

    Returns:
        a function that gives (features, labels), or features.

    Raises:
        ValueError: `shuffle` is not said, there are no features, or different numbers of rows.

    >>> input_fn = numpy_input_fn({"x": images}, labels, batch_size=64, num_epochs=None, shuffle=True)
    """
    if not isinstance(shuffle, bool):
        raise ValueError(
            "shuffle must be provided and explicitly set as boolean (it is recommended to set it as True for training)"
        )
    features = _arrays(x, "x")
    if isinstance(features, dict) and not features:
        raise ValueError("x cannot be an empty dict")
    labels = None if y is None else _arrays(y, "y")
    parts = [*_leaves(features), *_leaves(labels)]
    if len({len(p) for p in parts}) != 1:
        raise ValueError(f"Length of tensors in x and y is mismatched: {[p.shape for p in parts]}")

    def input_fn() -> Any:
        dataset = Dataset.from_tensor_slices(features if labels is None else (features, labels))
        if shuffle:
            dataset = dataset.shuffle(queue_capacity)
        return dataset.repeat(num_epochs).batch(batch_size).make_one_shot_iterator().get_next()

    return input_fn


def _arrays(given: Any, what: str) -> Any:
    if isinstance(given, Mapping):
        return {key: np.asarray(value) for key, value in given.items()}
    found = np.asarray(given)
    if not found.ndim:
        raise ValueError(f"{what} must be an array with rows, or a dictionary of such, not {given!r}")
    return found


def _leaves(arrays: Any) -> list[Any]:
    if arrays is None:
        return []
    return list(arrays.values()) if isinstance(arrays, dict) else [arrays]


__all__ = ["numpy_input_fn"]
