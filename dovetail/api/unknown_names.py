"""Texts of AttributeErrors that say what to use instead of an unknown name.

Such a name may be one of PyTorch, JAX, NumPy or TensorFlow 2, or be misspelt.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection

from ..graph.core.operators import TO_GET_IT, TensorOperators
from ..public_paths import home_of

_CROSS_ENTROPY = (
    "dt.losses.sparse_softmax_cross_entropy(labels, logits) for the numbers of the classes, "
    "dt.losses.softmax_cross_entropy(labels, logits) for their probabilities"
)
FOREIGN = {
    "tensor": "dt.constant",
    "tril": "dt.linalg.band_part(x, -1, 0)",
    "triu": "dt.linalg.band_part(x, 0, -1)",
    "outer": "dt.linalg.tensordot(a, b, 0)",
    "topk": "dt.nn.top_k",
    "logsumexp": "dt.reduce_logsumexp",
    "index_select": "dt.gather",
    "nonzero": "dt.where",
    "randn_like": "dt.random.normal(x.shape)",
    "random.PRNGKey": "dt.random.set_random_seed, or the argument seed of an op",
    "autograd": "dt.gradients(loss, variables)",
    "float": "dt.float32",
    **dict.fromkeys(
        ("np", "numpy", "jnp"), "NumPy for arrays; ops on tensors are dt.reduce_sum, dt.exp, dt.matmul and their like"
    ),
    **dict.fromkeys(
        ("DataLoader", "utils", "data.DataLoader"), "dt.data.Dataset, or call the function with NumPy arrays"
    ),
    **dict.fromkeys(
        ("no_grad", "inference_mode", "enable_grad"),
        "nothing in its place: only dt.gradients and the method minimize of an optimizer compute gradients",
    ),
    **dict.fromkeys(
        ("pmap", "distributed", "parallel", "DataParallel", "nn.DataParallel", "DistributedDataParallel"),
        "dt.compile(cluster={'worker': 2}), or a strategy of dt.distribute",
    ),
    "device_count": "dt.Session().list_devices()",
    "backends": "dt.ConfigProto",
    "Module": "a function with dt.variable_scope, or dt.keras.Model",
    "Parameter": "dt.get_variable",
    **dict.fromkeys(
        ("layers.embedding", "layers.Embedding", "nn.embedding"),
        'dt.nn.embedding_lookup(dt.get_variable("table", [rows, size]), ids)',
    ),
    **dict.fromkeys(("layers.linear", "nn.LazyLinear"), "dt.layers.dense(x, units)"),
    **dict.fromkeys(("layers.LayerNorm", "layers.layer_norm", "layers.LayerNormalization"), "dt.nn.layer_norm"),
    **dict.fromkeys(
        ("layers.lstm", "layers.LSTM", "nn.LSTM", "nn.GRU", "nn.RNN"), "dt.keras.layers.LSTM(units), or GRU, SimpleRNN"
    ),
    **dict.fromkeys(
        (
            "nn.multi_head_attention",
            "nn.MultiheadAttention",
            "nn.attention",
            "layers.attention",
            "layers.MultiHeadAttention",
        ),
        "dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * scale) @ v on [batch, heads, length, size], which is fused",
    ),
    **dict.fromkeys(
        ("nn.Transformer", "nn.TransformerEncoder", "nn.TransformerEncoderLayer"),
        "layers of your own; docs/guides/recipes.md has a language model",
    ),
    **dict.fromkeys(
        ("nn.rms_norm", "nn.RMSNorm"), "x * dt.math.rsqrt(dt.reduce_mean(x * x, -1, keepdims=True) + 1e-6) * weight"
    ),
    **dict.fromkeys(("nn.BatchNorm1d", "nn.BatchNorm3d"), "dt.layers.batch_normalization(x, training=...)"),
    "nn.Conv1d": "dt.layers.conv1d(x, filters, kernel_size)",
    "nn.ModuleList": "a Python list",
    "nn.NLLLoss": _CROSS_ENTROPY,
    "array": "dt.constant",
    "as_tensor": "dt.convert_to_tensor",
    "from_numpy": "dt.constant",
    "cat": "dt.concat",
    "concatenate": "dt.concat",
    "permute": "dt.transpose",
    "unsqueeze": "dt.expand_dims",
    "dot": "dt.matmul, or dt.linalg.tensordot",
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
    "nn.F": "dt.nn",
    "nn.binary_cross_entropy": "dt.losses.log_loss(labels, predictions)",
    "nn.binary_cross_entropy_with_logits": "dt.losses.sigmoid_cross_entropy(labels, logits)",
    "nn.huber_loss": "dt.losses.huber_loss(labels, predictions)",
    "nn.kl_div": "dt.reduce_sum(p * (dt.math.log(p) - dt.math.log(q)))",
    "nn.l1_loss": "dt.losses.absolute_difference(labels, predictions)",
    "nn.layer_norm": "dt.nn.layer_norm",
    "nn.mse_loss": "dt.losses.mean_squared_error(labels, predictions)",
    "nn.nll_loss": _CROSS_ENTROPY,
    "nn.smooth_l1_loss": "dt.losses.huber_loss(labels, predictions)",
    "nn.silu": "dt.nn.swish",
    "nn.BCELoss": "dt.losses.log_loss(labels, predictions)",
    "nn.BCEWithLogitsLoss": "dt.losses.sigmoid_cross_entropy(labels, logits)",
    "nn.L1Loss": "dt.losses.absolute_difference(labels, predictions)",
    "nn.ReLU": "dt.nn.relu",
    "nn.GELU": "dt.nn.gelu",
    "nn.SiLU": "dt.nn.swish",
    "nn.Sigmoid": "dt.nn.sigmoid",
    "nn.Softmax": "dt.nn.softmax",
    "nn.Tanh": "dt.nn.tanh",
    "nn.MaxPool2d": "dt.layers.max_pooling2d(x, pool_size, strides)",
    "nn.init": "dt.initializers",
    "full": "dt.fill",
    "randint": "dt.random.uniform(shape, minval, maxval, dtype=dt.int32)",
    "bmm": "dt.matmul",
    "clone": "dt.identity",
    "masked_fill": "dt.where",
    "repeat_interleave": "dt.repeat",
    "ravel": "dt.reshape(x, [-1])",
    "flatten": "dt.layers.flatten(x), which keeps the first axis, or dt.reshape(x, [-1])",
    **dict.fromkeys(("nn.Flatten", "nn.flatten"), "dt.layers.flatten(x)"),
    "swapaxes": "dt.transpose",
    "stop_grad": "dt.stop_gradient",
    "nn.scaled_dot_product_attention": "dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * scale) @ v, which is fused",
    "nn.CrossEntropyLoss": "dt.losses.sparse_softmax_cross_entropy(labels, logits)",
    "nn.MSELoss": "dt.losses.mean_squared_error(labels, predictions)",
    "nn.Linear": "dt.layers.dense(x, units)",
    "layers.Linear": "dt.layers.dense(x, units)",
    "keras.layers.Linear": "dt.keras.layers.Dense(units)",
    "keras.layers.Conv2d": "dt.keras.layers.Conv2D(filters, kernel_size)",
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
    **dict.fromkeys(
        ("optim", "optimizers"), "dt.train: dt.train.AdamOptimizer(rate).minimize(loss), or dt.train.AdamWOptimizer"
    ),
    "train.Adam": "dt.train.AdamOptimizer",
    **dict.fromkeys(("train.AdamW", "AdamW"), "dt.train.AdamWOptimizer(rate, weight_decay=...)"),
    "train.SGD": "dt.train.GradientDescentOptimizer",
    "function": "dt.compile",
    "jit": "dt.compile",
    "grad": "dt.gradients(loss, variables)",
    "value_and_grad": "dt.gradients(loss, variables)",
    "GradientTape": "dt.gradients(loss, variables)",
    "vmap": "dt.map_fn, or an op with a batch axis",
    "lax": "dt.cond, dt.while_loop and dt.scan",
    "save": "dt.train.Saver, or step.save of a function made by dt.compile",
    "load": "dt.train.Saver, or step.restore of a function made by dt.compile",
    "manual_seed": "dt.random.set_random_seed",
    "randn": "dt.random.normal",
    "rand": "dt.random.uniform",
    "cuda": "dt.device('/gpu:0')",
}
"""Name below `dovetail` -> what to use."""

_NO_VALUE = f"a tensor has no value before the graph runs; {TO_GET_IT}"
_PLACED = "place the nodes that compute it, with dt.device('/gpu:0')"
OF_TENSORS = {
    **dict.fromkeys(("numpy", "item", "tolist"), _NO_VALUE),
    "cuda": _PLACED,
    "cpu": "leave it out: a call of a compiled function, and session.run, return NumPy arrays; dt.device('/cpu:0') places nodes",
    "to": f"{_PLACED}; to change the type, use tensor.astype(dtype)",
    "backward": "use dt.gradients(loss, variables), or optimizer.minimize(loss)",
    "grad": "use dt.gradients(loss, variables)",
    "requires_grad_": "use dt.gradients(loss, [tensor])",
    "data": "use the tensor itself, or dt.stop_gradient(tensor)",
    "repeat": "use dt.tile(tensor, multiples), or dt.repeat for NumPy's repeat",
    "expand": "use dt.broadcast_to(tensor, shape)",
    "view_as": "use dt.reshape(tensor, dt.shape(other))",
    "pow": "use tensor ** exponent",
    "clone": "use the tensor itself: nothing changes it",
    "bfloat16": "use tensor.astype(dt.bfloat16)",
    "mT": "use dt.linalg.matrix_transpose(tensor)",
    "is_cuda": "use tensor.device, or plan.explain(tensor)",
    **dict.fromkeys(
        ("add_", "mul_", "sub_", "copy_", "zero_", "fill_"),
        "use a new tensor, as in x = x + y, or dt.Variable: tensors do not change",
    ),
    "requires_grad": "use dt.Variable(..., trainable=True), or dt.gradients(loss, [tensor])",
    "detach": "use dt.stop_gradient(tensor)",
    "view": "use tensor.reshape(...)",
    "flatten": "use dt.layers.flatten(tensor), which keeps the first axis, or tensor.reshape([-1]), which makes one of all",
    "permute": "use dt.transpose(tensor, perm), or tensor.T",
    "transpose": "use dt.transpose(tensor, perm), or tensor.T",
    "t": "use tensor.T",
    "dim": "use tensor.ndim",
    "size": "use tensor.shape, or dt.size(tensor) for the number of elements",
    "numel": "use dt.size(tensor)",
    "contiguous": "leave it out: tensors have no layout in memory",
    "type": "use tensor.dtype, or tensor.astype(dtype)",
    "float": "use tensor.astype(dt.float32)",
    "double": "use tensor.astype(dt.float64)",
    "half": "use tensor.astype(dt.float16)",
    "int": "use tensor.astype(dt.int32)",
    "long": "use tensor.astype(dt.int64)",
    "bool": "use tensor.astype(dt.bool)",
    "assign": "use dt.Variable: only variables and slices of variables can be assigned to",
    "at": "use dt.tensor_scatter_nd_update(tensor, indices, updates), or dt.where(mask, new, tensor); a variable has v[i].assign(new)",
}
"""Attribute of the tensors of other libraries -> what to do in Dovetail."""

OF_COMPILED_FUNCTIONS = {
    "explain": "plan(...).explain(node), with the arguments of a call",
    "to": "dt.device in the function, as in `with dt.device('/gpu:0')`",
    **dict.fromkeys(
        ("train", "eval"), "an argument of the function, such as training=True: each value is a trace of its own"
    ),
    "lower": "plan(...), with the arguments of a call",
    "eval_shape": "plan(...), with the arguments of a call",
    "get_concrete_function": "plan(...), with the arguments of a call, or graph",
    "clear_cache": "close(); a new dt.compile(f) has no traces",
    "parameters": "variables",
    "trainable_variables": "variables, or dt.trainable_variables() in the function",
    "state_dict": "save(path)",
    "load_state_dict": "restore(path)",
}
"""Attribute of the compiled functions and modules of other libraries -> what to use in Dovetail."""

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
    """The text of the AttributeError for a name that a public module does not have.

    Args:
        module: public name of the module.
        name: the unknown name.
        also: names that the module has in addition to those of `dir`.

    >>> message("dovetail", "relu")
    "module 'dovetail' has no attribute 'relu': use dt.nn.relu"
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return text
    path = f"{module}.{name}".removeprefix("dovetail.")
    if used := FOREIGN.get(path) or _public_path(name):
        return f"{text}: use {used}"
    close = difflib.get_close_matches(name, {*_names(module), *also}, n=1, cutoff=0.8)
    return f"{text}: did you mean {module.replace('dovetail', 'dt', 1)}.{close[0]}?" if close else text


def instead_of_attribute(name: str) -> str:
    """The hint that the AttributeError of a tensor or variable adds for an unknown attribute, or "" if no name is similar.

    >>> instead_of_attribute("relu")
    ': use dt.nn.relu(tensor)'
    """
    if name in OF_TENSORS:
        return f": {OF_TENSORS[name]}"
    if foreign := FOREIGN.get(name) or FOREIGN.get(f"nn.{name}"):
        return f": use {foreign}"
    if path := _public_path(name):
        return f": use {path}(tensor)"
    close = difflib.get_close_matches(name, [n for n in dir(TensorOperators) if n[0] != "_"], n=1, cutoff=0.8)
    return f": did you mean {close[0]}?" if close else ""


def _public_path(name: str) -> str | None:
    """The public path of a name, such as `dt.nn.relu`, or None if no module of `_SEARCHED` has the name."""
    for other in ("dovetail", *(f"dovetail.{part}" for part in _SEARCHED)):
        if name in _names(other):
            return f"{other.replace('dovetail', 'dt', 1)}.{name}"
    return None


def _names(module: str) -> list[str]:
    """The public names of a public module, or an empty list if the module is not loaded."""
    found = sys.modules.get(home_of(module) or module)
    return [n for n in getattr(found, "__all__", None) or dir(found) if not n.startswith("_")] if found else []
