"""What it costs that state outlives a process.

`variables`    saving and restoring many small variables, beside writing and reading the same values as one safetensors file
`replicas`     a step of training with each parameter server's variables kept by a second one (`ps_replicas=2`), beside one without
`beside`       steps of training during the save of a large variable, beside steps without a save: the 99th percentile of their times
"""

import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from _harness import Row, main, measure, row

SHAPE = [4]


def replicas(quick: bool) -> Iterator[Row]:
    """Seconds of a step that updates a variable of each of two parameter servers from a worker."""
    from dovetail import LocalCluster

    with contextlib.ExitStack() as stack:
        targets = [
            stack.enter_context(LocalCluster({"ps": 2, "worker": 1}, ps_replicas=n)).target("worker", 0) for n in (2, 1)
        ]
        cases = {
            "scalars": (1, 1, False), "64 KiB": (128, 128, False), "4 MiB": (1024, 1024, False),
            "64 rows of 256 MiB": (1 << 20, 64, True),
        }  # fmt: skip
        for name, (rows_, columns, is_sparse) in cases.items():
            if quick and is_sparse:
                continue
            mine, peer = [_training(target, stack, name, rows_, columns, is_sparse) for target in targets]
            both, one = measure(mine, peer, rounds=5 if quick else 15)
            yield row(f"step with replicas, {name}", "s", both, one, "no replicas")


def _training(
    target: str, stack: contextlib.ExitStack, name: str, rows_: int, columns: int, is_sparse: bool
) -> Callable[[], object]:
    """A step with momentum."""
    import dovetail as tf

    with tf.Graph().as_default():
        with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
            zeros = tf.zeros_initializer()
            held = [
                tf.get_variable(f"{name}{i}".replace(" ", "_"), [rows_, columns], initializer=zeros) for i in range(2)
            ]
            at = tf.placeholder(tf.int32, [64])
            used = [tf.gather(v, at) if is_sparse else v for v in held]
            train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(sum(tf.reduce_sum(tf.square(u - 1.0)) for u in used))
        session = stack.enter_context(tf.Session(target))
        session.run(tf.global_variables_initializer())
        step = session.make_callable(train, [at])
    random = np.random.default_rng(1)
    return lambda: step(random.integers(0, rows_, 64))


def beside(quick: bool) -> Iterator[Row]:
    """The 99th percentile of the seconds of a step of training, while 1 GiB is saved in the background and while it is not, in turn."""
    import dovetail as tf

    mib = 64 if quick else 1024
    with (
        tempfile.TemporaryDirectory() as folder,
        tf.LocalCluster({"ps": 2, "worker": 1}) as cluster,
        tf.Graph().as_default(),
    ):
        with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
            zeros = tf.zeros_initializer()
            tables = [tf.get_variable(f"table{i}", [mib << 11, 64], initializer=zeros) for i in range(2)]
            weights = tf.get_variable("weights", [64, 64], initializer=zeros)
            at = tf.placeholder(tf.int32, [64])
            used = tf.add_n([tf.nn.embedding_lookup(table, at) for table in tables])
            loss = tf.reduce_sum(tf.square(tf.matmul(used, weights) - 1.0))
            train = tf.train.GradientDescentOptimizer(1e-3).minimize(loss)
        saver = tf.train.Saver(max_to_keep=1)
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.global_variables_initializer())
            step, random = session.make_callable(train, [at]), np.random.default_rng(1)
            save = partial(saver.save, session, f"{folder}/model", write_meta_graph=False)
            save()
            until = time.monotonic() + (1.0 if quick else 4.0)  # first touches of the tables' memory are no part of it
            while time.monotonic() < until:
                step(random.integers(0, mib << 11, 64))
            samples: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 if quick else 6):
                saves = number % 2 == 0
                ends = threading.Thread(target=save if saves else partial(time.sleep, 2.0))
                ends.start()
                while ends.is_alive():
                    began = time.perf_counter()
                    step(random.integers(0, mib << 11, 64))
                    samples[saves].append(time.perf_counter() - began)
                ends.join()
    print(
        {saves: (len(s), *np.percentile(s, [50, 90, 99, 100]).round(4)) for saves, s in samples.items()},
        file=sys.stderr,
    )
    during, without = (float(np.percentile(samples[saves], 99)) for saves in (True, False))
    yield row(f"99 % of steps during a save of {mib} MiB", "s", during, without, "no save", target="ratio <= 1.5")


def variables(quick: bool) -> Iterator[Row]:
    """Seconds to save and to restore so many variables."""
    for count in (1_000, 4_000) if quick else (10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            yield from _saved_and_restored(count, Path(folder), 3 if quick else 5)


def _saved_and_restored(count: int, folder: Path, rounds: int) -> Iterator[Row]:
    import dovetail as tf

    values = {f"v{i}": np.ones(SHAPE, np.float32) for i in range(count)}
    plain, path = folder / "values.safetensors", str(folder / "model")
    with tf.Graph().as_default(), tf.Session() as session:
        for name in values:
            tf.get_variable(name, SHAPE, initializer=tf.ones_initializer())
        saver = tf.train.Saver()
        session.run(tf.global_variables_initializer())
        mine, peer = measure(
            partial(saver.save, session, path, write_meta_graph=False), partial(save_file, values, plain), rounds=rounds
        )
        yield row(f"save {count:,} variables", "s", mine, peer, "safetensors")
        mine, peer = measure(partial(saver.restore, session, path), partial(load_file, plain), rounds=rounds)
        yield row(f"restore {count:,} variables", "s", mine, peer, "safetensors")


if __name__ == "__main__":
    main("Checkpoints", {"variables": variables, "replicas": replicas, "beside": beside})
