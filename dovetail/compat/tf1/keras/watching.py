"""Callbacks that look whether a number gets better, and those that set the learning rate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph.formats.atomic_files import path_of
from .backend import get_value, set_value
from .callback import Callback, is_chief


class _Watching(Callback):
    """Base of the callbacks that look whether a number gets better.

    Args:
        monitor: its name in the logs. mode: "min", "max", or "auto": "max" for accuracies and their like.
    """

    def __init__(self, monitor: str, mode: str = "auto", min_delta: float = 0.0) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode must be 'auto', 'min' or 'max', not {mode!r}")
        self.monitor = monitor
        grows = ("acc", "auc", "precision", "recall", "cosine_similarity")
        more = mode == "max" or (mode == "auto" and any(word in monitor for word in grows))
        self._sign = 1.0 if more else -1.0
        self._delta = abs(min_delta)
        self.best: Any = None

    def _value(self, logs: Any) -> Any:
        found = (logs or {}).get(self.monitor)
        if found is None and not getattr(self, "_warned", False):
            self._warned = True
            print(
                f"{type(self).__name__} waits for '{self.monitor}', and there are only {', '.join(logs or {}) or 'no numbers'}",
                file=sys.stderr,
            )
        return found

    def _is_better(self, value: float) -> bool:
        return self.best is None or self._sign * (value - self.best) > self._delta


class EarlyStopping(_Watching):
    """Ends training when a number has not got better for some epochs.

    Args:
        monitor: its name in the logs.
        min_delta: what counts as better.
        patience: how many epochs.
        baseline: a value that must be beaten.
        restore_best_weights: whether the model gets back the weights of the best epoch.
        start_from_epoch: epochs before this one do not count.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience, self.verbose, self.baseline = patience, verbose, baseline
        self.restore_best_weights, self.start_from_epoch = restore_best_weights, start_from_epoch
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best = self.best_weights = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        value = self._value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        self.wait += 1
        if self._is_better(value):
            self.best, self.best_epoch = value, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            if self.baseline is None or self._sign * (value - self.baseline) > self._delta:
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """See `Callback`."""
        if self.verbose and self.stopped_epoch:
            print(f"Epoch {self.stopped_epoch + 1}: early stopping")
        if self.best_weights is not None:
            self.model.set_weights(self.best_weights)


class ModelCheckpoint(_Watching):
    """Saves the model after each epoch. In a cluster, the chief does.

    Args:
        filepath: where; `{epoch:02d}` and numbers of the logs, as `{val_loss:.2f}`, are put in.
        save_best_only: only when `monitor` got better.
        save_weights_only: without the model's config and optimizer.
        save_freq: "epoch", or after how many batches.
    """

    def __init__(
        self,
        filepath: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
        super().__init__(monitor, mode)
        if save_freq != "epoch" and not isinstance(save_freq, int):
            raise ValueError(f"save_freq must be 'epoch' or a number of batches, not {save_freq!r}")
        self.filepath, self.verbose, self.save_freq = str(filepath), verbose, save_freq
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self.best = initial_value_threshold
        self._epoch = self._batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if self.save_freq != "epoch":
            self._batches += 1
            if self._batches % self.save_freq == 0:
                self._save(self._epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if self.save_freq == "epoch":
            self._save(epoch, logs)

    def _save(self, epoch: int, logs: Any) -> None:
        if self.save_best_only:
            value = self._value(logs)
            if value is None or not self._is_better(value):
                return
            self.best = value
        path = self.filepath.format(epoch=epoch + 1, **(logs or {}))
        if not is_chief(self.model):
            return
        path_of(path).parent.mkdir(parents=True, exist_ok=True)
        if self.save_weights_only:
            self.model.save_weights(path)
        else:
            self.model.save(path)
        if self.verbose:
            print(f"Epoch {epoch + 1}: saving model to {path}")


class LearningRateScheduler(Callback):
    """Sets the learning rate before each epoch.

    Args:
        schedule: function of the epoch's number and the learning rate so far (or of the number alone) that gives the new one.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        super().__init__()
        self.schedule, self.verbose = schedule, verbose

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        variable = rate_of(self.model, "LearningRateScheduler")
        try:
            rate = self.schedule(epoch, float(get_value(variable)))
        except TypeError:
            rate = self.schedule(epoch)
        if not isinstance(rate, (float, int, np.floating)):
            raise ValueError(f"The schedule gives {rate!r}, where a number is needed")
        set_value(variable, np.float32(rate))
        if self.verbose:
            print(f"Epoch {epoch + 1}: LearningRateScheduler setting learning rate to {rate}.")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if logs is not None:
            logs["learning_rate"] = float(get_value(rate_of(self.model, "LearningRateScheduler")))


class ReduceLROnPlateau(_Watching):
    """Makes the learning rate smaller by a factor when a number has not got better for some epochs."""

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if factor >= 1.0:
            raise ValueError(f"ReduceLROnPlateau needs a factor below 1.0, not {factor}")
        self.factor, self.patience, self.verbose = factor, patience, verbose
        self.cooldown, self.min_lr = cooldown, min_lr
        self.wait = self.cooldown_counter = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        self.wait = self.cooldown_counter = 0
        self.best = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        variable = rate_of(self.model, "ReduceLROnPlateau")
        rate = float(get_value(variable))
        if logs is not None:
            logs["learning_rate"] = rate
        value = self._value(logs)
        if value is None:
            return
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._is_better(value):
            self.best, self.wait = value, 0
        elif not self.cooldown_counter:
            self.wait += 1
            if self.wait >= self.patience and rate > self.min_lr:
                rate = max(rate * self.factor, self.min_lr)
                set_value(variable, np.float32(rate))
                if self.verbose:
                    print(f"Epoch {epoch + 1}: ReduceLROnPlateau reducing learning rate to {rate}.")
                self.cooldown_counter, self.wait = self.cooldown, 0


def rate_of(model: Any, who: str) -> Any:
    """The variable that holds a model's learning rate. ValueError: there is none."""
    found = getattr(model.optimizer, "learning_rate", None)
    if found is None or not hasattr(found, "initializer"):
        raise ValueError(f"{who} needs an optimizer of dt.keras whose learning rate is a number, not a schedule")
    return found
