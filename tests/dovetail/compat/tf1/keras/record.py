"""Records what Keras computes, for the tests to compare with: run with a Python that has TensorFlow and Keras 3.

python tests/dovetail/compat/tf1/keras/record.py      writes data/layers.npz, data/optimizers.npz, data/fits.npz

Each array is called `<case>/<what>`; the cases themselves stand in keras_cases.py, which both sides read.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
from keras_cases import FITS, LAYERS, OPTIMIZERS, data_of, fit_model, gradients_of, layer_input, save, start_of

HERE = Path(__file__).parent / "data"


def layer(name: str) -> dict[str, np.ndarray]:
    """A layer's weights, output, and gradients."""
    case = LAYERS[name]
    made = case.make(keras)
    x = [tf.constant(a) for a in layer_input(name)]
    made(*x, **case.call)
    rng = np.random.default_rng(7)
    made.set_weights([start_of(w, rng) for w in made.get_weights()])
    before = made.get_weights()
    with tf.GradientTape() as tape:
        floats = [a for a in x if a.dtype.is_floating]
        tape.watch(floats)
        y = made(*x, **case.call)
        outputs = tf.nest.flatten(y)
        total = sum(
            tf.reduce_sum(o * np.cos(np.arange(o.shape.num_elements(), dtype=np.float32).reshape(o.shape)))
            for o in outputs
        )
    trained = made.trainable_variables
    grads = tape.gradient(total, [*floats, *trained])
    out = {f"weight{i}": w for i, w in enumerate(before)}
    out |= {f"output{i}": o.numpy() for i, o in enumerate(outputs)}
    out |= {f"gradient{i}": tf.convert_to_tensor(g).numpy() for i, g in enumerate(grads)}
    if len(made.get_weights()) > len(trained):
        kept = [w.numpy() for w in made.non_trainable_variables if "seed" not in w.path]
        out |= {f"moved{i}": w for i, w in enumerate(kept)}
    return out


def optimizer(name: str) -> dict[str, np.ndarray]:
    """A variable after each of some updates."""
    made = OPTIMIZERS[name](keras)
    v = keras.Variable(np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2))
    seen = []
    for grad in gradients_of():
        made.apply_gradients([(tf.constant(grad), v)])
        seen.append(v.numpy().copy())
    return {"seen": np.stack(seen)}


def fit(name: str) -> dict[str, np.ndarray]:
    """The history of some epochs, and the weights after them."""
    case = FITS[name]
    model = fit_model(keras, case)
    rng = np.random.default_rng(3)
    model.set_weights([start_of(w, rng) for w in model.get_weights()])
    out = {f"start{i}": w for i, w in enumerate(model.get_weights())}
    x, y, more = data_of(case)
    history = model.fit(x, y, epochs=3, shuffle=False, verbose=0, **case.fit, **more).history
    out |= {f"history/{k}": np.asarray(v, np.float32) for k, v in history.items()}
    out |= {f"end{i}": w for i, w in enumerate(model.get_weights())}
    out["predicted"] = model.predict(x[:4], verbose=0)
    return out


def main() -> None:
    """Record everything."""
    for file, cases, function in (
        ("layers", LAYERS, layer), ("optimizers", OPTIMIZERS, optimizer), ("fits", FITS, fit),
    ):  # fmt: skip
        found = {f"{name}/{what}": a for name in cases for what, a in function(name).items()}
        save(HERE / f"{file}.npz", found)
        print(file, len(found), (HERE / f"{file}.npz").stat().st_size)


if __name__ == "__main__":
    main()
