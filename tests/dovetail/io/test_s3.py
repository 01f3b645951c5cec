"""State in an object store: checkpoints and event files at `s3://`, on a server of S3's protocol on this machine."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import numpy as np
import pytest

import dovetail as tf

pytest.importorskip("s3fs")
moto = pytest.importorskip("moto.server")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the server, and of the client's libraries
]


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """The environment in which `s3://` means a server on this machine."""
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield environment
    server.stop()


@pytest.fixture
def bucket(store: dict[str, str]) -> str:
    """An empty bucket."""
    name = f"s3://bucket-{uuid.uuid4().hex[:8]}"
    tf.gfile.MakeDirs(name)
    return name


def model() -> tf.Variable:
    """A variable on each of two parameter servers, and what doubles the first."""
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        a = tf.get_variable("a", initializer=np.arange(5, dtype=np.float32))
        tf.get_variable("b", initializer=np.ones(3, np.float32))
    return a


@pytest.mark.parametrize("point", [2, 5])
def test_a_parameter_server_killed_in_an_upload_leaves_the_last_checkpoint(bucket: str, point: int) -> None:
    """2: within the upload of each server's shard; 5: after that of the manifest, which one of them writes."""
    path, config = f"{bucket}/run/m", tf.ConfigProto(peer_timeout_s=1.0)
    with tf.Graph().as_default(), tf.LocalCluster({"ps": 2, "worker": 1}) as cluster:
        model()
        saver = tf.train.Saver()
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.global_variables_initializer())
            first = saver.save(session, path, global_step=1)
        shards = [n for n in tf.gfile.ListDirectory(f"{bucket}/run") if n.startswith("m-1.data-")]
        assert len(shards) == 2  # each server wrote its own
    environment = {"DOVETAIL_FAULTS": f"save:{point}"}
    with tf.Graph().as_default(), tf.LocalCluster({"ps": 2, "worker": 1}, environment=environment) as cluster:
        a = model()  # on tasks at other addresses, which have nothing
        saver = tf.train.Saver()
        saver.recover_last_checkpoints([first])
        with tf.Session(cluster.target("worker", 0), config=config) as session:
            saver.restore(session, first)
            session.run(tf.assign(a, a * 2))
            with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
                saver.save(session, path, global_step=2)
    assert tf.train.latest_checkpoint(f"{bucket}/run") == first
    assert tf.train.checkpoint_exists(f"{path}-2") is (point == 5)
    with tf.Graph().as_default(), tf.Session() as session:
        a = model_here()
        saver = tf.train.Saver()
        saver.restore(session, first)
        assert session.run(a).tolist() == [0, 1, 2, 3, 4]
        saver.save(session, path, global_step=3)
    names = tf.gfile.ListDirectory(f"{bucket}/run")
    assert all(tf.train.checkpoint_exists(f"{bucket}/run/{n.partition('.data-')[0]}") for n in names if ".data-" in n)


def model_here() -> tf.Variable:
    """The variables of `model` in this process."""
    tf.get_variable("b", [3])
    return tf.get_variable("a", [5])


def test_training_goes_on_from_the_store_when_a_parameter_server_has_lost_its_part(bucket: str) -> None:
    folder, config = f"{bucket}/run", tf.ConfigProto(peer_timeout_s=1.0)
    with tf.Graph().as_default(), tf.LocalCluster({"ps": 2, "worker": 1}) as cluster:
        with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
            step = tf.train.get_or_create_global_step()
            v = tf.get_variable("v", [3], initializer=tf.zeros_initializer())
            train = tf.group(tf.assign_add(v, [1.0, 1.0, 1.0]), tf.assign_add(step, 1))
        tf.summary.scalar("first", v[0])
        hooks = [tf.train.StopAtStepHook(last_step=8)]
        with tf.train.MonitoredTrainingSession(
            cluster.target("worker", 0),
            True,
            folder,
            hooks=hooks,
            config=config,
            save_checkpoint_steps=2,
            save_summaries_steps=1,
        ) as session:
            lost = False
            while not session.should_stop():
                session.run(train)
                if not lost and session.run_step_fn(lambda c: c.session.run(step)) >= 4:
                    lost = True
                    for i in range(2):
                        cluster.kill("ps", i)
                        cluster.start("ps", i)
    tf.summary.FileWriterCache.clear()
    assert tf.train.load_variable(folder, "v").tolist() == [8, 8, 8]
    (events,) = [n for n in tf.gfile.ListDirectory(folder) if n.startswith("events.out")]
    found = [e for e in tf.train.summary_iterator(f"{folder}/{events}") if e.summary.value]
    assert {e.step for e in found if e.summary.value[0].tag == "first"} >= {1, 8}
