"""What a graph refuses, and what stays possible: finalized graphs, graphs that several threads build."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as dt


@pytest.fixture
def graph() -> Iterator[dt.Graph]:
    with dt.Graph().as_default() as g:
        yield g


def test_a_node_in_plain_data(graph: dt.Graph) -> None:
    x = dt.placeholder(dt.float32, [4], name="x")
    first, second = dt.split(x, 2, name="halves")
    with dt.control_dependencies([x.op]), dt.device("/gpu:1"):
        both = dt.add(second, first, name="both")
    told = both.op.node_def
    assert (told.name, told.device) == ("both", "/device:GPU:1")
    assert list(told.input) == ["halves:1", "halves", "^x"]
    assert told.op == both.op.type
    assert isinstance(told, dt.NodeDef)
    assert x.op.node_def.device == "" and not list(x.op.node_def.input)


@pytest.mark.parametrize("convert", [float, int, np.asarray])
def test_a_tensor_is_no_value(graph: dt.Graph, convert: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"'x:0' .* has no value before the graph runs.*session.run"):
        convert(dt.constant(1.0, name="x"))


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["my name", "_hidden", "-x", "x:0", "a[1]", "größe"])
def test_what_can_be_no_name_is_refused(graph: dt.Graph, name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid node name: it must begin with"):
        dt.constant(1.0, name=name)
    with pytest.raises(ValueError, match="is not a valid scope name"), dt.name_scope(name):
        pass
    assert len(graph) == 0 and graph.unique_name("my") == "my"


def test_inside_a_scope_a_name_may_begin_with_what_it_may_go_on_with(graph: dt.Graph) -> None:
    with dt.name_scope("outer"), dt.name_scope("_inner"):
        assert dt.constant(1.0, name="_x-1.y/z").name == "outer/_inner/_x-1.y/z:0"


def test_a_refused_node_is_called_by_its_name(graph: dt.Graph) -> None:
    with pytest.raises(ValueError, match=r"^AddV2 'add': Shapes"):
        dt.zeros([2]) + dt.zeros([3])


# --- finalized graphs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda g: dt.constant(2.0),
        lambda g: g.get_tensor_by_name("a:0") + 1.0,
        lambda g: dt.Variable(1.0),
        lambda g: g.add_to_collection("c", 1),
        lambda g: g.add_to_collections(["c", "d"], 1),
        lambda g: g.clear_collection("c"),
    ],
)
def test_a_finalized_graph_cannot_be_changed(graph: dt.Graph, change: Callable[[Any], Any]) -> None:
    dt.constant(1.0, name="a")
    graph.finalize()
    assert graph.finalized
    with pytest.raises(RuntimeError, match="Graph is finalized and cannot be modified"):
        change(graph)
    assert [n.name for n in graph.get_operations()] == ["a"]
    assert graph.get_all_collection_keys() == []


def test_a_finalized_graph_can_be_used(graph: dt.Graph) -> None:
    a = dt.constant(1.0, name="a")
    graph.finalize()
    graph.finalize()
    with graph.device("/gpu:0"), graph.name_scope("s"), graph.colocate_with(a):
        pass
    a.op._set_device("/cpu:0")
    assert a.device == "/device:CPU:0"
    assert graph.get_collection("c") == []
    with dt.Session(graph=graph) as session:
        assert session.run(a) == 1.0


# --- threads ------------------------------------------------------------------------------------------------------


def in_threads(count: int, build: Callable[[int], None]) -> None:
    """Run `build(0)`, `build(1)`, ... at the same time; what one of them raises is raised here."""
    failed: list[BaseException] = []
    start = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            start.wait(10)
            build(i)
        except BaseException as e:  # noqa: BLE001  # handed on
            failed.append(e)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if failed:
        raise failed[0]


def test_threads_may_build_one_graph(graph: dt.Graph) -> None:
    def build(i: int) -> None:
        with graph.as_default():
            x = dt.constant(float(i))
            for _ in range(100):
                x = x + 1.0

    in_threads(4, build)
    nodes = graph.get_operations()
    assert len(nodes) == 4 * 201
    assert len({n.name for n in nodes}) == len(nodes)
    assert [n.index for n in nodes] == list(range(len(nodes)))
    assert all(t.op.index < n.index for n in nodes for t in n.inputs)


def test_after_the_switch_no_block_of_one_thread_shows_in_another(graph: dt.Graph) -> None:
    graph.switch_to_thread_local()
    made: dict[int, list[dt.Operation]] = {i: [] for i in range(4)}
    anchors = [dt.constant(0.0, name=f"anchor{i}") for i in range(4)]

    def build(i: int) -> None:
        with graph.as_default():
            for _ in range(50):
                with dt.device(f"/task:{i}"), dt.name_scope(f"of{i}/"), dt.container(f"box{i}"):
                    with dt.control_dependencies([anchors[i]]):
                        made[i].append(dt.constant(1.0).op)
                    with dt.colocate_with(anchors[i]):
                        made[i].append(dt.constant(2.0).op)

    in_threads(4, build)
    for i, nodes in made.items():
        for waiting, beside in zip(nodes[::2], nodes[1::2], strict=True):
            assert (waiting.device, waiting.control_inputs) == (f"/task:{i}", [anchors[i].op])
            assert (beside.device, beside.colocation) == ("", (f"anchor{i}",))
            assert waiting.control_inputs and not beside.control_inputs
            assert {waiting.container, beside.container} == {f"box{i}"}
            assert waiting.name.startswith(f"of{i}/") and beside.name.startswith(f"of{i}/")


def test_a_thread_starts_from_all_blocks_that_were_open_at_the_switch(graph: dt.Graph) -> None:
    a = dt.constant(1.0, name="a")
    found: list[dt.Operation] = []

    def build(i: int) -> None:
        with graph.as_default():
            found.append(dt.constant(1.0).op)

    with graph.name_scope("s"), graph.container("box"), graph.control_dependencies([a]), graph.colocate_with(a):
        graph.switch_to_thread_local()
        graph.switch_to_thread_local()  # twice is once
        in_threads(2, build)
    assert [(n.name[:2], n.container, n.control_inputs, n.colocation) for n in found] == [
        ("s/", "box", [a.op], ("a",))
    ] * 2


def test_default_graphs_are_the_thread_s_own(graph: dt.Graph) -> None:
    found: list[Any] = []
    in_threads(2, lambda i: found.append(dt.get_default_graph()))
    assert dt.get_default_graph() is graph
    assert graph not in found


def test_shapes_that_must_have_a_rank() -> None:
    known, unknown = dt.TensorShape([2, None]), dt.TensorShape(None)
    for ask in (known.assert_has_rank, known.with_rank_at_least, known.with_rank_at_most):
        ask(2)
    known.assert_same_rank([None, 7])
    assert unknown.with_rank_at_least(3) is unknown
    for refuse in (
        lambda: known.assert_has_rank(3),
        lambda: known.with_rank_at_least(3),
        lambda: known.with_rank_at_most(1),
        lambda: known.assert_same_rank([1]),
    ):
        with pytest.raises(ValueError, match="rank"):
            refuse()
    with pytest.raises(ValueError, match="not fully defined"):
        known.assert_is_fully_defined()


def test_nodes_of_tensorflow_s_ops(graph: dt.Graph) -> None:
    """`create_op` takes TensorFlow's name of an op and its attributes as messages; what is not told is the default."""
    x = dt.constant([[1.0, 2.0]])
    transposed = graph.as_graph_def().node.add().attr["transpose_b"]
    transposed.b = True
    node = graph.create_op("MatMul", [x, x], [dt.float32], name="product", attrs={"transpose_b": transposed})
    added = graph.create_op("Add", [x, x])
    assert (node.name, node.type, added.name, added.type) == ("product", "MatMul", "Add", "AddV2")
    with dt.Session() as session:
        assert session.run(node.outputs[0]).tolist() == [[5.0]]
        assert session.run(added.outputs[0]).tolist() == [[2.0, 4.0]]
    with pytest.raises(ValueError, match="Op type not registered 'FloatInput'"):
        graph.create_op("FloatInput", [x])
    with pytest.raises(TypeError):
        graph.create_op("MatMul", [x, dt.constant([[1]])])


def test_references_are_of_objects(graph: dt.Graph) -> None:
    x, y, v = dt.constant(1.0), dt.constant(1.0), dt.Variable(1.0)
    kept = {x.experimental_ref(): "x", y.experimental_ref(): "y", v.experimental_ref(): "v"}
    assert [kept[t.experimental_ref()] for t in (x, y, v)] == ["x", "y", "v"]
    assert [r.deref() for r in kept] == [x, y, v]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (np.array([1, 2**40]), dt.int32, "1099511627776 in .* does not fit into int32"),
        (np.int64(-1), dt.uint8, "does not fit into uint8"),
        (np.array([-1]), dt.uint64, "does not fit into uint64"),
        (np.array([2**63], np.uint64), dt.int64, "does not fit into int64"),
        (np.array([1.0, 2.5]), dt.int32, "the fraction of 2.5 would be lost"),
        (np.array([np.nan]), dt.int32, "does not fit"),
        (np.array([1e12]), dt.int32, "does not fit"),
        (np.array([1 + 2j]), dt.float32, "the imaginary part would be lost"),
        (1j, dt.float32, "the imaginary part would be lost"),
    ],
)
def test_values_that_a_type_cannot_hold_are_refused_as_constants_and_as_feeds(
    value: Any, dtype: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        dt.constant(value, dtype)
    x = dt.placeholder(dtype)
    with dt.Session() as session, pytest.raises(TypeError, match=f"(?s)Cannot feed.*{text}"):
        session.run(dt.identity(x), {x: value})


def test_values_that_a_type_can_hold_are_converted() -> None:
    whole = dt.constant(np.array([1.0, -(2.0**31)]), dt.int32)
    x = dt.placeholder(dt.uint8)
    with dt.Session() as session:
        assert session.run(whole).tolist() == [1, -(2**31)]
        assert session.run(dt.identity(x), {x: np.array([0, 255])}).tolist() == [0, 255]


def test_what_a_tensor_contains_is_not_known() -> None:
    with pytest.raises(TypeError, match="not known before the graph runs"):
        assert 1.0 in dt.constant([1.0, 2.0])
