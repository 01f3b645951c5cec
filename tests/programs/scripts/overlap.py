"""A worker whose all_reduces begin during the backward pass, and once more one whose do not. Prints what came out, as JSON.

python overlap.py     TF_CONFIG says which cluster, and which task this is
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np

import dovetail as tf
from dovetail.runtime.master import lowering

WIDTH, LAYERS, STEPS = 1100, 3, 2  # each layer's weights are a bucket of their own


def train(strategy: tf.distribute.Strategy) -> tuple[str, list[tuple[str, str, float, float]]]:
    """The digest of the weights after some steps, and what ran here in the last one: (node, op, start, end)."""
    rng = np.random.default_rng(7)
    batch = np.random.default_rng(strategy._rank).normal(size=(16, WIDTH)).astype(np.float32)
    with tf.Graph().as_default(), strategy.scope():
        x = tf.placeholder(tf.float32, [16, WIDTH])

        def replica():
            h = x
            for i in range(LAYERS):
                start = rng.normal(scale=WIDTH**-0.5, size=(WIDTH, WIDTH)).astype(np.float32)
                h = tf.nn.tanh(tf.matmul(h, tf.get_variable(f"w{i}", initializer=start), name=f"layer{i}"))
            return tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(tf.square(h - x)))

        train_op = strategy.run(replica)
        weights = [strategy.experimental_local_results(v)[0] for v in tf.trainable_variables()]
        end = strategy.barrier()
        config = strategy.update_config_proto(tf.ConfigProto())
        with tf.Session(strategy.session_target, config=config) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(STEPS):
                metadata = tf.RunMetadata()
                options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
                session.run(train_op, {x: batch}, options=options, run_metadata=metadata)
            found = session.run(weights)
            session.run(end)
    assert str(metadata.trace) and metadata.trace.to_svg()  # they can be told and drawn
    ran = [(k.node, k.op, k.start, k.finish) for k in metadata.trace.kernels]
    return hashlib.sha256(b"".join(w.tobytes() for w in found)).hexdigest(), ran


def main() -> None:
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    overlapped = train(strategy)
    lowering.overlap_collectives = lambda part, cut: list(part.steps)  # in this process is the master of its sessions
    one_by_one = train(strategy)
    print("RESULT", json.dumps([overlapped, one_by_one]), flush=True)
    sys.stdin.read()  # the others may still need this server


if __name__ == "__main__":
    main()
