"""`fit` through a coordinator: the workers of a real cluster take the batches, and losing one costs nothing but time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail import keras
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from dovetail.keras.utils import experimental

X = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.25).astype(np.float32)


def created(context: Any) -> Any:
    mine = dt.data.Dataset.from_tensor_slices((X, Y)).shard(context.num_input_pipelines, context.input_pipeline_id)
    return mine.repeat().batch(32)


def test_a_dataset_creator_serves_a_model_alone() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    seen: list[Any] = []

    def make(context: Any) -> Any:
        seen.append((context.num_input_pipelines, context.input_pipeline_id))
        return created(context)

    history = model.fit(experimental.DatasetCreator(make), epochs=8, steps_per_epoch=8, verbose=0)
    assert seen == [(1, 0)] and history.history["loss"][-1] < history.history["loss"][0] / 10
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(experimental.DatasetCreator(make), epochs=1, verbose=0)
    with pytest.raises(TypeError, match="callable"):
        experimental.DatasetCreator(3)
    with pytest.raises(TypeError, match="must return a Dataset"):
        model.fit(experimental.DatasetCreator(lambda context: 3), steps_per_epoch=1, verbose=0)


@pytest.fixture
def cluster() -> Iterator[Any]:
    with dt.LocalCluster({"worker": 2, "ps": 2}) as found, dt.Graph().as_default():
        yield found


class Elastic(SimpleClusterResolver):
    """A cluster that may have other workers later."""

    is_elastic = True


@pytest.mark.slow
@pytest.mark.parametrize("resolver", [SimpleClusterResolver, Elastic])
def test_workers_take_the_batches_and_one_may_be_killed(cluster: Any, resolver: Any) -> None:
    strategy = dt.distribute.experimental.ParameterServerStrategy(resolver(cluster.cluster_spec))
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    model.fit(X, Y, batch_size=32, epochs=1, verbose=0)
    assert {v.device for v in model._all_variables()} == {"/job:ps/task:0", "/job:ps/task:1"}  # metrics and slots, too

    class Kill(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                cluster.kill("worker", 1)

    creator = experimental.DatasetCreator(created)
    found = model.fit(
        creator, epochs=12, steps_per_epoch=8, validation_data=(X, Y), verbose=0, callbacks=[Kill()]
    ).history
    assert set(found) == {"loss", "mae", "val_loss", "val_mae"} and len(found["loss"]) == 12
    assert found["val_loss"][-1] < found["val_loss"][0] / 2
    loss, mae = model.evaluate(X, Y, verbose=0)
    predicted = model.predict(X)
    assert loss == pytest.approx(np.mean((predicted - Y) ** 2), rel=1e-4)
    assert mae == pytest.approx(np.abs(predicted - Y).mean(), rel=1e-4)
    assert found["val_loss"][-1] == pytest.approx(loss, rel=1e-4)
