"""What `place` takes as a cluster: files, devices with facts, links, and things that run."""

import re

import pytest

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer.cluster import file_format
from dovetail.placer.cluster.load import as_cluster, cluster_text, make_cluster, quantity, read_cluster
from dovetail.placer.cluster.spec import Cluster, Link

FILE = """
jobs:
  ps: 2
  worker: ["w0:2222", "w1:2222"]
master: /job:worker/task:1
devices:
  worker: [cpu:0, {name: gpu:0, memory: 80 GiB, flops: 67 Tflop/s, bandwidth: 3.35 TB/s}]
  /job:worker/task:0: [cpu:0]
links:
  - {between: [/job:worker/task:0, /job:ps], latency: 20 us, bandwidth: 100 Gbit/s}
  - {between: [/job:worker, /job:ps], bandwidth: 1e9}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    return path


def test_a_file(file):
    found = read_cluster(file)
    assert [str(d.name).replace("/replica:0", "").replace("device:", "") for d in found.devices] == [
        "/job:worker/task:1/CPU:0",
        "/job:worker/task:1/GPU:0",
        "/job:ps/task:0/CPU:0",
        "/job:ps/task:1/CPU:0",
        "/job:worker/task:0/CPU:0",
    ]
    gpu = found.devices[1]
    assert (gpu.memory_bytes, gpu.flops, gpu.bandwidth) == (80 << 30, 67e12, 3.35e12)
    ps, w0, w1 = (f"/job:{t}/replica:0/task:{i}" for t, i in (("ps", 0), ("worker", 0), ("worker", 1)))
    assert found.link(ps, w0) == found.link(w0, ps) == found.links[0]
    assert found.link(ps, w1) == Link("/job:worker", "/job:ps", None, 1e9)
    assert found.link(w0, w1) is None
    assert found.links[0].seconds(125 * 10**8) == pytest.approx(1.0 + 20e-6)


def test_a_file_is_a_cluster(file):
    with dt.Graph().as_default() as g, dt.device("/job:ps/task:1"):
        dt.constant(1.0, name="c")
    for given in (file, str(file)):
        assert dt.place(g, given).placement == {"c": "/job:ps/replica:0/task:1/device:CPU:0"}
    other = dt.place(g, file, master="job:worker/task:0").cluster
    assert other.master == "/job:worker/replica:0/task:0" and other.links == read_cluster(file).links


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1, 2]", "at `$`: Expected `mapping`, got `list`"),
        ("{}", "required field `jobs`"),
        ("jobs: [a]", "at `$.jobs`: Expected `mapping`, got `list`"),
        (
            "jobs: {ps: 1}\nspeed: 3",
            "known are: jobs, master, devices, resources, keys, checkpoint, ps_replicas, links",
        ),
        ("jobs: {ps: 1}\nps_replicas: 2", "2 with a job ps of 2 tasks or more, not 2 with 1"),
        ("jobs: {ps: 2}\nps_replicas: 3", "ps_replicas`: Expected `int` <= 2"),
        ("jobs: {ps: x}", "at `$.jobs[ps]`: Expected `int | mapping | list`, got `str`"),
        ("jobs: {ps: 0}", "no tasks"),
        ("jobs: {ps: 1}\nmaster: /job:moon", "is no task of the cluster"),
        ("jobs: {ps: 1}\nmaster: 3", "at `$.master`: Expected `str | null`, got `int`"),
        ("jobs: {ps: 1}\ndevices: [cpu:0]", "at `$.devices`: Expected `mapping | null`, got `list`"),
        ("jobs: {ps: 1}\ndevices: {ps: cpu:0}", "at `$.devices[ps]`: Expected `list`, got `str`"),
        ("jobs: {ps: 1}\ndevices: {/job:ps/task:1: [cpu:0]}", "/job:ps/task:1"),
        ("jobs: {ps: 1}\ndevices: {ps: [3]}", "at `$.devices[ps][0]`: Expected `str | mapping`, got `int`"),
        ("jobs: {ps: 1}\ndevices: {ps: [{name: cpu:0, memory: much}]}", "memory is a number or a text"),
        (
            "jobs: {ps: 1}\ndevices: {ps: [{name: a:0, size: 1}]}",
            "`$.devices[ps][0]`: there is an unknown field `size`; known are: name",
        ),
        (
            "jobs: {ps: 1}\ndevices: {ps: [{name: cpu:0, emulated: 1}]}",
            "at `$.devices[ps][0].emulated`: Expected `bool`, got `int`",
        ),
        ("jobs: {ps: 1}\ndevices: {ps: [cpu:0, cpu:0]}", "listed twice"),
        ("jobs: {ps: 1}\nlinks: {a: b}", "at `$.links`: Expected `list | null`, got `mapping`"),
        ("jobs: {ps: 1}\nlinks: [{between: [/job:ps]}]", "between"),
        ("jobs: {ps: 1}\nlinks: [{between: [/job:ps, x]}]", "x"),
        ("jobs: {ps: 1}\nlinks: [{between: [/job:ps, /job:ps], latency: 3 GiB}]", "latency is a number"),
        ("jobs: {ps: 1", "while parsing"),
        ("!!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_bad_files_are_told_by_name(tmp_path, text, told):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="bad.yaml") as e:
        read_cluster(path)
    assert told in str(e.value)


@pytest.mark.parametrize(
    "given",
    ["worker=2,ps=1", " worker=2 , ps=1 ", '{"worker": 2, "ps": 1}', '{"jobs": {"worker": 2, "ps": 1}}', "worker: 2\nps: 1",
     '{"cluster": {"worker": ["a:1", "b:1"], "ps": ["c:1"]}, "task": {"type": "ps", "index": 0}}', "jobs: {worker: 2, ps: 1}"],
)  # fmt: skip
def test_a_text_describes_a_cluster_like_a_file(tmp_path, given):
    (tmp_path / "c.yaml").write_text("jobs: {worker: 2, ps: 1}")
    assert dt.place(dt.Graph(), given).cluster.tasks == read_cluster(tmp_path / "c.yaml").tasks
    with_facts = '{"jobs": {"worker": 1}, "devices": {"worker": [{"name": "gpu:0", "memory": "80 GiB"}]}}'
    assert read_cluster(with_facts).devices[0].memory_bytes == 80 << 30


@pytest.mark.parametrize("given", ["{", "worker: {", "[1]", "{}"])
def test_texts_that_describe_no_cluster_are_refused(given):
    with pytest.raises(ValueError, match=re.escape(given)):
        read_cluster(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("ps:1, worker:2", "write ps=1,worker=2"),
        ("worker=two", "'two' is not a number of tasks; write worker=2"),
        ("worker=", "'' is not a number of tasks; write worker=2"),
        ("worker=4,ps", "'ps' has no number of tasks; write ps=2"),
        ("ps=1,worker=-2", "'-2' is not a number of tasks; write worker=2"),
        ("localhost:2222", "write zmq://localhost:2222"),
        ("worker4", "There is no file 'worker4'; numbers of tasks are written worker=4,ps=2"),
    ],
)
def test_numbers_of_tasks_that_are_miswritten_are_corrected(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        read_cluster(given)
    with pytest.raises(FileNotFoundError):
        read_cluster("ps,worker")


def test_a_file_that_is_not_there():
    with pytest.raises(FileNotFoundError):
        dt.place(dt.Graph(), "nowhere.yaml")


@pytest.mark.parametrize(
    ("given", "what", "value"),
    [
        (3, "memory", 3.0),
        ("2 KiB", "memory", 2048.0),
        ("1.5e3", "memory", 1500.0),
        ("10 Gbit/s", "bandwidth", 1.25e9),
        ("10 GB/s", "bandwidth", 1e10),
        ("10 Gbps", "bandwidth", None),
        ("50us", "latency", 5e-5),
        ("50 µs", "latency", 5e-5),
        ("2", "latency", 2.0),
        ("67 Tflop/s", "flops", 67e12),
        ("67 T", "flops", 67e12),
        ("1 GB/s", "memory", None),
        ("-3", "memory", None),
        (-3, "memory", None),
        (True, "memory", None),
        (float("nan"), "flops", None),
        ("1e999", "flops", None),
        ([1], "flops", None),
    ],
)
def test_quantities(given, what, value):
    if value is None:
        with pytest.raises(ValueError, match=f"{what} is a number"):
            quantity(given, what)
    else:
        assert quantity(given, what) == pytest.approx(value)


def test_what_runs_is_a_cluster():
    with dt.Graph().as_default() as g, dt.Session() as session:
        dt.constant(1.0, name="c")
        plan = dt.place(g, session)
        assert plan.cluster.devices == tuple(session.list_devices())
        assert dt.place(g, plan.cluster, master="/job:localhost").placement == plan.placement
    with pytest.raises(TypeError, match="not 3"):
        as_cluster(3)
    with pytest.raises(ValueError, match="pass the session"):
        as_cluster("zmq://host:1")
    for given in (plan.cluster, "x.yaml"):
        with pytest.raises(ValueError, match="leave out `devices`"):
            as_cluster(given, {"ps": ["cpu:0"]})
    with pytest.raises(InvalidArgumentError, match="is no task"):
        as_cluster(plan.cluster, master="/job:moon")


def test_devices_of_one_task_win_over_those_of_its_job():
    found = make_cluster({"a": 2}, {"a": ["cpu:0"], "/job:a/task:1": ["cpu:0", "gpu:3"]})
    assert [len(found.devices_of(t)) for t in found.tasks] == [1, 2]
    assert isinstance(found, Cluster)


def test_a_cluster_survives_its_file(tmp_path):
    gpu = {"name": "gpu:0", "model": "H200", "memory": 80e9, "flops": 6.7e13, "bandwidth": 3.35e12}
    links = [Link("/job:ps/task:0", "/job:worker/task:0", 5e-5, 3.125e9), Link("/job:worker", "", 1e-3, None)]
    devices = {"worker": ["cpu:0", gpu], "gaps": [{"name": "cpu:0", "emulated": True}]}
    made = make_cluster({"ps": 2, "worker": 1, "gaps": {1: "a:1", 3: "b:1"}}, devices, links=links)
    (tmp_path / "c.yaml").write_text(cluster_text(made))
    assert read_cluster(tmp_path / "c.yaml") == made


def test_the_schema_accepts_what_the_reader_accepts():
    schema = file_format.schema()
    assert schema["$defs"]["ClusterFile"]["required"] == ["jobs"]
    assert set(schema["$defs"]["DeviceFacts"]["properties"]) == {
        "name",
        "memory",
        "flops",
        "bandwidth",
        "emulated",
        "host",
        "model",
    }
    for properties in (d["properties"] for d in schema["$defs"].values()):
        assert all("description" in p for p in properties.values())  # what an editor shows
