"""Plans to look at, from fifty nodes to a hundred thousand."""

import numpy as np

import dovetail as dt
from dovetail.placer.plan import Plan


def training() -> Plan:
    """About fifty nodes: a small classifier, its variables on two ps tasks, its towers on two workers."""
    with dt.Graph().as_default() as graph:
        setter = dt.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker")
        with dt.device(setter), dt.name_scope("model"):
            w1 = dt.Variable(np.zeros((784, 100), "float32"), name="hidden/weights")
            b1 = dt.Variable(np.zeros(100, "float32"), name="hidden/biases")
            w2 = dt.Variable(np.zeros((100, 10), "float32"), name="softmax/weights")
            b2 = dt.Variable(np.zeros(10, "float32"), name="softmax/biases")
        losses = []
        for i in range(2):
            with dt.device(f"/job:worker/task:{i}"), dt.name_scope(f"tower_{i}"):
                x = dt.placeholder("float32", [None, 784], name="images")
                labels = dt.placeholder("float32", [None, 10], name="labels")
                hidden = dt.nn.relu(dt.matmul(x, w1) + b1, name="hidden")
                logits = dt.add(dt.matmul(hidden, w2), b2, name="logits")
                losses.append(dt.reduce_mean(dt.square(logits - labels), name="loss"))
        with dt.device("/job:worker/task:0"):
            total = dt.add(losses[0], losses[1], name="total_loss")
        train = dt.train.GradientDescentOptimizer(0.1).minimize(total, colocate_gradients_with_ops=True)
    return dt.place(graph, {"ps": 2, "worker": 2}, fetches=total, targets=train)


def deep(layers: int = 120, tasks: int = 4) -> Plan:
    """About two thousand nodes: a deep net, its layers spread over workers with a GPU each."""
    with dt.Graph().as_default() as graph:
        h = dt.placeholder("float32", [64, 256], name="input")
        for i in range(layers):
            with dt.device(f"/job:worker/task:{i * tasks // layers}/gpu:0"), dt.name_scope(f"layer_{i}"):
                w = dt.Variable(np.zeros((256, 256), "float32"), name="weights")
                b = dt.Variable(np.zeros(256, "float32"), name="biases")
                h = dt.nn.relu(dt.matmul(h, w) + b)
        loss = dt.reduce_mean(dt.square(h), name="loss")
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss, colocate_gradients_with_ops=True)
    return dt.place(graph, {"worker": tasks}, fetches=loss, targets=train, devices={"worker": ["cpu:0", "gpu:0"]})


def large(nodes: int = 100_000, tasks: int = 4, gpus: int = 2) -> Plan:
    """A graph of many towers over the GPUs of several workers, with its variables on ps tasks."""
    towers = tasks * gpus
    steps = nodes // (5 * towers)
    with dt.Graph().as_default() as graph:
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)), dt.name_scope("shared"):
            weights = [dt.Variable(np.zeros((64, 64), "float32"), name=f"weights_{i}") for i in range(20)]
        ends = []
        for tower in range(towers):
            with (
                dt.device(f"/job:worker/task:{tower // gpus}/gpu:{tower % gpus}"),
                dt.name_scope(f"tower_{tower}"),
            ):
                x = dt.placeholder("float32", [32, 64], name="input")
                for i in range(steps):
                    with dt.name_scope(f"block_{i // 50}/layer_{i % 50}"):
                        x = dt.nn.relu(dt.matmul(x, weights[i % 20]) * 0.5 + 1.0)
                ends.append(dt.reduce_mean(x, name="mean"))
        total = dt.add_n(ends, name="total")
    devices = {"worker": ["cpu:0", *(f"gpu:{i}" for i in range(gpus))]}
    return dt.place(graph, {"ps": 2, "worker": tasks}, fetches=total, devices=devices)


def flat(nodes: int = 5000) -> Plan:
    """A chain of nodes in no name scope."""
    with dt.Graph().as_default() as graph:
        a = t = dt.constant(1.0)
        for _ in range(nodes):
            t = t + a
    return dt.place(graph, {"worker": 1}, fetches=t)


def fleet(tasks: int = 120, gpus: int = 4, layers: int = 2) -> Plan:
    """A tower on each GPU of many workers; all read the variables of two ps tasks."""
    with dt.Graph().as_default() as graph:
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)), dt.name_scope("shared"):
            weights = [dt.Variable(np.zeros((8, 8), "float32"), name=f"weights_{i}") for i in range(2)]
        for task in range(tasks):
            for gpu in range(gpus):
                with dt.device(f"/job:worker/task:{task}/gpu:{gpu}"), dt.name_scope(f"tower_{task}_{gpu}"):
                    x = dt.zeros([2, 8], name="input")
                    for layer in range(layers):
                        x = dt.nn.relu(dt.matmul(x, weights[layer % 2]) + 1.0)
    return dt.place(graph, {"ps": 2, "worker": tasks}, devices={"worker": [f"gpu:{i}" for i in range(gpus)]})
