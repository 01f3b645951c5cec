"""What to use instead of a name that a public module does not have: names of PyTorch, JAX, NumPy and TensorFlow 2, and misspelt ones."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection

from ..public_paths import home_of

_CROSS_ENTROPY = (
    "dt.losses.sparse_softmax_cross_entropy(labels, logits) for the numbers of the classes, "
    "dt.losses.softmax_cross_entropy(labels, logits) for their probabilities"
)
FOREIGN = {
    "tensor": "dt.constant",
    "array": "dt.constant",
    "as_tensor": "dt.convert_to_tensor",
    "from_numpy": "dt.constant",
    "cat": "dt.concat",
    "concatenate": "dt.concat",
    "permute": "dt.transpose",
    "unsqueeze": "dt.expand_dims",
    "dot": "dt.matmul, or dt.tensordot",
    "mm": "dt.matmul",
    "clip": "dt.clip_by_value",
    "clamp": "dt.clip_by_value",
    "power": "dt.pow",
    "prod": "dt.reduce_prod",
    "any": "dt.reduce_any",
    "all": "dt.reduce_all",
    "std": "dt.math.reduce_std",
    "var": "dt.math.reduce_variance",
    "astype": "dt.cast",
    "arctan2": "dt.atan2",
    "chunk": "dt.split",
    "cross_entropy": _CROSS_ENTROPY,
    "nn.functional": "dt.nn",
    "nn.cross_entropy": _CROSS_ENTROPY,
    "nn.linear": "dt.matmul(x, w) + b",
    "nn.mse_loss": "dt.losses.mean_squared_error(labels, predictions)",
    "nn.scaled_dot_product_attention": "dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * scale) @ v, which is fused",
    "nn.CrossEntropyLoss": "dt.losses.sparse_softmax_cross_entropy(labels, logits)",
    "nn.MSELoss": "dt.losses.mean_squared_error(labels, predictions)",
    "nn.Linear": "dt.layers.dense(x, units)",
    "nn.Conv2d": "dt.layers.conv2d(x, filters, kernel_size)",
    "nn.BatchNorm2d": "dt.layers.batch_normalization(x, training=...)",
    "nn.LayerNorm": "dt.nn.layer_norm",
    "nn.Dropout": "dt.nn.dropout(x, rate=...)",
    "nn.Embedding": "dt.nn.embedding_lookup(table, ids)",
    "nn.Module": "a function with dt.variable_scope, or dt.keras.Model",
    "nn.Sequential": "dt.keras.Sequential",
    "nn.Parameter": "dt.get_variable",
    "losses.cross_entropy": "dt.losses.sparse_softmax_cross_entropy(labels, logits)",
    "losses.mse": "dt.losses.mean_squared_error(labels, predictions)",
    "optim": "dt.train: dt.train.AdamOptimizer(rate).minimize(loss)",
    "optimizers": "dt.train: dt.train.AdamOptimizer(rate).minimize(loss)",
    "train.Adam": "dt.train.AdamOptimizer",
    "train.SGD": "dt.train.GradientDescentOptimizer",
    "function": "dt.compile",
    "jit": "dt.compile",
    "grad": "dt.gradients(loss, variables)",
    "value_and_grad": "dt.gradients(loss, variables)",
    "GradientTape": "dt.gradients(loss, variables)",
    "no_grad": "dt.stop_gradient",
    "vmap": "dt.map_fn, or an op with a batch axis",
    "lax": "dt.cond, dt.while_loop and dt.scan",
    "save": "dt.train.Saver, or step.save of a function made by dt.compile",
    "load": "dt.train.Saver, or step.restore of a function made by dt.compile",
    "manual_seed": "dt.set_random_seed",
    "randn": "dt.random.normal",
    "rand": "dt.random.uniform",
    "cuda": "dt.device('/gpu:0')",
}
"""Name below `dovetail` -> what to use."""

_SEARCHED = (
    "nn",
    "math",
    "train",
    "linalg",
    "random",
    "image",
    "strings",
    "sparse",
    "initializers",
    "layers",
    "losses",
    "metrics",
)
"""Public modules in which a name is looked for, if they are loaded."""


def message(module: str, name: str, also: Collection[str] = ()) -> str:
    """The text of the AttributeError for a name that a public module does not have; `also`: names that it has beside those of `dir`.

    >>> message("dovetail", "relu")
    "module 'dovetail' has no attribute 'relu': use dt.nn.relu"
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return text
    path = f"{module}.{name}".removeprefix("dovetail.")
    if path in FOREIGN:
        return f"{text}: use {FOREIGN[path]}"
    for other in ("dovetail", *(f"dovetail.{part}" for part in _SEARCHED)):
        if name in _names(other):
            return f"{text}: use {other.replace('dovetail', 'dt', 1)}.{name}"
    close = difflib.get_close_matches(name, {*_names(module), *also}, n=1, cutoff=0.8)
    return f"{text}: did you mean {module.replace('dovetail', 'dt', 1)}.{close[0]}?" if close else text


def _names(module: str) -> list[str]:
    """The public names of a public module; none if it is not loaded."""
    found = sys.modules.get(home_of(module) or module)
    return [n for n in getattr(found, "__all__", None) or dir(found) if not n.startswith("_")] if found else []


__all__ = ["FOREIGN", "message"]
