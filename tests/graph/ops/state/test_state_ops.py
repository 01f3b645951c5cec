"""Ops that read and change variables: values, atomicity, and what they refuse."""

import threading

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.array.embedding import embedding_lookup
from dovetail.graph.ops.array.gather import gather
from dovetail.graph.ops.state import scatter_state, variables as state
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState, update_together
from dovetail.graph.variables.store import report_uninitialized_variables, variables_initializer
from dovetail.graph.variables.variable import Variable


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def started(graph, *variables):
    run = Interpreter(graph, check=True)
    run.run(variables_initializer(variables))
    return run


@pytest.fixture(params=[False, True], ids=["reference", "resource"])
def use_resource(request):
    return request.param


def test_assign_stores_and_gives_the_new_value(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    run = started(graph, v)
    np.testing.assert_array_equal(run.run(v.assign([3.0, 4.0])), np.float32([3, 4]))
    np.testing.assert_array_equal(run.run(v), np.float32([3, 4]))


def test_assign_add_and_sub_count_from_what_is_there(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    run = started(graph, v)
    np.testing.assert_array_equal(run.run(state.assign_add(v, [10.0, 20.0])), np.float32([11, 22]))
    np.testing.assert_array_equal(run.run(state.assign_sub(v, [1.0, 2.0])), np.float32([10, 20]))


def test_assignments_chain(graph):
    v = Variable(1.0)
    run = started(graph, v)
    assert run.run(state.assign_add(state.assign(v, 5.0), 2.0)) == 7.0


def test_a_read_is_a_snapshot_that_later_changes_leave_alone(graph):
    v = Variable([1.0, 2.0])
    run = started(graph, v)
    before = run.run(v.value())
    run.run(scatter_state.scatter_add(v, [0], [5.0]))
    np.testing.assert_array_equal(before, np.float32([1, 2]))


def test_reading_before_initialisation_says_what_to_do(graph, use_resource):
    v = Variable(1.0, name="weights", use_resource=use_resource)
    with pytest.raises(FailedPreconditionError, match=r"weights.*global_variables_initializer"):
        Interpreter(graph).run(v.read_value())


def test_a_value_of_another_shape_is_refused_when_the_node_is_made(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    before = len(graph)
    with pytest.raises(ValueError, match=r"shape \(2,\), the value \(3,\)") as e:
        v.assign(constant([1.0, 2.0, 3.0]))
    assert "test_state_ops.py" in str(e.value)
    assert len(graph) == before + 1  # the constant only


def test_a_value_of_another_type_is_refused(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    with pytest.raises(TypeError, match="float32"):
        v.assign(constant([1, 2]))


def test_a_value_of_another_shape_is_refused_when_it_arrives(graph, use_resource):
    v = Variable([1.0, 2.0], use_resource=use_resource)
    x = placeholder("float32")
    run = started(graph, v)
    for change in (v.assign(x), v.assign_add(x)):
        with pytest.raises(InvalidArgumentError, match=r"\(2,\)"):
            run.run(change, {x: [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(run.run(v), np.float32([1, 2]))


def test_without_validation_a_variable_takes_any_shape(graph):
    v = Variable([1.0, 2.0], validate_shape=False)
    assert v.shape.rank is None
    run = started(graph, v)
    np.testing.assert_array_equal(
        run.run(state.assign(v, np.ones((3, 1), "f4"), validate_shape=False)), np.ones((3, 1))
    )
    with pytest.raises(InvalidArgumentError, match=r"\(3, 1\)"):  # with validation, the shape that is there counts
        run.run(state.assign(v, [1.0, 2.0]))


def test_only_a_variable_can_be_changed(graph):
    with pytest.raises(TypeError, match="Expected a variable"):
        state.assign(constant(1.0), 2.0)
    with pytest.raises(TypeError, match="Expected a variable"):
        state.assign_add(3.0, 2.0)


def test_changes_stand_with_the_variable_whatever_the_blocks_say(graph):
    with graph.device("/job:ps/task:1"):
        v = Variable([1.0], name="v")
    with graph.device("/job:worker"):
        added = state.assign_add(v, [1.0])
    assert added.op.device == "/job:ps/task:1"
    assert added.op.colocation_groups() == [b"loc:@v"]
    assert added.op.inputs[1].op.device == "/job:worker"


def test_is_initialized(graph, use_resource):
    v = Variable(1.0, use_resource=use_resource)
    asked = state.is_variable_initialized(v)
    run = Interpreter(graph)
    assert not run.run(asked)
    run.run(v.initializer)
    assert run.run(asked)


def test_report_uninitialized_variables_names_them(graph):
    a = Variable(1.0, name="a")
    Variable(1.0, name="b", use_resource=True)
    Variable(1.0, name="c", collections=["local_variables"])
    report = report_uninitialized_variables()
    run = Interpreter(graph)
    assert run.run(report).tolist() == [b"a", b"b", b"c"]
    run.run(a.initializer)
    assert run.run(report).tolist() == [b"b", b"c"]
    assert run.run(report_uninitialized_variables([a])).tolist() == []


def test_report_of_no_variables_is_empty(graph):
    assert Interpreter(graph).run(report_uninitialized_variables()).tolist() == []


def test_count_up_to_stops_at_the_limit(graph):
    v = Variable(0)
    counted = v.count_up_to(2)
    run = started(graph, v)
    assert [int(run.run(counted)), int(run.run(counted))] == [0, 1]
    with pytest.raises(OutOfRangeError, match="Reached limit of 2"):
        run.run(counted)
    with pytest.raises(TypeError, match="int32 or int64"):
        Variable(0.0).count_up_to(2)


def test_one_name_in_two_graphs_is_one_variable_of_one_type():
    shared = Resources()
    for value, dtype in ((1.0, "float32"), (1, "int32")):
        g = Graph()
        with g.as_default():
            v = Variable(value, name="v")
            run = Interpreter(g, resources=shared)
            if dtype == "float32":
                run.run(v.initializer)
            else:
                with pytest.raises(InvalidArgumentError, match=r"'v' as int32.*float32"):
                    run.run(v.initializer)


def test_containers_keep_variables_apart(graph):
    with graph.container("a"):
        v = Variable(1.0, name="v")
    run = started(graph, v)
    assert [(c, n) for c, n, _ in run.resources] == [("a", "v")]


# --- scatter --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (scatter_state.scatter_update, [[5.0, 6], [3, 4], [1, 2]]),
        (scatter_state.scatter_add, [[11.0, 22], [3, 4], [6, 8]]),
        (scatter_state.scatter_sub, [[-9.0, -18], [3, 4], [4, 4]]),
        (scatter_state.scatter_mul, [[25.0, 72], [3, 4], [5, 12]]),
        (scatter_state.scatter_min, [[1.0, 2], [3, 4], [1, 2]]),
        (scatter_state.scatter_max, [[5.0, 10], [3, 4], [5, 6]]),
    ],
)
def test_scatter_changes_the_named_rows_once_per_occurrence(graph, use_resource, kind, expected):
    v = Variable([[1.0, 2], [3, 4], [5, 6]], use_resource=use_resource)
    run = started(graph, v)
    if kind is scatter_state.scatter_update:
        change = kind(v, [0, 2], [[5.0, 6], [1, 2]])
    else:
        change = kind(v, [0, 2, 0], [[5.0, 10], [1, 2], [5, 10]] if kind is not scatter_state.scatter_mul
                      else [[5.0, 6], [1, 2], [5, 6]])  # fmt: skip
    np.testing.assert_array_equal(run.run(change), np.float32(expected))


def test_scatter_div(graph, use_resource):
    v = Variable([8.0, 6.0], use_resource=use_resource)
    np.testing.assert_array_equal(
        started(graph, v).run(scatter_state.scatter_div(v, [0, 0], [2.0, 2.0])), np.float32([2, 6])
    )


def test_a_scalar_update_serves_all_rows(graph):
    v = Variable([[1.0, 2], [3, 4]])
    np.testing.assert_array_equal(
        started(graph, v).run(scatter_state.scatter_add(v, [1], 1.0)), np.float32([[1, 2], [4, 5]])
    )


def test_indices_of_any_shape(graph):
    v = Variable([0.0, 0, 0, 0])
    added = scatter_state.scatter_add(v, [[0, 1], [1, 3]], [[1.0, 2], [3, 4]])
    np.testing.assert_array_equal(started(graph, v).run(added), np.float32([1, 5, 0, 4]))


@pytest.mark.parametrize("indices", [[0, 2], [-1]])
def test_an_index_out_of_bounds_changes_nothing(graph, use_resource, indices):
    v = Variable([[1.0], [2.0]], use_resource=use_resource)
    run = started(graph, v)
    with pytest.raises(InvalidArgumentError, match=r"indices\[\d\] = -?\d is not in \[0, 2\)"):
        run.run(scatter_state.scatter_add(v, indices, np.ones((len(indices), 1), "f4")))
    np.testing.assert_array_equal(run.run(v), np.float32([[1], [2]]))


def test_scatter_refuses_wrong_shapes_and_types(graph):
    v = Variable([[1.0, 2], [3, 4]])
    with pytest.raises(ValueError, match=r"indices.shape \+ variable.shape\[1:\]"):
        scatter_state.scatter_add(v, [0], [[1.0]])
    with pytest.raises(TypeError, match="int32 or int64"):
        scatter_state.scatter_add(v, [0.5], [[1.0, 2]])
    with pytest.raises(ValueError, match="scalar"):
        scatter_state.scatter_add(Variable(1.0), [0], [1.0])
    x = placeholder("float32")
    with pytest.raises(InvalidArgumentError, match=r"updates have shape \(1, 1\)"):
        started(graph, v).run(scatter_state.scatter_add(v, [0], x), {x: [[1.0]]})


def test_gathering_from_a_resource_variable(graph):
    v = Variable([[1.0, 2], [3, 4], [5, 6]], use_resource=True)
    run = started(graph, v)
    np.testing.assert_array_equal(run.run(v.sparse_read([[2, 0]])), np.float32([[[5, 6], [1, 2]]]))
    with pytest.raises(InvalidArgumentError, match=r"indices\[0\] = 3 is not in \[0, 3\)"):
        run.run(v.sparse_read([3]))
    rows = gather(v, [2, 0])
    assert rows.op.type == "ResourceGather"  # so that a table on another task does not come as a whole
    (slices,) = gradients(rows * 2.0, [v])
    found = run.run([rows, slices.values, slices.indices])
    np.testing.assert_array_equal(found[0], [[5, 6], [1, 2]])
    np.testing.assert_array_equal(found[1], [[2, 2], [2, 2]])
    np.testing.assert_array_equal(found[2], [2, 0])
    np.testing.assert_array_equal(run.run(gather(v, [1], axis=1)), [[2], [4], [6]])


def test_rows_of_a_changed_variable_are_read_after_the_change(graph):
    v = Variable([[1.0, 2], [3, 4], [5, 6]], use_resource=True)
    run = started(graph, v)
    for turn in range(20):
        changed = v.assign(constant(np.full((3, 2), turn, np.float32)) + 0.0)
        np.testing.assert_array_equal(
            run.run([gather(changed, [1]), embedding_lookup(changed, [2])]), [[[turn] * 2]] * 2
        )


def test_a_variable_may_start_with_rows_of_another(graph):
    v = Variable([[1.0, 2], [3, 4]], use_resource=True)
    w = Variable(gather(v, [1, 1]) + 1.0)
    np.testing.assert_array_equal(started(graph, v, w).run(w), [[4, 5], [4, 5]])


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int8, dtypes.uint32])
def test_scatter_add_keeps_the_element_type(graph, dtype):
    v = Variable(np.array([1, 2], dtype.np))
    result = started(graph, v).run(scatter_state.scatter_add(v, [1, 1], np.array([3, 4], dtype.np)))
    assert result.dtype == dtype.np
    assert result.astype(float).tolist() == [1, 9]


# --- many threads ---------------------------------------------------------------------------------------------------


def in_threads(count, work):
    threads = [threading.Thread(target=work) for _ in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert not any(t.is_alive() for t in threads)


def test_no_addition_is_lost(graph, use_resource):
    v = Variable(0.0, use_resource=use_resource)
    added = v.assign_add(1.0, read_value=False)
    run = started(graph, v)
    in_threads(8, lambda: [run.run(added) for _ in range(100)])
    assert run.run(v) == 800


def test_updates_that_name_the_same_variables_in_another_order_do_not_wait_for_each_other():
    a, b = VariableState("a", dtypes.float32), VariableState("b", dtypes.float32)
    a.assign(0.0)
    b.assign(0.0)
    orders = [(a, b), (b, a)]

    def work():
        for i in range(300):
            update_together(orders[i % 2], lambda x, y: (x + 1, y + 1))

    in_threads(4, work)
    assert (a.read(), b.read()) == (1200, 1200)


def test_an_update_that_fails_changes_nothing():
    a, b = VariableState("a", dtypes.float32), VariableState("b", dtypes.float32)
    a.assign(1.0)
    with pytest.raises(FailedPreconditionError, match="b"):
        update_together((a, b), lambda x, y: (x + 1, y + 1))
    b.assign([1.0])
    with pytest.raises(ValueError, match="no"):
        update_together((a, b), lambda x, y: (x + 1, np.array(["no"], object)))
    assert a.read() == 1.0
