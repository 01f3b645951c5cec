"""Variables: the nodes they are made of, their names and devices, and how they are used."""

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.compat.tf1.names.variables import all_variables, assert_variables_initialized
from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant, convert, placeholder
from dovetail.graph.core.errors import FailedPreconditionError
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.ops.array.identity_and_placeholders import group
from dovetail.graph.tensors.indexed_slices import IndexedSlices
from dovetail.graph.variables.ref_and_resource import RefVariable, ResourceVariable
from dovetail.graph.variables.store import (
    global_variables,
    global_variables_initializer,
    local_variables,
    local_variables_initializer,
    trainable_variables,
    variables_initializer,
)
from dovetail.graph.variables.variable import (
    Variable,
    VariableAggregation,
    disable_resource_variables,
    enable_resource_variables,
)


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def names(graph):
    return [n.name for n in graph.nodes]


def devices(graph):
    return {n.name: n.device for n in graph.nodes}


def test_a_reference_variable_has_tensorflows_nodes(graph):
    v = Variable([1.0, 2.0], name="v")
    assert names(graph) == ["v/initial_value", "v", "v/Assign", "v/read"]
    assert [n.type for n in graph.nodes] == ["Const", "VariableV2", "Assign", "Identity"]
    assert isinstance(v, RefVariable)
    assert (v.name, v.dtype, v.shape.as_list(), v.op.name) == ("v:0", dtypes.float32.ref, [2], "v")
    assert v.initializer.name == "v/Assign"
    assert v.value().name == "v/read:0"
    assert v.initial_value.name == "v/initial_value:0"


def test_a_resource_variable_has_tensorflows_nodes(graph):
    v = Variable([1.0, 2.0], name="v", use_resource=True)
    assert names(graph) == [
        "v/Initializer/initial_value",
        "v",
        "v/IsInitialized/VarIsInitializedOp",
        "v/Assign",
        "v/Read/ReadVariableOp",
    ]
    assert isinstance(v, ResourceVariable)
    assert (v.name, v.dtype, v.shape.as_list()) == ("v:0", dtypes.float32, [2])
    assert v.op.get_attr("shared_name") == "v"
    assert graph.as_graph_element(v).name == "v/Read/ReadVariableOp:0"


def test_names_are_made_unique_and_follow_the_name_scope(graph):
    with graph.name_scope("layer"):
        a, b = Variable(1.0, name="w"), Variable(1.0, name="w")
    c = Variable(1.0)
    assert [v.name for v in (a, b, c)] == ["layer/w:0", "layer/w_1:0", "Variable:0"]


def test_the_initial_value_of_a_reference_variable_stays_where_the_blocks_say(graph):
    def setter(node):
        return "/job:ps/task:0" if node.type in ("VariableV2", "VarHandleOp") else "/job:worker"

    with graph.device(setter):
        Variable([1.0], name="v")
        Variable([1.0], name="r", use_resource=True)
    found = devices(graph)
    assert found == {
        "v/initial_value": "/job:worker",
        "v": "/job:ps/task:0",
        "v/Assign": "/job:ps/task:0",
        "v/read": "/job:ps/task:0",
        "r/Initializer/initial_value": "",
        "r": "/job:ps/task:0",
        "r/IsInitialized/VarIsInitializedOp": "/job:worker",
        "r/Assign": "/job:ps/task:0",
        "r/Read/ReadVariableOp": "/job:worker",
    }
    groups = {n.name: n.colocation for n in graph.nodes if n.colocation}
    assert groups == {"v/Assign": ("v",), "v/read": ("v",), "r/Initializer/initial_value": ("r",)}


def test_what_a_function_makes_of_the_initial_value_stands_with_the_variable(graph, use_resource=False):
    with graph.device("/gpu:0"):
        v = Variable(lambda: constant([1.0]) + constant([2.0]), name="v")
    inner = [n for n in graph.nodes if n.name.startswith("v/Initializer/")]
    assert [n.name for n in inner] == ["v/Initializer/Const", "v/Initializer/Const_1", "v/Initializer/add"]
    assert {n.device for n in inner} == {""}
    assert {n.colocation for n in inner} == {("v",)}
    assert v.device == "/device:GPU:0"


def test_control_edges_do_not_hold_a_variable_back(graph):
    first = constant(1.0)
    with graph.control_dependencies([first]):
        v = Variable([1.0])
    assert all(not n.control_inputs for n in graph.nodes)
    assert v.initializer.control_inputs == []


def test_a_variable_stands_for_its_value(graph):
    v = Variable([1.0, 2.0])
    run = Interpreter(graph)
    run.run(v.initializer)
    np.testing.assert_array_equal(run.run(v * 2.0 + v), np.float32([3, 6]))
    assert convert(v) is v.value()
    np.testing.assert_array_equal(run.run(1.0 - v), np.float32([0, -1]))
    assert run.run(v[1]) == 2.0


def test_each_use_of_a_resource_variable_reads_it(graph):
    v = Variable([1.0, 2.0], use_resource=True)
    assert v.value() is not v.value()
    with graph.device("/gpu:0"):
        assert v.value().op.device == ""  # the placer puts it with the handle


def test_a_read_after_a_change_sees_it(graph):
    v = Variable(1.0, use_resource=True)
    changed = v.assign_add(1.0)
    twice = changed * 10.0
    run = Interpreter(graph)
    run.run(v.initializer)
    assert run.run(twice) == 20.0
    assert changed.op.type == "AssignAddVariableOp"
    assert run.run(changed.assign_add(5.0)) == 8.0  # 2 of the step before, 1, then 5


@pytest.mark.parametrize("use_resource", [False, True])
def test_read_value_under_control_dependencies_reads_afterwards(graph, use_resource):
    v = Variable(1.0, use_resource=use_resource)
    with graph.control_dependencies([v.assign(7.0, read_value=False)]):
        after = v.read_value()
    run = Interpreter(graph)
    run.run(v.initializer)
    assert run.run(after) == 7.0


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_variable_may_start_from_another(graph, use_resource):
    a = Variable([2.0, 3.0], name="a", use_resource=use_resource)
    b = Variable(a * 2.0, name="b", use_resource=use_resource)
    c = Variable(lambda: b + a, name="c", use_resource=use_resource)
    run = Interpreter(graph)
    run.run(c.initializer)  # neither a nor b has a value: their initial values serve
    np.testing.assert_array_equal(run.run(c), np.float32([6, 9]))
    run.run([a.initializer, b.initializer])
    run.run(a.assign([1.0, 1.0]))
    run.run(c.initializer)
    np.testing.assert_array_equal(run.run(c), np.float32([5, 7]))


def test_initialized_value(graph):
    v = Variable(1.0)
    safe = v.initialized_value()
    run = Interpreter(graph)
    assert run.run(safe) == 1.0
    run.run(v.assign(5.0))
    assert run.run(safe) == 5.0


def test_lists_of_variables(graph):
    a = Variable(1.0, name="a")
    b = Variable(1.0, name="b", trainable=False)
    c = Variable(1.0, name="c", collections=["local_variables"], trainable=False)
    assert global_variables() == [a, b] == all_variables()
    assert trainable_variables() == [a]
    assert local_variables() == [c]
    assert global_variables("b") == [b]


def test_initializers_run_everything_made_so_far(graph):
    a, b = Variable(1.0), Variable(2.0, use_resource=True)
    c = Variable(3.0, collections=["local_variables"])
    run = Interpreter(graph)
    init = global_variables_initializer()
    assert init.name == "init"
    assert init.type == "NoOp"
    run.run(init)
    assert run.run([a, b]) == [1.0, 2.0]
    with pytest.raises(FailedPreconditionError):
        run.run(c)
    run.run(local_variables_initializer())
    assert run.run(c) == 3.0
    assert variables_initializer([]).type == "NoOp"


def test_assert_variables_initialized(graph):
    v = Variable(1.0)
    check = assert_variables_initialized()
    run = Interpreter(graph)
    with pytest.raises(FailedPreconditionError):
        run.run(check)
    run.run(v.initializer)
    run.run(check)
    with Graph().as_default():
        assert assert_variables_initialized() is None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "initial_value must be specified"),
        ({"initial_value": 1.0, "collections": "vars"}, ValueError, "list, tuple, or set"),
        ({"initial_value": 1.0, "constraint": 3}, ValueError, "callable"),
        ({"initial_value": 1.0, "expected_shape": [2]}, ValueError, "expected_shape"),
        ({"initial_value": [1.0] * 3, "shape": [4]}, ValueError, "not compatible with the explicitly supplied `shape`"),
        ({"initial_value": [1.5], "dtype": "int32"}, TypeError, "int32"),
    ],
)
@pytest.mark.parametrize("use_resource", [False, True])
def test_wrong_arguments(graph, arguments, error, words, use_resource):
    with pytest.raises(error, match=words):
        Variable(**arguments, use_resource=use_resource)
    assert global_variables() == []


@pytest.mark.parametrize("use_resource", [False, True])
def test_an_initial_value_needs_a_complete_shape(graph, use_resource):
    x = placeholder("float32", [None])
    with pytest.raises(ValueError, match="initial_value must have a shape specified"):
        Variable(x, use_resource=use_resource)
    v = Variable(x, validate_shape=False, use_resource=use_resource)
    run = Interpreter(graph)
    run.run(v.initializer, {x: [1.0, 2.0]})
    assert run.run(v).tolist() == [1.0, 2.0]


def test_dtype_and_numpy_values(graph):
    assert Variable(1, dtype="float64").dtype.base is dtypes.float64
    assert Variable(np.zeros(2)).dtype.base is dtypes.float64
    assert Variable(True).dtype.base is dtypes.bool_


def test_the_default_kind_can_be_switched(graph):
    enable_resource_variables()
    try:
        assert isinstance(Variable(1.0), ResourceVariable)
        assert isinstance(Variable(1.0, use_resource=False), RefVariable)
    finally:
        disable_resource_variables()
    assert isinstance(Variable(1.0), RefVariable)


def test_a_caching_device_holds_the_value_read(graph):
    with graph.device("/job:ps"):
        v = Variable([1.0], caching_device="/job:worker", name="v")
        r = Variable([1.0], caching_device="/job:worker", name="r", use_resource=True)
    assert v.value().op.device == "/job:worker"
    assert r.value() is r.value()
    assert r.value().op.device == "/job:worker"


def test_a_variable_is_not_iterable(graph):
    with pytest.raises(TypeError, match="not iterable"):
        iter(Variable([1.0, 2.0]))


def test_load_and_eval_ask_for_a_session(graph):
    v = Variable(1.0)
    for call in (v.eval, lambda: v.load(2.0)):
        with pytest.raises(ValueError, match="No default session"):
            call()


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_variable_may_hold_values_of_any_shape_that_is_told(graph, use_resource):
    v = Variable([[1.0]], shape=[None, None], use_resource=use_resource)
    assert v.shape.as_list() == [None, None]
    run = Interpreter(graph)
    run.run(v.initializer)
    run.run(v.assign([[1.0, 2.0]]).op)
    assert run.run(v.read_value()).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("use_resource", [False, True])
def test_a_variable_is_made_of_what_tells_of_its_nodes(graph, use_resource):
    with graph.name_scope("a"):
        v = Variable(3.0, trainable=False, name="v", use_resource=use_resource, aggregation=VariableAggregation.SUM)
    definition, inside = v.to_proto(), v.to_proto(export_scope="a")
    assert (definition.variable_name, inside.variable_name) == ("a/v:0", "v:0")
    assert v.to_proto(export_scope="b") is None
    before = len(graph)
    for again in (
        Variable(variable_def=definition),
        Variable(variable_def=inside, import_scope="a"),
        type(v)(variable_def=definition),
        Variable.from_proto(definition),
    ):
        assert type(again) is type(v)
        assert (again.op, again.initializer, again.trainable) == (v.op, v.initializer, False)
        assert again.aggregation is VariableAggregation.SUM
    assert len(graph) == before
    assert global_variables() == [v]
    with pytest.raises(ValueError, match="mutually exclusive"):
        Variable(1.0, variable_def=definition)


@pytest.mark.parametrize("use_resource", [False, True])
def test_elements_and_rows_are_changed_and_read_by_methods(graph, use_resource):
    v = Variable([[1.0, 2.0], [3.0, 4.0]], use_resource=use_resource)
    run = Interpreter(graph)
    run.run(v.initializer)
    for change, expected in (
        (v.scatter_nd_update([[0, 1]], [5.0]), [[1, 5], [3, 4]]),
        (v.scatter_nd_add([[1]], [[1.0, 1.0]]), [[1, 5], [4, 5]]),
        (v.scatter_nd_sub([[1, 1]], [1.0]), [[1, 5], [4, 4]]),
        (v.scatter_div(IndexedSlices(constant([[2.0, 4.0]]), constant([1]))), [[1, 5], [2, 1]]),
    ):
        assert run.run(change).tolist() == expected
    assert run.run(v.gather_nd([[1, 0], [0, 1]])).tolist() == [2.0, 5.0]


def test_who_waits_for_a_change_reads_nothing(graph):
    changed = Variable(1.0, use_resource=True).assign_add(1.0)
    assert [n.type for n in group(changed).controls] == ["AssignAddVariableOp"]
