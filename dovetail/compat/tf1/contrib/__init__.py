"""What TensorFlow 1's programs take from `tf.contrib`, as far as it is there.

Most modules give other parts of Dovetail under their first names: `cluster_resolver`, `data`, `distribute`, `framework`, `lookup`,
`losses`, `metrics`, `opt`, `rnn`. These define something: `layers` (by `networks`, `norms`, `plain_layers`, `regularizers`), `arg_scope`,
`evaluation`, `hparams`, `learn`, `legacy_seq2seq`, `seq2seq`, `slim`, `tpu`, `training`, `util`, `utils`, `variables`. No other package
imports it.
"""

from typing import Any

from ..names.inner_modules import absent
from . import (
    cluster_resolver,
    data,
    distribute,
    framework,
    layers,
    learn,
    legacy_seq2seq,
    lookup,
    losses,
    metrics,
    opt,
    rnn,
    seq2seq,
    slim,
    tpu,
    training,
    util,
)


def __getattr__(name: str) -> Any:
    raise absent("contrib", name)


__all__ = [
    "cluster_resolver",
    "data",
    "distribute",
    "framework",
    "layers",
    "learn",
    "legacy_seq2seq",
    "lookup",
    "losses",
    "metrics",
    "opt",
    "rnn",
    "seq2seq",
    "slim",
    "tpu",
    "training",
    "util",
]
