"""Callbacks: when they are told, and what they do to training."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dovetail import keras
from dovetail.keras import callbacks as cb
from dovetail.keras.layers import Dense

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def model(rate: object = 0.1) -> keras.Sequential:
    made = keras.Sequential([Dense(1, input_shape=(3,), kernel_initializer="zeros")])
    made.compile(keras.optimizers.SGD(rate), "mse")
    return made


class Fed(cb.Callback):
    """Puts numbers of its own into the logs of the epochs."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = numbers

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = self.numbers[epoch]


def test_events_come_in_order() -> None:
    told: list[str] = []

    class Teller(cb.Callback):
        def on_train_begin(self, logs=None):
            told.append("train")

        def on_epoch_begin(self, epoch, logs=None):
            told.append(f"epoch {epoch}")

        def on_batch_end(self, batch, logs=None):
            assert logs["loss"] >= 0
            told.append(f"batch {batch}")

        def on_test_begin(self, logs=None):
            told.append("test")

        def on_epoch_end(self, epoch, logs=None):
            told.append(",".join(logs))

    model().fit(X, Y, batch_size=10, epochs=3, initial_epoch=1, validation_data=(X, Y), callbacks=[Teller()], verbose=0)
    epoch = ["batch 0", "batch 1", "test", "loss,val_loss"]
    assert told == ["train", "epoch 1", *epoch, "epoch 2", *epoch]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    made = model()
    made.fit(X, Y, batch_size=10, epochs=2, validation_split=0.5)
    made.evaluate(X, Y)
    said, end = capsys.readouterr().out, r"1/1 - \d+s \d+(s|ms|us)/step - loss: \S+"
    epochs = [rf"Epoch {epoch}/2\n{end} - val_loss: \S+\n" for epoch in (1, 2)]
    assert re.fullmatch("".join([*epochs, end, "\n"]), said), said
    made.fit(X, Y, verbose=0)
    assert not capsys.readouterr().out


def test_early_stopping_gives_back_the_best_weights() -> None:
    made, kept = model(), []
    stop = cb.EarlyStopping("score", mode="max", patience=2, restore_best_weights=True)
    keep = cb.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(made.get_weights()[0]))
    history = made.fit(X, Y, epochs=9, callbacks=[Fed(1, 3, 2, 3, 9, 9, 9, 9, 9), keep, stop], verbose=0)
    assert history.epoch == [0, 1, 2, 3] and stop.stopped_epoch == 3 and stop.best == 3
    np.testing.assert_array_equal(made.get_weights()[0], kept[1])


def test_a_number_that_is_not_there_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    model().fit(X, Y, epochs=3, callbacks=[cb.EarlyStopping("val_loss")], verbose=0)
    assert capsys.readouterr().err.count("waits for 'val_loss', and there are only loss") == 1


def test_learning_rates() -> None:
    made = model()
    history = made.fit(X, Y, epochs=3, callbacks=[cb.LearningRateScheduler(lambda epoch, rate: rate / 2)], verbose=0)
    np.testing.assert_allclose(history.history["learning_rate"], [0.05, 0.025, 0.0125])
    plateau = cb.ReduceLROnPlateau("score", factor=0.1, patience=1, mode="min", min_lr=1e-4)
    made.fit(X, Y, epochs=4, callbacks=[Fed(1, 1, 0.5, 1), plateau], verbose=0)
    assert float(keras.backend.get_value(made.optimizer.learning_rate)) == pytest.approx(1.25e-4, rel=1e-4)
    with pytest.raises(ValueError, match="not a schedule"):
        scheduled = model(keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5))
        scheduled.fit(X, Y, callbacks=[cb.LearningRateScheduler(lambda epoch: 0.1)], verbose=0)


def test_training_ends_when_the_loss_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    history = model().fit(X * np.nan, Y, epochs=5, batch_size=5, callbacks=[cb.TerminateOnNaN()], verbose=0)
    assert history.epoch == [0]
    assert "Batch 0: Invalid loss" in capsys.readouterr().out


def test_checkpoints_and_lines_of_numbers(tmp_path: Path) -> None:
    made = model()
    best = cb.ModelCheckpoint(tmp_path / "best.keras", "score", mode="max", save_best_only=True, save_weights_only=True)
    each = cb.ModelCheckpoint(tmp_path / "models" / "{epoch:02d}-{score:.0f}.keras")
    kept = []
    keep = cb.LambdaCallback(on_epoch_end=lambda epoch, logs: kept.append(made.get_weights()[0]))
    made.fit(X, Y, epochs=3, callbacks=[Fed(1, 5, 2), keep, best, each, cb.CSVLogger(tmp_path / "log.csv")], verbose=0)
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == ["01-1.keras", "02-5.keras", "03-2.keras"]
    made.load_weights(tmp_path / "best.keras")
    np.testing.assert_array_equal(made.get_weights()[0], kept[1])
    lines = (tmp_path / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,loss,score" and lines[2].startswith("1,") and lines[2].endswith(",5")


def test_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboardX.proto.event_pb2")
    from tensorboardX.record_writer import masked_crc32c  # noqa: F401  (the reader below trusts its sums)

    model().fit(
        X, Y, epochs=2, validation_data=(X, Y), verbose=0, callbacks=[cb.TensorBoard(tmp_path, histogram_freq=1)]
    )
    tags = {}
    for kind in ("train", "validation"):
        (file,) = (tmp_path / kind).iterdir()
        data, found = file.read_bytes(), []
        while data:  # length, its sum, the event, its sum
            size = int.from_bytes(data[:8], "little")
            found += [v.tag for v in events.Event.FromString(data[12 : 12 + size]).summary.value]
            data = data[16 + size :]
        tags[kind] = found
    assert tags["train"].count("epoch_loss") == 2 and "dense/kernel" in tags["train"]
    assert tags["validation"] == ["epoch_loss"] * 2
