"""Which cluster, and which task: what resolvers make of the environment, and who is who."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from dovetail.distribute import MultiWorkerMirroredStrategy, ParameterServerStrategy
from dovetail.distribute.resolvers import roles
from dovetail.distribute.resolvers.cluster_resolver import (
    KubernetesClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    expand_hostlist,
    expand_tasks_per_node,
)
from dovetail.train import ClusterSpec

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.fixture
def tf_config(monkeypatch):
    def put(value):
        monkeypatch.setenv("TF_CONFIG", value if isinstance(value, str) else json.dumps(value))

    monkeypatch.delenv("TF_CONFIG", raising=False)
    return put


def test_tf_config(tf_config):
    tf_config({"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}, "rpc_layer": "grpc"})
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec().as_dict() == CLUSTER
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
    assert resolver.master() == "grpc://c:1"
    assert resolver.master("ps", 0) == "grpc://d:1"
    assert resolver.master("ps", 0, rpc_layer="zmq") == "zmq://d:1"
    with pytest.raises(ValueError, match="No task with index 3"):
        resolver.master("worker", 3)
    with pytest.raises(ValueError, match="No such job"):
        resolver.master("nobody", 0)
    other = TFConfigClusterResolver(task_type="ps", task_id=0, rpc_layer="zmq")
    assert (other.task_type, other.task_id, other.master()) == ("ps", 0, "zmq://d:1")


def test_tf_config_with_less_in_it(tf_config):
    resolver = TFConfigClusterResolver()
    assert not resolver.cluster_spec()
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    tf_config({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    assert resolver.master() == ""
    tf_config({"cluster": CLUSTER, "task": {"type": 1, "index": 0}, "session_master": "there"})
    assert resolver.task_type == "1"
    assert resolver.master() == "there"
    tf_config("not json")
    with pytest.raises(ValueError, match="TF_CONFIG is not valid JSON"):
        resolver.cluster_spec()
    tf_config({"cluster": ["a:1"]})
    with pytest.raises(ValueError, match=r"'cluster' in TF_CONFIG .* should look like"):
        resolver.cluster_spec()
    tf_config({"cluster": CLUSTER, "task": {"type": "ps", "index": "one"}})
    with pytest.raises(ValueError, match="integer, not 'one'"):
        _ = resolver.task_id
    tf_config("[]")
    with pytest.raises(ValueError, match="JSON object"):
        resolver.cluster_spec()


def test_simple():
    resolver = SimpleClusterResolver(
        ClusterSpec(CLUSTER), "here:1", "worker", 0, num_accelerators={"GPU": 3}, rpc_layer="grpc"
    )
    assert resolver.master() == "grpc://here:1"
    assert resolver.master("worker", 1) == "grpc://c:1"
    assert resolver.num_accelerators() == {"GPU": 3}
    with pytest.raises(TypeError, match="ClusterSpec"):
        SimpleClusterResolver({"worker": []})


def slurm(monkeypatch, rank, total, nodes, per_node):
    for name, value in {
        "PROCID": rank, "STEP_NUM_TASKS": total, "STEP_NODELIST": nodes, "STEP_TASKS_PER_NODE": per_node,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_slurm(monkeypatch):
    slurm(monkeypatch, 3, 5, "n[1-2],m5", "2(x2),1")
    resolver = SlurmClusterResolver({"ps": 1, "worker": 4}, port_base=8888, gpus_per_node=4, gpus_per_task=2)
    assert resolver.cluster_spec().as_dict() == {
        "ps": ["n1:8888"],
        "worker": ["n1:8889", "n2:8888", "n2:8889", "m5:8888"],
    }
    assert resolver.get_task_info() == ("worker", 2)
    assert resolver.master() == "grpc://n2:8889"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert resolver.num_accelerators() == {"GPU": 2}
    assert SlurmClusterResolver(gpus_per_node=0).cluster_spec().num_tasks("worker") == 5
    with pytest.raises(RuntimeError, match="`jobs` has 3 tasks"):
        SlurmClusterResolver({"worker": 3})
    with pytest.raises(RuntimeError, match="more than the 2 GPUs"):
        SlurmClusterResolver(gpus_per_node=2, gpus_per_task=2)
    with pytest.raises(RuntimeError, match="have 3 tasks in all"):
        SlurmClusterResolver(tasks_per_node=1, gpus_per_node=0)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(RuntimeError, match="srun"):
        SlurmClusterResolver()


def test_slurm_lists():
    assert expand_hostlist("n[1-2],m5,o[3-4,6]") == ["n1", "n2", "m5", "o3", "o4", "o6"]
    assert expand_hostlist("n[08-11]") == ["n08", "n09", "n10", "n11"]
    assert expand_hostlist("alone") == ["alone"]
    assert expand_tasks_per_node("3(x2),2,1") == [3, 3, 2, 1]


def pod(name, phase="Running", ip="10.0.0.1"):
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=SimpleNamespace(phase=phase, host_ip=ip))


class Client:
    def __init__(self, pods):
        self.pods = pods

    def list_pod_for_all_namespaces(self, label_selector):
        return SimpleNamespace(items=self.pods[label_selector])


def test_kubernetes():
    pods = {
        "a": [pod("w-1", ip="10.0.0.2"), pod("w-0")],
        "b": [pod("w-2", ip="10.0.0.3")],
        "c": [pod("p", ip="10.0.0.4")],
    }
    resolver = KubernetesClusterResolver(
        {"worker": ["a", "b"], "ps": ["c"]}, override_client=Client(pods), tf_server_port=9
    )
    expected = {"ps": ["10.0.0.4:9"], "worker": ["10.0.0.1:9", "10.0.0.2:9", "10.0.0.3:9"]}
    assert resolver.cluster_spec().as_dict() == expected
    assert resolver.master("ps", 0) == "grpc://10.0.0.4:9"
    bad = KubernetesClusterResolver(override_client=Client({"job-name=tensorflow": [pod("x", "Failed")]}))
    with pytest.raises(RuntimeError, match='Pod "x" is not running; phase: "Failed"'):
        bad.cluster_spec()
    with pytest.raises(ValueError, match="location"):
        KubernetesClusterResolver(override_client=Client({}), executable_location=7)


def test_roles():
    without = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    assert roles.is_chief(CLUSTER, "chief", 0) and not roles.is_chief(CLUSTER, "worker", 0)
    assert roles.is_chief(without, "worker", 0) and not roles.is_chief(without, "worker", 1)
    assert roles.is_chief() and roles.is_chief(without, "evaluator", 0) and not roles.is_chief(without, "ps", 0)
    assert roles.worker_count(CLUSTER, "worker") == 3
    assert roles.worker_count(CLUSTER | {"evaluator": ["e:1"]}, "evaluator") == 1
    assert [roles.id_in_cluster(CLUSTER, "worker", i) for i in (0, 1)] == [1, 2]
    assert roles.id_in_cluster(CLUSTER, "chief", 0) == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: roles.is_chief({"chief": ["a:1", "b:1"]}, "chief", 0), "at most one 'chief'"),
        (lambda: roles.is_chief(CLUSTER, "boss", 0), "Unrecognized task_type"),
        (lambda: roles.is_chief({"worker": ["a:1"]}, "ps", 0), "not found"),
        (lambda: roles.is_chief(CLUSTER, "worker", 2), "exceeds the maximum"),
        (lambda: roles.worker_count(CLUSTER, "ps"), "Unexpected"),
        (lambda: roles.id_in_cluster(CLUSTER, "ps", 0), "no id"),
        (lambda: roles.is_chief("a:1", "worker", 0), "should be a dict"),
    ],
)
def test_roles_that_cannot_be(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_strategies_without_a_cluster_are_for_this_process(tf_config):
    for make in (MultiWorkerMirroredStrategy, ParameterServerStrategy):
        strategy = make()
        assert strategy.num_replicas_in_sync == 1
        assert strategy.session_target == ""


def test_strategies_that_need_another_cluster(tf_config):
    tf_config({"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ValueError, match="no parameter servers"):
        MultiWorkerMirroredStrategy()
    tf_config({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    with pytest.raises(ValueError, match="needs a job 'ps'"):
        ParameterServerStrategy()
