"""`colocate_with`: the device and the groups of the nodes made inside, and the colocations that the library makes itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import dovetail as dt

BOTH_KINDS = pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])


@pytest.fixture
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as g:
        yield g


def const(name: str, *blocks: Any) -> dt.Tensor:
    """A constant made inside these device blocks, the outermost first."""
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(dt.device(block))
        return dt.constant(1.0, name=name)


def groups(x: Any) -> list[str]:
    return [g.decode() for g in x.op.colocation_groups()]


def variable(name: str, **options: Any) -> Any:
    """A variable whose initial value is made with it."""
    return dt.Variable(lambda: dt.constant([1.0, 2.0]), name=name, **options)


# --- groups -------------------------------------------------------------------------------------------------------


def test_a_node_is_in_the_group_of_its_own_name(graph: dt.Graph) -> None:
    a = const("a")
    assert groups(a) == ["loc:@a"]
    with pytest.raises(ValueError, match="_class"):
        a.op.get_attr("_class")


def test_a_node_made_inside_is_in_the_group_of_the_other(graph: dt.Graph) -> None:
    a = const("a")
    with dt.colocate_with(a.op):
        b = const("b")
    c = const("c")
    assert (groups(a), groups(b), groups(c)) == (["loc:@a"], ["loc:@a"], ["loc:@c"])
    assert b.op.get_attr("_class") == [b"loc:@a"]


def test_groups_are_transitive_and_do_not_nest(graph: dt.Graph) -> None:
    a = const("a")
    with dt.colocate_with(a):
        b = const("b")
    with dt.colocate_with(b):
        c = const("c")
    assert groups(c) == ["loc:@a"]


def test_a_node_may_be_in_several_groups(graph: dt.Graph) -> None:
    b, a = const("b"), const("a")
    with dt.colocate_with(b), dt.colocate_with(a):
        c = const("c")
    assert groups(c) == ["loc:@a", "loc:@b"]  # sorted
    with dt.colocate_with(c):
        assert groups(const("d")) == ["loc:@a", "loc:@b"]
    with dt.colocate_with(a), dt.colocate_with(c), dt.colocate_with(b):
        assert groups(const("e")) == ["loc:@a", "loc:@b"]  # each once


def test_ignore_existing_hides_outer_groups_for_the_duration(graph: dt.Graph) -> None:
    a, b = const("a"), const("b")
    with dt.colocate_with(a):
        with dt.colocate_with(b, ignore_existing=True):
            assert groups(const("c")) == ["loc:@b"]
        assert groups(const("d")) == ["loc:@a"]


def test_none_with_ignore_existing_clears_groups_and_devices(graph: dt.Graph) -> None:
    a = const("a", "/gpu:1")
    with dt.device("/job:x"), dt.colocate_with(a), dt.colocate_with(None, ignore_existing=True):
        b = const("b")
        with dt.colocate_with(b):
            c = const("c")
    assert (b.device, groups(b), groups(c)) == ("", ["loc:@b"], ["loc:@b"])


def test_none_alone_is_an_error(graph: dt.Graph) -> None:
    with pytest.raises(ValueError, match="ignore_existing"), dt.colocate_with(None):
        pass
    assert groups(const("a")) == ["loc:@a"]


@pytest.mark.parametrize("how", ["op", "tensor"])
def test_a_node_or_a_tensor_may_be_given(graph: dt.Graph, how: str) -> None:
    a = const("a", "/job:w")
    with graph.colocate_with(a.op if how == "op" else a):
        b = const("b")
    assert (b.device, groups(b)) == ("/job:w", ["loc:@a"])


@BOTH_KINDS
def test_a_variable_may_be_given(graph: dt.Graph, use_resource: bool) -> None:
    with dt.device("/job:ps"):
        v = variable("v", use_resource=use_resource)
    with dt.device("/job:w"), dt.colocate_with(v):
        b = const("b")
    assert (b.device, groups(b)) == ("/job:ps", ["loc:@v"])


@BOTH_KINDS
def test_a_variable_made_inside(graph: dt.Graph, use_resource: bool) -> None:
    a = const("a", "/job:w")
    with dt.colocate_with(a.op):
        v = variable("v", use_resource=use_resource)
    assert (v.device, groups(v)) == ("/job:w", ["loc:@a"])


# --- devices ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("around", "of_a", "inside", "device"),
    [
        ([], [], [], ""),
        ([], ["/gpu:0"], [], "/device:GPU:0"),
        (["/cpu:0"], ["/gpu:0"], [], "/device:GPU:0"),
        (["/job:x"], [], [], ""),  # blocks around do not apply inside
        ([], [], ["/cpu:0"], "/device:CPU:0"),  # blocks inside do,
        ([], ["/gpu:0"], ["/cpu:0"], "/device:GPU:0"),  # unless the other asks for something,
        ([], ["/job:w"], ["/task:1"], "/job:w"),  # and then nothing is merged
        (["/job:x"], [], ["/task:1"], "/task:1"),
        (["/job:x"], ["/job:w/task:1/gpu:0"], ["/job:y", "/cpu:0"], "/job:w/task:1/device:GPU:0"),
        ([], ["/job:w"], [None], "/job:w"),
        ([lambda node: "/job:f"], [], [], ""),
        ([], [], [lambda node: "/job:f"], "/job:f"),
        ([], ["/gpu:1"], [lambda node: "/job:f"], "/device:GPU:1"),
    ],
)
def test_the_device_of_a_node_made_inside(
    graph: dt.Graph, around: list[Any], of_a: list[str], inside: list[Any], device: str
) -> None:
    a = const("a", *of_a)
    with ExitStack() as stack:
        for block in around:
            stack.enter_context(dt.device(block))
        with dt.colocate_with(a):
            b = const("b", *inside)
        c = const("c")
    assert (b.device, groups(b)) == (device, ["loc:@a"])  # a group in any case: the placer reconciles
    assert groups(c) == ["loc:@c"]


def test_the_innermost_with_a_device_decides(graph: dt.Graph) -> None:
    a, b, free = const("a", "/job:a"), const("b", "/job:b"), const("free")
    with dt.colocate_with(a), dt.colocate_with(b):
        assert const("c").device == "/job:b"
    with dt.colocate_with(a), dt.colocate_with(b), dt.colocate_with(free):
        assert const("d").device == "/job:b"
    with dt.colocate_with(free), dt.device("/task:1"), dt.colocate_with(free):
        assert const("e").device == ""  # each colocation hides the device blocks around it


def test_a_function_sees_the_node_before_it_is_colocated(graph: dt.Graph) -> None:
    a = const("a", "/job:w")
    seen: list[str] = []
    with dt.colocate_with(a), dt.device(lambda node: seen.append(node.device) or "/job:f"), dt.device("/task:1"):
        assert const("b").device == "/job:w"
    assert seen == ["/task:1"]


def test_the_device_blocks_apply_again_behind_it(graph: dt.Graph) -> None:
    a = const("a", "/gpu:0")
    with dt.device("/job:x"):
        with dt.colocate_with(a):
            pass
        assert const("b").device == "/job:x"
        with pytest.raises(KeyError), dt.colocate_with(a):
            raise KeyError
        assert const("c").device == "/job:x"
        assert groups(const("d")) == ["loc:@d"]


def test_a_device_set_afterwards_is_handed_on_from_then(graph: dt.Graph) -> None:
    a = const("a")
    with dt.colocate_with(a):
        before = const("b")
        a.op._set_device("/job:late")
        after = const("c")
    assert (before.device, after.device) == ("", "/job:late")


def test_device_functions_answers_are_handed_on(graph: dt.Graph) -> None:
    a = const("a", lambda node: "/device:GPU:0")
    with dt.colocate_with(a), dt.device("/gpu:0"):
        assert const("b").device == a.device


@pytest.mark.parametrize(
    "order",
    [("colocation", "device"), ("device", "colocation"), ("device", "device", "colocation", "device")],
    ids="-".join,
)
def test_blocks_left_in_the_wrong_order_are_an_error_and_nothing_stays(graph: dt.Graph, order: tuple[str, ...]) -> None:
    a = const("a", "/job:w")
    failed = 0
    with dt.device("/job:x"):
        blocks: list[Any] = [graph.colocate_with(a) if o == "colocation" else graph.device("/gpu:0") for o in order]
        for block in blocks:
            block.__enter__()
        for block in blocks:
            try:
                block.__exit__(None, None, None)
            except RuntimeError as e:
                assert "scope without proper scope nesting" in str(e)
                failed += 1
        b = const("b")
        assert failed and (b.device, groups(b)) == ("/job:x", ["loc:@b"])
    assert const("c").device == ""


def test_nothing_is_left_of_colocations_that_were_left_in_the_wrong_order(graph: dt.Graph) -> None:
    blocks = [graph.colocate_with(const(n, "/job:w")) for n in ("a", "b", "c")]
    with dt.device("/job:x"):
        for block in blocks:
            block.__enter__()
        assert groups(const("d")) == ["loc:@a", "loc:@b", "loc:@c"]
        for block in blocks:  # the first takes the others with it
            with pytest.raises(RuntimeError, match="Exiting colocation scope without proper scope nesting"):
                block.__exit__(None, None, None)
        e = const("e")
        assert (e.device, groups(e)) == ("/job:x", ["loc:@e"])


# --- what the library colocates itself ----------------------------------------------------------------------------


def test_what_changes_a_reference_variable_is_with_it(graph: dt.Graph) -> None:
    with dt.device("/job:ps"):
        v = variable("v", use_resource=False)
    with dt.device("/job:w/gpu:0"):
        changes = [v.assign([1.0, 1.0]), v.assign_add([1.0, 1.0]), v.assign_sub([1.0, 1.0]), dt.assign(v, [3.0, 3.0])]
        changes += [dt.scatter_add(v, [0], [1.0]), dt.scatter_update(v, [0], [1.0])]
    for change in changes:
        assert (change.op.device, groups(change)) == ("/job:ps", ["loc:@v"])
    assert (v.initializer.device, v.initializer.colocation_groups()) == ("/job:ps", [b"loc:@v"])
    read = v.value()
    assert (read.op.type, read.device, groups(read)) == ("Identity", "/job:ps", ["loc:@v"])


def test_what_uses_a_resource_variable_is_left_to_the_placer(graph: dt.Graph) -> None:
    with dt.device("/job:ps"):
        v = variable("v", use_resource=True)
    with dt.device("/job:w"):
        change = v.assign_add([1.0, 1.0], read_value=False)
        read = v.read_value()
    assert (change.device, change.colocation_groups()) == ("/job:w", [f"loc:@{change.name}".encode()])
    assert (read.device, groups(read)) == ("/job:w", [f"loc:@{read.op.name}"])


def setter(node: Any) -> str:
    return "/job:ps" if node.type in ("VariableV2", "VarHandleOp") else "/job:w"


@pytest.mark.parametrize("how", ["a value", "a function"])
@BOTH_KINDS
def test_where_the_initial_value_is_made(graph: dt.Graph, use_resource: bool, how: str) -> None:
    with dt.device(setter):
        value: Any = [1.0, 2.0]
        v = dt.Variable(value if how == "a value" else lambda: dt.constant(value), name="v", use_resource=use_resource)
    initial = v.initial_value
    assert initial.op.type == "Const"
    assert v.device == v.initializer.device == "/job:ps"
    if how == "a value" and not use_resource:
        assert (initial.device, groups(initial)) == ("/job:w", [f"loc:@{initial.op.name}"])  # as the blocks say
    else:
        assert (initial.device, groups(initial)) == ("", ["loc:@v"])  # with the variable


@BOTH_KINDS
def test_slots_are_with_their_variable_and_use_up_a_turn(graph: dt.Graph, use_resource: bool) -> None:
    with dt.device(dt.train.replica_device_setter(ps_tasks=3)):
        v = variable("v", use_resource=use_resource)  # task 0
        momentum = dt.train.MomentumOptimizer(0.1, 0.9)
        momentum.minimize(dt.reduce_sum(v * v))
        w = variable("w", use_resource=use_resource)
    slot = momentum.get_slot(v, "momentum")
    assert v.device == slot.device == "/job:ps/task:0"
    assert groups(slot) == ["loc:@v"]
    assert w.device == "/job:ps/task:2"
    update = next(op for op in graph.get_operations() if "ApplyMomentum" in op.type)
    assert (update.device, update.colocation_groups()) == ("/job:ps/task:0", [b"loc:@v"])


@pytest.mark.parametrize("colocate", [False, True])
def test_gradients_are_with_the_nodes_they_belong_to_when_asked(graph: dt.Graph, colocate: bool) -> None:
    x = dt.placeholder(dt.float32, [2, 2], name="x")
    with dt.device("/job:far"):
        y = dt.matmul(x, x, name="y")
    with dt.device("/job:here"):
        dt.gradients(y, [x], name="back", colocate_gradients_with_ops=colocate)
    back = [op for op in graph.get_operations() if op.type == "MatMul" and op.name.startswith("back/y")]
    assert len(back) == 2
    for op in back:
        assert op.device == ("/job:far" if colocate else "/job:here")
        assert op.colocation_groups() == [b"loc:@y" if colocate else f"loc:@{op.name}".encode()]


@pytest.mark.parametrize(
    ("blocks", "device"),
    [
        ([], "/device:CPU:*"),
        (["/job:ps"], "/job:ps/device:CPU:*"),
        (["/job:ps/gpu:7"], "/job:ps/device:CPU:7"),  # the index stays
        ([lambda node: "/job:f"], "/job:f"),
        ([dt.train.replica_device_setter(ps_tasks=2)], "/job:worker/device:CPU:*"),  # a queue is no ps op
    ],
)
def test_a_queue_is_on_a_cpu_and_what_uses_it_is_left_to_the_placer(
    graph: dt.Graph, blocks: list[Any], device: str
) -> None:
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(dt.device(block))
        queue = dt.FIFOQueue(3, [dt.float32], shapes=[()], name="q")
    with dt.device("/job:w/gpu:0"):
        users = [queue.enqueue(1.0), queue.dequeue().op, queue.size().op, queue.close()]
    assert queue.queue_ref.device == device
    for user in users:
        assert (user.device, user.colocation_groups()) == ("/job:w/device:GPU:0", [f"loc:@{user.name}".encode()])
