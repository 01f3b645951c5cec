"""A process that runs numeric workloads with one system: Dovetail, NumPy, JAX, PyTorch or TensorFlow, in whatever interpreter has it.

Each system gets a process of its own (`_processes.py`). It answers `{"workload": "gelu", "calls": 3}` with `{"seconds": 0.01, "check":
1.5}`: the seconds of all calls, and a number that every system must agree on.

Run as `python bench/_kernels.py SYSTEM` by `System`; what it needs of the system is imported there.
"""

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import _convolutions
import _models
from _processes import Conversation, answer, load, version_of

C = math.sqrt(2 / math.pi)
TINY = 16  # elements of the arrays of the tiny graph


class System(Conversation):
    """A system in a process of its own. `seconds` runs while it computes."""

    def __init__(self, system: str, python: str = sys.executable) -> None:
        super().__init__(__file__, system, python)

    def run(self, workload: str, calls: int = 1) -> float:
        """Call a workload; the number to agree on. RuntimeError when it fails."""
        found = self.ask(workload=workload, calls=calls)
        self.seconds += found["seconds"]
        check: float = found["check"]
        return check


# --- the workloads' data, the same for everybody ---------------------------------------------------------------------


def vector() -> Any:
    return np.random.default_rng(0).standard_normal(10_000_000, dtype=np.float32)


def matrix() -> Any:
    return np.random.default_rng(1).standard_normal((4096, 1024), dtype=np.float32)


# --- one function per system: workload -> a call that gives the number to agree on ----------------------------------------


def dovetail(backend: str) -> Callable[[str], Callable[[], Any]]:
    import dovetail as dt

    config = dt.ConfigProto(kernel_backend=backend)

    def make(workload: str) -> Callable[[], Any]:
        if workload in _models.MODELS:
            return _models.dovetail(workload, config, backend == "auto")
        if workload in _convolutions.WORKLOADS:
            return _convolutions.dovetail(workload, config)
        graph = dt.Graph()
        with graph.as_default():
            value = {"gelu": vector, "softmax": matrix, "tiny": lambda: np.ones(TINY, np.float32)}[workload]()
            x = dt.placeholder(dt.float32, [None, *value.shape[1:]])
            if workload == "gelu":
                y = 0.5 * x * (1 + dt.nn.tanh(C * (x + 0.044715 * x * x * x)))
            elif workload == "softmax":
                y = dt.nn.softmax(x)
            else:
                x = dt.placeholder(dt.float32, [TINY])
                y = x
                for _ in range(20):
                    y = dt.nn.tanh(y * 0.5) + x
        session = dt.Session(graph=graph, config=config)
        if backend == "auto":
            session.warmup(y, [x])
        call = session.make_callable(y, [x])
        return lambda: call(value)

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

    if workload in _models.MODELS:
        return _models.jax(workload)
    value = jnp.asarray(vector() if workload == "gelu" else matrix())
    body = {"gelu": lambda x: 0.5 * x * (1 + jnp.tanh(C * (x + 0.044715 * x * x * x))), "softmax": jax.nn.softmax}[
        workload
    ]
    function = jax.jit(body)
    return lambda: function(value).block_until_ready()


def torch(workload: str) -> Callable[[], Any]:
    import torch

    if workload in _models.MODELS:
        return _models.torch(workload)
    if workload in _convolutions.WORKLOADS:
        return _convolutions.torch(workload)
    value = torch.tensor(vector() if workload == "gelu" else matrix())
    body = {
        "gelu": lambda x: 0.5 * x * (1 + torch.tanh(C * (x + 0.044715 * x * x * x))),
        "softmax": lambda x: torch.softmax(x, -1),
    }[workload]
    function = torch.compile(body)
    return lambda: function(value).numpy()


def serve(system: str) -> None:
    """Answer requests until the input ends."""
    made: dict[str, Callable[[], Any]] = {}

    def begin() -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        makers = {"numpy": numpy, "jax": jax, "torch": torch, "tensorflow": _models.tensorflow}
        version = version_of(load(system))
        maker = makers[system] if system in makers else dovetail("numpy" if system == "dovetail-numpy" else "auto")

        def respond(request: dict[str, Any]) -> dict[str, Any]:
            workload = request["workload"]
            if workload not in made:
                made.clear()  # its memory goes before the next one's comes
                made[workload] = maker(workload)
                made[workload]()
            began = time.perf_counter()
            for _ in range(request["calls"]):
                result = None  # its memory goes before the next one's comes
                result = made[workload]()
            seconds = time.perf_counter() - began
            values = np.asarray(result, np.float64).ravel()
            return {"seconds": seconds, "check": float(np.abs(values[:: max(1, values.size // 1000)]).sum())}

        return version, respond

    answer(begin)


if __name__ == "__main__":
    serve(sys.argv[1])
