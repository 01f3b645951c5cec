"""`BackupAndRestore`: training that was cut off goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .callback import Callback, is_chief
from .saving import load_progress, save_progress

FILE = "training.safetensors"


class BackupAndRestore(Callback):
    """Keeps the state of training on disk while `fit` runs, and takes it up when `fit` is called again after an interruption.

    The file holds the weights, the optimizer's state, and the epoch and batch that were reached. In a cluster the chief writes it, and
    all workers read it when they are started again: the folder must be one that all of them see. What the cluster's other members
    see of a worker's death is an error from `fit`; whatever starts the programs again (a batch system, `dovetail cluster up`) starts all.

    Args:
        backup_dir: a folder for this alone.
        save_freq: "epoch", or after how many batches. In the middle of an epoch the batches that were done are passed over; the order of
            shuffled rows is the same again where the graph has a seed (`dt.set_random_seed`), and under several workers.
        delete_checkpoint: whether the file is deleted when `fit` has ended well, so that the next one begins anew.

    Raises:
        ValueError: `save_freq` is something else; the file fits another model.

    >>> model.fit(images, labels, epochs=20, callbacks=[dt.keras.callbacks.BackupAndRestore("/shared/backup")])

    TensorFlow: `tf.keras.callbacks.BackupAndRestore`.
    """

    def __init__(self, backup_dir: Any, save_freq: Any = "epoch", delete_checkpoint: bool = True) -> None:
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or isinstance(save_freq, bool) or save_freq < 1):
            raise ValueError(f"save_freq must be 'epoch' or a number of batches, not {save_freq!r}")
        if not str(backup_dir):
            raise ValueError("BackupAndRestore needs a folder for its file")
        self.backup_dir, self.save_freq, self.delete_checkpoint = str(backup_dir), save_freq, delete_checkpoint
        self._path = Path(backup_dir) / FILE
        self._epoch = self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        if not hasattr(self.model.optimizer, "build"):
            raise ValueError(
                f"BackupAndRestore needs an optimizer of dt.keras, not {type(self.model.optimizer).__name__} of dt.train: "
                "train.MonitoredTrainingSession recovers with those"
            )
        if not self._path.exists():
            return
        if not self.model.built:
            raise ValueError(
                f"'{self.model.name}' has no weights yet to restore: build it with an input shape before `fit`"
            )
        progress = load_progress(self.model, self._path)
        self.model._resumed = progress["epoch"], progress["batch"]
        self.model._epochs_done = progress["epochs_done"]
        print(f"Training goes on at epoch {progress['epoch'] + 1}, batch {progress['batch']}, from {self._path}")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._batches += 1
        if self.save_freq != "epoch" and self._batches % self.save_freq == 0:
            self._save(self._epoch, batch + 1, self.model._epochs_done)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `Callback`."""
        self._save(epoch + 1, 0, self.model._epochs_done)

    def on_train_end(self, logs: Any = None) -> None:
        """See `Callback`."""
        if self.delete_checkpoint and is_chief(self.model):
            self._path.unlink(missing_ok=True)

    def _save(self, epoch: int, batch: int, epochs_done: int) -> None:
        if is_chief(self.model):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            save_progress(self.model, self._path, {"epoch": epoch, "batch": batch, "epochs_done": epochs_done})


__all__ = ["BackupAndRestore"]
