"""Graphs to build, written once in TensorFlow 1's names, so that both systems build the same program.

Each function takes the system's module and how many times to repeat, builds into a new graph and returns it.
Nothing is imported here: the peer's interpreter need not have what Dovetail needs.
"""

from collections.abc import Callable
from typing import Any

TASKS = 4


def adds(tf: Any, count: int) -> Any:
    """A chain of `t + a`, one node each."""
    graph = tf.Graph()
    with graph.as_default():
        a = t = tf.constant(1.0)
        for _ in range(count):
            t = t + a
    return graph


def adds_on_devices(tf: Any, count: int) -> Any:
    """The same, each node in a device block of its own."""
    devices = [f"/job:worker/task:{i}" for i in range(TASKS)]
    graph = tf.Graph()
    with graph.as_default():
        a = t = tf.constant(1.0)
        for i in range(count):
            with tf.device(devices[i % TASKS]):
                t = t + a
    return graph


def numbers(tf: Any, count: int) -> Any:
    """A chain of `t * 2.0`, two nodes each: the number becomes a constant in the op's name scope."""
    graph = tf.Graph()
    with graph.as_default():
        t = tf.constant(1.0)
        for _ in range(count):
            t = t * 2.0
    return graph


def layers(tf: Any, count: int) -> Any:
    """Layers of matmul, bias and relu on given weights, three nodes each."""
    graph = tf.Graph()
    with graph.as_default():
        t = weights = tf.constant([[1.0] * 8] * 8)
        bias = tf.constant([1.0] * 8)
        for _ in range(count):
            t = tf.nn.relu(tf.nn.bias_add(tf.matmul(t, weights), bias))
    return graph


def variables(tf: Any, count: int) -> Any:
    """Variables, four nodes each: initial value, place, Assign, read."""
    graph = tf.Graph()
    with graph.as_default():
        for _ in range(count):
            tf.Variable(1.0)
    return graph


def constants(tf: Any, count: int) -> Any:
    """Scalar constants, one node each."""
    graph = tf.Graph()
    with graph.as_default():
        for _ in range(count):
            tf.constant(1.0)
    return graph


GRAPHS: dict[str, Callable[[Any, int], Any]] = {
    each.__name__: each for each in (adds, adds_on_devices, numbers, layers, variables, constants)
}
