"""The data: 1,797 handwritten digits of 8 by 8 pixels, which are part of scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TEST_SHARE = 0.25
# The seed of the split. It is fixed, so that all processes and runs have the same test part.
SPLIT_SEED = 0


class DataMissingError(Exception):
    """scikit-learn is not installed."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as float32 rows of 64 pixels from 0 to 1, and labels as int64 from 0 to 9.

    The test part is not used for training, and no choice depends on it.
    """

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array

    def batches(self, size: int, seed: int) -> Iterator[tuple[Array, Array]]:
        """Yields training batches without end. Each epoch has all training digits once, in a new order."""
        order = np.random.default_rng(seed)
        while True:
            shuffled = order.permutation(len(self.train_labels))
            for start in range(0, len(shuffled) - size + 1, size):
                chosen = shuffled[start : start + size]
                yield self.train_images[chosen], self.train_labels[chosen]


def load_digits() -> Digits:
    """Loads the digits. A quarter of each class is the test part. DataMissingError: scikit-learn is not installed."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as e:
        raise DataMissingError(
            "The demo trains on the digits that come with scikit-learn, which is not installed "
            f"({e.name} is missing).\n"
            "Install it with:  pip install 'dovetail[demo]'"
        ) from None
    pixels, labels = datasets.load_digits(return_X_y=True)
    images = (pixels / 16).astype(np.float32)
    labels = labels.astype(np.int64)
    test = _held_out(labels)
    return Digits(images[~test], labels[~test], images[test], labels[test])


def _held_out(labels: Array) -> Array:
    """Returns a mask of the test part, which has the same share of each class."""
    generator = np.random.default_rng(SPLIT_SEED)
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        chosen[members[: round(TEST_SHARE * len(members))]] = True
    return chosen
