"""A table larger than one would send: cut over two parameter servers, looked up and trained by rows."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.ops.array.embedding import embedding_lookup
from dovetail.graph.variables.partitioned import PartitionedVariable, fixed_size_partitioner

CLUSTER = {"ps": 2, "worker": 1}
ROWS, WIDTH, BATCH, STEPS = 1001, 8, 16, 6
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


def ps(task: int) -> str:
    return f"/job:ps/replica:0/task:{task}/device:CPU:0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    with tf.LocalCluster(CLUSTER) as started:
        yield started


START = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
OPTIMIZERS: dict[str, Callable[[], tf.train.Optimizer]] = {
    "descent": lambda: tf.train.GradientDescentOptimizer(0.5),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.5),
}


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Ids, some of them twice, and what their rows should add up to."""
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        ids = rng.integers(0, ROWS, (BATCH // 2, 2))
        ids[0] = ids[1] = ids[2, 0]
        yield ids, rng.normal(size=(BATCH // 2, WIDTH)).astype(np.float32)


def model(lookup: Callable[..., tf.Tensor], optimizer: tf.train.Optimizer) -> tuple[Any, Any, Any, Any]:
    ids = tf.placeholder(tf.int64, [BATCH // 2, 2], name="ids")
    wanted = tf.placeholder(tf.float32, [BATCH // 2, WIDTH], name="wanted")
    error = tf.reduce_sum(lookup(ids), axis=1) - wanted
    loss = tf.reduce_mean(error * error, name="loss")
    return ids, wanted, loss, optimizer.minimize(loss, name="train")


def trained(session: tf.Session, ids: Any, wanted: Any, loss: Any, step: Any) -> list[float]:
    session.run(tf.global_variables_initializer())
    return [session.run([loss, step], {ids: i, wanted: w})[0] for i, w in batches()]


def in_one_process(name: str) -> tuple[list[float], np.ndarray]:
    """The whole table in one process. Its gradients are dense where that makes no difference: Momentum's
    also move the rows that a batch does not name.
    """
    with tf.Graph().as_default():
        table = tf.get_variable("table", initializer=START)
        dense = name != "momentum"
        built = model(lambda ids: tf.gather(table * 1.0 if dense else table, ids), OPTIMIZERS[name]())
        with tf.Session() as session:
            return trained(session, *built), session.run(table)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shards_learn_what_one_table_learns(cluster: tf.LocalCluster, name: str, resource: bool) -> None:
    losses, whole = in_one_process(name)
    with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
        table = tf.get_variable(
            f"table_{name}_{resource}",
            initializer=START,
            partitioner=fixed_size_partitioner(3),
            use_resource=resource,
        )
        built = model(lambda ids: embedding_lookup(table, ids, "div"), OPTIMIZERS[name]())
    with tf.Session(cluster.target("worker", 0)) as session:
        found = trained(session, *built)
        value = session.run(table)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    np.testing.assert_allclose(value, whole, rtol=1e-4, atol=1e-5)
    touched = np.unique([ids for ids, _ in batches()])
    moved = np.flatnonzero((value != START).any(axis=1))
    assert moved.tolist() == touched.tolist()


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_any_list_of_variables_may_be_the_shards(cluster: tf.LocalCluster, strategy: str) -> None:
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    parts = [rows[::2], rows[1::2]] if strategy == "mod" else [rows[:3], rows[3:]]
    with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
        shards = [tf.Variable(part, name=f"{strategy}{i}") for i, part in enumerate(parts)]
        ids = tf.placeholder(tf.int32, [None])
        found = embedding_lookup(shards, ids, strategy)
    with tf.Session(cluster.target("worker", 0)) as session:
        session.run(tf.global_variables_initializer())
        for wanted in ([4, 0, 3, 3, 1], [2], [], [0, 1, 2, 3, 4]):
            got = session.run(found, {ids: np.array(wanted, np.int32)})
            np.testing.assert_array_equal(got, rows[wanted].reshape(-1, 2))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, "):
            session.run(found, {ids: [5, -1]})


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_rows_travel(name: str, resource: bool) -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        table = tf.get_variable("table", [ROWS, WIDTH], partitioner=fixed_size_partitioner(3), use_resource=resource)
        assert isinstance(table, PartitionedVariable)
        _, _, loss, step = model(lambda ids: embedding_lookup(table, ids, "div"), OPTIMIZERS[name]())
    plan = tf.place(None, CLUSTER, fetches=[loss], targets=[step])
    gathers = [n for n in tf.get_default_graph().nodes if n.type in ("GatherV2", "ResourceGather")]
    at_shards = [n for n in gathers if n.name.startswith("embedding_lookup/")]
    assert [plan.placement[n.name] for n in at_shards] == [ps(0), ps(1), ps(0)]
    assert plan.placement[loss.op.name] == WORKER
    values = [c for c in plan.channels if not c.control]
    # To each shard its ids, and from it its rows; then the rows' gradients, for the same ids.
    width = [c for c in values if c.dims is not None and c.dims[-1:] == (WIDTH,)]
    assert sorted((c.source, c.destination) for c in width) == sorted(
        [(ps(i % 2), WORKER) for i in range(3)] + [(WORKER, ps(i % 2)) for i in range(3)]
    )
    # A batch has as many rows as its ids select, which is not known beforehand; no message has a shard's.
    assert all(c.dims is not None and (c.dims == () or c.dims[0] is None) for c in values), values
    # Without the lookup the table travels, which shows that the plan would tell.
    whole = tf.place(None, CLUSTER, fetches=[table.as_tensor()])
    assert any(c.dims == (334, WIDTH) for c in whole.channels)
