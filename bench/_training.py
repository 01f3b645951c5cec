"""A task of a cluster that trains the digits classifier, in one of the systems: `python bench/_training.py SYSTEM WAY CLUSTER JOB TASK`

The programs are written once in TensorFlow 1's names and run by both systems, but for MultiWorkerMirroredStrategy, which TensorFlow has
for its second version only. A task says `up` when it serves; for each number that it reads a worker trains so many steps, and answers
with the seconds that they took, and the 99th percentile of single steps. The top of this file needs the standard library only.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from _clusters import digits, load

BATCH = 64
RATE = 0.1
PIXELS, WIDTHS = 64, (256, 256, 10)
WIDE = 1100  # a layer's gradients fill a bucket of an all_reduce
Train = Callable[[], Any]


def _batches(task: int, pixels: int = PIXELS, size: int = BATCH) -> Callable[[], tuple[Any, Any]]:
    import numpy as np

    rng = np.random.default_rng(task)
    images, labels = rng.random((1500, pixels), np.float32), rng.integers(0, 10, 1500)

    def batch() -> tuple[Any, Any]:
        chosen = rng.integers(0, 1500, size)
        return images[chosen], labels[chosen]

    return batch


def asynchronous(tf: Any, server: Any, cluster: dict[str, list[str]], task: int) -> Train:
    """Each worker updates the parameter servers' variables when it can."""
    x, y, train = digits(tf, tf.train.ClusterSpec(cluster), task)
    session = tf.Session(server.target)
    session.run(tf.global_variables_initializer())
    return _step(session, train, x, y, task)


def synchronous(tf: Any, server: Any, cluster: dict[str, list[str]], task: int) -> Train:
    """SyncReplicasOptimizer: the workers' gradients are averaged, and applied together."""
    workers = len(cluster["worker"])
    made = []

    def wrap(optimizer: Any) -> Any:
        made.append(
            tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=workers, total_num_replicas=workers)
        )
        return made[0]

    x, y, train = digits(tf, tf.train.ClusterSpec(cluster), task, wrap)
    # Without tokens in advance, no worker makes two steps of an update, and all end after as many steps.
    hook = made[0].make_session_run_hook(task == 0, num_tokens=0)
    session = tf.train.MonitoredTrainingSession(
        server.target, is_chief=task == 0, hooks=[hook],
        save_checkpoint_secs=None, save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None,
    )  # fmt: skip
    return _step(session, train, x, y, task)


def _step(
    session: Any,
    train: Any,
    x: Any,
    y: Any,
    task: int,
    batches: Callable[[int], Callable[[], tuple[Any, Any]]] = _batches,
) -> Train:
    batch = batches(task)

    def step() -> None:
        images, labels = batch()
        session.run(train, {x: images, y: labels})

    return step


def mirrored_dovetail(
    cluster: dict[str, list[str]],
    task: int,
    pixels: int = PIXELS,
    widths: tuple[int, ...] = WIDTHS,
    size: int = BATCH,
) -> Train:
    """MultiWorkerMirroredStrategy, AUTO."""
    tf = load("dovetail")
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    with strategy.scope():
        x, y = tf.placeholder(tf.float32, [None, pixels]), tf.placeholder(tf.int64, [None])

        def replica() -> Any:
            h, width = x, pixels
            for i, n in enumerate(widths):
                w = tf.get_variable(f"w{i}", [width, n], initializer=tf.glorot_uniform_initializer(seed=i))
                h, width = tf.matmul(h, w) + tf.get_variable(f"b{i}", [n], initializer=tf.zeros_initializer()), n
                h = tf.nn.relu(h) if n != 10 else h
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
            return tf.train.GradientDescentOptimizer(RATE).minimize(loss)

        train = strategy.run(replica)
        init = tf.global_variables_initializer()
    session = tf.Session(strategy.session_target, config=strategy.update_config_proto(tf.ConfigProto()))
    session.run(init)
    return _step(session, train, x, y, task, partial(_batches, pixels=pixels, size=size))


def wide(cluster: dict[str, list[str]], task: int) -> Train:
    """MultiWorkerMirroredStrategy, AUTO, with layers whose gradients take as long as their computation on a slow network."""
    return mirrored_dovetail(cluster, task, WIDE, (WIDE, WIDE, WIDE, 10), 4 * BATCH)


def mirrored_tensorflow(cluster: dict[str, list[str]], task: int) -> Train:
    """MultiWorkerMirroredStrategy, RING, in a tf.function."""
    import tensorflow as tf

    ring = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring)
    with strategy.scope():
        weights = []
        width = 64
        for i, n in enumerate(WIDTHS):
            glorot = tf.keras.initializers.GlorotUniform(seed=i)
            weights.append((tf.Variable(glorot([width, n])), tf.Variable(tf.zeros([n]))))
            width = n
    flat = [v for pair in weights for v in pair]

    @tf.function  # type: ignore[untyped-decorator,unused-ignore]
    def train(x: Any, y: Any) -> None:
        def replica(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                h = x
                for i, (w, b) in enumerate(weights):
                    h = tf.matmul(h, w) + b
                    h = tf.nn.relu(h) if i < len(weights) - 1 else h
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
            grads = tape.gradient(loss, flat)
            grads = tf.distribute.get_replica_context().all_reduce("MEAN", grads)
            for v, g in zip(flat, grads, strict=True):
                v.assign_sub(RATE * g)

        strategy.run(replica, (x, y))

    batch = _batches(task)

    def step() -> None:
        images, labels = batch()
        train(tf.constant(images), tf.constant(labels))

    return step


def ddp(cluster: dict[str, list[str]], task: int) -> Train:
    """PyTorch's DistributedDataParallel over gloo, one thread for each worker."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    address = cluster["worker"][0]
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=task, world_size=len(cluster["worker"]))
    layers: list[Any] = []
    width = PIXELS
    for n in WIDTHS:
        layers += [torch.nn.Linear(width, n), torch.nn.ReLU()]
        width = n
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    loss_of = torch.nn.CrossEntropyLoss()
    batch = _batches(task)

    def step() -> None:
        images, labels = batch()
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(torch.from_numpy(images)), torch.from_numpy(labels)).backward()
        optimizer.step()

    return step


def main() -> None:
    """Serve, and train on request."""
    system, way, text, job, number = sys.argv[1:]
    cluster, task = json.loads(text), int(number)
    os.environ["TF_CPP_MIN_LOG_LEVEL"], os.environ["CUDA_VISIBLE_DEVICES"] = "3", ""
    make: Callable[[], Train]
    if way in ("mirrored", "wide"):
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": job, "index": task}})
        mirrored = {"dovetail": mirrored_dovetail, "tensorflow": mirrored_tensorflow, "torch": ddp}[system]
        make = lambda: (wide if way == "wide" else mirrored)(cluster, task)  # noqa: E731
    else:
        tf = load(system)
        server = tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=task)
        make = lambda: (synchronous if way == "synchronous" else asynchronous)(tf, server, cluster, task)  # noqa: E731
    print("up", flush=True)
    step: Train | None = None
    for line in sys.stdin:
        if step is None:
            step = make()
        times = [time.perf_counter()]
        for _ in range(int(line)):
            step()
            times.append(time.perf_counter())
        steps = sorted(end - start for start, end in pairwise(times))
        print(f"SECONDS {times[-1] - times[0]} {steps[int(0.99 * (len(steps) - 1))]}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
