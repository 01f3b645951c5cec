"""`BackupAndRestore`: training that is cut off anywhere and begun again gives what training in one go gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail import keras
from dovetail.keras import callbacks as cb
from dovetail.keras.layers import Dense

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


class Cut(cb.Callback):
    """Ends training by an error after so many batches: the process might as well have been killed."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


def trained(
    folder: Path | None, cut: int | None = None, save_freq: object = "epoch"
) -> tuple[list[int], list[np.ndarray]]:
    """The epochs that were trained and the weights, of a fresh model in a fresh graph (as in a fresh process)."""
    with dt.Graph().as_default():
        dt.set_random_seed(3)
        made = keras.Sequential([Dense(4, input_shape=(3,), activation="tanh"), Dense(1)])
        made.compile(keras.optimizers.Adam(0.05), "mse")
        made.set_weights([np.full(w.shape, 0.1, np.float32) for w in made.get_weights()])
        listening: list[cb.Callback] = [] if folder is None else [cb.BackupAndRestore(folder, save_freq)]
        if cut is not None:
            listening.append(Cut(cut))
        history = made.fit(X, Y, batch_size=5, epochs=4, callbacks=listening, verbose=0)
        return history.epoch, made.get_weights()


@pytest.mark.parametrize(
    ("cut", "save_freq", "left"),
    [(1, "epoch", 4), (4, "epoch", 4), (11, "epoch", 2), (11, 1, 2), (8, 4, 3), (16, 1, 1)],
)
def test_goes_on_where_it_was(cut: int, save_freq: object, left: int, tmp_path: Path) -> None:
    _, whole = trained(None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, cut, save_freq)
    epochs, weights = trained(tmp_path, None, save_freq)
    assert epochs == list(range(4 - left, 4))
    for mine, theirs in zip(weights, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_training_that_ended_leaves_nothing(tmp_path: Path) -> None:
    epochs, _ = trained(tmp_path)
    again, _ = trained(tmp_path)
    assert epochs == again == [0, 1, 2, 3] and not list(tmp_path.iterdir())


def test_what_cannot_be_kept_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="save_freq must be"):
        cb.BackupAndRestore(tmp_path, save_freq=0)
    made = keras.Sequential([Dense(1, input_shape=(3,))])
    made.compile(dt.train.GradientDescentOptimizer(0.1), "mse")
    with pytest.raises(ValueError, match="needs an optimizer of dt.keras"):
        made.fit(X, Y, callbacks=[cb.BackupAndRestore(tmp_path)], verbose=0)


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, 5)
    other = keras.Sequential([Dense(2, input_shape=(3,)), Dense(1)])
    other.compile("adam", "mse")
    with pytest.raises(ValueError):
        other.fit(X, Y, callbacks=[cb.BackupAndRestore(tmp_path)], verbose=0)
