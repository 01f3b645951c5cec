"""The placer's rules, one table per rule."""

import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.core.errors import InternalError, InvalidArgumentError
from dovetail.graph.core.opdef import Trait, define
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.rules.place import place
from dovetail.placer.rules.placement import Rule


def _same(inputs, attrs):
    return [(inputs[0].dtype.base, inputs[0].dims)]


define("PlaceGpuOnly", infer=_same, reference=None, device_types=("GPU",))
define("PlaceCpuOnly", infer=_same, reference=None, device_types=("CPU",))
define("PlaceTpuOnly", infer=_same, reference=None, device_types=("TPU",))
define("PlaceOnMaster", infer=_same, reference=None, traits=Trait.HOST_ONLY)
define("PlaceTwo", infer=lambda i, a: [], reference=None, ref_inputs=(0, 1), traits=Trait.STATEFUL)

TASK = "/job:{}/replica:0/task:{}/device:{}:{}"
PS0, PS1 = TASK.format("ps", 0, "CPU", 0), TASK.format("ps", 1, "CPU", 0)
W0, W0G, W0G1 = (TASK.format("worker", 0, *d) for d in (("CPU", 0), ("GPU", 0), ("GPU", 1)))
W1, W1G = TASK.format("worker", 1, "CPU", 0), TASK.format("worker", 1, "GPU", 0)
GPUS = {"worker": ["cpu:0", "gpu:0", "gpu:1"]}


@pytest.fixture
def graph():
    with dt.Graph().as_default() as g:
        yield g


def cluster(master="/job:worker/task:0", devices=GPUS):
    return make_cluster({"ps": 2, "worker": 2}, devices, master)


def cpus(master="/job:worker/task:0", count=3):
    some = [f"cpu:{i}" for i in range(count)]
    return make_cluster({"ps": 2, "worker": 2}, {"ps": some, "worker": some}, master)


def cpu(job, task, index=0):
    return TASK.format(job, task, "CPU", index)


def op(kind, *inputs, name=None):
    return dt.get_default_graph().create(kind, list(inputs), {}, name).outputs[0]


def where(graph, found, *tensors, **options):
    placement = place(graph, found, **options)
    return tuple(placement.device_of(getattr(t, "op", t)) for t in tensors)


# --- what a request means ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "master", "expected"),
    [
        ("", "/job:worker/task:0", W0G),  # unpinned: the master's best device
        ("", "/job:worker/task:1", W1G),
        ("", "/job:ps/task:1", PS1),  # the master's task, though another has a better device
        ("/job:ps/task:0", "/job:worker/task:0", PS0),
        ("/job:worker/task:1", "/job:ps/task:0", W1G),  # a task alone: its best device
        ("/job:ps", "/job:worker/task:0", PS0),  # a job alone: its first task
        ("/job:worker", "/job:ps/task:0", W0G),
        ("/job:worker", "/job:worker/task:1", W1G),  # the master's own task when it is in the job
        ("/task:1", "/job:worker/task:0", PS1),  # no job: tasks by name
        ("/task:0", "/job:worker/task:0", W0G),
        ("/cpu:0", "/job:worker/task:0", W0),
        ("/gpu:1", "/job:worker/task:0", W0G1),
        ("/gpu:*", "/job:worker/task:0", W0G),
        ("/gpu:0", "/job:ps/task:0", W0G),  # the master has none: the first task that has
        ("/replica:0/device:GPU:1", "/job:worker/task:0", W0G1),
        ("/job:worker/task:0/gpu:1", "/job:worker/task:1", W0G1),
    ],
)
def test_requests(graph, request_, master, expected):
    a, b = dt.constant(1.0), dt.constant(2.0)
    with dt.device(request_):
        c = dt.add(a, b)
    assert where(graph, cluster(master), c) == (expected,)


def test_pinning_as_the_books_show_it(graph):
    with dt.device("/job:ps/task:0/cpu:0"):
        a = dt.constant(3.0)
    with dt.device("/job:worker/task:0/gpu:1"):
        b = dt.add(a, dt.constant(2.0))
    c = dt.add(a, b)
    assert where(graph, cluster("/job:worker/task:1"), a, b, c) == (PS0, W0G1, W1G)


def test_a_kernel_decides_the_type(graph):
    a = dt.constant(1.0)
    only_cpu, only_gpu = op("PlaceCpuOnly", a), op("PlaceGpuOnly", a)
    assert where(graph, cluster(), only_cpu, only_gpu) == (W0, W0G)
    # The master has no GPU: the first task that has one.
    assert where(graph, cluster("/job:ps/task:0"), only_cpu, only_gpu) == (PS0, W0G)


def test_devices_are_ordered_as_text(graph):
    many = make_cluster({"worker": 1}, {"worker": ["cpu:2", "cpu:10", "cpu:3"]})
    c = dt.add(dt.constant(1.0), dt.constant(1.0))
    assert where(graph, many, c) == (TASK.format("worker", 0, "CPU", 10),)


def test_host_only_nodes_stay_with_the_client(graph):
    a = dt.constant(1.0)
    with dt.device("/cpu:0"):
        free = op("PlaceOnMaster", a)
    assert where(graph, cluster("/job:worker/task:1"), free) == (W1,)
    with dt.device("/job:ps"):
        op("PlaceOnMaster", a, name="far")
    with pytest.raises(InvalidArgumentError, match="(?s)far.*not on the master's task"):
        place(graph, cluster())


# --- nodes that follow others -----------------------------------------------------------------------------


def test_generators_follow_their_consumers(graph):
    only, split, unused, pinned = (dt.constant(1.0) for _ in range(4))
    with dt.device("/job:ps/task:1"):
        x = dt.add(only, split)
        pinned = dt.constant(1.0)
    with dt.device("/job:worker/task:1/cpu:0"):
        y = dt.add(split, pinned)
    assert where(graph, cluster(), x, y, only, split, unused, pinned) == (PS1, W1, PS1, W0G, W0G, PS1)


def test_control_edges_count_as_consumers(graph):
    a = dt.constant(1.0)
    with dt.device("/job:ps/task:1"):
        dt.add(a, a)
    with dt.control_dependencies([a.op]), dt.device("/job:worker/task:1/cpu:0"):
        dt.no_op()
    assert where(graph, cluster(), a) == (W0G,)


def test_a_generator_among_the_consumers_that_comes_later_is_nowhere_yet(graph):
    a = dt.constant(1.0)
    with dt.control_dependencies([a.op]), dt.device("/job:ps/task:1"):
        later = dt.constant(2.0)
    assert where(graph, cluster(), a, later) == (W0G, PS1)


def test_a_generator_that_was_placed_before_counts(graph):
    first = dt.constant(1.0)
    second = dt.constant(2.0)
    first.op._add_control_input(second.op)
    first.op._set_device("/job:ps/task:1")
    assert where(graph, cluster(), first, second) == (PS1, PS1)


def test_metadata_is_where_its_input_is(graph):
    with dt.device("/job:ps/task:1"):
        x = dt.add(dt.placeholder("float32"), dt.constant(1.0))
    assert where(graph, cluster(), dt.shape(x), dt.rank(x)) == (PS1, PS1)
    with dt.device("/cpu:0"):
        elsewhere = dt.shape(x)
    with dt.device("/job:worker/task:1/cpu:0"):
        pinned = dt.size(x)
    # Its input's device is a candidate of `/cpu:0`, not of the pinned one.
    assert where(graph, cluster(), elsewhere, pinned) == (PS1, W1)


def test_metadata_of_a_generator_is_placed_before_it(graph):
    with dt.device("/job:ps/task:1"):
        x = dt.placeholder("float32")
    assert where(graph, cluster(), dt.shape(x), x) == (W0G, PS1)


@pytest.mark.parametrize(
    ("case", "follows"),
    [
        (
            "alone",
            False,
        ),  # its one edge goes to the sink, which asks for nothing; its input asks for a device
        ("same request around", True),
        ("own request", False),
        ("other request behind", False),
        ("two consumers", False),
        ("control input", False),
    ],
)
def test_identity_follows_its_input_between_equal_requests(graph, case, follows):
    with dt.device("/job:ps/task:1"):
        x = dt.add(dt.constant(1.0), dt.constant(1.0))
    with dt.control_dependencies([x.op] if case == "control input" else []):
        before = [dt.no_op()] if case == "control input" else []
    with dt.control_dependencies(before), dt.device("/job:worker" if case == "own request" else ""):
        i = dt.identity(x)
    if case != "alone":
        with dt.device("/job:ps" if case == "other request behind" else "/job:ps/task:1"):
            dt.negative(i)
            if case == "two consumers":
                dt.negative(i)
    assert where(graph, cluster(), i) == (PS1 if follows else W0G,)


def test_identity_of_something_unpinned_with_no_consumer_follows(graph):
    a = op("PlaceGpuOnly", dt.constant(1.0))
    i = dt.identity(a)
    placement = place(graph, cluster("/job:ps/task:0"))
    assert placement.device_of(i.op) == W0G
    assert placement.decision(i.op).rule is Rule.IDENTITY


# --- groups -----------------------------------------------------------------------------------------------


def test_colocation_is_transitive_and_the_first_member_decides(graph):
    with dt.device("/job:ps/task:1"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0))
    with dt.colocate_with(a):
        b = dt.add(a, a)
    with dt.colocate_with(b):
        c = dt.add(b, b)
    assert where(graph, cluster(), a, b, c) == (PS1, PS1, PS1)
    assert place(graph, cluster()).decision(c.op).group == (a.op.name, b.op.name, c.op.name)


def test_a_group_merges_partial_requests(graph):
    a = dt.add(dt.constant(1.0), dt.constant(1.0))
    with dt.colocate_with(a), dt.device("/job:worker"):
        b = dt.add(a, a)
    with dt.colocate_with(a), dt.device("/task:1"):
        dt.add(b, b)
    assert where(graph, cluster(), a, b) == (W1G, W1G)


def test_a_group_has_the_types_that_all_members_support(graph):
    a = op("PlaceCpuOnly", dt.constant(1.0))
    with dt.colocate_with(a):
        b = dt.add(a, a)
    assert where(graph, cluster(), a, b) == (W0, W0)
    with dt.colocate_with(a):
        op("PlaceGpuOnly", a, name="impossible")
    told = "Cannot colocate nodes 'impossible' and .*no device type supports both"
    with pytest.raises(InvalidArgumentError, match=told):
        place(graph, cluster())


def test_a_group_need_not_be_a_node_s_name(graph):
    a, b, c = (dt.negative(1.0, name=n).op for n in "abc")
    a.colocation = b.colocation = ("nobody",)
    b._set_device("/job:ps/task:1")
    assert where(graph, cluster(), a, b, c) == (PS1, PS1, W0G)
    assert place(graph, cluster()).decision("a").group == ("a", "b")


def test_a_group_may_be_named_before_its_node_exists(graph):
    a = dt.add(dt.constant(1.0), dt.constant(1.0))
    a.op.colocation = ("later",)
    with dt.device("/job:ps/task:1"):
        later = dt.add(a, a, name="later")
    assert where(graph, cluster(), a, later) == (PS1, PS1)


@pytest.mark.parametrize("use_resource", [False, True])
def test_everything_that_takes_a_place_is_with_the_variable(graph, use_resource):
    with dt.device("/job:ps/task:1"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=use_resource)
    with dt.device("/job:worker/task:1"):
        changed = dt.assign(v, np.ones(3, "float32"))
        read = v.read_value()
        y = dt.add(v, 1.0)
    found = place(graph, cluster())
    assert found.device_of(v.op) == found.device_of(v.initializer) == found.device_of(changed.op) == PS1
    assert found.device_of(y.op) == W1G
    assert found.device_of(read.op) == W1G  # an Identity that the user pinned takes a value, not the place


def test_a_request_against_a_place_yields(graph):
    with dt.device("/job:ps/task:1"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=True)
    with dt.device("/job:worker"):
        change = v.assign(np.ones(3, "float32"), read_value=False)
    found = place(graph, cluster())
    assert found.device_of(change) == PS1
    told = [r for r in found.relaxations if r.node == change.name]
    assert told and "takes a reference to" in told[0].reason and told[0].requested == "/job:worker"


def test_what_uses_a_queue_is_with_the_queue(graph):
    with dt.device("/job:ps/task:1"):
        queue = dt.FIFOQueue(3, [dt.float32], shapes=[()])
    with dt.device("/job:worker/gpu:0"):
        users = [queue.enqueue(1.0), queue.dequeue().op, queue.close()]
    found = place(graph, cluster())
    assert {found.device_of(u) for u in (queue.queue_ref.op, *users)} == {PS1}
    assert {r.node for r in found.relaxations} >= {u.name for u in users}


def test_two_places_in_one_node_must_agree(graph):
    with dt.device("/job:ps/task:0"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=True)
    with dt.device("/job:ps/task:1"):
        w = dt.Variable(np.zeros(3, "float32"), use_resource=True)
    graph.create("PlaceTwo", [v.handle, w.handle], {}, "both")
    with pytest.raises(InvalidArgumentError) as e:
        place(graph, cluster())
    assert "edge connects colocation groups with incompatible resource devices" in str(e.value)
    assert "'/job:ps/task:0'" in str(e.value) and "'/job:ps/task:1'" in str(e.value)
    with pytest.raises(InvalidArgumentError):  # soft placement does not move places
        place(graph, cluster(), allow_soft_placement=True)


# --- stateful nodes stay ----------------------------------------------------------------------------------


def test_state_stays_where_it_was(graph):
    v = dt.Variable(np.zeros(3, "float32"))
    y = dt.add(v, 1.0)
    before = place(graph, cluster("/job:worker/task:0"))
    again = place(graph, cluster("/job:worker/task:1"), assigned=before.as_dict())
    assert again.device_of(v.op) == before.device_of(v.op) == W0G
    assert again.decision(v.op).rule is Rule.ASSIGNED
    assert again.device_of(v.initializer) == W0G
    assert again.device_of(y.op) == W1G  # no state: placed anew


def test_a_device_that_is_gone_is_an_error(graph):
    v = dt.Variable(np.zeros(3, "float32"), name="v")
    with pytest.raises(InternalError, match="does not match any device"):
        place(graph, cluster(), assigned={v.op.name: TASK.format("moon", 0, "CPU", 0)})


# --- soft placement ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "soft"),
    [
        ("/cpu:7", cpu("worker", 0)),  # an index that does not exist
        ("/gpu:0", cpu("worker", 0)),  # a type that does not exist
        ("/job:ps/task:1/gpu:3", cpu("ps", 1)),
        ("/job:moon", None),  # jobs and tasks are never given up
        ("/job:ps/task:7", None),
        ("/replica:3", None),
    ],
)
def test_soft_placement_gives_up_type_and_index_only(graph, request_, soft):
    a, b = dt.constant(1.0), dt.constant(1.0)
    with dt.device(request_):
        c = dt.add(a, b, name="c")
    with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation c"):
        place(graph, cpus())
    if soft is None:
        with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation c"):
            place(graph, cpus(), allow_soft_placement=True)
        return
    found = place(graph, cpus(), allow_soft_placement=True)
    assert found.device_of(c.op) == soft
    (told,) = found.relaxations
    assert (told.node, told.chosen) == ("c", soft) and "no device matches" in told.reason


def test_soft_placement_keeps_what_is_possible(graph):
    a = dt.constant(1.0)
    with dt.device("/gpu:0"):
        c = op("PlaceCpuOnly", a)
    with pytest.raises(InvalidArgumentError, match="no supported kernel for GPU devices"):
        place(graph, cluster())
    found = place(graph, cluster(), allow_soft_placement=True)
    assert found.device_of(c.op) == W0
    assert "no supported kernel for GPU" in found.relaxations[0].reason


def test_soft_placement_moves_a_place_last(graph):
    with dt.device("/job:ps/gpu:0"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=True)
    found = place(graph, cluster(), allow_soft_placement=True)
    assert found.device_of(v.op) == PS0
    assert "also for variables" in found.relaxations[0].reason


def test_conflicting_indices_in_a_group_are_given_up(graph):
    with dt.device("/cpu:1"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0))
    b = dt.add(a, a)
    b.op.colocation = (a.op.name,)
    b.op._set_device("/cpu:2")
    with pytest.raises(InvalidArgumentError, match="Cannot merge devices with incompatible ids"):
        place(graph, cpus())
    found = place(graph, cpus(), allow_soft_placement=True)
    assert found.device_of(a.op) == found.device_of(b.op) == cpu("worker", 0)
    assert {r.node for r in found.relaxations} == {a.op.name, b.op.name}
    assert "several device types or indices" in found.relaxations[0].reason


def test_a_place_s_type_and_index_are_not_given_up_for_a_colocation(graph):
    with dt.device("/cpu:1"):
        v = dt.Variable(np.zeros(3, "float32"), use_resource=True, name="v")
    b = dt.negative(1.0, name="b").op
    b.colocation = ("v",)
    b._set_device("/gpu:0")
    with pytest.raises(InvalidArgumentError, match="Cannot merge devices with incompatible types"):
        place(graph, cpus())
    found = place(graph, cpus(), allow_soft_placement=True)
    assert found.device_of("v") == found.device_of("b") == found.device_of(v.initializer) == cpu("worker", 0, 1)
    assert [r.node for r in found.relaxations] == ["b"]


def test_an_impossible_colocation_is_ignored_softly(graph):
    with dt.device("/job:ps"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0), name="a")
    b = dt.add(a, a, name="b")
    b.op.colocation = ("a",)
    b.op._set_device("/job:worker")
    with pytest.raises(InvalidArgumentError, match="Cannot merge devices with incompatible jobs"):
        place(graph, cpus())
    found = place(graph, cpus(), allow_soft_placement=True)
    assert (found.device_of("a"), found.device_of("b")) == (cpu("ps", 0), cpu("worker", 0))
    (told,) = found.relaxations
    assert told.node == "b" and "Ignoring request to colocate 'b' with 'a'" in told.reason


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", ["/job:a-b", "/task:-1", "/job:", "/job:ps/device:GPU-X:0"])
def test_malformed_names(graph, request_):
    with dt.device(request_):
        dt.constant(1.0, name="c")
    with pytest.raises(InvalidArgumentError, match="Malformed device specification") as e:
        place(graph, cluster())
    assert "'c' (Const)" in str(e.value) and "test_place.py:" in str(e.value)
    assert e.value.op.name == "c"


def test_no_kernel_at_all(graph):
    op("PlaceTpuOnly", dt.constant(1.0), name="t")
    told = "(?s)No OpKernel was registered to support Op 'PlaceTpuOnly'.*TPU.*'t'"
    with pytest.raises(InvalidArgumentError, match=told):
        place(graph, cluster())


def test_an_unknown_device_is_told_with_what_there_is(graph):
    with dt.device("/job:moon"):
        dt.add(dt.constant(1.0), dt.constant(1.0), name="a")
    with pytest.raises(InvalidArgumentError) as e:
        place(graph, cluster())
    text = str(e.value)
    assert "'a' was explicitly assigned to /job:moon but available devices are [" in text
    assert all(d in text for d in (PS0, W0G1, W1G))
    assert "inside device block '/job:moon' at" in text
    assert 'name="a")' in text  # the user's own line


def test_a_setter_may_ask_for_a_task_that_is_not_there(graph):
    with dt.device(dt.train.replica_device_setter(ps_tasks=2, ps_strategy=lambda node: 7)):
        dt.Variable([1.0], name="v")
    with pytest.raises(InvalidArgumentError, match="'v' was explicitly assigned to /job:ps/task:7") as e:
        place(graph, cluster())
    assert "inside device block function replica_device_setter" in str(e.value) and "requests task 7" in str(e.value)


def test_a_task_that_was_filtered_out_is_not_there(graph):
    with dt.device("/job:worker/task:1"):
        dt.negative(1.0, name="far")
    near = cluster().filtered(["/job:ps", "/job:worker/task:0"])
    with pytest.raises(InvalidArgumentError, match="explicitly assigned to /job:worker/task:1") as e:
        place(graph, near)
    assert PS1 in str(e.value) and W0G in str(e.value) and W1 not in str(e.value)
    assert "request '/job:worker/task:0' for 'far'" in str(e.value)


def test_the_first_failing_node_in_graph_order_is_told(graph):
    with dt.device("/job:moon"):
        late = dt.constant(1.0, name="generator")  # generators come last
    with dt.device("/job:sun"):
        i = dt.identity(late, name="first")
    with dt.device("/job:mars"):
        dt.add(i, i, name="second")
    with pytest.raises(InvalidArgumentError, match="operation first: "):
        place(graph, cluster())


def test_a_conflict_shows_the_smallest_contradiction(graph):
    with dt.device("/job:ps/task:0"):
        a = dt.add(dt.constant(1.0), dt.constant(1.0), name="a")
    b = dt.add(a, a, name="b")
    c = dt.add(a, a, name="c")
    b.op.colocation = ("a",)
    with dt.device("/task:1"):
        d = dt.add(c, c, name="d")
    d.op.colocation = ("c",)
    e = dt.add(d, d, name="e")
    e.op.colocation = ("b", "c")
    with pytest.raises(InvalidArgumentError) as error:
        place(graph, cluster())
    text = str(error.value)
    assert "Cannot merge devices with incompatible tasks" in text
    told = text.split("These requests conflict:\n")[1].split("Colocation group")[0]
    assert "'a' (AddV2) requests '/job:ps/task:0'" in told and "'d' (AddV2) requests '/task:1'" in told
    assert "'b'" not in told and "'c'" not in told.replace("colocated with c", "")
    assert "Colocation group of" in text and "All available devices" in text


def test_a_conflict_with_a_place_from_an_earlier_step_names_it(graph):
    dt.Variable(1.0, name="v")
    with dt.device("/job:ps"):
        slot = dt.Variable(1.0, name="slot")
    slot.op.colocation = ("v",)
    with pytest.raises(InvalidArgumentError) as error:
        place(graph, cluster(), assigned={"v": W0})
    told = str(error.value).split("These requests conflict:\n")[1].split("Colocation group")[0]
    assert "'v' (VariableV2) requests no device" in told and f"assigned to {W0} in an earlier step" in told
    assert (
        "'slot' (VariableV2) requests '/job:ps'" in told
        and "request '/job:ps' for 'v' where it is created, or run it first" in told
    )


def test_a_failure_changes_nothing(graph):
    a = dt.add(dt.constant(1.0), dt.constant(1.0))
    with dt.device("/job:moon"):
        dt.add(a, a)
    before = [(n.name, n.device, n.colocation) for n in graph.nodes]
    with pytest.raises(InvalidArgumentError):
        place(graph, cluster())
    assert [(n.name, n.device, n.colocation) for n in graph.nodes] == before
