"""Data sets under a strategy. An element is a batch for all replicas, which is split between them, or a batch for one replica."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..graph.core.build import convert
from ..graph.core.default_graph import get_default_graph
from ..graph.core.nest import flatten, map_structure
from ..graph.ops.array.concat_stack import split
from ..graph.ops.array.identity_and_placeholders import no_op
from .context import StrategyProtocol
from .resolvers import roles
from .values import PerReplica


class DistributedDataset:
    """A data set for replicas, created by `Strategy.experimental_distribute_dataset` or `distribute_datasets_from_function`.

    `experimental_distribute_dataset` splits each element between all replicas. All synchronous workers compute the same elements, and each
    uses its own rows, so shuffle with the same seed on all of them. The number of rows must be a multiple of the number of replicas.

    `distribute_datasets_from_function` (`whole`) gives each replica of this process one element, round-robin.
    """

    def __init__(self, strategy: StrategyProtocol, dataset: Any, whole: bool = False) -> None:
        if not hasattr(dataset, "make_initializable_iterator") and not _is_source(dataset):
            if whole:
                text = (
                    f"The function of distribute_datasets_from_function must return a dt.data.Dataset, not {dataset!r}"
                )
            elif callable(dataset):
                text = f"experimental_distribute_dataset needs a dt.data.Dataset. Pass {dataset!r} to distribute_datasets_from_function"
            else:
                text = (
                    f"experimental_distribute_dataset needs a dt.data.Dataset whose elements are batches, not {dataset!r}. Create one from "
                    "arrays with dt.data.Dataset.from_tensor_slices(arrays).batch(size)"
                )
            raise TypeError(text)
        self._strategy, self._dataset, self._whole = strategy, dataset, whole

    def make_initializable_iterator(self, shared_name: str | None = None) -> DistributedIterator:
        """An iterator that starts when its `initializer` runs. If the source is a function, the initializer does nothing."""
        if callable(self._dataset):
            made: Any = _Calls(self._dataset)
        else:
            made = self._dataset.make_initializable_iterator(**({"shared_name": shared_name} if shared_name else {}))
        return DistributedIterator(self._strategy, made, self._whole)

    def make_one_shot_iterator(self) -> DistributedIterator:
        """An iterator that iterates over the data set once."""
        return DistributedIterator(self._strategy, self._dataset.make_one_shot_iterator(), self._whole)


def _is_source(function: Any) -> bool:
    """Whether an object is a function without arguments, which returns elements."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    return True


class _Calls:
    """An iterator whose elements are the results of a function, for example one that dequeues them."""

    def __init__(self, get_next: Callable[[], Any]) -> None:
        self.get_next = get_next

    @property
    def initializer(self) -> Any:
        return no_op()


class DistributedIterator:
    """An iterator over a `DistributedDataset`."""

    def __init__(self, strategy: StrategyProtocol, iterator: Any, whole: bool = False) -> None:
        self._strategy, self._iterator, self._whole = strategy, iterator, whole

    @property
    def initializer(self) -> Any:
        """The node that initializes the iterator."""
        return self._iterator.initializer

    def initialize(self) -> Any:
        """The node that initializes the iterator (TensorFlow 1's name)."""
        return self._iterator.initializer

    def __next__(self) -> Any:
        """`get_next()`, so that `next(iterator)` works."""
        return self.get_next()

    def get_next(self) -> Any:
        """The next element, in the data set's structure, with a `PerReplica` for each tensor."""
        strategy = self._strategy
        here = len(strategy._devices)
        if self._whole:
            return self._one_each(here)
        workers = strategy.num_replicas_in_sync // here
        rank = strategy._first_replica // here

        def mine(value: Any) -> Any:
            tensor = convert(value)
            if tensor.shape.rank == 0 and workers * here > 1:
                raise ValueError(
                    f"{strategy} splits the elements of a data set between replicas, but {tensor!r} has no rows. Batch the elements with "
                    "Dataset.batch(size)"
                )
            return tensor if workers == 1 else split(tensor, workers, 0)[rank]

        return strategy.split_batch(map_structure(mine, self._iterator.get_next()))

    def _one_each(self, replicas: int) -> Any:
        """Takes an element for each replica, in order of replicas, so that each run assigns the same elements."""
        taken: list[Any] = []
        elements = []
        for _ in range(replicas):
            with get_default_graph().control_dependencies(taken[-1:]):
                elements.append(self._iterator.get_next())
            taken.append(flatten(elements[-1])[0].op)
        return elements[0] if replicas == 1 else map_structure(lambda *leaves: PerReplica(leaves), *elements)


@dataclass(frozen=True, slots=True)
class InputContext:
    """Describes the replicas for which an input function creates input.

    Attributes:
        num_input_pipelines: number of processes that create input.
        input_pipeline_id: index of this process among them.
        num_replicas_in_sync: number of synchronous replicas in all processes.
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    @staticmethod
    def of(strategy: StrategyProtocol | None) -> InputContext:
        """Returns the context of this process in a strategy."""
        if strategy is None:
            return InputContext()
        if strategy._input_pipeline is not None:
            return InputContext(*strategy._input_pipeline, strategy.num_replicas_in_sync)
        replicas, here = strategy.num_replicas_in_sync, len(strategy._devices)
        resolver = strategy.cluster_resolver
        if replicas > here or resolver is None or not resolver.cluster_spec() or resolver.task_type is None:
            return InputContext(replicas // here, strategy._first_replica // here, replicas)
        spec, job, index = resolver.cluster_spec(), resolver.task_type, int(resolver.task_id or 0)
        if job not in ("chief", "worker"):
            return InputContext(num_replicas_in_sync=replicas)
        return InputContext(roles.worker_count(spec, job), roles.id_in_cluster(spec, job, index), replicas)

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """The batch size of one replica. ValueError: the global batch size is not a multiple of the number of replicas."""
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(
                f"The global_batch_size {global_batch_size} is not divisible by num_replicas_in_sync "
                f"{self.num_replicas_in_sync}"
            )
        return global_batch_size // self.num_replicas_in_sync
