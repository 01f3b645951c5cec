"""What training says to people: a bar for each epoch, or a line."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from .callback import Callback


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
