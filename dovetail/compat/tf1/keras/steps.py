"""One step of training, evaluating or predicting: what is built once per model and run for each batch.

Theory of operation. A step is built in the model's graph, once per replica (`strategy.run`), each with placeholders of its own on its
own device. The rows of a batch are dealt to all replicas that go in step; a replica minimises the sum of its rows' losses over the mean
number of rows per replica, so the mean of all replicas' gradients is the gradient of the whole batch's mean loss, also where a batch
cannot be cut evenly. A replica for which no row is left gets one that counts nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ....distribute.values import PerReplica
from ....graph.core.build import placeholder
from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import DType, as_dtype, float32
from ....graph.core.graph import Node
from ....graph.core.nest import flatten
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.ops.array.shapes import shape
from ....graph.ops.math.cast import cast
from .backend import GraphState, initialize, session_of
from .layers.passes import move_averages, passing

Spec = tuple[DType, tuple[int | None, ...]]


def spec_of(array: Any) -> Spec:
    """Element type and shape of an array, for any number of rows."""
    return as_dtype(array.dtype), (None, *array.shape[1:])


class Step:
    """One kind of step of a model.

    Args:
        model: the model.
        mode: "train", "test" or "predict".
        specs: of the inputs, targets and weights.
        fills: whether some replicas may get a row that counts nothing.
    """

    def __init__(
        self, model: Any, mode: str, specs: tuple[Sequence[Spec], Sequence[Spec], Sequence[Spec]], fills: bool
    ) -> None:
        self._model, self._mode, self._specs, self._fills = model, mode, specs, fills
        self._strategy = model._strategy
        self._callables: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.variables: list[Any] = []
        here = 1 if self._strategy is None else len(self._strategy.extended.worker_devices)
        in_step = 1 if self._strategy is None else self._strategy.num_replicas_in_sync
        alone = mode == "predict"  # each worker for itself
        self.replicas = here
        self._first = 0 if alone or self._strategy is None else self._strategy._first_replica
        self._all = here if alone else in_step
        self._feeds: list[Any] = []
        graph = model._graph
        with graph.as_default(), graph.name_scope(f"{model.name}/{mode}/"), model._scope():
            self._build()

    def _build(self) -> None:
        given = [self._placeholders(i) for i in range(self.replicas)]
        self._feeds = [t for parts in given for group_ in parts for t in group_]
        self._count = len(self._feeds) // self.replicas
        if self._strategy is None:
            results = [self._replica(*given[0])]
        else:
            packed = [
                PerReplica(list(column))
                for column in zip(*[[t for g in parts for t in g] for parts in given], strict=True)
            ]
            sizes = [len(g) for g in given[0]]

            def one(*tensors: Any) -> Any:
                parts, at = [], 0
                for n in sizes:
                    parts.append(list(tensors[at : at + n]))
                    at += n
                return self._replica(*parts)

            found = self._strategy.run(one, tuple(packed))
            results = _by_replica(found, self.replicas)
        if self._mode == "predict":
            self._fetches: Any = [r["outputs"] for r in results]
            return
        nodes = [n for r in results for n in r["nodes"]]
        graph, logs = get_default_graph(), self._model._compiled.labelled()
        if self._all > self.replicas:  # what the other workers have is asked for at the end of an epoch
            self._fetches = {"logs": results[0]["logs"], "nodes": group(*nodes)}
        else:
            with graph.control_dependencies(nodes):
                self._fetches = {"logs": {k: m.result() for k, m in logs.items()}, "nodes": group(*nodes)}

    def _placeholders(self, replica: int) -> list[list[Any]]:
        """The feeds of a replica: inputs, targets, weights, which rows count, and how many."""
        graph = get_default_graph()
        device = None if self._strategy is None else self._strategy.extended.worker_devices[replica]
        with graph.device(device) if device else nullcontext():
            made = [
                [placeholder(dtype, list(dims), name=name) for dtype, dims in specs]
                for specs, name in zip(self._specs, ("x", "y", "weight"), strict=True)
            ]
            made.append([placeholder(float32, [None], name="counts")] if self._fills else [])
            scalars = [] if self._mode == "predict" or self._all == 1 else ["count", "rows"]
            made.append([placeholder(float32, [], name=name) for name in scalars])
        return made

    def _replica(self, xs: list[Any], ys: list[Any], ws: list[Any], fills: list[Any], scalars: list[Any]) -> Any:
        """Build what a replica does."""
        model, state = self._model, GraphState.of(get_default_graph())
        with passing(self._mode == "train") as going:
            given = model(model._packed_inputs(xs))
        outputs = flatten(given)
        if self._mode == "predict":
            return {"outputs": given}
        real = fills[0] if fills else None
        if scalars:
            count, rows = scalars
        else:
            count = rows = cast(shape(xs[0])[0], float32)
        compiled = model._compiled
        compiled.prepare(model._names_of(given), outputs, ys)
        masks = [state.masks.get(y) for y in outputs]
        objective, nodes = compiled.batch(
            ys, outputs, ws, real, masks, count, rows, going.losses, model.losses, self._all
        )
        if self._mode == "train":
            variables = model.trainable_weights
            if not variables:
                raise ValueError(f"'{model.name}' has no weights to train")
            nodes.append(self._applied(objective, variables))
            nodes.extend(move_averages(self._strategy, going.moves))
        logs = {}
        if self._all > self.replicas:
            with get_default_graph().control_dependencies(nodes):
                logs = {k: m.result() for k, m in compiled.labelled().items()}
        return {"nodes": nodes, "logs": logs}

    def _applied(self, objective: Any, variables: Sequence[Any]) -> Node:
        optimizer = self._model.optimizer
        pairs = optimizer.compute_gradients(objective, var_list=list(variables))
        node: Node = optimizer.apply_gradients([(g, v) for g, v in pairs if g is not None])
        return node

    # --- running ------------------------------------------------------------------------------------------------------

    def __call__(self, xs: Sequence[Any], ys: Sequence[Any], ws: Sequence[Any]) -> Any:
        """Run it for the rows of a batch; gives the logs, or the outputs of this process's rows, in their structure's leaves."""
        total = len(xs[0])
        feeds: list[Any] = []
        kept = []
        for i in range(self.replicas):
            number = self._first + i
            low, high = number * total // self._all, (number + 1) * total // self._all
            mine = slice(low, high) if high > low else slice(0, 1)
            feeds += [a[mine] for part in (xs, ys, ws) for a in part]
            if self._fills:
                feeds.append(np.full(mine.stop - mine.start, float(high > low), np.float32))
            if self._mode != "predict" and self._all > 1:
                feeds += [np.float32(high - low), np.float32(total / self._all)]
            kept.append(high - low)
        found = self._callable()(*feeds)
        if self._mode != "predict":
            return found["logs"]
        columns = zip(*[flatten(r) for r in found], strict=True)
        return [np.concatenate([a[:n] for a, n in zip(column, kept, strict=True)]) for column in columns]

    def _callable(self) -> Any:
        with self._model._graph.as_default():
            session = session_of(self._strategy)
        if session not in self._callables:
            initialize(session, self._model._all_variables(), self._strategy)
            self._callables[session] = session.make_callable(self._fetches, self._feeds)
        return self._callables[session]


def needs_filling(rows: int, replicas: int) -> bool:
    """Whether a batch has fewer rows than there are replicas."""
    return rows < replicas


def _by_replica(found: Any, replicas: int) -> list[Any]:
    from ....distribute.values import select

    return [select(i, found) for i in range(replicas)]


__all__ = ["Spec", "Step", "needs_filling", "spec_of"]
