"""Models of which bench/cpu.py times one step, each written for Dovetail and its peers: the same data, the same arithmetic.

    mlp      784-1024-1024-10, batch 64: a training step with gradient descent
    block    one transformer block (before-norm, 4 heads, width 256, 8 x 128 tokens): loss and all gradients
    lenet    LeNet-5 with rectifiers and largest-of-four pooling, batch 64: a training step with gradient descent
    lstm     an LSTM of 128 units over 32 x 50 x 64 in a loop over time: loss and all gradients; lstm-forward: loss alone
    unrolled the same arithmetic in graphs without a loop, some 3,000 nodes: the mean square of all outputs, and its gradient

A maker returns a call that gives the loss. Each system gets what it is fastest with: JAX one jitted function that owns its
parameters, PyTorch a compiled function and its optimizer, and for images its own order of axes. `unrolled` is eager in PyTorch, as
`torch.compile` takes minutes for it.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

BATCH, WIDTHS, RATE = 64, (784, 1024, 1024, 10), 0.01
SEQUENCES, TOKENS, WIDTH, HEADS = 8, 128, 256, 4
ROWS, STEPS, INPUTS, UNITS = 32, 50, 64, 128
MODELS = ("mlp", "block", "lenet", "lstm", "lstm-forward", "unrolled")


# --- data, the same for everybody ----------------------------------------------------------------------------------------


def _labels(rng: Any) -> Any:
    return np.eye(10, dtype=np.float32)[rng.integers(0, 10, BATCH)]


def mlp_data() -> tuple[list[Any], Any, Any]:
    """Weights and biases, images `[batch, 784]`, labels `[batch, 10]`."""
    rng = np.random.default_rng(2)
    weights = []
    for a, b in zip(WIDTHS, WIDTHS[1:], strict=False):
        weights += [(rng.standard_normal((a, b)) / math.sqrt(a)).astype(np.float32), np.zeros(b, np.float32)]
    labels = _labels(rng)
    return weights, rng.standard_normal((BATCH, WIDTHS[0]), dtype=np.float32), labels


def block_data() -> tuple[dict[str, Any], Any]:
    """Parameters by name, tokens `[sequences, tokens, width]`."""
    rng = np.random.default_rng(3)
    shapes = {
        "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH),
    }  # fmt: skip
    weights: dict[str, Any] = {}
    for name, (a, b) in shapes.items():
        weights[name] = (rng.standard_normal((a, b)) / math.sqrt(a)).astype(np.float32)
        weights[name + "_b"] = np.zeros(b, np.float32)
    for name in ("norm1", "norm2"):
        weights[name], weights[name + "_b"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return weights, rng.standard_normal((SEQUENCES, TOKENS, WIDTH), dtype=np.float32)


def lenet_data() -> tuple[list[Any], Any, Any]:
    """Filters `[high, wide, in, out]`, weights and biases, images `[batch, 28, 28, 1]`, labels `[batch, 10]`."""
    rng = np.random.default_rng(4)
    weights = []
    for shape in ((5, 5, 1, 6), (5, 5, 6, 16), (400, 120), (120, 84), (84, 10)):
        scale = 1 / math.sqrt(math.prod(shape[:-1]))
        weights += [(rng.standard_normal(shape) * scale).astype(np.float32), np.zeros(shape[-1], np.float32)]
    labels = _labels(rng)
    return weights, rng.standard_normal((BATCH, 28, 28, 1), dtype=np.float32), labels


def lstm_data() -> tuple[Any, Any]:
    """The kernel `[inputs and units, 4 units]` of a cell, sequences `[sequence, step, input]`."""
    rng = np.random.default_rng(5)
    kernel = rng.standard_normal((INPUTS + UNITS, 4 * UNITS), dtype=np.float32) / np.float32(math.sqrt(INPUTS + UNITS))
    return kernel, rng.standard_normal((ROWS, STEPS, INPUTS), dtype=np.float32)


def unrolled(steps: Any, kernel: Any, concat: Any, split: Any, sigmoid: Any, tanh: Any, mean: Any) -> Any:
    """The mean square of what an LSTM gives in each step, one step written after the other, in the words of any system."""
    h, c, total = None, None, 0.0
    for x in steps:
        i, j, f, o = split((x @ kernel[:INPUTS]) if h is None else (concat([x, h]) @ kernel))
        c = sigmoid(i) * tanh(j) if c is None else sigmoid(f) * c + sigmoid(i) * tanh(j)
        h = sigmoid(o) * tanh(c)
        total = total + mean(h * h)
    return total / STEPS


def unrolled_data() -> tuple[Any, Any]:
    """The same of four sequences: its tensors are small."""
    kernel, sequences = lstm_data()
    return kernel, sequences[:4]


# --- Dovetail ------------------------------------------------------------------------------------------------------------


def dovetail(model: str, config: Any, warm: bool) -> Callable[[], Any]:
    """The call for a model; `warm`: compile everything before."""
    import dovetail as dt

    graph = dt.Graph()
    with graph.as_default():
        if model == "block":
            fetches, feeds, values = _dovetail_block(dt)
        elif model == "unrolled":
            kernel, sequences = unrolled_data()
            x, w = dt.placeholder(dt.float32, sequences.shape), dt.Variable(kernel)
            loss = unrolled(
                dt.unstack(x, axis=1), w.value(), lambda parts: dt.concat(parts, 1), lambda z: dt.split(z, 4, 1),
                dt.nn.sigmoid, dt.nn.tanh, dt.reduce_mean,
            )  # fmt: skip
            fetches, feeds, values = [loss, *dt.gradients(loss, [w])], [x], (sequences,)
        elif model.startswith("lstm"):
            fetches, feeds, values = _lstm(dt, model)
        else:
            weights, images, labels = mlp_data() if model == "mlp" else lenet_data()
            x, y = dt.placeholder(dt.float32, [None, *images.shape[1:]]), dt.placeholder(dt.float32, [None, 10])
            variables = [dt.Variable(w) for w in weights]
            h = x if model == "mlp" else _dovetail_convolutions(dt, x, variables[:4])
            dense = variables if model == "mlp" else variables[4:]
            for i in range(0, len(dense), 2):
                h = dt.matmul(h, dense[i]) + dense[i + 1]
                h = dt.nn.relu(h) if i + 2 < len(dense) else h
            loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=h))
            step = dt.train.GradientDescentOptimizer(RATE).minimize(loss)
            fetches, feeds, values = [loss, step], [x, y], (images, labels)
        initial = dt.global_variables_initializer()
    session = dt.Session(graph=graph, config=config)
    session.run(initial)
    if warm:
        session.warmup(fetches, feeds)
    call = session.make_callable(fetches, feeds)
    return lambda: call(*values)[0]


def _dovetail_convolutions(dt: Any, x: Any, variables: list[Any]) -> Any:
    for (w, b), padding in zip((variables[:2], variables[2:]), ("SAME", "VALID"), strict=True):
        x = dt.nn.relu(dt.nn.bias_add(dt.nn.conv2d(x, w, strides=1, padding=padding), b))
        x = dt.nn.max_pool(x, 2, 2, "VALID")
    return dt.reshape(x, [-1, 400])


def _dovetail_block(dt: Any) -> tuple[list[Any], list[Any], tuple[Any]]:
    weights, tokens = block_data()
    w = {name: dt.Variable(value) for name, value in weights.items()}
    x = dt.placeholder(dt.float32, tokens.shape)

    def norm(h: Any, name: str) -> Any:
        mean = dt.reduce_mean(h, -1, keepdims=True)
        variance = dt.reduce_mean(dt.square(h - mean), -1, keepdims=True)
        return (h - mean) * dt.math.rsqrt(variance + 1e-5) * w[name] + w[name + "_b"]

    def dense(h: Any, name: str) -> Any:
        return dt.matmul(h, w[name]) + w[name + "_b"]

    flat = dt.reshape(x, [-1, WIDTH])
    parts = dt.reshape(dense(norm(flat, "norm1"), "qkv"), [SEQUENCES, TOKENS, 3, HEADS, WIDTH // HEADS])
    q, k, v = dt.unstack(dt.transpose(parts, [2, 0, 3, 1, 4]), axis=0)
    scores = dt.nn.softmax(dt.matmul(q, k, transpose_b=True) * (1 / math.sqrt(WIDTH // HEADS)))
    mixed = dt.reshape(dt.transpose(dt.matmul(scores, v), [0, 2, 1, 3]), [-1, WIDTH])
    h = flat + dense(mixed, "out")
    h = h + dense(dt.nn.gelu(dense(norm(h, "norm2"), "up"), approximate=True), "down")
    loss = dt.reduce_mean(dt.square(h))
    return [loss, *dt.gradients(loss, list(w.values()))], [x], (tokens,)


# --- TensorFlow, whose graphs are written as Dovetail's ----------------------------------------------------------------


def _lstm(tf: Any, model: str) -> tuple[list[Any], list[Any], tuple[Any]]:
    """`dynamic_rnn` with an LSTM cell, and its gradients for the cell's kernel and bias."""
    kernel, sequences = lstm_data()
    x = tf.placeholder(tf.float32, [None, STEPS, INPUTS])
    with tf.variable_scope("cell", initializer=tf.constant_initializer(kernel)):
        out, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.LSTMCell(UNITS), x, dtype=tf.float32)
    loss = tf.reduce_mean(tf.square(out))
    return [loss, *(tf.gradients(loss, tf.trainable_variables()) if model == "lstm" else [])], [x], (sequences,)


def tensorflow(model: str) -> Callable[[], Any]:
    """The call for a recurrent model."""
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    graph = tf.Graph()
    with graph.as_default():
        fetches, feeds, values = _lstm(tf, model)
        initial = tf.global_variables_initializer()
    cores = len(os.sched_getaffinity(0))
    session = tf.Session(
        graph=graph,
        config=tf.ConfigProto(intra_op_parallelism_threads=cores, inter_op_parallelism_threads=cores),
    )
    session.run(initial)
    call = session.make_callable(fetches, feeds)
    return lambda: call(*values)[0]


# --- JAX -----------------------------------------------------------------------------------------------------------------


def jax(model: str) -> Callable[[], Any]:
    """The call for a model."""
    import jax
    import jax.numpy as jnp

    if model in ("block", "unrolled"):
        weights, tokens = block_data() if model == "block" else unrolled_data()

        def norm(w: Any, h: Any, name: str) -> Any:
            mean = h.mean(-1, keepdims=True)
            variance = jnp.square(h - mean).mean(-1, keepdims=True)
            return (h - mean) * jax.lax.rsqrt(variance + 1e-5) * w[name] + w[name + "_b"]

        def block(w: Any, x: Any) -> Any:
            h = norm(w, x, "norm1") @ w["qkv"] + w["qkv_b"]
            q, k, v = h.reshape(SEQUENCES, TOKENS, 3, HEADS, WIDTH // HEADS).transpose(2, 0, 3, 1, 4)
            scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(WIDTH // HEADS)))
            mixed = (scores @ v).transpose(0, 2, 1, 3).reshape(SEQUENCES, TOKENS, WIDTH)
            h = x + mixed @ w["out"] + w["out_b"]
            up = norm(w, h, "norm2") @ w["up"] + w["up_b"]
            h = h + jax.nn.gelu(up, approximate=True) @ w["down"] + w["down_b"]
            return jnp.mean(jnp.square(h))

        def recurrent(w: Any, x: Any) -> Any:
            steps = [x[:, t] for t in range(STEPS)]
            split = partial(jnp.split, indices_or_sections=4, axis=1)
            return unrolled(steps, w, partial(jnp.concatenate, axis=1), split, jax.nn.sigmoid, jnp.tanh, jnp.mean)

        both = jax.jit(jax.value_and_grad(block if model == "block" else recurrent))
        w, x = jax.tree.map(jnp.asarray, weights), jnp.asarray(tokens)

        def call() -> Any:
            value, gradients = both(w, x)
            jax.block_until_ready(gradients)
            return value

        return call
    weights, images, labels = mlp_data() if model == "mlp" else lenet_data()

    def loss(w: Any, x: Any, y: Any) -> Any:
        h = x
        if model == "lenet":
            for i, padding in ((0, "SAME"), (2, "VALID")):
                h = jax.lax.conv_general_dilated(h, w[i], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
                h = jax.nn.relu(h + w[i + 1])
                h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
            h, w = h.reshape(-1, 400), w[4:]
        for i in range(0, len(w), 2):
            h = h @ w[i] + w[i + 1]
            h = jax.nn.relu(h) if i + 2 < len(w) else h
        return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(h), -1))

    def update(w: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(w, x, y)
        return value, [a - RATE * g for a, g in zip(w, gradients, strict=True)]

    train = jax.jit(update, donate_argnums=0)
    state = [[jnp.asarray(w) for w in weights]]
    x, y = jnp.asarray(images), jnp.asarray(labels)

    def step() -> Any:
        value, state[0] = train(state[0], x, y)
        jax.block_until_ready(state[0])
        return value

    return step


# --- PyTorch -------------------------------------------------------------------------------------------------------------


def torch(model: str) -> Callable[[], Any]:
    """The call for a model."""
    import torch
    import torch.nn.functional as functional

    if model == "unrolled":
        kernel, sequences = (torch.tensor(a) for a in unrolled_data())
        kernel.requires_grad_()

        def recurrent() -> Any:
            kernel.grad = None
            steps, concat = sequences.unbind(1), partial(torch.cat, dim=1)
            split = partial(torch.chunk, chunks=4, dim=1)
            value = unrolled(steps, kernel, concat, split, torch.sigmoid, torch.tanh, torch.mean)
            value.backward()
            return value.detach().numpy()

        return recurrent
    if model == "block":
        weights, tokens = block_data()
        p = {name: torch.tensor(v, requires_grad=True) for name, v in weights.items()}
        given = torch.tensor(tokens)

        def block(x: Any) -> Any:
            h = functional.layer_norm(x, (WIDTH,), p["norm1"], p["norm1_b"], 1e-5) @ p["qkv"] + p["qkv_b"]
            q, k, v = h.reshape(SEQUENCES, TOKENS, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v)
            h = x + mixed.permute(0, 2, 1, 3).reshape(SEQUENCES, TOKENS, WIDTH) @ p["out"] + p["out_b"]
            up = functional.layer_norm(h, (WIDTH,), p["norm2"], p["norm2_b"], 1e-5) @ p["up"] + p["up_b"]
            h = h + functional.gelu(up, approximate="tanh") @ p["down"] + p["down_b"]
            return h.square().mean()

        whole = torch.compile(block)

        def call() -> Any:
            for t in p.values():
                t.grad = None
            value = whole(given)
            value.backward()
            return value.detach().numpy()

        return call
    weights, images, labels = mlp_data() if model == "mlp" else lenet_data()
    if model == "lenet":  # images and filters with channels before space, and so their flat features
        weights[:4:2] = [np.ascontiguousarray(np.transpose(f, (3, 2, 0, 1))) for f in weights[:4:2]]
        weights[4] = np.ascontiguousarray(weights[4].reshape(5, 5, 16, 120).transpose(2, 0, 1, 3).reshape(400, 120))
        images = np.ascontiguousarray(np.transpose(images, (0, 3, 1, 2)))
    w = [torch.tensor(a, requires_grad=True) for a in weights]
    x, y = torch.tensor(images), torch.tensor(labels)

    def loss_of(x: Any, y: Any) -> Any:
        h, dense = x, w
        if model == "lenet":
            for i, padding in ((0, 2), (2, 0)):
                h = functional.max_pool2d(torch.relu(functional.conv2d(h, w[i], w[i + 1], padding=padding)), 2)
            h, dense = h.flatten(1), w[4:]
        for i in range(0, len(dense), 2):
            h = h @ dense[i] + dense[i + 1]
            h = torch.relu(h) if i + 2 < len(dense) else h
        return -(y * torch.log_softmax(h, -1)).sum(-1).mean()

    compiled = torch.compile(loss_of)
    optimizer = torch.optim.SGD(w, RATE)

    def step() -> Any:
        optimizer.zero_grad()
        value = compiled(x, y)
        value.backward()
        optimizer.step()
        return value.detach().numpy()

    return step
