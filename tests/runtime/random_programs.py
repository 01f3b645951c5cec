"""Random graphs with steps to run in them, for tests that compare placements or rewrites."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import dovetail as tf

DEVICES = [
    "/job:a/task:0/device:CPU:0",
    "/job:b/task:0/device:CPU:0",
    "/job:c/task:0/device:CPU:1",
    "/job:b/task:0/device:GPU:0",
    "/job:a/task:0/device:CPU:1",
]
FLOAT = np.float32


@dataclass
class Program:
    """A random graph and what to run in it."""

    graph: tf.Graph
    steps: list[tuple[list[Any], dict[Any, Any]]] = field(default_factory=list)
    init: Any = None


@st.composite
def programs(draw: st.DrawFn) -> Program:
    graph = tf.Graph()
    devices = draw(st.lists(st.sampled_from([*DEVICES, ""]), min_size=1, max_size=5, unique=True))
    shape = draw(st.sampled_from([(), (3,), (2, 3)]))
    small = st.integers(-4, 4)

    def somewhere() -> Any:
        return graph.device(draw(st.sampled_from(devices)))

    with graph.as_default():
        tf.set_random_seed(7)
        tensors: list[Any] = []
        placeholders: list[Any] = []
        variables: list[Any] = []
        updates: list[Any] = []
        for _ in range(draw(st.integers(1, 2))):
            with somewhere():
                placeholders.append(tf.placeholder(tf.float32, draw(st.sampled_from([shape, None]))))
        tensors += placeholders
        for i in range(draw(st.integers(0, 2))):
            with somewhere():
                variables.append(tf.Variable(np.full(shape, draw(small), FLOAT), name=f"v{i}"))
        for _ in range(draw(st.integers(1, 14))):
            kind = draw(
                st.sampled_from(["add", "mul", "sub", "const", "random", "split", "sum", "shape", "update", "read"])
            )
            a, b = (draw(st.sampled_from([*tensors, *variables])) for _ in range(2))
            before = draw(st.lists(st.sampled_from([t.op for t in [*tensors, *updates]]), max_size=2))
            with somewhere(), tf.control_dependencies(before):
                if kind == "const":
                    tensors.append(tf.constant(draw(small), tf.float32))
                elif kind == "random":
                    tensors.append(tf.random_uniform(shape))
                elif kind == "split":
                    tensors += tf.unstack(tf.stack([a * 1.0, b + 0.0])) if _alike(a, b) else [a - 1.0]
                elif kind == "sum":
                    tensors.append(tf.reduce_sum(a))
                elif kind == "shape":
                    tensors.append(tf.cast(tf.size(a), tf.float32))
                elif kind == "update" and variables:
                    v = draw(st.sampled_from(variables))
                    updates.append(
                        (tf.assign if draw(st.booleans()) else tf.assign_add)(
                            v, tf.reduce_sum(b) * 0.25 + tf.zeros(shape)
                        )
                    )
                elif kind == "read" and variables:
                    tensors.append(draw(st.sampled_from(variables)).read_value())
                else:
                    tensors.append({"mul": tf.multiply, "sub": tf.subtract}.get(kind, tf.add)(a, b))
        program = Program(graph, init=tf.variables_initializer(variables))
    for _ in range(draw(st.integers(1, 3))):
        fetches = draw(st.lists(st.sampled_from([*tensors, *variables, *updates]), min_size=1, max_size=4))
        feeds = {p: np.full(shape, draw(small), FLOAT) for p in placeholders}
        for t in draw(st.lists(st.sampled_from(tensors), max_size=1)):
            if t.shape.is_fully_defined():
                feeds[t] = np.full(t.shape.as_list(), draw(small), FLOAT)
        program.steps.append((fetches, feeds))
    return program


def _alike(a: Any, b: Any) -> bool:
    return bool(a.shape.is_fully_defined() and a.shape == b.shape)
