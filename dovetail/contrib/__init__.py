"""What TensorFlow 1's programs take from `tf.contrib`, as far as it is there; it lives elsewhere."""

from . import (
    cluster_resolver,
    data,
    distribute,
    framework,
    layers,
    legacy_seq2seq,
    lookup,
    losses,
    metrics,
    opt,
    rnn,
    seq2seq,
    slim,
    training,
    util,
)

__all__ = [
    "cluster_resolver",
    "data",
    "distribute",
    "framework",
    "layers",
    "legacy_seq2seq",
    "lookup",
    "losses",
    "metrics",
    "opt",
    "rnn",
    "seq2seq",
    "slim",
    "training",
    "util",
]
