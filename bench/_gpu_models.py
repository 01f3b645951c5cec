"""Models of which bench/gpu.py times one training step, each written for Dovetail, PyTorch and JAX: the same data, the same arithmetic.

    mlp      784-1024-1024-10 with rectifiers, cross entropy, gradient descent
    block    one transformer block (before-norm, causal attention is not used): mean square of its result, gradient descent

Everything is float32, and products are made in float32 in all systems. Data and parameters lie in the GPU's memory before the
first step, and nothing is fetched, so a step is the GPU's work and the host's work to start it.
A maker returns two calls: one that starts a step, and one that waits for all steps that were started and gives the last loss.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from _gpu_timing import compile_first

Step = tuple[Callable[[], Any], Callable[[], float]]
RATE = 0.01
WIDTHS = (784, 1024, 1024, 10)
MODELS = {
    "mlp, batch 64": ("mlp", 64),
    "mlp, batch 4096": ("mlp", 4096),
    "transformer block, 8 x 512 x 512": ("block", 8),
}
TOKENS, WIDTH, HEADS = 512, 512, 8


def data(model: str, batch: int) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Parameters by name, and what a step is given."""
    rng = np.random.default_rng(5)

    def weight(a: int, b: int) -> Any:
        return (rng.standard_normal((a, b)) / math.sqrt(a)).astype(np.float32)

    parameters: dict[str, Any] = {}
    if model == "mlp":
        for i, (a, b) in enumerate(zip(WIDTHS, WIDTHS[1:], strict=False)):
            parameters[f"w{i}"], parameters[f"b{i}"] = weight(a, b), np.zeros(b, np.float32)
        labels = np.eye(10, dtype=np.float32)[rng.integers(0, 10, batch)]
        return parameters, (rng.standard_normal((batch, WIDTHS[0]), dtype=np.float32), labels)
    for name, a, b in (("q", 1, 1), ("k", 1, 1), ("v", 1, 1), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1)):
        parameters[name], parameters[f"{name}_b"] = weight(a * WIDTH, b * WIDTH), np.zeros(b * WIDTH, np.float32)
    for name in ("norm1", "norm2"):
        parameters[name], parameters[f"{name}_b"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return parameters, (rng.standard_normal((batch * TOKENS, WIDTH), dtype=np.float32),)


class _Math:
    """What the systems call differently. Subclasses fill it in; the models below are written in it once."""

    relu: Callable[..., Any]
    gelu: Callable[..., Any]
    matmul: Callable[..., Any]
    softmax: Callable[..., Any]
    log_softmax: Callable[..., Any]
    mean: Callable[..., Any]  # over the last axis, kept
    total: Callable[..., Any]  # of everything
    rsqrt: Callable[..., Any]
    reshape: Callable[..., Any]
    transpose: Callable[..., Any]


def loss_of(m: Any, model: str, p: dict[str, Any], given: tuple[Any, ...], batch: int) -> Any:
    """The loss, in a system's own words."""
    if model == "mlp":
        x, labels = given
        h = m.relu(m.matmul(x, p["w0"]) + p["b0"])
        h = m.relu(m.matmul(h, p["w1"]) + p["b1"])
        return -m.total(labels * m.log_softmax(m.matmul(h, p["w2"]) + p["b2"])) / batch
    (x,) = given

    def norm(h: Any, name: str) -> Any:
        centred = h - m.mean(h)
        return centred * m.rsqrt(m.mean(centred * centred) + 1e-5) * p[name] + p[f"{name}_b"]

    def heads(h: Any) -> Any:
        return m.transpose(m.reshape(h, (batch, TOKENS, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

    h = norm(x, "norm1")
    q, k, v = (heads(m.matmul(h, p[n]) + p[f"{n}_b"]) for n in "qkv")
    scores = m.matmul(q, m.transpose(k, (0, 1, 3, 2))) * (1 / math.sqrt(WIDTH // HEADS))
    mixed = m.reshape(m.transpose(m.matmul(m.softmax(scores), v), (0, 2, 1, 3)), (batch * TOKENS, WIDTH))
    x = x + m.matmul(mixed, p["out"]) + p["out_b"]
    y = x + m.matmul(m.gelu(m.matmul(norm(x, "norm2"), p["up"]) + p["up_b"]), p["down"]) + p["down_b"]
    return m.total(y * y) / (batch * TOKENS * WIDTH)


# --- Dovetail ------------------------------------------------------------------------------------------------------------


def dovetail(model: str, batch: int) -> Step:
    """In a session of this process."""
    import dovetail as dt
    from dovetail.codegen.gpu.driver.device import device

    class Math(_Math):
        relu, gelu, matmul = dt.nn.relu, dt.nn.gelu, dt.matmul
        softmax, log_softmax = dt.nn.softmax, dt.nn.log_softmax
        rsqrt, reshape, total = dt.math.rsqrt, dt.reshape, dt.reduce_sum

        @staticmethod
        def mean(x: Any) -> Any:
            return dt.reduce_mean(x, -1, keepdims=True)

        @staticmethod
        def transpose(x: Any, axes: tuple[int, ...]) -> Any:
            return dt.transpose(x, axes)

    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        values, given = data(model, batch)
        parameters = {n: dt.Variable(v, name=n) for n, v in values.items()}
        inputs = tuple(dt.Variable(g, trainable=False, name="given") for g in given)
        loss = loss_of(Math, model, parameters, inputs, batch)
        train = dt.train.GradientDescentOptimizer(RATE).minimize(loss)
        start = dt.global_variables_initializer()
    session = dt.Session(graph=graph)
    compile_first(session, train)
    session.run(start)

    def wait() -> float:
        device(0).synchronize()
        return float(session.run(loss))

    return lambda: session.run(train), wait


# --- peers ---------------------------------------------------------------------------------------------------------------


def torch(model: str, batch: int) -> Step:
    """torch.compile of loss and gradients, and an update of all parameters at once."""
    import torch
    from torch.nn import functional as f

    class Math(_Math):
        relu, matmul, rsqrt, reshape, total = torch.relu, torch.matmul, torch.rsqrt, torch.reshape, torch.sum

        @staticmethod
        def gelu(x: Any) -> Any:
            return f.gelu(x, approximate="tanh")

        @staticmethod
        def softmax(x: Any) -> Any:
            return torch.softmax(x, -1)

        @staticmethod
        def log_softmax(x: Any) -> Any:
            return torch.log_softmax(x, -1)

        @staticmethod
        def mean(x: Any) -> Any:
            return torch.mean(x, -1, keepdim=True)

        @staticmethod
        def transpose(x: Any, axes: tuple[int, ...]) -> Any:
            return torch.permute(x, axes)

    torch.set_float32_matmul_precision("highest")
    values, given = data(model, batch)
    parameters = {n: torch.tensor(v, device="cuda", requires_grad=True) for n, v in values.items()}
    inputs = tuple(torch.tensor(g, device="cuda") for g in given)
    optimizer = torch.optim.SGD(list(parameters.values()), lr=RATE, foreach=True)
    compiled = torch.compile(lambda p, g: loss_of(Math, model, p, g, batch))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        compiled(parameters, inputs).backward()
        optimizer.step()

    def wait() -> float:
        torch.cuda.synchronize()
        with torch.no_grad():
            return float(loss_of(Math, model, parameters, inputs, batch))

    return step, wait


def jax(model: str, batch: int) -> Step:
    """One jitted function that owns its parameters."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take most of the memory, which is in use
    import jax
    import jax.numpy as jnp

    class Math(_Math):
        relu, matmul, rsqrt, reshape, total = jax.nn.relu, jnp.matmul, jax.lax.rsqrt, jnp.reshape, jnp.sum
        gelu, softmax, log_softmax, transpose = jax.nn.gelu, jax.nn.softmax, jax.nn.log_softmax, jnp.transpose

        @staticmethod
        def mean(x: Any) -> Any:
            return jnp.mean(x, -1, keepdims=True)

    if jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX has no GPU here, only {jax.default_backend()}")
    jax.config.update("jax_default_matmul_precision", "highest")
    values, given = data(model, batch)
    held = {"p": {n: jnp.asarray(v) for n, v in values.items()}}
    inputs = tuple(jnp.asarray(g) for g in given)

    def update(p: Any, g: Any) -> Any:
        gradients = jax.grad(lambda q: loss_of(Math, model, q, g, batch))(p)
        return jax.tree.map(lambda a, b: a - RATE * b, p, gradients)

    compiled = jax.jit(update, donate_argnums=0)

    def step() -> None:
        held["p"] = compiled(held["p"], inputs)

    def wait() -> float:
        jax.block_until_ready(held["p"])
        return float(loss_of(Math, model, held["p"], inputs, batch))

    return step, wait


PEERS: dict[str, Callable[[str, int], Step]] = {"torch.compile": torch, "jax.jit": jax}
