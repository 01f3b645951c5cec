"""What a model can be asked to do with data: `compile`, `fit`, `evaluate`, `predict`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....distribute.input import InputContext
from ....graph.core.argument_names import explain_members, explanation
from ....graph.core.nest import flatten, pack
from . import data, losses, optimizers
from .callback import CallbackList, History
from .compiled import Compiled
from .coordinated import Created, DatasetCreator
from .progress import ProgbarLogger
from .stepping import Stepper

ACCEPTED = ("run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss")
"""Arguments of `compile` in later versions of Keras, accepted where they ask for nothing."""


class Trainer(Stepper):
    """The part of a model that trains, evaluates and predicts."""

    stop_training: bool

    def _init_training(self) -> None:
        self._init_steps()
        self.stop_training = False
        self.history: Any = None
        self._arguments: dict[str, Any] | None = None
        self._epochs_done = 0
        self._resumed: tuple[int, int] | None = None  # epoch and batch at which `fit` goes on: set by BackupAndRestore
        self._entropy = int(np.random.SeedSequence().generate_state(1)[0])

    # --- compile ------------------------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        metrics: Any = None,
        loss_weights: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Say how to train.

        Args:
            optimizer: name or object of `keras.optimizers`; an optimizer of `dt.train` serves, too.
            loss: name, object or function of `keras.losses`, or any function of (y_true, y_pred); for several outputs a list or a
                dictionary of them by output name.
            metrics: list of names, objects or functions; for several outputs a list of lists, or a dictionary.
            loss_weights: how much each output's loss counts.
            weighted_metrics: metrics to which samples count by their weights.
            kwargs: `run_eagerly`, `steps_per_execution` and `jit_compile` are accepted where they ask for nothing.

        Raises:
            ValueError: something unknown. RuntimeError: the model was made under another strategy.
        """
        for name, value in kwargs.items():
            if name not in ACCEPTED or value not in (
                None, False, 1, True, "auto",
            ):  # fmt: skip
                known = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics")
                raise ValueError(
                    explanation("compile", [name], known)
                    if name not in ACCEPTED
                    else f"compile takes no {name}={value!r}"
                )
            if name == "run_eagerly" and value:
                raise ValueError("Models run as graphs: there is no run_eagerly=True")
        self._check_scope()
        found = optimizers.get(optimizer)
        if isinstance(loss, str):
            losses.get(loss)
        with self._graph.as_default(), self._scope():
            self.optimizer = found
            self._compiled = Compiled(loss, loss_weights, metrics, weighted_metrics)
        self._arguments = {
            "loss": loss, "metrics": metrics, "loss_weights": loss_weights, "weighted_metrics": weighted_metrics
        }  # fmt: skip
        self._forget_steps()

    def _check_scope(self) -> None:
        from ....distribute.context import get_strategy, has_strategy

        if has_strategy() and get_strategy() is not self._strategy:
            raise RuntimeError(
                f"'{self.name}' was made {'outside of every' if self._strategy is None else 'in the'} scope"
                f"{'' if self._strategy is None else f' of {self._strategy!r}'}, and is compiled in that of {get_strategy()!r}: "
                "make the model inside the scope, too"
            )

    def _forget_steps(self) -> None:
        """What was built does not hold any more."""
        self._steps.clear()
        self._reset = self._totals = self._hands = None

    @property
    def metrics_names(self) -> list[str]:
        """What logs have; known after the first step."""
        return list(self._compiled.labelled())

    @property
    def distribute_strategy(self) -> Any:
        """The strategy in whose scope it was made, or None."""
        return self._strategy

    # --- fit ----------------------------------------------------------------------------------------------------------

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
    ) -> History:
        """Train.

        Args:
            x: arrays (one per input, in a list or dictionary), a `dt.data.Dataset` of batches, a generator of them, a
                `keras.utils.Sequence`, or a `keras.utils.experimental.DatasetCreator`.
            y: arrays of targets; left out where x gives them, too.
            batch_size: rows of a batch, for arrays; 32 by default. Under a strategy all replicas share a batch.
            epochs: number of the last epoch.
            initial_epoch: that of the first, counted from 0.
            verbose: 0: says nothing, 1: a bar, 2: a line per epoch; "auto": 1.
            callbacks: objects of `keras.callbacks`.
            validation_split: share of the rows, the last ones, that are kept to validate with.
            validation_data: (x, y) or (x, y, weights), or anything that x may be, to validate with after each epoch (each
                `validation_freq`-th).
            shuffle: whether arrays come in another order in each epoch.
            class_weight: how much the samples of each class count.
            sample_weight: how much each sample counts.
            steps_per_epoch: batches of an epoch, where they are not all.
            validation_steps: batches of an epoch, where they are not all.

        Returns:
            A `History`, whose `history` has lists of numbers by name.

        Raises:
            RuntimeError: `compile` was not called. ValueError: data of a wrong kind.

        >>> history = model.fit(images, labels, epochs=5, validation_split=0.1)
        """
        self._require_compiled("fit")
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = data.split(x, y, sample_weight, validation_split)
        if class_weight is not None and y is not None:
            sample_weight, class_weight = data.class_weights(y, sample_weight, class_weight), None
        source = self._source(x, y, sample_weight, batch_size, shuffle, steps_per_epoch)
        checks = None
        if validation_data is not None:
            parts = validation_data if isinstance(validation_data, (tuple, list)) else (validation_data, None, None)
            vx, vy, vw = (*parts, None, None)[:3]
            is_array = vy is not None
            size = (validation_batch_size or batch_size) if is_array else None
            checks = self._source(vx, vy, vw, size, False, validation_steps)
        steps = steps_per_epoch if steps_per_epoch is not None else source.steps
        history = History()
        wanted = [*(callbacks or ()), history]
        if verbose and not any(isinstance(c, ProgbarLogger) for c in wanted):
            wanted.insert(0, ProgbarLogger())
        listeners = CallbackList(
            wanted, self, {"epochs": epochs, "steps": steps, "verbose": 1 if verbose == "auto" else int(verbose)}
        )
        self.stop_training = False
        self.history = history
        self._resumed = None
        listeners.on_train_begin({})
        first, skipped = self._resumed or (initial_epoch, 0)
        logs: dict[str, float] = {}
        for epoch in range(first, epochs):
            listeners.on_epoch_begin(epoch, {})
            self._reset_metrics()
            done = skipped if epoch == first else 0
            for number, batch in enumerate(itertools.islice(source.epoch(self._epochs_done), steps)):
                if epoch == first and number < skipped:
                    continue
                if class_weight is not None:  # the batches bring their targets
                    batch = (*batch[:2], data.class_weights(*batch[1:], class_weight))
                listeners.on_train_batch_begin(number, {})
                logs = self._run("train", batch)
                done += 1
                listeners.on_train_batch_end(number, logs)
                if self.stop_training:
                    break
            if not done:
                raise ValueError("There was no batch to train on in this epoch: the generator or data set has ended")
            self._epochs_done += 1
            source.ended()
            logs = self._read_totals(logs)
            if checks is not None and (epoch + 1) % validation_freq == 0:
                found = self._evaluate(checks, validation_steps, listeners)
                logs = {**logs, **{f"val_{k}": v for k, v in found.items()}}
            listeners.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        listeners.on_train_end(logs)
        self._meet()
        return history

    def _source(self, x: Any, y: Any, weights: Any, size: int | None, shuffle: bool, steps: int | None) -> data.Source:
        """What gives the batches."""
        if isinstance(x, DatasetCreator):
            if steps is None:
                raise ValueError(
                    "With a DatasetCreator, say how many batches there are: steps_per_epoch (or validation_steps, steps)"
                )
            hands = self._workers_of()
            if hands is not None:
                return Created(x, hands.count, self._seed(), steps)
            x = x(InputContext.of(self._strategy))
        return data.source(x, y, weights, size, shuffle, self._seed(), steps)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, class_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """One step with one batch; gives the loss, or the loss and the metrics, of this batch."""
        self._require_compiled("train_on_batch")
        if class_weight is not None:
            sample_weight = data.class_weights(y, sample_weight, class_weight)
        return self._on_batch("train", x, y, sample_weight, return_dict)

    def test_on_batch(self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False) -> Any:
        """The loss and metrics of one batch."""
        self._require_compiled("test_on_batch")
        return self._on_batch("test", x, y, sample_weight, return_dict)

    def _on_batch(self, mode: str, x: Any, y: Any, weights: Any, return_dict: bool) -> Any:
        batch = next(data.Arrays(x, y, weights, len(flatten(x)[0])).epoch(0))
        if self._compiled.ready:
            self._reset_metrics()
        logs = self._read_totals(self._run(mode, batch))
        return logs if return_dict else _listed(logs)

    # --- evaluate and predict -------------------------------------------------------------------------------------------

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
    ) -> Any:
        """The loss, or the loss and the metrics in a list (or `return_dict`), of data: see `fit`."""
        self._require_compiled("evaluate")
        source = self._source(x, y, sample_weight, batch_size, False, steps)
        wanted = list(callbacks or ())
        if verbose:
            wanted.insert(0, ProgbarLogger())
        count = steps if steps is not None else source.steps
        shown = 1 if verbose == "auto" else int(verbose)
        listeners = CallbackList(wanted, self, {"epochs": 1, "steps": count, "verbose": shown})
        logs = self._evaluate(source, steps, listeners)
        self._meet()
        return logs if return_dict else _listed(logs)

    def _evaluate(self, source: data.Source, steps: int | None, listeners: Any) -> dict[str, float]:
        listeners.on_test_begin({})
        self._reset_metrics()
        logs: dict[str, float] | None = None
        for number, batch in enumerate(itertools.islice(source.epoch(0), steps)):
            listeners.on_test_batch_begin(number, {})
            logs = self._run("test", batch)
            listeners.on_test_batch_end(number, logs)
        if logs is None:
            raise ValueError("There was no batch to evaluate: the generator or data set has ended")
        logs = self._read_totals(logs)
        listeners.on_test_end(logs)
        return logs

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = 0,
        steps: int | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> Any:
        """The outputs for data, as arrays in the structure of the outputs. Every worker of a cluster predicts for itself."""
        source = data.source(x, None, None, batch_size, False, self._seed(), steps, targets=False)
        listeners = CallbackList(list(callbacks or ()), self, {"steps": source.steps, "verbose": verbose})
        listeners.on_predict_begin({})
        parts: list[list[Any]] = []
        for number, batch in enumerate(itertools.islice(source.epoch(0), steps)):
            listeners.on_predict_batch_begin(number, {})
            parts.append(self._run("predict", batch))
            listeners.on_predict_batch_end(number, {})
        if not parts:
            raise ValueError("There was no batch to predict for: the generator or data set has ended")
        listeners.on_predict_end({})
        found = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return pack(self._given_structure(), found)

    def predict_on_batch(self, x: Any) -> Any:
        """The outputs for one batch."""
        return self.predict(x, batch_size=len(flatten(x)[0]))

    def reset_metrics(self) -> None:
        """Let all metrics begin anew."""
        self._reset_metrics()

    def _require_compiled(self, method: str) -> None:
        if self.optimizer is None:
            raise RuntimeError(
                f"You must compile your model before training or testing: call compile() before {method}()"
            )

    def _seed(self) -> list[int]:
        """What the order of rows follows: the graph's seed, if one is set. Workers in step need the same order."""
        if self._graph.seed is not None:
            return [int(self._graph.seed)]
        return [0] if self._workers() > 1 else [self._entropy]


def _listed(logs: Mapping[str, float]) -> Any:
    values = list(logs.values())
    return values[0] if len(values) == 1 else values


explain_members(Trainer)

__all__ = ["Trainer"]
