"""Placing by kernels: what ops can run on decides for those who share a device with them. One table per rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dovetail as dt
from dovetail.errors import InternalError, InvalidArgumentError
from dovetail.graph.core import dtypes
from dovetail.graph.core.opdef import Trait, define
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.rules.place import place
from dovetail.placer.rules.placement import Placement, Rule

KERNELS = {"Any": ("GPU", "CPU"), "Cpu": ("CPU",), "Gpu": ("GPU",), "CpuFirst": ("CPU", "GPU"), "Tpu": ("TPU",)}
STATE = Trait.STATEFUL | Trait.STATE_HANDLE


def _value(inputs: Any, attrs: Any) -> Any:
    return [(dtypes.float32, None)]


for suffix, types in KERNELS.items():
    on: Any = {"reference": None, "device_types": types}
    define(f"KIn{suffix}", infer=_value, **on)
    define(f"KOp{suffix}", infer=_value, **on)
    define(f"KRef{suffix}", infer=lambda i, a: [(dtypes.float32.ref, None)], traits=STATE, **on)
    define(f"KHandle{suffix}", infer=lambda i, a: [(dtypes.resource, ())], traits=STATE, **on)
    define(f"KSet{suffix}", infer=lambda i, a: [], traits=Trait.STATEFUL, ref_inputs=(0, 1), **on)

NAME = "/job:a/replica:0/task:0/device:{}:{}"
CPU, GPU = NAME.format("CPU", 0), NAME.format("GPU", 0)
CLUSTER = make_cluster({"a": 1}, {"a": [f"{kind}:{i}" for kind in ("cpu", "gpu") for i in range(3)]})
PLACES = pytest.mark.parametrize("place_", ["KRef", "KHandle"])


@pytest.fixture(autouse=True)
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as g:
        yield g


def op(kind: str, name: str, *inputs: Any, device: str = "", groups: tuple[str, ...] = ()) -> Any:
    """A node with exactly this request and these groups; its first output where it has one."""
    node = dt.get_default_graph().create(kind, list(inputs), {}, name)
    node.colocation = groups  # what takes a reference was colocated with it; here the placer must find out
    node._set_device(device)
    return node.outputs[0] if node.outputs else node


def placed(**options: Any) -> Placement:
    return place(dt.get_default_graph(), CLUSTER, **options)


def where(*names: str, **options: Any) -> list[str]:
    found = placed(**options)
    return [found.device_of(n).removeprefix("/job:a/replica:0/task:0/device:") for n in names]


def refused(*words: str, **options: Any) -> str:
    with pytest.raises(InvalidArgumentError) as e:
        placed(**options)
    for w in words:
        assert w in str(e.value)
    return str(e.value)


# --- places of state and who takes them ---------------------------------------------------------------------------


@PLACES
@pytest.mark.parametrize(
    ("variable", "change", "expected"),
    [
        ("Any", "Any", "GPU:0"),
        ("Any", "Cpu", "CPU:0"),
        ("Any", "Gpu", "GPU:0"),
        ("Cpu", "Any", "CPU:0"),
        ("Cpu", "Cpu", "CPU:0"),
        ("Cpu", "Gpu", None),
        ("Gpu", "Any", "GPU:0"),
        ("Gpu", "Cpu", None),
        ("Gpu", "Gpu", "GPU:0"),
        # who prefers another order than the default one decides about it
        ("CpuFirst", "Any", "CPU:0"),
        ("Any", "CpuFirst", "CPU:0"),
        ("CpuFirst", "CpuFirst", "CPU:0"),
        ("CpuFirst", "Gpu", "GPU:0"),
        ("Gpu", "CpuFirst", "GPU:0"),
    ],
)
def test_kernels_of_both(place_: str, variable: str, change: str, expected: str | None) -> None:
    value = op("KInCpu", "in")
    for i in range(3):
        op(f"KSet{change}", f"set{i}", op(place_ + variable, f"var{i}"), value)
    if expected is None:
        text = refused("Nodes were connected by a reference connection", "no device type supports both of those nodes")
        assert "'set0'" in text and "'var0'" in text
        refused("no device type supports both", allow_soft_placement=True)  # not even softly
    else:
        assert where("var0", "set0", "var1", "set1", "var2", "set2", "in") == [expected] * 6 + ["CPU:0"]


@PLACES
@pytest.mark.parametrize(
    ("of_variable", "of_change", "expected", "dropped"),
    [
        ("", "", "GPU:0", False),
        ("/gpu:0", "/cpu:0", "GPU:0", True),  # against the place: the request is dropped
        ("/cpu:1", "/cpu:2", "CPU:1", True),
        ("/cpu:*", "/gpu:1", "CPU:0", True),
        ("", "/cpu:1", "CPU:1", False),  # the place asks for nothing: it follows
        ("/task:0", "/job:a/cpu:1", "CPU:1", False),  # more is asked for, and nothing is against it
        ("/cpu:*", "/cpu:2", "CPU:2", False),
        ("/job:a/gpu:1", "/gpu:*", "GPU:1", False),
        ("/job:a", "/job:b", "GPU:0", True),  # even a job that is not there
        ("/job:a/task:0", "/task:7/cpu:1", "GPU:0", True),  # dropped as a whole
    ],
)
@pytest.mark.parametrize("soft", [False, True])
def test_requests_of_both(
    place_: str, of_variable: str, of_change: str, expected: str, dropped: bool, soft: bool
) -> None:
    v = op(place_ + "Any", "var", device=of_variable)
    op("KSetAny", "set", v, op("KInAny", "in"), device=of_change)
    assert where("var", "set", "in", allow_soft_placement=soft) == [expected] * 3
    told = [(r.node, r.requested) for r in placed(allow_soft_placement=soft).relaxations]
    assert told == ([("set", dt.DeviceSpec.from_string(of_change).to_string())] if dropped else [])


@PLACES
def test_a_place_is_moved_softly_where_who_takes_it_cannot_run(place_: str) -> None:
    v = op(place_ + "Any", "var", device="/cpu:0")
    op("KSetGpu", "set", v, op("KInAny", "in"))
    # A handle is made out of nothing, and placed after those who take it.
    told_of = "var" if place_ == "KRef" else "set"
    refused(f"Cannot assign a device for operation {told_of}", "'set'", "KSetGpu has kernels for GPU")
    assert where("var", "set", allow_soft_placement=True) == ["GPU:0", "GPU:0"]
    (told,) = placed(allow_soft_placement=True).relaxations
    assert told.node == "var" and "no supported kernel for CPU" in told.reason
    assert "also for variables" in told.reason


@PLACES
@pytest.mark.parametrize("soft", [False, True])
def test_two_places_that_contradict_each_other(place_: str, soft: bool) -> None:
    a, b = op(place_ + "Any", "a", device="/job:a/cpu:0"), op(place_ + "Any", "b", device="/job:a/gpu:0")
    op("KSetAny", "both", a, b)
    refused("connects colocation groups with incompatible resource devices", "'a'", "'b'", allow_soft_placement=soft)


@PLACES
def test_two_places_that_agree(place_: str) -> None:
    a, b = op(place_ + "Any", "a", device="/job:a"), op(place_ + "Any", "b", device="/cpu:2")
    op("KSetAny", "both", a, b)
    assert where("a", "b", "both") == ["CPU:2"] * 3


# --- state that has a device already ------------------------------------------------------------------------------


@PLACES
@pytest.mark.parametrize("soft", [False, True])
def test_places_with_devices_from_earlier_steps_that_contradict_each_other(place_: str, soft: bool) -> None:
    op("KSetAny", "both", op(place_ + "Any", "a"), op(place_ + "Any", "b"))
    kept = {"a": CPU, "b": GPU}
    refused("groups with incompatible assigned devices", assigned=kept, allow_soft_placement=soft)


@PLACES
def test_a_kept_device_without_a_kernel_for_who_takes_the_place(place_: str) -> None:
    op("KSetGpu", "set", op(place_ + "Any", "var"), op("KInAny", "in"))
    told = "colocated with a group of nodes that required incompatible device '/job:a/replica:0/task:0/device:CPU:0'"
    refused(told, "'set'", assigned={"var": CPU})
    refused(told, "'set'", assigned={"var": CPU}, allow_soft_placement=True)


def test_a_kept_device_is_kept_against_the_request() -> None:
    op("KRefAny", "var", device="/cpu:1")
    assert where("var", assigned={"var": GPU}) == ["GPU:0"]
    assert placed(assigned={"var": GPU}).decision("var").rule is Rule.ASSIGNED


@pytest.mark.parametrize(
    ("kind", "device", "message"),
    [
        ("KRefAny", "/job:b/replica:0/task:0/device:CPU:0", "does not match any device"),
        ("KRefAny", "/job:a", "Assigned device '/job:a' does not match any device"),
        ("KRefAny", "/foo:bar", "Malformed assigned device '/foo:bar'"),
        ("KRefCpu", GPU, f"Assigned device '{GPU}' does not have registered OpKernel support for KRefCpu"),
    ],
)
def test_a_kept_device_that_cannot_be_is_dovetails_own_fault(kind: str, device: str, message: str) -> None:
    op(kind, "var")
    with pytest.raises(InternalError) as e:
        placed(assigned={"var": device})
    assert message in str(e.value) and e.value.op.name == "var"


# --- the user's groups --------------------------------------------------------------------------------------------


def test_a_group_goes_where_all_can_run() -> None:
    x = op("KInCpu", "in")
    op("KOpAny", "with", x, groups=("in",))
    op("KOpAny", "apart", x)
    assert where("in", "with", "apart") == ["CPU:0", "CPU:0", "GPU:0"]


def test_several_groups_become_one() -> None:
    x = op("KInCpu", "in")
    y = op("KOpAny", "y", x, groups=("in",))
    op("KOpAny", "z", y, groups=("in", "y"))
    assert where("in", "y", "z") == ["CPU:0"] * 3


@pytest.mark.parametrize("groups", [("in", "y"), ("y", "in"), ("y",), ("in",)])
def test_groups_without_a_common_kernel(groups: tuple[str, ...]) -> None:
    x = op("KInCpu", "in")
    y = op("KOpCpu", "y", x, groups=("in",))
    op("KOpGpu", "z", y, groups=groups)
    because = "because no device type supports both of those nodes and the other nodes colocated with them"
    refused(f"Cannot colocate nodes 'z' and '{groups[0]}' {because}")
    assert where("in", "y", "z", allow_soft_placement=True) == ["CPU:0", "CPU:0", "GPU:0"]
    told = placed(allow_soft_placement=True).relaxations
    assert {r.node for r in told} == {"z"} and "Ignoring request to colocate" in told[0].reason


@PLACES
def test_groups_against_places(place_: str) -> None:
    value = op("KInAny", "in")
    first, second = op(place_ + "Cpu", "var1"), op(place_ + "Gpu", "var2")
    op("KSetAny", "set1", first, value, groups=("var1",))
    op("KSetAny", "set2", second, value, groups=("var1",))
    refused("Cannot colocate nodes 'set2' and 'var1'", "no device type supports both")
    assert where("var1", "set1", "var2", "set2", allow_soft_placement=True) == ["CPU:0", "CPU:0", "GPU:0", "GPU:0"]


@pytest.mark.parametrize("soft", [False, True])
def test_groups_of_places_of_which_one_is_asked_for_elsewhere(soft: bool) -> None:
    a, b = op("KHandleAny", "a", device="/gpu:0"), op("KHandleAny", "b", device="/cpu:0")
    op("KSetAny", "set_b", b, op("KInAny", "in"))
    op("KSetAny", "set_a", a, op("KInAny", "in2"), groups=("set_b",))
    if soft:  # places stay, the colocation goes
        assert where("a", "set_a", "b", "set_b", allow_soft_placement=True) == ["GPU:0", "GPU:0", "CPU:0", "CPU:0"]
    else:
        refused("Cannot colocate nodes", "Cannot merge devices with incompatible types")


def test_many_groups_and_places() -> None:
    value = op("KInAny", "in")
    for i in range(10):
        op("KSetAny", f"set{i}", op("KRefAny", f"var{i}", device=f"/gpu:{i % 3}"), value)
    for i in range(10, 60):
        v = op("KRefAny", f"var{i}", groups=(f"var{i % 6}",))
        op("KSetAny", f"set{i}", v, value, groups=(f"set{i % 6}",))
    found = placed()
    for i in range(60):
        assert (
            found.device_of(f"var{i}")
            == found.device_of(f"set{i}")
            == NAME.format("GPU", i % 6 % 3 if i >= 10 else i % 3)
        )


def test_the_order_of_types_in_a_group_does_not_depend_on_the_order_of_its_members() -> None:
    for i, kinds in enumerate((("Any", "CpuFirst", "Any"), ("CpuFirst", "Any", "Any"), ("Any", "Any", "CpuFirst"))):
        for j, kind in enumerate(kinds):
            op(f"KIn{kind}", f"n{i}{j}", groups=(f"group{i}",))
    assert where(*(f"n{i}{j}" for i in range(3) for j in range(3))) == ["CPU:0"] * 9


# --- who follows whom ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "device", "expected"),
    [("KInAny", "", "CPU:0"), ("KInGpu", "", "GPU:0"), ("KInAny", "/cpu:1", "CPU:1"), ("KInAny", "/cpu:*", "CPU:0")],
)
def test_a_value_out_of_nothing_follows_its_consumer_if_it_can_be_there(kind: str, device: str, expected: str) -> None:
    v = op("KRefCpu", "var")
    x = op(kind, "in", device=device)
    op("KSetAny", "set", v, x)
    assert where("var", "set", "in") == ["CPU:0", "CPU:0", expected]


def test_several_consumers_on_one_device_and_on_two() -> None:
    x, y = op("KInAny", "x"), op("KInAny", "y")
    for i, device in enumerate(("/cpu:1", "/cpu:1", "/cpu:2")):
        v = op("KRefCpu", f"var{i}", device=device)
        op("KSetAny", f"set{i}", v, x if i < 2 else y)
    op("KOpCpu", "more", y)
    assert where("x", "y") == ["CPU:1", "GPU:0"]


def test_what_looks_only_at_shapes_stays_with_its_input() -> None:
    v = op("KRefCpu", "var")
    dt.shape(v, name="shape")
    x = op("KOpCpu", "x", op("KInAny", "in"))
    dt.rank(x, name="rank")
    assert where("shape", "rank") == ["CPU:0", "CPU:0"]


# --- requests that cannot be met ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "device", "words", "soft"),
    [
        ("KInAny", "/gpu:11", ["'n' was explicitly assigned to /device:GPU:11 but available devices are ["], "GPU:0"),
        ("KInAny", "/job:foo/replica:17", ["explicitly assigned to /job:foo/replica:17 but available devices"], None),
        ("KInAny", "/job:a/task:1", ["explicitly assigned to /job:a/task:1"], None),
        ("KInAny", "/device:TPU:0", ["explicitly assigned to /device:TPU:0"], "GPU:0"),
        ("KInGpu", "/cpu:0", ["no supported kernel for CPU devices is available", "'/device:CPU:0'"], "GPU:0"),
        ("KInCpu", "/gpu:1", ["no supported kernel for GPU devices is available"], "CPU:0"),
        # with a type goes its index: it may be another type's
        ("KInCpu", "/gpu:2", ["no supported kernel for GPU"], "CPU:0"),
        ("KRefCpu", "/gpu:2", ["no supported kernel for GPU"], "CPU:0"),
    ],
)
def test_a_request_that_cannot_be_met(kind: str, device: str, words: list[str], soft: str | None) -> None:
    op(kind, "n", device=device)
    refused("Cannot assign a device for operation n: ", *words)
    if soft is None:
        refused(*words, allow_soft_placement=True)
        return
    assert where("n", allow_soft_placement=True) == [soft]
    (told,) = placed(allow_soft_placement=True).relaxations
    assert (told.node, told.requested) == ("n", dt.DeviceSpec.from_string(device).to_string())
    assert "device type and index were dropped" in told.reason


@pytest.mark.parametrize("device", ["", "/cpu:0", "/job:a/task:0"])
@pytest.mark.parametrize("soft", [False, True])
def test_an_op_without_a_kernel_for_any_device(device: str, soft: bool) -> None:
    op("KInTpu", "n", device=device)
    told = "No OpKernel was registered to support Op 'KInTpu'"
    refused(told, "'n'", "TPU", "CPU and GPU", allow_soft_placement=soft)


def test_a_request_in_a_group_that_needs_something_else() -> None:
    """The variable can only be on task 0, which has the GPU; its assignment asks for task 1."""
    value = op("KInCpu", "in")
    op("KSetAny", "set", op("KRefGpu", "var"), value, device="/job:b/task:1")
    two = make_cluster({"b": 2}, {"/job:b/task:0": ["gpu:0"], "/job:b/task:1": ["cpu:0"]})
    with pytest.raises(InvalidArgumentError) as e:
        place(dt.get_default_graph(), two)
    text = str(e.value)
    assert "colocated with a group of nodes that required incompatible device" in text
    assert "'var' (KRefGpu)" in text and "kernels for GPU" in text and "'set' (KSetAny)" in text
    assert "/job:b/replica:0/task:0/device:GPU:0" in text


def test_a_gpu_where_no_task_has_one() -> None:
    op("KInAny", "n", device="/job:a/gpu:0")
    with pytest.raises(InvalidArgumentError, match="appears to be a GPU, but no task has one"):
        place(dt.get_default_graph(), make_cluster({"a": 2}))
    op("KInAny", "m", device="/gpu:9")
    assert "appears to be a GPU" not in refused("'m' was explicitly assigned to /device:GPU:9")


def test_a_cluster_without_devices() -> None:
    with pytest.raises(ValueError, match="has no device"):
        make_cluster({"a": 1}, {"a": []})
