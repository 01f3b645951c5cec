"""`replica_device_setter`: the table of cases is the specification."""

import logging
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from dovetail.graph.core import dtypes
from dovetail.graph.core.device import canonical_name, merge_names
from dovetail.placer.cluster.load import as_cluster
from dovetail.placer.cluster.spec import ClusterSpec
from dovetail.placer.rules.replica_device_setter import (
    STANDARD_PS_OPS,
    GreedyLoadBalancingStrategy,
    RandomStrategy,
    RoundRobinStrategy,
    byte_size_load_fn,
    replica_device_setter,
)


@dataclass
class FakeNode:
    """What a setter reads of a node, and no more."""

    type: str
    device: str = ""
    name: str = "n"
    dims: tuple[int | None, ...] | None = ()
    dtype: dtypes.DType = dtypes.float32
    attrs: dict[str, object] = field(default_factory=dict)
    num_outputs: int = 1

    @property
    def outputs(self):
        return [SimpleNamespace(dtype=self.dtype, dims=self.dims)] * self.num_outputs

    def get_attr(self, name):
        if name not in self.attrs:
            raise ValueError(f"no attribute {name}")
        return self.attrs[name]


def devices(setter, *nodes):
    """What the setter answers for nodes written as `Type` or `Type@device`, made in this order."""
    answers = []
    for node in nodes:
        kind, _, device = node.partition("@")
        answers.append(setter(FakeNode(kind, canonical_name(device))))
    return answers


V, A = "VariableV2", "AddV2"
TWO = {"ps_tasks": 2}

CASES = {
    "variables in turn, the rest to the worker": (
        TWO, [V, A, V, V, A],
        ["/job:ps/task:0", "/job:worker", "/job:ps/task:1", "/job:ps/task:0", "/job:worker"],
    ),
    "five variables over two": (
        TWO, [V] * 5, ["/job:ps/task:0", "/job:ps/task:1"] * 2 + ["/job:ps/task:0"],
    ),
    "reads, assigns, initialisers and queues take no turn": (
        TWO, [V, "Assign", "Identity", "Const", "FIFOQueueV2", "ConditionalAccumulator", V],
        ["/job:ps/task:0", *["/job:worker"] * 5, "/job:ps/task:1"],
    ),
    "a worker task": (
        {**TWO, "worker_device": "/job:worker/task:7"}, [V, A], ["/job:ps/task:0", "/job:worker/task:7"],
    ),
    "device names are made canonical": (
        {**TWO, "ps_device": "cpu:0/job:ps", "worker_device": "gpu:1/job:w"}, [V, A],
        ["/job:ps/task:0/device:CPU:0", "/job:w/device:GPU:1"],
    ),
    "an inner device applies to variables as well": (
        TWO, [V + "@/gpu:1", A + "@/gpu:1", V],
        ["/job:ps/task:0/device:GPU:1", "/job:worker/device:GPU:1", "/job:ps/task:1"],
    ),
    "an inner task wins, and the turn is used up": (
        TWO, [V + "@/task:1", A + "@/task:1", V, V],
        ["/job:ps/task:1", "/job:worker/task:1", "/job:ps/task:1", "/job:ps/task:0"],
    ),
    "an inner task and device": (
        TWO, [A + "@/task:1/gpu:1"], ["/job:worker/task:1/device:GPU:1"],
    ),
    "an inner block that names the ps job takes a turn": (
        TWO, [V + "@/job:ps/cpu:0", V], ["/job:ps/task:0/device:CPU:0", "/job:ps/task:1"],
    ),
    "an inner block that names another job takes none": (
        TWO, [V + "@/job:worker", V + "@/job:worker/task:1", V],
        ["/job:worker", "/job:worker/task:1", "/job:ps/task:0"],
    ),
    "another job inside still gets the other fields of ps_device": (
        {**TWO, "ps_device": "/job:ps/task:5/cpu:0"}, [V + "@/job:worker"],
        ["/job:worker/task:5/device:CPU:0"],
    ),
    "an empty inner job counts as none": (
        TWO, [V + "@/job:", V], ["/job:/task:0", "/job:ps/task:1"],
    ),
    "the strategy's task replaces the one in ps_device": (
        {**TWO, "ps_device": "/job:ps/task:9"}, [V, V, V],
        ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"],
    ),
    "a ps_device without job gets no task, and no turn is used": (
        {**TWO, "ps_device": "/cpu:0"}, [V, V + "@/job:x", A],
        ["/device:CPU:0", "/job:x/device:CPU:0", "/job:worker"],
    ),
    "no ps_device: variables go to the worker": (
        {**TWO, "ps_device": ""}, [V, A], ["/job:worker", "/job:worker"],
    ),
    "no worker_device: the rest goes nowhere": (
        {**TWO, "worker_device": ""}, [V, A, A + "@/gpu:0"], ["/job:ps/task:0", "", "/device:GPU:0"],
    ),
    "neither": (
        {**TWO, "ps_device": "", "worker_device": ""}, [V, A], ["", ""],
    ),
    "another ps job": (
        {**TWO, "ps_device": "/job:server"}, [V, V], ["/job:server/task:0", "/job:server/task:1"],
    ),
    "own ps_ops": (
        {**TWO, "ps_ops": ["Const"]}, ["Const", V, "Const"],
        ["/job:ps/task:0", "/job:worker", "/job:ps/task:1"],
    ),
    "no ps_ops at all": (
        {**TWO, "ps_ops": []}, [V], ["/job:worker"],
    ),
    "without merging an inner device stays alone": (
        {**TWO, "merge_devices": False}, [V + "@/gpu:1", A + "@/task:1", V, A],
        ["/device:GPU:1", "/task:1", "/job:ps/task:0", "/job:worker"],
    ),
    "a strategy of one's own": (
        {**TWO, "ps_strategy": lambda node: 1}, [V, V], ["/job:ps/task:1", "/job:ps/task:1"],
    ),
    "a strategy may answer with NumPy integers": (
        {**TWO, "ps_strategy": lambda node: np.int64(1)}, [V], ["/job:ps/task:1"],
    ),
    "a strategy's task is left to the placer to judge": (
        {**TWO, "ps_strategy": lambda node: 7}, [V], ["/job:ps/task:7"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "nodes", "expected"), CASES.values(), ids=CASES.keys())
def test_setter(arguments, nodes, expected):
    assert devices(replica_device_setter(**arguments), *nodes) == expected


@pytest.mark.parametrize("kind", STANDARD_PS_OPS)
def test_standard_ps_ops(kind):
    assert devices(replica_device_setter(1), kind) == ["/job:ps/task:0"]


def test_the_standard_ps_ops_are_tensorflows():
    assert set(STANDARD_PS_OPS) == {
        "Variable", "VariableV2", "AutoReloadVariable", "MutableHashTable", "MutableHashTableV2",
        "MutableHashTableOfTensors", "MutableHashTableOfTensorsV2", "MutableDenseHashTable",
        "MutableDenseHashTableV2", "VarHandleOp", "BoostedTreesEnsembleResourceHandleOp",
        "BoostedTreesQuantileStreamResourceHandleOp", "ResourceConditionalAccumulator",
        "DecisionTreeResource",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outer", "kind", "expected"),
    [
        ("/job:o/task:9/gpu:3", A, "/job:worker/task:9/device:GPU:3"),
        ("/job:o/task:9/gpu:3", V, "/job:ps/task:0/device:GPU:3"),
    ],
)
def test_an_outer_block_fills_only_unset_fields(outer, kind, expected):
    answer = replica_device_setter(ps_tasks=2)(FakeNode(kind))
    assert merge_names(canonical_name(outer), answer) == expected


# -- clusters ----------------------------------------------------------------------------------------------

CLUSTER = {"ps": ["a:1", "a:2"], "worker": ["b:1"]}


@pytest.mark.parametrize("cluster", [CLUSTER, ClusterSpec(CLUSTER), ClusterSpec(CLUSTER).as_cluster_def()])
def test_a_cluster_tells_the_number_of_tasks(cluster):
    setter = replica_device_setter(ps_tasks=7, cluster=cluster)
    assert devices(setter, V, V, V) == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]


def test_the_tasks_counted_are_those_of_the_job_in_ps_device():
    setter = replica_device_setter(cluster=CLUSTER, ps_device="/job:worker/cpu:0")
    assert devices(setter, V, V) == ["/job:worker/task:0/device:CPU:0"] * 2


@pytest.mark.parametrize("cluster", [{"ps": 2, "worker": 1}, "ps=2,worker=1", as_cluster({"ps": 2, "worker": 1})])
def test_a_cluster_is_what_place_takes(cluster):
    assert devices(replica_device_setter(cluster=cluster), V, V, V) == [
        "/job:ps/task:0",
        "/job:ps/task:1",
        "/job:ps/task:0",
    ]


def test_a_sparse_job_counts_its_tasks():
    setter = replica_device_setter(cluster={"ps": {1: "a:1", 5: "a:5"}})
    assert devices(setter, V, V, V) == ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0"]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"ps_tasks": 0},
        {"cluster": {"worker": ["b:1"]}},
        {"cluster": {"worker": ["b:1"]}, "ps_tasks": 3},
        {"cluster": {"ps": []}},
        {"cluster": {"ps": 0, "worker": 2}},
        {"cluster": {}},
        {"cluster": CLUSTER, "ps_device": "/cpu:0"},
        {"cluster": CLUSTER, "ps_device": ""},
    ],
)
def test_without_parameter_servers_there_is_no_setter(arguments):
    assert replica_device_setter(**arguments) is None


# -- errors and warnings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"ps_tasks": 2, "ps_strategy": 17}, TypeError, "ps_strategy must be callable"),
        ({"cluster": 3}, TypeError, r"`cluster` must be numbers of tasks \(.*a ClusterSpec, a path"),
        ({"cluster": "ps"}, ValueError, "There is no file 'ps'; numbers of tasks"),
        ({"cluster": {"ps": 1.5}}, ValueError, "whole number of tasks"),
        ({"cluster": {"ps": "a:1"}}, TypeError, "or a list of addresses, not 'a:1'"),
        ({"ps_tasks": 2, "ps_ops": "Variable"}, TypeError, "ps_ops"),
        ({"ps_tasks": -1}, ValueError, "negative"),
        ({"ps_tasks": 2, "ps_device": "/foo:1"}, ValueError, "Unknown attribute 'foo'"),
        ({"ps_tasks": 2, "worker_device": "/foo:1"}, ValueError, "Unknown attribute 'foo'"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        replica_device_setter(**arguments)


def test_a_strategy_must_answer_with_a_number():
    setter = replica_device_setter(2, ps_strategy=lambda node: "x")
    with pytest.raises(ValueError, match="'x'"):
        setter(FakeNode(V))


def test_not_merging_is_deprecated(caplog):
    with caplog.at_level(logging.WARNING):
        replica_device_setter(2, merge_devices=False)
        assert "merge_devices" in caplog.text
        caplog.clear()
        replica_device_setter(2)
        assert caplog.text == ""


# -- strategies --------------------------------------------------------------------------------------------


def test_round_robin():
    strategy = RoundRobinStrategy(3)
    assert [strategy(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_greedy_takes_the_least_loaded_and_the_lowest_of_equals():
    loads = {"a": 5, "b": 1, "c": 1, "d": 3, "e": 1}
    strategy = GreedyLoadBalancingStrategy(2, lambda node: loads[node.name])
    # loads after each: (5,0) (5,1) (5,2) (5,5) (6,5)
    assert [strategy(FakeNode(V, name=n)) for n in "abcde"] == [0, 1, 1, 1, 0]


def test_greedy_keeps_its_loads_when_the_load_function_fails():
    strategy = GreedyLoadBalancingStrategy(2, byte_size_load_fn)
    with pytest.raises(ValueError, match="unknown"):
        strategy(FakeNode(V, dims=None))
    assert [strategy(FakeNode(V, dims=(2,))) for _ in range(3)] == [0, 1, 0]


def test_greedy_by_bytes_in_a_setter():
    setter = replica_device_setter(2, ps_strategy=GreedyLoadBalancingStrategy(2, byte_size_load_fn))
    shapes = [(100, 10), (10,), (10, 10), (200, 10), (1,)]
    tasks = [setter(FakeNode(V, dims=shape)).removeprefix("/job:ps/task:") for shape in shapes]
    # bytes after each: (4000, 0) (4000, 40) (4000, 440) (4000, 8440) (4004, 8440)
    assert tasks == ["0", "1", "1", "1", "0"]


@pytest.mark.parametrize(
    ("node", "size"),
    [
        (FakeNode(V, dims=(3, 4)), 48),
        (FakeNode(V, dims=()), 4),
        (FakeNode(V, dims=(0, 7)), 0),
        (FakeNode(V, dims=(3, 4), dtype=dtypes.float32.ref), 48),
        (FakeNode(V, dims=(3, 4), dtype=dtypes.float64), 96),
        (FakeNode(V, dims=(3, 4), dtype=dtypes.int8), 12),
        (FakeNode(V, dims=(3, 4), dtype=dtypes.bfloat16), 24),
        (FakeNode(V, dims=None, attrs={"shape": (5,)}), 20),
        (FakeNode(V, dims=(None, 2), attrs={"shape": (5, 2)}), 40),
        (FakeNode(V, dims=None, attrs={"shape": ()}), 4),
        (FakeNode("VarHandleOp", dims=(), dtype=dtypes.resource,
                  attrs={"shape": (3, 4), "dtype": dtypes.float64}), 96),
    ],
)  # fmt: skip
def test_byte_size(node, size):
    assert byte_size_load_fn(node) == size


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (FakeNode(V, num_outputs=0), "must have one output, not 0"),
        (FakeNode(V, num_outputs=2), "must have one output, not 2"),
        (FakeNode(V, dims=None), "not fully defined"),
        (FakeNode(V, dims=(None,)), "not fully defined"),
        (FakeNode(V, dims=None, attrs={"shape": (None, 2)}), "not fully defined"),
        (FakeNode(V, dims=None, attrs={"shape": None}), "not fully defined"),
        (FakeNode("VarHandleOp", dims=(), attrs={"shape": None, "dtype": dtypes.int32}), "not fully defined"),
    ],
)
def test_byte_size_needs_one_output_of_known_size(node, message):
    with pytest.raises(ValueError, match=message) as error:
        byte_size_load_fn(node)
    assert "'n'" in str(error.value)


def test_random_depends_on_name_and_seed_only():
    names = [f"v{i}" for i in range(400)] + ["gr\u00f6\u00dfe", "\u5909\u6570"]
    nodes = [FakeNode(V, name=name) for name in names]
    chosen = [RandomStrategy(4)(node) for node in nodes]
    again = RandomStrategy(4)
    assert [again(node) for node in reversed(nodes)] == chosen[::-1]
    assert chosen != [RandomStrategy(4, seed=1)(node) for node in nodes]
    assert all(60 < count < 140 for count in Counter(chosen).values())
    assert set(chosen) == {0, 1, 2, 3}


def test_random_gives_tensorflows_tasks():
    names = ["Variable", "Variable_1", "Variable_2", "Variable_3", "A unicode \u018e string \xf1"]
    assert [RandomStrategy(2, seed=0)(SimpleNamespace(name=n)) for n in names] == [1, 0, 1, 1, 1]


def test_random_is_the_same_in_every_process():
    code = (
        "from types import SimpleNamespace as N; from dovetail.placer.rules.replica_device_setter import RandomStrategy;"
        "s = RandomStrategy(1000); print([s(N(name=n)) for n in ('a', 'b', 'gr\u00f6\u00dfe')])"
    )
    here = RandomStrategy(1000)
    expected = [here(FakeNode(V, name=name)) for name in ("a", "b", "gr\u00f6\u00dfe")]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", code]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert answer.stdout == f"{expected}\n"


@pytest.mark.parametrize(
    "make", [RoundRobinStrategy, RandomStrategy, lambda n: GreedyLoadBalancingStrategy(n, byte_size_load_fn)]
)
def test_a_strategy_needs_a_task(make):
    with pytest.raises(ValueError, match="at least one task"):
        make(0)
