"""The same bits after 50 steps of training, of five programs and on a cluster, whether their kernels were kept or not.

Each run is a process of its own. The first one compiles all kernels, the second one finds them on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail as dt

STEPS = 50


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dense(x: Any, columns: int, name: str) -> Any:
    w = dt.get_variable(f"{name}/w", initializer=numbers(int(x.dims[1]), columns, seed=columns) / 8)
    return dt.matmul(x, w) + dt.get_variable(f"{name}/b", initializer=np.zeros(columns, np.float32))


def loss_of(logits: Any) -> Any:
    labels = dt.constant(np.arange(32, dtype=np.int32) % int(logits.dims[1]))
    return dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def layers() -> Any:
    """Dense layers with dropout."""
    hidden = dt.nn.dropout(dt.nn.relu(dense(dt.constant(numbers(32, 64)), 128, "first")), 0.8, seed=3)
    return dt.train.MomentumOptimizer(0.05, 0.9).minimize(loss_of(dense(dt.tanh(hidden), 10, "second")))


def images() -> Any:
    """A convolution and a pooling."""
    filters = dt.get_variable("filters", initializer=numbers(5, 5, 1, 6) / 5)
    seen = dt.nn.max_pool(
        dt.nn.relu(dt.nn.conv2d(dt.constant(numbers(32, 14, 14, 1)), filters, 1, "SAME")), 2, 2, "SAME"
    )
    return dt.train.AdamOptimizer(0.01).minimize(loss_of(dense(dt.reshape(seen, [32, 7 * 7 * 6]), 10, "last")))


def recurrence() -> Any:
    """An LSTM, which is a loop."""
    out, _ = dt.nn.dynamic_rnn(dt.nn.rnn_cell.LSTMCell(16), dt.constant(numbers(32, 6, 8)), dtype=dt.float32)
    return dt.train.RMSPropOptimizer(0.01).minimize(loss_of(dense(dt.reshape(out, [32, 96]), 10, "last")))


def embedding() -> Any:
    """Sparse updates of rows, some of which are named several times."""
    table = dt.get_variable("table", initializer=numbers(100, 16))
    ids = dt.constant(np.random.default_rng(1).integers(0, 100, (32, 8)))
    mean = dt.reduce_mean(dt.nn.embedding_lookup(table, ids), 1)
    return dt.train.AdagradOptimizer(0.1).minimize(loss_of(dense(mean, 10, "last")))


def attention() -> Any:
    """An attention over queries, keys and values of one product."""
    parts = dt.reshape(dense(dt.constant(numbers(32 * 8, 16)), 48, "heads"), [32, 8, 3, 2, 8])
    q, k, v = dt.unstack(dt.transpose(parts, [2, 0, 3, 1, 4]))
    mixed = dt.matmul(dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * 0.35), v)
    return dt.train.AdamOptimizer(0.01).minimize(loss_of(dense(dt.reshape(mixed, [32, 128]), 10, "last")))


def replicas() -> Any:
    """Two workers whose gradients are averaged before a parameter server takes them."""
    with dt.device("/job:ps/task:0"):
        w = dt.get_variable("w", initializer=numbers(64, 10) / 8)
    gradients = []
    for worker in range(2):
        with dt.device(f"/job:worker/task:{worker}"):
            loss = loss_of(dt.matmul(dt.tanh(dt.constant(numbers(32, 64, seed=worker))), w))
            gradients.append(dt.gradients(loss, [w])[0])
    return dt.train.AdamOptimizer(0.01).apply_gradients([((gradients[0] + gradients[1]) / 2.0, w)])


PROGRAMS: tuple[Callable[[], Any], ...] = (layers, images, recurrence, embedding, attention)


def trained(build: Callable[[], Any], target: str = "") -> str:
    """A digest of all variables after training."""
    with dt.Graph().as_default():
        dt.set_random_seed(7)
        step = build()
        with dt.Session(target, config=dt.ConfigProto(kernel_backend="auto")) as session:
            session.run(dt.global_variables_initializer())
            for _ in range(STEPS):
                session.run(step)
            values = session.run(dt.global_variables())
    assert all(np.isfinite(v).all() for v in values)
    return hashlib.sha256(b"".join(v.tobytes() for v in values)).hexdigest()


def main() -> None:
    """Train all of them; print the digests."""
    digests = {build.__name__: trained(build) for build in PROGRAMS}
    with dt.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        digests["replicas"] = trained(replicas, cluster.target("worker", 0))
    print(json.dumps(digests))


@pytest.mark.slow
@pytest.mark.timeout(900)  # all kernels are compiled, on a machine that may be busy
@pytest.mark.usefixtures("own_cache")
def test_training_has_the_same_bits_with_a_cold_and_a_warm_cache() -> None:
    environment = {**os.environ, "DOVETAIL_DETERMINISTIC": "1"}
    runs = [
        subprocess.run([sys.executable, __file__], env=environment, check=True, capture_output=True, text=True).stdout
        for _ in ("cold", "warm")
    ]
    cold, warm = (json.loads(out.splitlines()[-1]) for out in runs)
    assert len(cold) == len(PROGRAMS) + 1
    assert cold == warm


if __name__ == "__main__":
    main()
