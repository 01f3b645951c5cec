"""The checker of graphs: it must find each kind of damage, and nothing in a good graph."""

import pytest

from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant
from dovetail.graph.core.errors import InternalError
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.verify import find_cycle, find_faults, verify
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.variables.variable import Variable


@pytest.fixture
def graph():
    g = Graph()
    with g.as_default():
        v = Variable([1.0, 2.0], name="v")
        a = v + constant([1.0, 2.0], name="c")
        with g.control_dependencies([v.initializer]):
            a * 2.0
    return g


def damage_name(g):
    g.nodes[-1].name = "v"


def damage_index(g):
    g.nodes[2].index = 5


def damage_input(g):
    g.nodes[2].inputs = (g.nodes[-1].outputs[0], g.nodes[2].inputs[1])


def damage_dtype(g):
    g.get_tensor_by_name("add:0").dtype = dtypes.int32


def damage_shape(g):
    g.get_tensor_by_name("add:0").dims = (3,)


def damage_output(g):
    g.get_operation_by_name("add").outputs = ()


def damage_attr(g):
    g.get_operation_by_name("v").attrs["dtype"] = "float32"


def damage_control(g):
    g.get_operation_by_name("v").control_inputs = (g.get_operation_by_name("mul"),)


def damage_graph(g):
    with Graph().as_default():
        g.nodes[-1].control_inputs = (constant(1.0).op,)


def test_a_good_graph_has_no_faults(graph):
    verify(graph)
    assert list(find_faults(graph)) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_name, "'v' .*has the name of node|not found by its name"),
        (damage_index, "is number 2 but calls itself 5"),
        (damage_input, "made later"),
        (damage_dtype, "add:0 has type int32"),
        (damage_shape, r"add:0 has shape \(3,\)"),
        (damage_output, "does not put out|0 outputs"),
        (damage_attr, "op refuses"),
        (damage_control, "edges close a cycle: .*mul"),
        (damage_graph, "of another graph"),
    ],
)
def test_each_kind_of_damage_is_found(graph, damage, words):
    damage(graph)
    with pytest.raises(InternalError, match=words):
        verify(graph)


def test_a_cycle_is_shown_whole(graph):
    damage_control(graph)
    cycle = find_cycle(graph.nodes)
    assert cycle[0] is cycle[-1]
    for before, after in zip(cycle, cycle[1:], strict=False):
        assert before in [t.op for t in after.inputs] or before in after.control_inputs
    assert {"v", "mul"} <= {n.name for n in cycle}


def test_deep_graphs_need_no_deep_stack():
    g = Graph()
    with g.as_default():
        x = constant(1.0)
        for _ in range(20_000):
            x = x + x
    assert find_cycle(g.nodes) == []
    assert find_cycle(list(reversed(g.nodes))) == []
