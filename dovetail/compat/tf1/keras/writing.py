"""Callbacks that write what training gives: for TensorBoard, and as lines of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.formats.atomic_files import path_of
from .callback import Callback, is_chief


class TensorBoard(Callback):
    """Writes the logs of each epoch, and the graph, for TensorBoard: `train/` and `validation/` in `log_dir`. The chief does.

    Args:
        log_dir: the folder.
        histogram_freq: after how many epochs histograms of the weights are written; 0: never.
        write_graph: whether the graph is written.
        update_freq: "epoch", "batch", or after how many batches.

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
            from ....interop.tensorboard.writer import FileWriter

            self._writers[name] = FileWriter(str(path_of(self.log_dir) / name))
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
        self.filename, self.separator, self.append = path_of(filename), separator, append
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
