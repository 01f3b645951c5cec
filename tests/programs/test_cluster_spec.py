"""A cluster is written down as jobs with addresses; its tasks are named by job and position."""

from collections.abc import Iterable
from pathlib import Path

import pytest

import dovetail as tf

MACHINES = {"worker": ["machine-a:2222", "machine-b:2222"], "ps": ["machine-a:2221"]}


def task_names(cluster: tf.train.ClusterSpec) -> set[str]:
    return {f"/job:{job}/task:{i}" for job in cluster.jobs for i in cluster.task_indices(job)}


def placed_on(cluster: tf.train.ClusterSpec, names: Iterable[str]) -> set[str]:
    """The tasks on which one constant per name lands."""
    for name in names:
        with tf.device(name):
            tf.constant(1.0)
    devices = tf.place(None, cluster).placement.values()
    return {d.replace("/replica:0", "").rpartition("/device:")[0] for d in devices}


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        (MACHINES, {"/job:worker/task:0", "/job:worker/task:1", "/job:ps/task:0"}),
        ({"local": ["localhost:2222", "localhost:2223"]}, {"/job:local/task:0", "/job:local/task:1"}),
        (
            {
                "worker": ["worker0.example:2222", "worker1.example:2222", "worker2.example:2222"],
                "ps": ["ps0.example:2222", "ps1.example:2222"],
            },
            {
                "/job:worker/task:0",
                "/job:worker/task:1",
                "/job:worker/task:2",
                "/job:ps/task:0",
                "/job:ps/task:1",
            },
        ),
    ],
)
def test_tasks_are_named_by_job_and_position(jobs: dict[str, list[str]], names: set[str]) -> None:
    cluster = tf.train.ClusterSpec(jobs)
    assert task_names(cluster) == names
    assert placed_on(cluster, names) == names
    for job, addresses in jobs.items():
        for i, address in enumerate(addresses):
            assert cluster.task_address(job, i) == address
            server = tf.train.Server(cluster, job_name=job, task_index=i, start=False)
            assert server.task == f"/job:{job}/replica:0/task:{i}"


def test_a_task_beyond_the_cluster_is_refused_with_the_devices_there_are() -> None:
    cluster = tf.train.ClusterSpec(MACHINES)
    with tf.device("/job:worker/task:2"):
        lost = tf.constant(1.0, name="lost")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.place(None, cluster)
    assert caught.value.op is lost.op
    assert "lost" in str(caught.value)
    assert "/job:worker/replica:0/task:1/device:CPU:0" in str(caught.value)
    with pytest.raises(ValueError, match="No task with index 2 in job 'worker'"):
        cluster.task_address("worker", 2)


@pytest.mark.slow
def test_three_workers_and_two_ps_are_five_processes() -> None:
    with (
        tf.LocalCluster({"worker": 3, "ps": 2}) as cluster,
        tf.Session(cluster.target("worker", 0)) as sess,
    ):
        # As `ps` shows it.
        assert "/job:ps/task:1" in Path(f"/proc/{cluster.process('ps', 1).pid}/cmdline").read_text().split("\0")
        assert [str(d.name) for d in sess.list_devices()] == [
            "/job:worker/replica:0/task:0/device:CPU:0",
            "/job:ps/replica:0/task:0/device:CPU:0",
            "/job:ps/replica:0/task:1/device:CPU:0",
            "/job:worker/replica:0/task:1/device:CPU:0",
            "/job:worker/replica:0/task:2/device:CPU:0",
        ]
        sums = []
        for name in sorted(task_names(cluster.cluster_spec)):
            with tf.device(name):
                sums.append(tf.constant(2.0) + tf.constant(len(sums) * 1.0))
        assert sess.run(sums) == [2.0, 3.0, 4.0, 5.0, 6.0]
        assert len({cluster.process(job, i).pid for job, i in cluster.tasks}) == 5
