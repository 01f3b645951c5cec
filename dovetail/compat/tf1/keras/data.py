"""What `fit` and its like are given, as batches: arrays, data sets, generators, sequences.

A `Source` makes the batches of one epoch after another: `(x, y, weights)`, each a list of arrays or None. All workers that go in step
make the same batches, and each takes its own rows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ....data.dataset import Dataset
from ....graph.core.dtypes import as_dtype
from ....graph.core.nest import flatten, pack
from .backend import floatx

Array = np.ndarray[Any, Any]
Batch = tuple[Any, Any, Any]


class Sequence:
    """Batches by number. A subclass defines `__len__` and `__getitem__(i)`, which gives `(x, y)` or `(x, y, weights)`."""

    def __len__(self) -> int:
        """How many batches an epoch has."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        """The batch of that number."""
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """Called after each epoch."""


class Source:
    """Batches for a number of epochs.

    Attributes:
        steps: batches in an epoch; None: unknown before its end.
    """

    steps: int | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        raise NotImplementedError

    def ended(self) -> None:
        """An epoch is over."""


class Arrays(Source):
    """Arrays, cut into batches.

    Args:
        x, y, weights: arrays or structures of them; all have the same number of rows. y and weights may be None.
        batch_size: rows of a batch; the last one may have fewer.
        seed: for another order in each epoch; None: in their order.
    """

    def __init__(self, x: Any, y: Any, weights: Any, batch_size: int, seed: Any = None) -> None:
        self._given = tuple(None if part is None else _arrays(part) for part in (x, y, weights))
        leaves = [a for part in self._given if part is not None for a in flatten(part)]
        sizes = {len(a) for a in leaves}
        if len(sizes) != 1:
            raise ValueError(f"All arrays need the same number of rows: {[a.shape for a in leaves]}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self.rows, self._size, self._seed = sizes.pop(), batch_size, seed
        if not self.rows:
            raise ValueError("There are no rows to train on")
        self.steps = -(-self.rows // batch_size)

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Source.epoch`."""
        order = None if self._seed is None else np.random.default_rng([*self._seed, number]).permutation(self.rows)
        for start in range(0, self.rows, self._size):
            rows: Any = slice(start, start + self._size)
            chosen = rows if order is None else order[rows]
            x, y, w = (None if p is None else _map(lambda a, i=chosen: a[i], p) for p in self._given)
            yield x, y, w


class Elements(Source):
    """The elements of a `dt.data.Dataset`, each a batch: `x`, `(x, y)` or `(x, y, weights)`."""

    def __init__(self, dataset: Dataset, seed: Any, targets: bool, steps: int | None) -> None:
        self._dataset, self._seed, self._targets = dataset, tuple(seed), targets
        size = dataset._size
        self.steps = None if size is None or size == float("inf") else int(size)
        self._goes_on = steps is not None and (self.steps is None or steps < self.steps)
        self._walk: Iterator[Any] | None = None
        if size == float("inf") and steps is None:
            raise ValueError("The data set has no end: say steps_per_epoch (or steps)")

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Source.epoch`. With a number of steps given, an epoch begins where the last one ended."""
        if self._walk is None or not self._goes_on:
            self._walk = self._dataset._iterate_with_seeds(*self._seed, number)
        for element in self._walk:
            yield _parts(pack(self._dataset._structure, element), self._targets)
        self._walk = None


class Generated(Source):
    """What a generator (or any iterable) gives: batches as of `Elements`. It goes on from epoch to epoch."""

    def __init__(self, generator: Any, targets: bool) -> None:
        self._generator, self._targets = generator, targets
        self._one_pass = iter(generator) is generator
        self._walk: Iterator[Any] | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Source.epoch`."""
        if self._walk is None:
            self._walk = iter(self._generator)
        for element in self._walk:
            yield _parts(element, self._targets)
        if not self._one_pass:
            self._walk = None


class Numbered(Source):
    """The batches of a `Sequence`, in another order in each epoch if a seed is given."""

    def __init__(self, sequence: Any, seed: Any, targets: bool) -> None:
        self._sequence, self._seed, self._targets = sequence, seed, targets
        self.steps = len(sequence)

    def epoch(self, number: int) -> Iterator[Batch]:
        """See `Source.epoch`."""
        count = len(self._sequence)
        order = range(count) if self._seed is None else np.random.default_rng([*self._seed, number]).permutation(count)
        for i in order:
            yield _parts(self._sequence[int(i)], self._targets)

    def ended(self) -> None:
        """See `Source.ended`."""
        self._sequence.on_epoch_end()


def source(
    x: Any,
    y: Any,
    weights: Any,
    batch_size: int | None,
    shuffle: bool,
    seed: Any,
    steps: int | None,
    targets: bool = True,
) -> Source:
    """The batches of what a user gave.

    Raises:
        ValueError: y or weights beside something that has its own.
    """
    is_array = isinstance(x, (np.ndarray, list, tuple, Mapping)) or hasattr(x, "__array__")
    if is_array:
        return Arrays(x, y, weights, 32 if batch_size is None else batch_size, seed if shuffle else None)
    if x is None:
        raise ValueError("There is no data: give x")
    for name, given in (("y", y), ("sample_weight", weights)):
        if given is not None:
            raise ValueError(
                f"`{name}` must be left out for {type(x).__name__}: its elements are (x, y) or (x, y, weights)"
            )
    if batch_size is not None:
        raise ValueError(f"`batch_size` must be left out for {type(x).__name__}: its elements are batches")
    if isinstance(x, Dataset):
        return Elements(x, seed, targets, steps)
    if isinstance(x, Sequence) or (hasattr(x, "__getitem__") and hasattr(x, "__len__") and hasattr(x, "on_epoch_end")):
        return Numbered(x, seed if shuffle else None, targets)
    if hasattr(x, "__iter__"):
        return Generated(x, targets)
    raise ValueError(
        f"Cannot take data from {x!r}: give arrays, a dt.data.Dataset, a generator or a keras.utils.Sequence"
    )


def split(x: Any, y: Any, weights: Any, share: float) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """The first rows, and the last `share` of them, to validate with. ValueError: nothing would be left of one."""
    given = [None if p is None else _arrays(p) for p in (x, y, weights)]
    rows = len(flatten(given[0])[0])
    at = int(rows * (1.0 - share))
    if not 0 < at < rows:
        raise ValueError(f"validation_split={share} of {rows} rows leaves nothing to train or to validate with")
    first = tuple(None if p is None else _map(lambda a: a[:at], p) for p in given)
    last = tuple(None if p is None else _map(lambda a: a[at:], p) for p in given)
    return (first[0], first[1], first[2]), (last[0], last[1], last[2])


def class_weights(y: Any, weights: Any, by_class: Mapping[int, float]) -> Any:
    """The weights of samples, from those of their classes. ValueError: no or several targets, or a class without a weight."""
    if not isinstance(by_class, Mapping):
        raise ValueError(
            f"class_weight has a weight for each class, such as {{0: 1.0, 1: 5.0}}; it is not {by_class!r}"
        )
    targets = flatten(y)
    if len(targets) != 1 or targets[0] is None:
        raise ValueError("class_weight needs targets, and a model with one output")
    labels = np.asarray(targets[0])
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] > 1 else labels[..., 0]
    classes, places = np.unique(labels.astype(np.int64), return_inverse=True)
    missing = [int(c) for c in classes if int(c) not in by_class]
    if missing:
        raise ValueError(f"class_weight has nothing for the classes {missing}")
    found = np.asarray([by_class[int(c)] for c in classes], np.float32)[places].reshape(labels.shape)
    return found if weights is None else found * np.asarray(flatten(weights)[0], np.float32)


def _parts(element: Any, targets: bool) -> Batch:
    """An element as x, y and weights."""
    parts = tuple(element) if isinstance(element, (tuple, list)) else (element,)
    if not targets:
        return (_arrays(parts[0]) if isinstance(element, tuple) else _arrays(element), None, None)
    if not 1 <= len(parts) <= 3:
        raise ValueError(f"A batch is (x, y) or (x, y, weights), not {len(parts)} parts")
    x, y, w = (*parts, None, None)[:3]
    return _arrays(x), None if y is None else _arrays(y), None if w is None else _arrays(w)


def _arrays(structure: Any) -> Any:
    """A structure of arrays; a list of plain numbers is one array."""
    if isinstance(structure, (list, tuple)) and not any(hasattr(v, "shape") for v in flatten(structure)):
        return _array(structure)
    return _map(_array, structure)


def _array(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(as_dtype(floatx()).np) if array.dtype == np.float64 else array


def _map(function: Any, structure: Any) -> Any:
    return pack(structure, [function(leaf) for leaf in flatten(structure)])


__all__ = ["Sequence", "Source", "class_weights", "source", "split"]
