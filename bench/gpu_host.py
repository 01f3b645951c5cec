"""What a step on a GPU costs the host, with a driver that does nothing (`_null_driver.py`): no GPU is needed, and none is used.

The models are those that bench/gpu.py times on a GPU. A step of theirs takes 40 µs of the GPU and more, so the host, which starts
one step while the GPU works on those before, must take less. Numbers that come out of such steps mean nothing.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from _gpu_models import MODELS, WIDTHS, data, dovetail
from _harness import Row, main, measure, row
from _null_driver import NullDriver, compiled

WARM_UP = 20  # steps: by then kernels are chosen, and launches captured
HOST_US = "dovetail <= 30"  # what a step of the small model may cost, beside the driver's own time


def rows(quick: bool) -> Iterator[Row]:
    """Microseconds of the host for one step."""
    from dovetail.codegen.gpu.driver import api
    from dovetail.codegen.gpu.toolchain import compile

    os.environ |= {"DOVETAIL_AUTOTUNE": "0", "DOVETAIL_BACKEND": "numpy"}
    api.use(NullDriver())
    compile.compile_kernel = compiled  # type: ignore[assignment]
    compile.compile_together = lambda kernels, target: None  # type: ignore[assignment]
    yield timed("empty step of a session in this process", empty(), quick)
    for name, (model, batch) in MODELS.items():
        if quick and name != "mlp, batch 64":
            continue
        for graphs, how in (("1", "captured"), ("0", "launch by launch")):
            os.environ["DOVETAIL_CUDA_GRAPHS"] = graphs
            target = HOST_US if graphs == "1" and name == "mlp, batch 64" else ""
            yield timed(f"training step, {name}: {how}", dovetail(model, batch)[0], quick, target)
    os.environ["DOVETAIL_CUDA_GRAPHS"] = "1"
    yield timed("training step, mlp, batch 64: captured, fed and fetched", fed(64), quick)


def timed(name: str, step: Any, quick: bool, target: str = "") -> Row:
    """A row of one step's time."""
    for _ in range(WARM_UP):
        step()
    seconds, _ = measure(step, rounds=5 if quick else 15)
    return row(name, "µs", seconds * 1e6, target=target)


def empty() -> Any:
    """A step that does nothing."""
    import dovetail as dt

    with dt.Graph().as_default() as graph:
        nothing = dt.no_op()
    session = dt.Session(graph=graph)
    return lambda: session.run(nothing)


def fed(batch: int) -> Any:
    """A step that is fed other examples each time, trains by Adam, and gives the loss."""
    import dovetail as dt

    parameters, (images, _) = data("mlp", batch)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, labels = dt.placeholder(dt.float32, [None, WIDTHS[0]]), dt.placeholder(dt.int64, [None])
        w = {n: dt.Variable(v, name=n) for n, v in parameters.items()}
        h = dt.nn.relu(dt.matmul(x, w["w0"]) + w["b0"])
        h = dt.matmul(dt.nn.relu(dt.matmul(h, w["w1"]) + w["b1"]), w["w2"]) + w["b2"]
        loss = dt.reduce_mean(dt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=h))
        train = dt.train.AdamOptimizer().minimize(loss)
        start = dt.global_variables_initializer()
    session = dt.Session(graph=graph)
    session.run(start)
    feeds = [{x: images, labels: (np.arange(batch) + i) % 10} for i in range(3)]
    turns = iter(range(1 << 62))
    return lambda: session.run([loss, train], feeds[next(turns) % 3])


if __name__ == "__main__":
    main("What a GPU's step costs the host, with a driver that does nothing", rows)
