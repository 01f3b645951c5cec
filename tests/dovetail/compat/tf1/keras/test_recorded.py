"""Layers, optimizers and short trainings compute what Keras computes; record.py says how its numbers were made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras_cases as cases
import numpy as np
import pytest

import dovetail as dt
from dovetail import keras
from dovetail.graph.core.nest import flatten

HERE = Path(__file__).parent / "data"


def recorded(file: str, name: str) -> dict[str, Any]:
    found = cases.load(HERE / f"{file}.npz")
    return {k.removeprefix(f"{name}/"): v for k, v in found.items() if k.startswith(f"{name}/")}


@pytest.fixture(autouse=True)
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as fresh:
        yield fresh


@pytest.mark.parametrize("name", cases.LAYERS)
def test_layer(name: str) -> None:
    case, want = cases.LAYERS[name], recorded("layers", name)
    made = case.make(keras)
    x = [dt.constant(a) for a in cases.layer_input(name)]
    outputs = flatten(made(*x, **case.call))
    total = sum(
        dt.reduce_sum(o * np.cos(np.arange(o.shape.num_elements(), dtype=np.float32).reshape(o.shape.as_list())))
        for o in outputs
    )
    sources = [*(t for t in x if t.dtype.is_floating), *made.trainable_variables]
    grads = [dt.convert_to_tensor(g) for g in dt.gradients(total, sources)]
    made.set_weights([want[f"weight{i}"] for i in range(len(made.weights))])
    session = keras.backend.get_session()
    found, slopes = session.run([outputs, grads])
    for i, value in enumerate(found):
        np.testing.assert_allclose(value, want[f"output{i}"], rtol=2e-5, atol=2e-6)
    for i, value in enumerate(slopes):
        np.testing.assert_allclose(value, want[f"gradient{i}"], rtol=2e-4, atol=2e-5)
    session.run(made.updates)
    if case.call.get("training") is not None:
        for i, value in enumerate(session.run(made.non_trainable_variables)):
            np.testing.assert_allclose(value, want[f"moved{i}"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "sparse"),
    # Norms of rows that are clipped are those of the rows.
    [(name, sparse) for name in cases.OPTIMIZERS for sparse in (False, True) if not (sparse and "clip" in name)],
)
def test_optimizer(name: str, sparse: bool) -> None:
    want = recorded("optimizers", name)["seen"]
    made = cases.OPTIMIZERS[name](keras)
    v = dt.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), use_resource=True)
    grad = dt.placeholder(dt.float32, [3, 2])
    given = (
        dt.IndexedSlices(dt.gather(grad, [2, 0, 1]), dt.constant([2, 0, 1]), dt.constant([3, 2])) if sparse else grad
    )
    step = made.apply_gradients([(given, v)])
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        for value, then in zip(cases.gradients_of(), want, strict=True):
            session.run(step, {grad: value})
            np.testing.assert_allclose(session.run(v), then, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", cases.FITS)
def test_training(name: str) -> None:
    case, want = cases.FITS[name], recorded("fits", name)
    model = cases.fit_model(keras, case)
    model.set_weights([want[f"start{i}"] for i in range(len(model.weights))])
    x, y, more = cases.data_of(case)
    history = model.fit(x, y, epochs=3, shuffle=False, verbose=0, **case.fit, **more).history
    assert {f"history/{k}" for k in history} == {k for k in want if k.startswith("history/")}
    for label, values in history.items():
        np.testing.assert_allclose(values, want[f"history/{label}"], rtol=2e-4, atol=2e-5, err_msg=label)
    for i, value in enumerate(model.get_weights()):
        np.testing.assert_allclose(value, want[f"end{i}"], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(model.predict(x[:4]), want["predicted"], rtol=2e-3, atol=1e-4)
