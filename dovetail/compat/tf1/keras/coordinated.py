"""`fit` and `evaluate` by a coordinator: this process hands out batches to the workers of a cluster, whichever is free.

Theory of operation. Under a `ParameterServerStrategy` whose resolver names no task, this process is a client: weights, optimizer slots and
metrics lie on the parameter servers, and every batch is a call that some worker does (`ClusterCoordinator`). Calls run at the same
time, and each applies its gradients to what the weights then are; a call whose worker dies is done by another one. So there are no
logs of single batches: an epoch's are read when all its calls have ended.

Data is read here, and batches travel to the workers with the calls: data sets run functions of this process. Of a
`keras.utils.experimental.DatasetCreator`, each worker's data set gives batches in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ....data.dataset import Dataset
from ....distribute.coordinator import ClusterCoordinator
from ....distribute.input import InputContext
from ....distribute.parameter_server import ParameterServerStrategy
from ....distribute.values import PerReplica, select
from ....graph.core.default_graph import get_default_graph
from ....graph.core.graph import Node
from ....graph.core.nest import pack
from ....graph.ops.array.identity_and_placeholders import group
from .data import Batch, Elements, Source
from .steps import Step


class DatasetCreator:
    """What makes data for `fit`: under a coordinator for each worker, else for this process.

    Args:
        dataset_fn: is given an `InputContext`, which says for which of how many workers it is called, and gives a `dt.data.Dataset` of
            batches: `(x, y)` or `(x, y, weights)`. Let it repeat: how long an epoch is says `steps_per_epoch`.
        input_options: accepted.

    Raises:
        TypeError: `dataset_fn` is no function, or gives something else.

    >>> creator = DatasetCreator(lambda context: files.shard(context.num_input_pipelines, context.input_pipeline_id).batch(64))
    >>> model.fit(creator, epochs=10, steps_per_epoch=1000)
    """

    def __init__(self, dataset_fn: Callable[[InputContext], Any], input_options: Any = None) -> None:
        if not callable(dataset_fn):
            raise TypeError(f"`dataset_fn` for `DatasetCreator` must be a `callable`. Received: {dataset_fn!r}")
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, context: InputContext) -> Dataset:
        """The data set for a worker."""
        found = self.dataset_fn(context)
        if not isinstance(found, Dataset):
            raise TypeError(f"The `callable` provided to `DatasetCreator` must return a Dataset. It returns {found!r}")
        return found


class Created(Source):
    """What a `DatasetCreator` makes for each of several workers, in turn."""

    def __init__(self, creator: DatasetCreator, workers: int, seed: Any, steps: int) -> None:
        contexts = [InputContext(workers, i, 1) for i in range(workers)]
        self._parts = [Elements(creator(context), seed, True, steps) for context in contexts]

    def epoch(self, number: int) -> Iterator[Batch]:
        """As `Source.epoch`. It ends with the first of them that ends."""
        walks = [part.epoch(number) for part in self._parts]
        while True:
            for walk in walks:
                batch = next(walk, None)
                if batch is None:
                    return
                yield batch


def is_client(strategy: Any) -> bool:
    """Whether this process trains through a coordinator under a strategy."""
    return (
        isinstance(strategy, ParameterServerStrategy)
        and bool(strategy._spec)
        and strategy.cluster_resolver.task_type is None
        and "worker" in strategy._spec.jobs
    )


class Hands:
    """The workers, as a model uses them: `do` hands out a batch, `finish` waits until all are done.

    Args:
        model: the model, made under such a strategy.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._coordinator = ClusterCoordinator.of(model._strategy)
        self._functions: dict[Any, Callable[..., Any]] = {}

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self._coordinator.strategy._spec.task_indices("worker"))

    def do(self, mode: str, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]) -> None:
        """Have some worker take a batch. Errors of earlier calls are raised here, too."""
        with self._model._graph.as_default():
            self._coordinator.schedule(self._function(mode, xs, ys, ws), (*xs, *ys, *ws))

    def finish(self) -> None:
        """Wait until all batches are done. OpError: one is not, and why."""
        self._coordinator.join()

    def run(self, fetches: Any) -> Any:
        """Run something on the parameter servers."""
        return self._coordinator.session.run(fetches)

    def _function(self, mode: str, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]) -> Callable[..., Any]:
        """A function of a batch's arrays, the same one for batches of the same kind."""
        arrays = [*xs, *ys, *ws]
        key = mode, len(xs), len(ys), tuple((a.dtype.str, a.shape[1:]) for a in arrays)
        if key not in self._functions:
            sizes, shapes = (len(xs), len(ys)), [a.shape[1:] for a in arrays]

            def function(*tensors: Any) -> Node:
                for tensor, dims in zip(tensors, shapes, strict=True):
                    tensor.set_shape([None, *dims])
                return self._build(mode, tensors[: sizes[0]], tensors[sizes[0] : sum(sizes)], tensors[sum(sizes) :])

            self._functions[key] = function
        return self._functions[key]

    def _build(self, mode: str, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]) -> Node:
        with get_default_graph().name_scope(f"{self._model.name}/{mode}/"):
            return _Called(self._model, mode).build(list(xs), list(ys), list(ws))


class _Called(Step):
    """A step that is built on each worker, of what comes there."""

    def __init__(self, model: Any, mode: str) -> None:
        self._model, self._mode, self._strategy, self._fills = model, mode, model._strategy, False
        self.replicas = self._all = len(model._strategy.extended.worker_devices)

    def build(self, xs: list[Any], ys: list[Any], ws: list[Any]) -> Node:
        """The node that does all of it."""
        parts = xs, ys, ws
        leaves = [self._strategy.split_batch(t) if self.replicas > 1 else PerReplica([t]) for p in parts for t in p]
        form = [[None] * len(p) for p in parts]

        def one(*tensors: Any) -> Any:
            inputs, targets, weights = pack(form, tensors)
            return self._replica(inputs, targets, weights, [], [])

        found = self._strategy.run(one, tuple(leaves))
        node: Node = group(*[n for i in range(self.replicas) for n in select(i, found)["nodes"]])
        return node


def plain(logs: Any) -> dict[str, Any]:
    """Logs as numbers."""
    return {k: float(v) if np.ndim(v) == 0 else v for k, v in logs.items()}


__all__ = ["Created", "DatasetCreator", "Hands", "is_client", "plain"]
