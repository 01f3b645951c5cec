"""Settings of estimators: defaults, and what TF_CONFIG says about this task."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dovetail as tf

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.fixture
def config(monkeypatch):
    def make(environment: Any = None, **settings: Any) -> tf.estimator.RunConfig:
        monkeypatch.setenv("TF_CONFIG", json.dumps(environment or {}))
        return tf.estimator.RunConfig(**settings)

    return make


def test_alone(config):
    c = config()
    assert (c.task_type, c.task_id, c.is_chief, c.master, c.model_dir) == ("worker", 0, True, "", None)
    assert (c.num_ps_replicas, c.num_worker_replicas, c.global_id_in_cluster) == (0, 1, 0)
    assert (c.save_checkpoints_secs, c.save_checkpoints_steps, c.keep_checkpoint_max) == (600, None, 5)
    assert (c.save_summary_steps, c.log_step_count_steps, c.tf_random_seed) == (100, 100, None)
    assert c.session_config.allow_soft_placement
    assert c.device_fn is None


@pytest.mark.parametrize(
    ("task", "chief", "number", "master"),
    [
        (("chief", 0), True, 0, "zmq://a:1"),
        (("worker", 0), False, 1, "zmq://b:1"),
        (("worker", 1), False, 2, "zmq://c:1"),
        (("ps", 0), False, 3, "zmq://d:1"),
        (("evaluator", 0), False, None, ""),
    ],
)
def test_roles(config, task, chief, number, master):
    job, index = task
    c = config({"cluster": CLUSTER, "task": {"type": job, "index": str(index)}, "model_dir": "/shared"})
    assert (c.task_type, c.task_id, c.is_chief, c.global_id_in_cluster) == (job, index, chief, number)
    assert (c.master, c.model_dir) == (master, "/shared")
    assert c.local().master == ""
    assert c.local().device_fn is None
    if job == "evaluator":
        assert not c.cluster_spec
        return
    assert (c.num_ps_replicas, c.num_worker_replicas) == (1, 3)
    if job != "ps":
        assert c.session_config.device_filters == ["/job:ps", f"/job:{job}/task:{index}"]
    with tf.Graph().as_default(), tf.device(c.device_fn):
        v = tf.Variable(1.0)
        assert v.device == "/job:ps/task:0"
        assert (v + 1).device == f"/job:{job}/task:{index}"


def test_the_first_worker_is_chief_where_none_is_named_and_master_is_the_old_name(config):
    workers = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    assert config(workers).is_chief
    assert not config(workers | {"task": {"type": "worker", "index": 1}}).is_chief
    old = config({"cluster": {"master": ["a:1"], "worker": ["b:1"]}, "task": {"type": "master", "index": 0}})
    assert (old.task_type, old.is_chief, old.cluster_spec.jobs) == ("chief", True, ["chief", "worker"])


def test_the_strategy_says_which_cluster(config):
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=1)

    class Server:
        target = "zmq://b:1"

    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver, server=Server())
    both = tf.contrib.distribute.DistributeConfig(train_distribute=strategy)
    c = config(experimental_distribute=both)
    assert (c.task_type, c.task_id, c.is_chief, c.master) == ("worker", 1, False, "zmq://b:1")
    assert c.train_distribute is strategy
    assert c.device_fn is None


def test_replace(config):
    c = config(save_checkpoints_steps=10, model_dir="/a")
    changed = c.replace(model_dir="/b", save_checkpoints_secs=5)
    assert (changed.model_dir, changed.save_checkpoints_secs, changed.save_checkpoints_steps) == ("/b", 5, None)
    assert (c.model_dir, c.save_checkpoints_steps) == ("/a", 10)
    with pytest.raises(ValueError, match="Replacing nothing is not supported"):
        c.replace(nothing=1)


def test_what_is_refused(config):
    for settings, text in (
        ({"save_checkpoints_steps": 1, "save_checkpoints_secs": 1}, "cannot be both set"),
        ({"save_checkpoints_steps": 0}, "save_checkpoints_steps"),
        ({"protocol": "pigeon"}, "protocol"),
    ):
        with pytest.raises(ValueError, match=text):
            config(**settings)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    both = tf.estimator.DistributeConfig(strategy)
    with pytest.raises(ValueError, match="not both"):
        config(train_distribute=strategy, experimental_distribute=both)
    with pytest.raises(tf.errors.UnimplementedError, match="remote_cluster"):
        config(experimental_distribute=tf.estimator.DistributeConfig(remote_cluster=CLUSTER))
    with pytest.raises(ValueError, match="task type and index must be set"):
        config({"cluster": CLUSTER})
    with pytest.raises(ValueError, match="exceeds the maximum id"):
        config({"cluster": CLUSTER, "task": {"type": "worker", "index": 7}})
