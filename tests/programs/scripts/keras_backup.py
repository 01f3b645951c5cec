"""A worker of a model of layers that keeps its state with BackupAndRestore, in a folder of its own.

`python keras_backup.py FOLDER EPOCHS`
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

import dovetail as tf
from dovetail import keras
from dovetail.tools.demo.data import load_digits

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
digits = load_digits()
tf.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Dense(32, activation="relu", input_shape=(64,)), keras.layers.Dense(10, activation="softmax")]
    )
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
model.set_weights([np.full(w.shape, 0.01, np.float32) for w in model.get_weights()])


def tell(epoch: int, logs: Any) -> None:
    """The state is kept; the next epoch begins when the test says so."""
    print(f"EPOCH {epoch}", flush=True)
    sys.stdin.readline()


told = keras.callbacks.LambdaCallback(on_epoch_end=tell)
index = strategy.cluster_resolver.task_id
kept = keras.callbacks.BackupAndRestore(Path(sys.argv[1], str(index)))
model.fit(digits.train_images, digits.train_labels, epochs=int(sys.argv[2]), callbacks=[kept, told], verbose=0)
print("RESULT", hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest(), flush=True)
