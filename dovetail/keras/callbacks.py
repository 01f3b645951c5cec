"""`dt.keras.callbacks`: what happens beside training, told of each epoch and batch."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .backend import get_value, set_value

_EVENTS = (
    "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end",
    "on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end",
    "on_predict_begin", "on_predict_end", "on_predict_batch_begin", "on_predict_batch_end",
)  # fmt: skip


class Callback:
    """Base of the callbacks: a subclass defines the methods that it wants.

    Attributes:
        model: the model that is trained.
        params: `epochs`, `steps` (None where nobody knows) and `verbose`.
    """

    def __init__(self) -> None:
        self.model: Any = None
        self.params: dict[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Called before the first event."""
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        """Called before the first event."""
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Training begins."""

    def on_train_end(self, logs: Any = None) -> None:
        """Training is over; `logs`: those of the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch begins, counted from 0."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch is over; `logs`: the loss and metrics of the epoch, those of validation as `val_...`."""

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch of training begins (the older name)."""

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch of training is over (the older name)."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch of training begins."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch of training is over; `logs`: loss and metrics of the epoch so far."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Evaluating begins."""

    def on_test_end(self, logs: Any = None) -> None:
        """Evaluating is over."""

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch of evaluating begins."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch of evaluating is over."""

    def on_predict_begin(self, logs: Any = None) -> None:
        """Predicting begins."""

    def on_predict_end(self, logs: Any = None) -> None:
        """Predicting is over."""

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch of predicting begins."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """A batch of predicting is over."""


class CallbackList:
    """Callbacks that are told of everything in their order."""

    def __init__(self, callbacks: Sequence[Any], model: Any, params: dict[str, Any]) -> None:
        self.callbacks = list(callbacks)
        for c in self.callbacks:
            c.set_model(model)
            c.set_params(params)

    def __getattr__(self, event: str) -> Callable[..., None]:
        if event not in _EVENTS:
            raise AttributeError(event)

        def tell(*args: Any) -> None:
            for c in self.callbacks:
                getattr(c, event)(*args)

        return tell


class History(Callback):
    """What the logs of all epochs were; `fit` gives one.

    Attributes:
        epoch: the numbers of the epochs. history: name -> a number per epoch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class ProgbarLogger(Callback):
    """Writes a bar for each epoch to the standard output, or (`verbose=2`, or no terminal) a line."""

    WIDTH = 30

    def __init__(self) -> None:
        super().__init__()
        self._training = False
        self._begun = self._shown = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        self._training = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if self.params["verbose"]:
            print(f"Epoch {epoch + 1}/{self.params['epochs']}", flush=True)
        self._begun = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._bar(batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._line(logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        if not self._training:
            self._begun = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._last = batch + 1
        if not self._training:
            self._bar(batch + 1, logs)

    def on_test_end(self, logs: Any = None) -> None:
        """See `Callback`."""
        if not self._training:
            self._line(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """See `Callback`."""
        self._training = False

    def _bar(self, done: int, logs: Any) -> None:
        self._done = done
        now = time.monotonic()
        if self.params["verbose"] != 1 or not sys.stdout.isatty() or now - self._shown < 0.05:
            return
        self._shown = now
        steps = self.params["steps"]
        full = round(self.WIDTH * done / steps) if steps else 0
        bar = f" [{'=' * full}{'.' * (self.WIDTH - full)}]" if steps else ""
        print(f"\r\033[K{done}/{steps or '?'}{bar} - {_shown(logs)}", end="", flush=True)

    def _line(self, logs: Any) -> None:
        if not self.params["verbose"]:
            return
        took = time.monotonic() - self._begun
        done = self._done
        each = took / max(done, 1)
        per = f"{each:.0f}s" if each >= 1 else f"{each * 1e3:.0f}ms" if each >= 1e-3 else f"{each * 1e6:.0f}us"
        start = "\r\033[K" if sys.stdout.isatty() and self.params["verbose"] == 1 else ""
        print(f"{start}{done}/{done} - {took:.0f}s {per}/step - {_shown(logs)}", flush=True)

    _done = _last = 0


def _shown(logs: Any) -> str:
    parts = []
    for name, value in (logs or {}).items():
        number = float(np.mean(value))
        parts.append(f"{name}: {number:.4f}" if abs(number) > 1e-3 or number == 0 else f"{name}: {number:.4e}")
    return " - ".join(parts)


class LambdaCallback(Callback):
    """A callback made of functions: `LambdaCallback(on_epoch_end=lambda epoch, logs: ...)`."""

    def __init__(self, **functions: Any) -> None:
        super().__init__()
        for event, function in functions.items():
            if event not in (*_EVENTS, "on_batch_begin", "on_batch_end"):
                raise TypeError(f"There is no event {event!r}; there are {', '.join(_EVENTS)}")
            if function is not None:
                setattr(self, event, function)


class TerminateOnNaN(Callback):
    """Ends training when the loss is no number, or infinite."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            print(f"Batch {batch}: Invalid loss, terminating training")
            self.model.stop_training = True


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
        monitor: its name in the logs. min_delta: what counts as better. patience: how many epochs.
        baseline: a value that must be beaten. restore_best_weights: whether the model gets back the weights of the best epoch.
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
        save_best_only: only when `monitor` got better. save_weights_only: without the model's config and optimizer.
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
        Path(path).parent.mkdir(parents=True, exist_ok=True)
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


class TensorBoard(Callback):
    """Writes the logs of each epoch, and the graph, for TensorBoard: `train/` and `validation/` in `log_dir`. The chief does.

    Args:
        log_dir: the folder. histogram_freq: after how many epochs histograms of the weights are written; 0: never.
        write_graph: whether the graph is written. update_freq: "epoch", "batch", or after how many batches.

    Raises:
        UnimplementedError: tensorboardX is not installed.
    """

    def __init__(
        self,
        log_dir: Any = "logs",
        histogram_freq: int = 0,
        write_graph: bool = True,
        update_freq: Any = "epoch",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.log_dir, self.histogram_freq, self.write_graph = str(log_dir), histogram_freq, write_graph
        self.update_freq = 1 if update_freq == "batch" else update_freq
        self._writers: dict[str, Any] = {}
        self._batches = 0

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            from ..summary.writer import FileWriter

            self._writers[name] = FileWriter(str(Path(self.log_dir) / name))
        return self._writers[name]

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        if is_chief(self.model) and self.write_graph:
            self._writer("train").add_graph(self.model._graph)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._batches += 1
        if is_chief(self.model) and self.update_freq != "epoch" and self._batches % self.update_freq == 0:
            for name, value in (logs or {}).items():
                self._writer("train").add_scalar(f"batch_{name}", float(np.mean(value)), self._batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if not is_chief(self.model):
            return
        for name, value in (logs or {}).items():
            kind, label = ("validation", name[4:]) if name.startswith("val_") else ("train", name)
            self._writer(kind).add_scalar(f"epoch_{label}", float(np.mean(value)), epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            from tensorboardX.summary import histogram

            for v, value in zip(self.model.weights, self.model.get_weights(), strict=True):
                self._writer("train").add_summary(histogram(v.op.name, value.astype(np.float32), bins="auto"), epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Any = None) -> None:
        """See `Callback`."""
        for writer in self._writers.values():
            writer.close()


class CSVLogger(Callback):
    """Writes the logs of each epoch as a line of a file of comma-separated values. The chief does."""

    def __init__(self, filename: Any, separator: str = ",", append: bool = False) -> None:
        super().__init__()
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._names: list[str] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        if is_chief(self.model) and not self.append:
            self.filename.write_text("")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        if not is_chief(self.model):
            return
        with self.filename.open("a") as file:
            if not self._names:
                self._names = list(logs or {})
                if file.tell() == 0:
                    file.write(self.separator.join(["epoch", *self._names]) + "\n")
            values = [str((logs or {}).get(n, "NA")) for n in self._names]
            file.write(self.separator.join([str(epoch), *values]) + "\n")


def is_chief(model: Any) -> bool:
    """Whether this process is the one that writes files."""
    return model._strategy is None or bool(model._strategy.extended.should_checkpoint)


def rate_of(model: Any, who: str) -> Any:
    """The variable that holds a model's learning rate. ValueError: there is none."""
    found = getattr(model.optimizer, "learning_rate", None)
    if found is None or not hasattr(found, "initializer"):
        raise ValueError(f"{who} needs an optimizer of dt.keras whose learning rate is a number, not a schedule")
    return found


__all__ = [
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "TensorBoard",
    "TerminateOnNaN",
]
