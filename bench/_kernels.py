"""A process that runs numeric workloads with one system: Dovetail, NumPy, JAX or PyTorch, in whatever interpreter has it.

Each system gets a process of its own, so that neither's threads and memory weigh on the other. The conversation is one line
of JSON each way: the process begins with `{"version": "2.4"}`, or `{"missing": why}`, and answers `{"workload": "gelu",
"calls": 3}` with `{"seconds": 0.01, "check": 1.5}`: the seconds of all calls, and a number that every system must agree on.

Run as `python bench/_kernels.py SYSTEM` by `System`; what it needs of the system is imported there.
"""

import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TITLES = {
    "dovetail": "Dovetail",
    "dovetail-numpy": "Dovetail, NumPy kernels",
    "numpy": "NumPy",
    "jax": "JAX",
    "torch": "PyTorch",
}
MODULES = {"dovetail": "dovetail", "dovetail-numpy": "dovetail", "numpy": "numpy", "jax": "jax", "torch": "torch"}
BATCH, WIDTHS, RATE = 64, (784, 1024, 1024, 10), 0.01
C = math.sqrt(2 / math.pi)
TINY = 16  # elements of the arrays of the tiny graph


class System:
    """A system in a process of its own. Use it as a context manager; `missing` says why it cannot run.

    Attributes:
        seconds: spent in all calls so far: a clock that only runs while this system works.
    """

    def __init__(self, system: str, python: str = sys.executable) -> None:
        self._who = f"{system} in {python}"
        try:
            self._process = subprocess.Popen(
                [python, __file__, system], text=True, env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as e:
            raise SystemExit(f"Cannot start {python}: {e.strerror}") from None
        hello = self._answer()
        self.missing: str = hello.get("missing", "")
        self.title = f"{TITLES[system]} {hello.get('version', '')}"
        self.seconds = 0.0

    def run(self, workload: str, calls: int = 1) -> float:
        """Call a workload; the number to agree on. RuntimeError when it fails."""
        assert self._process.stdin is not None
        print(json.dumps({"workload": workload, "calls": calls}), file=self._process.stdin, flush=True)
        answer = self._answer()
        self.seconds += answer["seconds"]
        check: float = answer["check"]
        return check

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._who} ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "System":
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()


# --- the workloads' data, the same for everybody ---------------------------------------------------------------------


def vector() -> Any:
    return np.random.default_rng(0).standard_normal(10_000_000, dtype=np.float32)


def matrix() -> Any:
    return np.random.default_rng(1).standard_normal((4096, 1024), dtype=np.float32)


def layers() -> tuple[list[Any], Any, Any]:
    rng = np.random.default_rng(2)
    weights = []
    for a, b in zip(WIDTHS, WIDTHS[1:], strict=False):
        weights += [(rng.standard_normal((a, b)) / math.sqrt(a)).astype(np.float32), np.zeros(b, np.float32)]
    labels = np.eye(WIDTHS[-1], dtype=np.float32)[rng.integers(0, WIDTHS[-1], BATCH)]
    return weights, rng.standard_normal((BATCH, WIDTHS[0]), dtype=np.float32), labels


# --- one function per system: workload -> a call that gives the number to agree on ----------------------------------------


def dovetail(backend: str) -> Callable[[str], Callable[[], Any]]:
    import dovetail as dt

    config = dt.ConfigProto(kernel_backend=backend)

    def make(workload: str) -> Callable[[], Any]:
        graph = dt.Graph()
        with graph.as_default():
            if workload == "mlp":
                return mlp(graph)
            value = {"gelu": vector, "softmax": matrix, "tiny": lambda: np.ones(TINY, np.float32)}[workload]()
            x = dt.placeholder(dt.float32, [None, *value.shape[1:]])
            if workload == "gelu":
                y = 0.5 * x * (1 + dt.tanh(C * (x + 0.044715 * x * x * x)))
            elif workload == "softmax":
                y = dt.nn.softmax(x)
            else:
                x = dt.placeholder(dt.float32, [TINY])
                y = x
                for _ in range(20):
                    y = dt.tanh(y * 0.5) + x
        session = dt.Session(graph=graph, config=config)
        if backend == "auto":
            session.warmup(y, [x])
        call = session.make_callable(y, [x])
        return lambda: call(value)

    def mlp(graph: Any) -> Callable[[], Any]:
        weights, images, labels = layers()
        x, y = dt.placeholder(dt.float32, [None, WIDTHS[0]]), dt.placeholder(dt.float32, [None, WIDTHS[-1]])
        variables = [dt.Variable(w) for w in weights]
        h: Any = x
        for i in range(0, len(variables), 2):
            h = dt.matmul(h, variables[i]) + variables[i + 1]
            h = dt.nn.relu(h) if i + 2 < len(variables) else h
        loss = dt.reduce_mean(dt.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=h))
        step = dt.train.GradientDescentOptimizer(RATE).minimize(loss)
        initial = dt.global_variables_initializer()
        session = dt.Session(graph=graph, config=config)
        session.run(initial)
        if backend == "auto":
            session.warmup([loss, step], [x, y])
        call = session.make_callable([loss, step], [x, y])
        return lambda: call(images, labels)[0]

    return make


def numpy(workload: str) -> Callable[[], Any]:
    half, c, cubic, one = (np.float32(v) for v in (0.5, C, 0.044715, 1))
    if workload == "gelu":
        x = vector()
        return lambda: half * x * (one + np.tanh(c * (x + cubic * x * x * x)))

    x = matrix()

    def softmax() -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        e /= e.sum(-1, keepdims=True)
        return e

    return softmax


def jax(workload: str) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    if workload == "mlp":
        weights, images, labels = layers()

        def loss(w: Any, x: Any, y: Any) -> Any:
            h = x
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
    value = jnp.asarray(vector() if workload == "gelu" else matrix())
    body = {"gelu": lambda x: 0.5 * x * (1 + jnp.tanh(C * (x + 0.044715 * x * x * x))), "softmax": jax.nn.softmax}[
        workload
    ]
    function = jax.jit(body)
    return lambda: function(value).block_until_ready()


def torch(workload: str) -> Callable[[], Any]:
    import torch

    if workload == "mlp":
        weights, images, labels = layers()
        w = [torch.tensor(a, requires_grad=True) for a in weights]
        x, y = torch.tensor(images), torch.tensor(labels)

        def loss_of(x: Any, y: Any) -> Any:
            h = x
            for i in range(0, len(w), 2):
                h = h @ w[i] + w[i + 1]
                h = torch.relu(h) if i + 2 < len(w) else h
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
    value = torch.tensor(vector() if workload == "gelu" else matrix())
    body = {
        "gelu": lambda x: 0.5 * x * (1 + torch.tanh(C * (x + 0.044715 * x * x * x))),
        "softmax": lambda x: torch.softmax(x, -1),
    }[workload]
    function = torch.compile(body)
    return lambda: function(value).numpy()


def serve(system: str) -> None:
    """Answer requests until the input ends."""
    sys.path.insert(1, str(ROOT))  # Dovetail runs in a checkout, installed or not

    def reply(**answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    try:
        version = getattr(importlib.import_module(MODULES[system]), "__version__", "")
        maker = {
            "dovetail": lambda: dovetail("auto"), "dovetail-numpy": lambda: dovetail("numpy"), "numpy": lambda: numpy,
            "jax": lambda: jax, "torch": lambda: torch,
        }[system]()  # fmt: skip
    except ImportError as e:
        reply(missing=str(e))
        return
    reply(version=version)
    made: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        workload = request["workload"]
        if workload not in made:
            made.clear()  # its memory goes before the next one's comes
            made[workload] = maker(workload)
            made[workload]()
        began = time.perf_counter()
        for _ in range(request["calls"]):
            result = made[workload]()
        seconds = time.perf_counter() - began
        values = np.asarray(result, np.float64).ravel()
        reply(seconds=seconds, check=float(np.abs(values[:: max(1, values.size // 1000)]).sum()))


if __name__ == "__main__":
    serve(sys.argv[1])
