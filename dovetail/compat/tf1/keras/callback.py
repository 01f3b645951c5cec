"""`Callback`: what is told of each epoch and batch; and the callbacks that only listen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

_EVENTS = (
    "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end",
    "on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end",
    "on_predict_begin", "on_predict_end", "on_predict_batch_begin", "on_predict_batch_end",
)  # fmt: skip


class Callback:
    """Base of the callbacks: a subclass defines the methods that it wants.

    Attributes:
        model: the model that is trained.
        params: `epochs`, `steps` (None where unknown) and `verbose`.
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
        epoch: the numbers of the epochs.
        history: name -> a number per epoch.
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


def is_chief(model: Any) -> bool:
    """Whether this process is the one that writes files."""
    return model._strategy is None or bool(model._strategy.extended.should_checkpoint)
