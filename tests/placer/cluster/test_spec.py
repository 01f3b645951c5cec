"""Cluster specs as a user writes them, and clusters as the placer sees them."""

import pickle

import pytest
from hypothesis import given, strategies as st

from dovetail.graph.core.device import DeviceName, parse_strict
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer.cluster.spec import (
    Cluster,
    ClusterDef,
    ClusterSpec,
    DeviceInfo,
    JobDef,
    local_devices,
    new_incarnation,
)

# -- cluster specs -----------------------------------------------------------------------------------------

DENSE = {"worker": ["b:1", "b:2"], "ps": ["a:1"]}
SPARSE = {"worker": {3: "b:3", 1: "b:1"}, "ps": {0: "a:1"}}


def test_jobs_and_tasks_of_a_dense_cluster():
    spec = ClusterSpec(DENSE)
    assert spec.jobs == ["ps", "worker"]
    assert [spec.num_tasks(job) for job in spec.jobs] == [1, 2]
    assert spec.task_indices("worker") == [0, 1]
    assert spec.task_address("worker", 1) == "b:2"
    assert spec.job_tasks("worker") == ["b:1", "b:2"]
    assert spec.as_dict() == DENSE
    assert spec


def test_jobs_and_tasks_of_a_sparse_cluster():
    spec = ClusterSpec(SPARSE)
    assert spec.num_tasks("worker") == 2
    assert spec.task_indices("worker") == [1, 3]
    assert spec.task_address("worker", 3) == "b:3"
    assert spec.job_tasks("worker") == [None, "b:1", None, "b:3"]
    assert spec.as_dict() == {"ps": ["a:1"], "worker": {1: "b:1", 3: "b:3"}}


@pytest.mark.parametrize("given_as", [ClusterSpec.as_dict, ClusterSpec.as_cluster_def, ClusterSpec])
@pytest.mark.parametrize("cluster", [DENSE, SPARSE, {}, {"ps": []}, {"ps": ("a:1",)}, {"ps": {"2": "a:1"}}])
def test_every_form_of_a_cluster_gives_an_equal_spec(cluster, given_as):
    spec = ClusterSpec(cluster)
    again = ClusterSpec(given_as(spec))
    assert again == spec and hash(again) == hash(spec)
    assert again.as_cluster_def() == spec.as_cluster_def()
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_cluster_def_is_plain_sorted_data():
    assert ClusterSpec(SPARSE).as_cluster_def() == ClusterDef(
        (JobDef("ps", {0: "a:1"}), JobDef("worker", {1: "b:1", 3: "b:3"}))
    )
    definition = ClusterSpec(SPARSE).as_cluster_def()
    assert list(definition.job[1].tasks) == [1, 3]


def test_equality_is_by_content():
    assert ClusterSpec({"a": ["x:1"]}) == ClusterSpec({"a": {0: "x:1"}})
    assert ClusterSpec({"a": ["x:1"]}) != ClusterSpec({"a": ["x:2"]})
    assert ClusterSpec({"a": ["x:1"]}) != ClusterSpec({"b": ["x:1"]})
    assert ClusterSpec({"a": ["x:1"]}) != ClusterSpec({"a": {1: "x:1"}})
    assert ClusterSpec({"a": ["x:1"]}) != {"a": ["x:1"]}


def test_an_empty_cluster_is_false():
    assert not ClusterSpec({})
    assert ClusterSpec({}).jobs == []
    assert ClusterSpec({"a": []})
    assert ClusterSpec({"a": []}).job_tasks("a") == []


def test_a_spec_does_not_follow_the_dictionary_it_was_made_of():
    tasks = ["a:1"]
    cluster = {"ps": tasks}
    spec = ClusterSpec(cluster)
    tasks.append("a:2")
    cluster["worker"] = ["b:1"]
    spec.as_dict()["ps"].append("a:3")
    spec.job_tasks("ps").append("a:4")
    spec.as_cluster_def().job[0].tasks[5] = "a:5"
    assert spec.as_dict() == {"ps": ["a:1"]}


@pytest.mark.parametrize("call", [
    lambda s: s.num_tasks("x"), lambda s: s.task_indices("x"), lambda s: s.job_tasks("x"),
    lambda s: s.task_address("x", 0),
])  # fmt: skip
def test_an_unknown_job_is_named(call):
    with pytest.raises(ValueError, match="No such job in cluster: 'x'.*ps, worker"):
        call(ClusterSpec(DENSE))


@pytest.mark.parametrize("cluster", [DENSE, SPARSE])
@pytest.mark.parametrize("index", [2, -1])
def test_an_unknown_task_is_named(cluster, index):
    with pytest.raises(ValueError, match=f"No task with index {index} in job 'worker'"):
        ClusterSpec(cluster).task_address("worker", index)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("a:1", "`cluster` must be a dictionary"),
        (["a:1"], "`cluster` must be a dictionary"),
        (None, "`cluster` must be a dictionary"),
        (7, "`cluster` must be a dictionary"),
        ({"ps": "a:1"}, "The tasks for job 'ps' must be a list"),
        ({"ps": None}, "The tasks for job 'ps' must be a list"),
        ({"ps": 2}, "The tasks for job 'ps' must be a list"),
        ({"ps": [1]}, "The address of task 0 in job 'ps' must be a string"),
        ({"ps": [b"a:1"]}, "The address of task 0 in job 'ps' must be a string"),
        ({"ps": ["a:1", None]}, "The address of task 1 in job 'ps' must be a string"),
        ({"ps": {4: 1}}, "The address of task 4 in job 'ps' must be a string"),
        ({"ps": {"x": "a:1"}}, "A task index in job 'ps' must be an integer"),
        ({"ps": {1.5: "a:1"}}, "A task index in job 'ps' must be an integer"),
        ({3: ["a:1"]}, "A job's name must be a string"),
    ],
)
def test_other_things_are_no_cluster(cluster, message):
    with pytest.raises(TypeError, match=message):
        ClusterSpec(cluster)


@pytest.mark.parametrize(
    ("tasks", "message"), [({-1: "a:1"}, "cannot be negative"), ({1: "a:1", "1": "a:2"}, "given twice")]
)
def test_impossible_task_indices(tasks, message):
    with pytest.raises(ValueError, match=message):
        ClusterSpec({"ps": tasks})


@given(st.dictionaries(st.text(min_size=1), st.dictionaries(st.integers(0, 20), st.text())))
def test_a_cluster_survives_each_of_its_forms(cluster):
    spec = ClusterSpec(cluster)
    assert ClusterSpec(spec.as_dict()) == ClusterSpec(spec.as_cluster_def()) == spec
    for job in spec.jobs:
        listed = {i: address for i, address in enumerate(spec.job_tasks(job)) if address is not None}
        assert listed == cluster[job]
        assert spec.task_indices(job) == sorted(cluster[job])


# -- devices of a task -------------------------------------------------------------------------------------


def test_a_task_has_one_cpu_by_default():
    (cpu,) = local_devices("/job:ps/replica:0/task:3")
    assert str(cpu.name) == "/job:ps/replica:0/task:3/device:CPU:0"
    assert not cpu.emulated
    assert cpu.memory_bytes is None or cpu.memory_bytes > 1 << 20


@pytest.mark.parametrize(
    ("device_count", "emulated", "expected"),
    [
        (None, 2, ["CPU:0", "GPU:0", "GPU:1"]),
        ({"CPU": 3}, 0, ["CPU:0", "CPU:1", "CPU:2"]),
        ({"CPU": 2, "GPU": 1}, 2, ["CPU:0", "CPU:1", "GPU:0"]),
        ({"GPU": 0}, 2, ["CPU:0"]),
        ({"GPU": 4}, 2, ["CPU:0", "GPU:0", "GPU:1"]),
    ],
)
def test_device_counts(device_count, emulated, expected):
    devices = local_devices("/job:local/task:0", device_count, emulated)
    prefix = "/job:local/replica:0/task:0/device:"
    assert [str(d.name).removeprefix(prefix) for d in devices] == expected
    assert [d.emulated for d in devices] == [text.startswith("GPU") for text in expected]
    assert all(str(d).endswith(" (emulated)") == d.emulated for d in devices)


def test_a_task_has_one_incarnation_and_another_one_next_time():
    first = local_devices("/job:a/task:0", {"CPU": 2})
    second = local_devices("/job:a/task:0", {"CPU": 2})
    assert len({d.incarnation for d in first}) == 1
    assert first[0].incarnation != second[0].incarnation
    assert local_devices("/job:a/task:0", incarnation=7)[0].incarnation == 7
    assert all(0 < new_incarnation() < 1 << 63 for _ in range(100))


@pytest.mark.parametrize(
    ("device_count", "emulated", "gpus"),
    [({}, 0, [(80, False), (40, False)]), ({"GPU": 1}, 0, [(80, False)]), ({"GPU": 0}, 0, []), ({}, 1, [(None, True)])],
)
def test_real_gpus_are_offered_unless_emulated_ones_are_asked_for(device_count, emulated, gpus):
    found = local_devices("/job:a/task:0", device_count, emulated, gpus=[(80, "H100"), (40, "A100")])
    assert [d.model for d in found[1:]] == ["" if e else {80: "H100", 40: "A100"}[size] for size, e in gpus]
    host = found[0].memory_bytes
    assert [(d.memory_bytes, d.emulated) for d in found[1:]] == [
        (host if size is None else size, e) for size, e in gpus
    ]


@pytest.mark.parametrize(
    ("device_count", "emulated", "message"),
    [({"CPU": 0}, 0, "at least one CPU"), ({"CPU": -1}, 0, "negative"), ({"GPU": -1}, 0, "negative"),
     (None, -1, "negative"), ({"TPU": 1}, 0, "not 'TPU'")],
)  # fmt: skip
def test_impossible_device_counts(device_count, emulated, message):
    with pytest.raises(ValueError, match=message):
        local_devices("/job:a/task:0", device_count, emulated)


@pytest.mark.parametrize("task", ["/job:a", "/task:0", "", "job:a/task:0", "/job:a-b/task:0"])
def test_devices_need_a_task(task):
    with pytest.raises(InvalidArgumentError):
        local_devices(task)


# -- the cluster that the placer sees ----------------------------------------------------------------------

PS0, PS1 = "/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"
WORKER = "/job:worker/replica:0/task:0"


@pytest.fixture
def cluster():
    devices = [d for task in (WORKER, PS1, PS0) for d in local_devices(task, {"CPU": 2}, incarnation=1)]
    return Cluster(tuple(devices), master=WORKER)


def test_the_master_comes_first(cluster):
    assert cluster.tasks == (WORKER, PS0, PS1)
    assert [str(n) for n in cluster.names] == [f"{task}/device:CPU:{i}" for task in (WORKER, PS0, PS1) for i in (0, 1)]


def test_devices_are_found_by_name_task_and_pattern(cluster):
    name = DeviceName.parse(f"{PS1}/device:CPU:1")
    assert name in cluster
    assert cluster.device(name).name == name
    assert DeviceName.parse(f"{PS1}/device:CPU:2") not in cluster
    with pytest.raises(KeyError):
        cluster.device(DeviceName.parse(f"{PS1}/device:CPU:2"))
    assert cluster.devices_of(PS0) == tuple(d for d in cluster.devices if d.name.task_name == PS0)
    assert cluster.devices_of("/job:x/replica:0/task:0") == ()
    found = cluster.matching(parse_strict("/job:ps/cpu:1"))
    assert [str(d) for d in found] == [f"{PS0}/device:CPU:1", f"{PS1}/device:CPU:1"]
    assert cluster.matching(parse_strict("")) == cluster.devices
    assert cluster.matching(parse_strict("/gpu:*")) == ()


def test_filters_keep_what_they_admit_and_the_master(cluster):
    assert cluster.filtered([]) == cluster
    assert cluster.filtered(["/job:ps/task:1"]).tasks == (WORKER, PS1)
    assert cluster.filtered(["/job:ps/task:1", "/job:ps/task:0"]) == cluster
    assert cluster.filtered(["/job:moon"]).tasks == (WORKER,)
    assert len(cluster.filtered(["/job:ps/cpu:1"]).devices) == 4
    with pytest.raises(InvalidArgumentError, match="Malformed"):
        cluster.filtered(["job:ps"])


def test_a_cluster_is_checked(cluster):
    with pytest.raises(ValueError, match=f"{PS0}/device:CPU:0 is listed twice"):
        Cluster((*cluster.devices, *local_devices(PS0)), WORKER)
    with pytest.raises(ValueError, match="master /job:x/replica:0/task:0 has no device; .*/job:ps"):
        Cluster(cluster.devices, "/job:x/replica:0/task:0")
    with pytest.raises(ValueError, match="has no device"):
        Cluster((), WORKER)


def test_values_are_frozen(cluster):
    with pytest.raises(AttributeError):
        cluster.master = PS0
    with pytest.raises(AttributeError):
        cluster.devices[0].emulated = True
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    info = DeviceInfo(cluster.names[0], None, False, 1)
    assert (info.bandwidth, info.flops) == (None, None)
