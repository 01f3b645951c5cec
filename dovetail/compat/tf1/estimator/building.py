"""From an input function and a model function to a graph: once, or once per replica of a strategy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from ....data.dataset import Dataset
from ....distribute.input import InputContext
from ....distribute.reduction import ReduceOp
from ....distribute.strategy import Strategy
from ....distribute.values import PerReplica
from ....graph.core.default_graph import get_default_graph
from ....graph.core.dtypes import float32
from ....graph.core.graph import Node, Tensor
from ....graph.core.nest import flatten, map_structure
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.ops.math.arithmetic import add_n
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import greater, where
from ....train.loops.scaffold import Scaffold
from .rounds import in_whole_rounds, rows_of
from .spec import EstimatorSpec, ModeKeys


def arguments_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's arguments."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind not in kinds)


def check_model_fn(model_fn: Callable[..., Any], params: Any) -> None:
    """ValueError unless it can be called as a model function."""
    names = arguments_of(model_fn)
    if "features" not in names:
        raise ValueError(f"model_fn ({model_fn}) must include features argument; it has {', '.join(names) or 'none'}.")
    if params is not None and "params" not in names:
        raise ValueError(f"model_fn ({model_fn}) does not include params argument, but params ({params}) is passed.")
    unknown = set(names) - {"features", "labels", "params", "mode", "config", "self"}
    if unknown:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {', '.join(sorted(unknown))}")


class Builder:
    """Calls the functions of an estimator with those of its values that they ask for.

    Attributes:
        input_fn: gives a `Dataset`, (features, labels), or features. model_fn: gives an `EstimatorSpec`.
        mode: one of `ModeKeys`. params, config: what both may ask for.
        strategy: what replicates the model; None: nothing.
        batches: how many batches a step of an evaluation has, a tensor; None: one.
    """

    batches: Tensor | None = None

    def __init__(
        self,
        input_fn: Callable[..., Any],
        model_fn: Callable[..., Any],
        mode: str,
        params: Mapping[str, Any],
        config: Any,
        strategy: Strategy | None = None,
    ) -> None:
        self._input_fn, self._model_fn, self._mode = input_fn, model_fn, mode
        self._params, self._config, self._strategy = params, config, strategy

    # --- input ------------------------------------------------------------------------------------------------------

    def _inputs(self) -> Any:
        """What the input function gives."""
        names = arguments_of(self._input_fn)
        known = {"mode": self._mode, "params": self._params, "config": self._config}
        given = {name: value for name, value in known.items() if name in names}
        if "input_context" in names:
            given["input_context"] = InputContext.of(self._strategy)
        return self._input_fn(**given)

    @staticmethod
    def _pair(element: Any) -> tuple[Any, Any]:
        """(features, labels)."""
        if isinstance(element, (tuple, list)):
            if len(element) != 2:
                raise ValueError(
                    f"input_fn should return (features, labels) as a len 2 tuple; it has {len(element)} parts"
                )
            return element[0], element[1]
        return element, None

    def _next_of(self, inputs: Any, replicas: int) -> Callable[[], tuple[Any, Any]]:
        """A function that gives (features, labels), others each time."""
        if not isinstance(inputs, Dataset):
            if replicas > 1:
                raise ValueError(
                    "dataset_fn() must return a tf.data.Dataset when using a tf.distribute.Strategy of several replicas: each "
                    f"takes elements of its own; input_fn returned {type(inputs).__name__}"
                )
            return lambda: self._pair(inputs)
        if self._mode == ModeKeys.EVAL:
            inputs = in_whole_rounds(inputs, replicas)
        graph = get_default_graph()
        plain = self._strategy.extended._plain_variables() if self._strategy is not None else nullcontext()
        with plain:
            iterator = inputs.make_one_shot_iterator()
        taken: list[Node] = []

        def take() -> tuple[Any, Any]:
            # One after the other, so that replicas get the same elements in each run.
            with graph.control_dependencies(taken[-1:]):
                element = iterator.get_next()
            taken.append(next(t.op for t in flatten(element) if isinstance(t, Tensor)))
            return self._pair(element)

        return take

    # --- model ------------------------------------------------------------------------------------------------------

    def _model(self, features: Any, labels: Any, mode: str) -> EstimatorSpec:
        names = arguments_of(self._model_fn)
        known = {"features": features, "mode": mode, "params": self._params, "config": self._config}
        given = {name: value for name, value in known.items() if name in names}
        if "labels" in names:
            given["labels"] = labels
        elif labels is not None:
            raise ValueError("model_fn does not take labels, but input_fn returns labels.")
        spec = self._model_fn(**given)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"model_fn should return an EstimatorSpec, not {type(spec).__name__}.")
        if spec.mode != mode:
            raise ValueError(f"model_fn was called with mode={mode!r} and returned an EstimatorSpec of {spec.mode!r}")
        return spec

    def build(self) -> EstimatorSpec:
        """Add input and model to the default graph."""
        strategy = self._strategy
        if strategy is None:
            features, labels = self._next_of(self._inputs(), 1)()
            return self._model(features, labels, self._mode)
        replicas = len(strategy.extended.worker_devices)
        specs: list[EstimatorSpec] = []
        inputs = self._inputs()
        take = self._next_of(inputs, replicas)
        batches = [take() for _ in range(replicas)]

        def model(features: Any, labels: Any) -> None:
            specs.append(self._model(features, labels, self._mode))

        strategy.run(model, [_regrouped([b[i] for b in batches]) for i in (0, 1)])
        if self._mode != ModeKeys.EVAL or replicas == 1:
            return _merged(strategy, specs, PerReplica([s.loss for s in specs]))
        # A batch of no rows, which fills up the last round, has no loss.
        taken = [greater(rows_of(b), 0) for b in batches]
        self.batches = add_n([cast(t, float32) for t in taken])
        share = cast(replicas, float32) / self.batches
        losses = [
            where(t, s.loss * cast(share, s.loss.dtype), zeros_like(s.loss)) for t, s in zip(taken, specs, strict=True)
        ]
        return _merged(strategy, specs, PerReplica(losses))


def _regrouped(values: Sequence[Any]) -> Any:
    """Structures of one form, as one structure with a value per replica."""
    if len(values) == 1 or values[0] is None:
        return values[0]
    return map_structure(lambda *leaves: PerReplica(leaves), *values)


def _merged(strategy: Strategy, specs: Sequence[EstimatorSpec], losses: PerReplica) -> EstimatorSpec:
    """What the replicas have built, as one model: the mean of their losses, and all that they want done."""
    first = specs[0]
    across = strategy.num_replicas_in_sync > 1
    loss = first.loss
    if loss is not None and across:
        loss = strategy.reduce(ReduceOp.MEAN, losses)
    if first.mode == ModeKeys.TRAIN:
        return EstimatorSpec(
            first.mode, first.predictions, loss, _together([s.train_op for s in specs]),
            training_chief_hooks=first.training_chief_hooks, training_hooks=first.training_hooks,
            scaffold=_scaffold([s.scaffold for s in specs]),
        )  # fmt: skip
    names = list(first.eval_metric_ops or {})
    metrics = {n: [(s.eval_metric_ops or {})[n] for s in specs] for n in names}
    return EstimatorSpec(
        first.mode, first.predictions, loss,
        eval_metric_ops={n: (pairs[0][0], _together([u for _, u in pairs])) for n, pairs in metrics.items()},
        evaluation_hooks=first.evaluation_hooks, scaffold=_scaffold([s.scaffold for s in specs]),
    )  # fmt: skip


def _together(ops: Sequence[Any]) -> Any:
    """One node for those of all replicas."""
    nodes = list(dict.fromkeys(op.op if isinstance(op, Tensor) else op for op in ops))
    return ops[0] if len(nodes) == 1 else group(*nodes)


def _scaffold(scaffolds: Sequence[Any]) -> Scaffold:
    """The first replica's, with the nodes of all."""
    first: Scaffold = scaffolds[0]
    if len(scaffolds) == 1:
        return first

    def joined(name: str) -> Any:
        found = [op for s in scaffolds if (op := getattr(s, name)) is not None]
        return _together(found) if found else None

    return Scaffold(
        init_op=joined("init_op"), local_init_op=joined("local_init_op"), copy_from_scaffold=first,
    )  # fmt: skip


__all__ = ["Builder", "arguments_of", "check_model_fn"]
