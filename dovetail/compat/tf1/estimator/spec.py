"""What a model function is asked for, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ....graph.core.build import convert
from ....graph.core.graph import Node, Tensor
from ....train.loops.scaffold import Scaffold
from ....train.loops.session_run_hook import SessionRunHook


class ModeKeys:
    """What a `model_fn` is asked to build: a model to train, to evaluate, or to predict with."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True, slots=True)
class EstimatorSpec:
    """A model, as its model function has built it: what an `Estimator` trains, evaluates, or predicts with.

    Attributes:
        mode: one of `ModeKeys`.
        predictions: a tensor, or a dictionary of tensors; needed to predict.
        loss: a scalar; needed to train and to evaluate.
        train_op: a node that makes a training step; needed to train.
        eval_metric_ops: name -> (value, update), as functions of `dt.metrics` give them.
        export_outputs: name of a signature -> what a saved model gives (`export.PredictOutput` and so on); None: the predictions.
        training_chief_hooks: hooks of the chief alone.
        training_hooks: of everybody.
        evaluation_hooks: of everybody.
        prediction_hooks: of everybody.
        scaffold: what initializes, saves and says that a session is ready; None: one of defaults.

    Raises:
        ValueError: something that the mode needs is missing, or the loss is no scalar. TypeError: something of a wrong type.

    >>> def model_fn(features, labels, mode):
    ...     predictions = dense(features["x"])
    ...     loss = dt.reduce_mean(dt.square(predictions - labels))
    ...     train = dt.train.AdamOptimizer().minimize(loss, dt.train.get_global_step())
    ...     return EstimatorSpec(mode, predictions, loss, train)
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Mapping[str, Any] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_chief_hooks: Iterable[SessionRunHook] | None = None
    training_hooks: Iterable[SessionRunHook] | None = None
    scaffold: Scaffold | None = None
    evaluation_hooks: Iterable[SessionRunHook] | None = None
    prediction_hooks: Iterable[SessionRunHook] | None = None

    def __post_init__(self) -> None:
        if self.mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"mode must be one of ModeKeys.TRAIN, EVAL, PREDICT, not {self.mode!r}")
        if self.mode == ModeKeys.TRAIN and self.train_op is None:
            raise ValueError("Missing train_op: a model that is to be trained needs one")
        if self.mode != ModeKeys.PREDICT and self.loss is None:
            raise ValueError("Missing loss: a model that is to be trained or evaluated needs one")
        if self.mode == ModeKeys.PREDICT and self.predictions is None:
            raise ValueError("Missing predictions: a model that is to predict needs them")
        self._set("loss", None if self.loss is None else _scalar(self.loss))
        self._set("predictions", {} if self.predictions is None else self.predictions)
        self._set("eval_metric_ops", _metrics(self.eval_metric_ops))
        if self.train_op is not None and not isinstance(self.train_op, (Node, Tensor)):
            raise TypeError(f"train_op must be a node or a tensor, not {self.train_op!r}")
        if self.scaffold is not None and not isinstance(self.scaffold, Scaffold):
            raise TypeError(f"scaffold must be a dt.train.Scaffold, not {self.scaffold!r}")
        self._set("scaffold", self.scaffold or Scaffold())
        for name in ("training_chief_hooks", "training_hooks", "evaluation_hooks", "prediction_hooks"):
            hooks = tuple(getattr(self, name) or ())
            for hook in hooks:
                if not isinstance(hook, SessionRunHook):
                    raise TypeError(f"All hooks must be SessionRunHook instances; {name} has {hook!r}")
            self._set(name, hooks)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _scalar(loss: Any) -> Tensor:
    found = convert(loss)
    if found.shape.rank not in (None, 0):
        if found.shape.num_elements() != 1:
            raise ValueError(f"Loss must be scalar, given: {found}")
        from ....graph.ops.array.shapes import reshape

        found = reshape(found, [])
    return found


def _metrics(given: Mapping[str, Any] | None) -> dict[str, tuple[Any, Any]]:
    found = {}
    for name, pair in (given or {}).items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {pair!r} for key: {name}"
            )
        found[name] = (pair[0], pair[1])
    return found


__all__ = ["EstimatorSpec", "ModeKeys"]
