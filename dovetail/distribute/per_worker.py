"""Values, data sets and iterators that each worker of a `ClusterCoordinator` has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..data.dataset import Dataset
from ..data.serialize import NotSerializableError, encode
from ..graph.core.errors import InvalidArgumentError
from .input import DistributedDataset


class PerWorkerValues:
    """A value per worker, created on the worker by `create_per_worker_resource`."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)


class PerWorkerIterator(PerWorkerValues):
    """An iterator per worker: `next(iterator)` in a scheduled function returns the next element on the worker that runs it."""

    def __next__(self) -> Any:
        """Raises TypeError: there are no elements outside a scheduled function."""
        raise TypeError("Take elements in a scheduled function: coordinator.schedule(step, args=(iterator,))")

    def __iter__(self) -> Iterator[Any]:
        """Returns the iterator itself."""
        return self


class PerWorkerDataset:
    """A data set per worker, created by `create_per_worker_dataset`. `iter(dataset)` returns an iterator on each worker."""

    def __init__(self, datasets: Sequence[Any], make: Callable[[PerWorkerDataset], PerWorkerIterator]) -> None:
        self._datasets, self._make = list(datasets), make

    def __iter__(self) -> PerWorkerIterator:
        """Returns a new iterator on each worker. It starts when the worker is first used, and again after the worker has restarted."""
        return self._make(self)


def checked_dataset(found: Any, task: str) -> Any:
    """Checks and returns the data set that a function returned for a worker.

    Raises:
        TypeError: it is not a data set.
        InvalidArgumentError: it cannot run in the worker's process.
    """
    inner = found._dataset if isinstance(found, DistributedDataset) else found
    if not isinstance(inner, Dataset):
        raise TypeError(f"create_per_worker_dataset needs a data set, or a function that returns one, not {found!r}")
    try:
        encode(inner)
    except NotSerializableError as e:
        raise InvalidArgumentError.of(
            f"The data set cannot run on {task}: it has {e}, which cannot leave this process. Build it from files, arrays and graph ops, "
            "or iterate over it here and pass its elements to the scheduled function as arrays",
        ) from None
    return found
