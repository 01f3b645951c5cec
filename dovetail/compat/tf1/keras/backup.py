"""`BackupAndRestore`: training that was cut off goes on where it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.formats.atomic_files import path_of
from .callback import Callback, is_chief
from .saving import Progress, load_state, read_progress, save_progress, state_variables

FILE = "training.safetensors"
_NOTHING = Progress(-1, -1, -1)


class BackupAndRestore(Callback):
    """Keeps the state of training on disk while `fit` runs, and takes it up when `fit` is called again after an interruption.

    The file holds the weights, the optimizer's state, and the epoch and batch that were reached. In a cluster the chief alone writes and
    reads it; the others take over what the chief has, so it does not matter which folders they see. What the cluster's other members
    see of a worker's death is an error from `fit`; whatever starts the programs again (a batch system, `dovetail up`) starts all.

    Args:
        backup_dir: a folder for this alone, or an address such as `s3://bucket/backup`; the chief's, where there are several workers.
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
        self._path = path_of(backup_dir) / FILE
        self._epoch = self._batches = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """See `Callback`."""
        if not hasattr(self.model.optimizer, "build"):
            raise ValueError(
                f"BackupAndRestore needs an optimizer of dt.keras, not {type(self.model.optimizer).__name__} of dt.train: "
                "train.MonitoredTrainingSession recovers with those"
            )
        here = is_chief(self.model) and self._path.exists()
        progress = read_progress(self._path) if here else _NOTHING
        progress = Progress(*self.model._of_first(np.array(progress, np.int64)).tolist())
        if progress == _NOTHING:
            return
        if not self.model.built:
            raise ValueError(
                f"'{self.model.name}' has no weights yet to restore: build it with an input shape before `fit`"
            )
        if here:
            load_state(self.model, self._path)
        self.model._take_first(state_variables(self.model))
        self.model._resumed = progress.epoch, progress.batch
        self.model._epochs_done = progress.epochs_done
        print(f"Training goes on at epoch {progress.epoch + 1}, batch {progress.batch}, from {self._path}")

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
            save_progress(self.model, self._path, Progress(epoch, batch, epochs_done))


__all__ = ["BackupAndRestore"]
