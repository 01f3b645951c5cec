"""Graphs as text, as networkx graphs, and compared."""

import numpy as np

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.printing import diff, format_attr, format_graph, to_networkx
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.variables.variable import Variable


def build(value=2.0):
    graph = Graph()
    with graph.as_default():
        x = placeholder("float32", [None, 2], name="x")
        with graph.device("/job:ps"), graph.container("c"):
            v = Variable(np.float32([1.0, value]), name="v")
        with graph.control_dependencies([v.initializer]):
            (x + v) * np.arange(20, dtype="f4").reshape(10, 2)[:1]
    return graph


def test_one_line_per_node():
    ps = "@/job:ps container:c"
    assert format_graph(build()).splitlines() == [
        "x = Placeholder() {dtype=float32, shape=(None, 2)} : float32 (?, 2)",
        f"v/initial_value = Const() {{value=float32[2] [1.0, 2.0]}} : float32 (2,) {ps}",
        f"v = VariableV2() {{dtype=float32, shape=(2,), shared_name=''}} : float32_ref (2,) {ps}",
        "v/Assign = Assign(v, v/initial_value) {validate_shape=True} : float32_ref (2,) @/job:ps loc:v container:c",
        "v/read = Identity(v) : float32 (2,) @/job:ps loc:v container:c",
        "add = AddV2(x, v/read, ^v/Assign) : float32 (?, 2)",
        "mul/y = Const(^v/Assign) {value=float32[1, 2] [[0.0, 1.0]]} : float32 (1, 2)",
        "mul = Mul(add, mul/y) : float32 (?, 2)",
    ]
    assert str(build()) == format_graph(build())


def test_large_arrays_are_told_by_a_checksum():
    a, b = np.zeros(100), np.ones(100)
    assert format_attr(a) == format_attr(a.copy())
    assert format_attr(a) != format_attr(b)
    assert format_attr(a).startswith("float64[100] crc32=")
    words = np.array([b"w"] * 100, object)
    assert format_attr(words) != format_attr(np.array([b"x"] * 100, object))


def test_networkx():
    graph = build()
    found = to_networkx(graph)
    assert sorted(found) == sorted(n.name for n in graph.nodes)
    assert found.nodes["v"]["op"] == "VariableV2"
    assert found.nodes["v"]["device"] == "/job:ps"
    assert {(a, b, d["kind"]) for a, b, d in found.in_edges("add", data=True)} == {
        ("x", "add", "data"),
        ("v/read", "add", "data"),
        ("v/Assign", "add", "control"),
    }
    assert graph.to_networkx().number_of_edges() == found.number_of_edges()


def test_equal_graphs_do_not_differ():
    found = diff(build(), build())
    assert not found
    assert str(found) == "no differences"


def test_differences_are_told_node_by_node():
    a, b = build(), build(value=3.0)
    with a.as_default():
        constant(1.0, name="old")
    with b.as_default():
        constant(1.0, name="new")
    assert str(diff(a, b)).splitlines() == [
        "- old = Const() {value=float32[] 1.0} : float32 ()",
        "- v/initial_value = Const() {value=float32[2] [1.0, 2.0]} : float32 (2,) @/job:ps container:c",
        "+ v/initial_value = Const() {value=float32[2] [1.0, 3.0]} : float32 (2,) @/job:ps container:c",
        "+ new = Const() {value=float32[] 1.0} : float32 ()",
    ]
