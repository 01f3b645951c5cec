"""Variables in parts: where they are cut, how they are named, found again, read, changed and trained."""

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.compat.tf1.names.variables import create_partitioned_variables
from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant, convert
from dovetail.graph.core.default_graph import GraphKeys
from dovetail.graph.core.graph import Graph
from dovetail.graph.core.shape import TensorShape
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.ops.array.embedding import embedding_lookup
from dovetail.graph.ops.math.reduce import reduce_sum
from dovetail.graph.tensors.indexed_slices import IndexedSlices
from dovetail.graph.variables.initializers import (
    Constant,
    GlorotUniform,
    Identity,
    constant_initializer,
    ones_initializer,
    zeros_initializer,
)
from dovetail.graph.variables.partitioned import (
    PartitionedVariable,
    PartitionInfo,
    SaveSliceInfo,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    slices,
    variable_axis_size_partitioner,
)
from dovetail.graph.variables.scope import AUTO_REUSE, get_variable, variable_scope
from dovetail.graph.variables.store import global_variables, global_variables_initializer, trainable_variables
from dovetail.graph.variables.variable import Variable
from dovetail.placer.rules.replica_device_setter import replica_device_setter
from dovetail.train import AdamOptimizer, GradientDescentOptimizer, MomentumOptimizer


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def run(*steps):
    """The variables' initial values, then each fetch in turn; the last result."""
    interpreter = Interpreter(global_variables()[0].graph, check=True)
    interpreter.run(global_variables_initializer())
    for step in steps:
        found = interpreter.run(step)
    return found


# --- partitioners -------------------------------------------------------------------------------------------

F, S = "float32", "string"


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "expected"),
    [
        (fixed_size_partitioner(4), [10, 4], F, [4, 1]),
        (fixed_size_partitioner(4, axis=1), [10, 4], F, [1, 4]),
        (fixed_size_partitioner(4, axis=-1), [10, 3], F, [1, 3]),
        (fixed_size_partitioner(10), [3, 4], F, [3, 1]),
        (fixed_size_partitioner(1), [3, 4], F, [1, 1]),
        (variable_axis_size_partitioner(4), [4, 8, 16, 32], F, [4, 1, 1, 1]),
        (variable_axis_size_partitioner(1 << 30), [4, 8, 16, 32], F, [1, 1, 1, 1]),
        (variable_axis_size_partitioner(16384, axis=3), [4, 8, 16, 32], F, [1, 1, 1, 4]),
        (variable_axis_size_partitioner(1024), [8, 32], F, [1, 1]),  # 8 rows of 128 bytes
        (variable_axis_size_partitioner(1023), [8, 32], F, [2, 1]),
        (variable_axis_size_partitioner(128), [8, 32], F, [8, 1]),
        (variable_axis_size_partitioner(127), [8, 32], F, [8, 1]),  # at least one row each
        (variable_axis_size_partitioner(384), [8, 32], F, [3, 1]),  # 3 + 3 + 2 rows
        (variable_axis_size_partitioner(512), [8, 32], "float64", [4, 1]),
        (variable_axis_size_partitioner(127, max_shards=3), [8, 32], F, [3, 1]),
        (variable_axis_size_partitioner(512), [8, 32], S, [8, 1]),
        (variable_axis_size_partitioner(512, bytes_per_string_element=8), [8, 32], S, [4, 1]),
        (min_max_variable_partitioner(100, min_slice_size=256), [100, 16], F, [25, 1]),  # 6400 bytes
        (min_max_variable_partitioner(100, min_slice_size=1000), [100, 16], F, [7, 1]),
        (min_max_variable_partitioner(100, min_slice_size=6400), [100, 16], F, [1, 1]),
        (min_max_variable_partitioner(100), [100, 16], F, [1, 1]),
        (min_max_variable_partitioner(4, min_slice_size=256), [100, 16], F, [4, 1]),
        (min_max_variable_partitioner(100, axis=1, min_slice_size=256), [100, 16], F, [1, 16]),
        (min_max_variable_partitioner(100, min_slice_size=1), [0, 16], F, [1, 1]),
        (min_max_variable_partitioner(100, min_slice_size=256), [4, 4], S, [1, 1]),
        (min_max_variable_partitioner(100, min_slice_size=64, bytes_per_string_element=8), [4, 4], S, [2, 1]),
        (min_max_variable_partitioner(), [100, 1 << 20], F, [1, 1]),
    ],
)
def test_partitioners(partitioner, shape, dtype, expected):
    assert partitioner(shape=TensorShape(shape), dtype=dtypes.as_dtype(dtype)) == expected


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: variable_axis_size_partitioner(0), "must be positive"),
        (lambda: variable_axis_size_partitioner(8, bytes_per_string_element=0), "must be positive"),
        (lambda: variable_axis_size_partitioner(8, max_shards=0), "max_shards must be positive"),
        (lambda: variable_axis_size_partitioner(8, max_shards=-3), "max_shards must be positive"),
        (lambda: variable_axis_size_partitioner(8)(shape=[None, 3], dtype=F), "not fully defined"),
        (lambda: min_max_variable_partitioner(0), "max_partitions must be positive"),
        (lambda: min_max_variable_partitioner(min_slice_size=0), "min_slice_size must be positive"),
        (lambda: min_max_variable_partitioner(bytes_per_string_element=0), "must be positive"),
        (lambda: min_max_variable_partitioner(axis=2)(shape=[3, 3], dtype=F), "along axis 2"),
        (lambda: fixed_size_partitioner(2, axis=2)(shape=[3, 3], dtype=F), "along axis 2"),
    ],
)
def test_wrong_partitioners(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("size", "count", "lengths"),
    [(10, 3, [4, 3, 3]), (10, 4, [3, 3, 2, 2]), (9, 3, [3, 3, 3]), (3, 3, [1, 1, 1]), (5, 1, [5])],
)
def test_the_first_parts_are_one_longer(size, count, lengths):
    found = list(slices([2, size], [1, count]))
    assert [shape for _, shape in found] == [[2, n] for n in lengths]
    assert [offset for offset, _ in found] == [[0, sum(lengths[:i])] for i in range(count)]


def test_partition_info():
    info = PartitionInfo([9, 3], [4, 0])
    assert (info.single_slice_dim([4, 3]), info.single_offset([4, 3])) == (0, 4)
    whole = PartitionInfo([9, 3], [0, 0])
    assert (whole.single_slice_dim([9, 3]), whole.single_offset([9, 3])) == (None, 0)
    for call, error, words in (
        (lambda: info.single_slice_dim(3), TypeError, "`shape` must be a sequence"),
        (lambda: info.single_slice_dim([4]), ValueError, "Expected equal length"),
        (lambda: info.single_slice_dim([6, 3]), ValueError, r"would exceed self.full_shape=\[9, 3\]"),
        (lambda: info.single_slice_dim([4, 2]), ValueError, "could be either dimension 0 or 1"),
        (lambda: PartitionInfo(9, [0]), TypeError, "`full_shape` must be a sequence"),
        (lambda: PartitionInfo([9], None), TypeError, "`var_offset` must be a sequence"),
        (lambda: PartitionInfo([9, 3], [0]), ValueError, "Expected equal length"),
        (lambda: PartitionInfo([9], [9]), ValueError, "Expected 0 <= offset < shape"),
        (lambda: PartitionInfo([9], [-1]), ValueError, "Expected 0 <= offset < shape"),
    ):
        with pytest.raises(error, match=words):
            call()


# --- making them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_parts_are_variables_of_their_own(graph, use_resource):
    with variable_scope("a"):
        v = get_variable("v", [10, 4], partitioner=fixed_size_partitioner(3), use_resource=use_resource)
    assert isinstance(v, PartitionedVariable)
    assert (v.name, v.shape.as_list(), v.dtype, len(v)) == ("a/v", [10, 4], dtypes.float32, 3)
    assert v.get_shape() == v.shape
    assert v.get_partitions() == v._get_partitions() == [3, 1]
    assert [p.name for p in v] == ["a/v/part_0:0", "a/v/part_1:0", "a/v/part_2:0"]
    assert [p.shape.as_list() for p in v] == [[4, 4], [3, 4], [3, 4]]
    assert [p.save_slice_info.spec for p in v] == ["10 4 0,4:0,4", "10 4 4,3:0,4", "10 4 7,3:0,4"]
    assert v._get_variable_list()[1]._get_save_slice_info() == SaveSliceInfo("a/v", [10, 4], [4, 0], [3, 4])
    assert global_variables() == trainable_variables() == list(v)
    assert repr(v) == "<dt.PartitionedVariable 'a/v' shape=(10, 4) dtype=float32 parts=3>"


def test_another_axis(graph):
    v = get_variable("v", [2, 5], partitioner=fixed_size_partitioner(2, axis=1), initializer=ones_initializer())
    assert [p.save_slice_info.spec for p in v] == ["2 5 0,2:0,3", "2 5 0,2:3,2"]
    assert run(v).shape == (2, 5)


def test_a_setter_deals_the_parts_out_in_order(graph):
    with graph.device(replica_device_setter(ps_tasks=2)):
        get_variable("first", [1])
        v = get_variable("v", [10, 4], partitioner=fixed_size_partitioner(3))
        last = get_variable("last", [1])
        whole = v * 2.0
    assert [p.device for p in v] == [f"/job:ps/task:{i}" for i in (1, 0, 1)]
    assert (last.device, whole.device) == ("/job:ps/task:0", "/job:worker")
    assert [p.initializer.device for p in v] == [p.device for p in v]


def test_scopes_hand_their_partitioner_on(graph):
    with variable_scope("a", partitioner=fixed_size_partitioner(2)) as a:
        with variable_scope("b"):
            assert len(get_variable("v", [4])) == 2
        assert isinstance(get_variable("scalar", []), Variable)  # a scalar cannot be cut
        assert isinstance(get_variable("number", initializer=3.0), Variable)
        assert len(get_variable("other", [4], partitioner=fixed_size_partitioner(4))) == 4
        a.set_partitioner(None)
        assert isinstance(get_variable("whole", [4]), Variable)
    assert a.partitioner is None


def test_initializers_see_their_part(graph):
    told = []

    def initializer(shape, dtype, partition_info):
        told.append((shape, partition_info.full_shape, partition_info.var_offset))
        return constant(np.full(shape, len(told)), dtype)

    v = get_variable("v", [5, 2], initializer=initializer, partitioner=fixed_size_partitioner(2))
    assert told == [([3, 2], [5, 2], [0, 0]), ([2, 2], [5, 2], [3, 0])]
    np.testing.assert_array_equal(run(v), [[1, 1]] * 3 + [[2, 2]] * 2)
    w = get_variable(
        "w", [5], initializer=lambda shape, dtype: constant(np.arange(shape[0]), dtype),
        partitioner=fixed_size_partitioner(2),
    )  # fmt: skip
    assert run(w).tolist() == [0, 1, 2, 0, 1]


def test_initializers_of_the_library(graph):
    eye = get_variable("eye", [5, 5], initializer=Identity(), partitioner=fixed_size_partitioner(3))
    np.testing.assert_array_equal(run(eye), np.eye(5))
    # Glorot's limit depends on the shape of the whole, so that cutting does not change what is drawn from.
    wide = get_variable("wide", [6, 100], initializer=GlorotUniform(), partitioner=fixed_size_partitioner(6))
    limit = np.sqrt(6 / 106)
    assert 0.9 * limit < np.abs(run(wide)).max() <= limit
    default = get_variable("default", [6, 100], partitioner=fixed_size_partitioner(6))
    assert 0.9 * limit < np.abs(run(default)).max() <= limit
    counts = get_variable("counts", [3], dtype="int32", partitioner=fixed_size_partitioner(3))
    assert run(counts).tolist() == [0, 0, 0]


VALUE = np.arange(10, dtype=np.float32).reshape(5, 2)


@pytest.mark.parametrize(
    "value",
    [lambda: VALUE, lambda: VALUE.tolist(), lambda: constant(VALUE), lambda: Variable(VALUE, name="other")],
    ids=["array", "list", "tensor", "variable"],
)
def test_a_value_for_the_whole_is_cut_too(graph, value):
    v = get_variable("v", initializer=value(), partitioner=fixed_size_partitioner(2))
    assert [p.shape.as_list() for p in v] == [[3, 2], [2, 2]]
    np.testing.assert_array_equal(run(v), VALUE)


def test_an_array_enters_the_graph_once(graph):
    get_variable("v", initializer=VALUE, partitioner=fixed_size_partitioner(2))
    held = sum(n.attrs["value"].size for n in graph.nodes if n.type == "Const")
    assert held == VALUE.size


def test_a_value_keeps_its_type(graph):
    v = get_variable("v", initializer=np.arange(4.0), partitioner=fixed_size_partitioner(2))
    assert v.dtype is dtypes.float64
    with variable_scope("", reuse=True):
        assert get_variable("v", initializer=np.arange(4.0), partitioner=fixed_size_partitioner(2)) is v


def test_regularizers_get_each_part(graph):
    get_variable("v", [4], partitioner=fixed_size_partitioner(2), regularizer=lambda v: v * 0.5)
    losses = graph.get_collection(GraphKeys.REGULARIZATION_LOSSES)
    assert [t.name for t in losses] == ["v/part_0/Regularizer/mul:0", "v/part_1/Regularizer/mul:0"]


def test_custom_getters_get_the_partitioner(graph):
    asked = []

    def getter(get, name, *args, partitioner=None, **kwargs):
        asked.append((name, partitioner))
        return get(name, *args, partitioner=fixed_size_partitioner(2), **kwargs)

    given = fixed_size_partitioner(4)
    v = get_variable("v", [4], partitioner=given, custom_getter=getter)
    assert asked == [("v", given)] and len(v) == 2


# --- finding them again -------------------------------------------------------------------------------------


def test_reuse(graph):
    three = fixed_size_partitioner(3)
    with variable_scope("a", reuse=AUTO_REUSE):
        v = get_variable("v", [10, 4], partitioner=three)
        assert get_variable("v", [10, 4], partitioner=three) is v
        assert get_variable("v") is v  # the partitioner need not be told again
    with variable_scope("a", reuse=True, partitioner=three):
        assert get_variable("v", [10, 4]) is v
    assert len(global_variables()) == 3


def test_what_is_shared_must_fit(graph):
    two = fixed_size_partitioner(2)
    get_variable("v", [4, 3], partitioner=two)
    get_variable("whole", [4])
    with pytest.raises(ValueError, match="Partitioned variable with name v already exists") as e:
        get_variable("v", [4, 3], partitioner=two)
    assert "test_partitioned.py" in str(e.value)
    with pytest.raises(ValueError, match=r"No partitioner was provided.*v/part_0"):
        get_variable("v", [4, 3])
    with pytest.raises(ValueError, match="an unpartitioned version of the variable was found: whole"):
        get_variable("whole", [4], partitioner=two)
    with variable_scope("", reuse=True):
        with pytest.raises(ValueError, match=r"specified shape \(5, 3\) and found shape \(4, 3\)"):
            get_variable("v", [5, 3], partitioner=two)
        with pytest.raises(ValueError, match="specified dtype int32 and found dtype float32"):
            get_variable("v", [4, 3], dtype="int32", partitioner=two)
        with pytest.raises(ValueError, match=r"specified partitions \[4, 1\] and found partitions \[2, 1\]"):
            get_variable("v", [4, 3], partitioner=fixed_size_partitioner(4))
        with pytest.raises(ValueError, match="PartitionedVariable none does not exist"):
            get_variable("none", [4], partitioner=two)


def test_parts_made_one_by_one_must_be_all_there(graph):
    for i in range(2):
        get_variable(f"v/part_{i}", [2, 1], initializer=zeros_initializer())
    with variable_scope("", reuse=AUTO_REUSE):
        with pytest.raises(ValueError, match="returned 4 shards, and shard v/part_0 was found, but v/part_3"):
            get_variable("v", [4, 1], partitioner=fixed_size_partitioner(4))
        with pytest.raises(ValueError, match="extra shard v/part_1 was found"):
            get_variable("v", [4, 1], partitioner=fixed_size_partitioner(1))
        v = get_variable("v", [4, 1], partitioner=fixed_size_partitioner(2))
    assert list(v) == global_variables()


@pytest.mark.parametrize(
    ("partitions", "words"),
    [
        (3, "Partitioner must return a sequence, but saw: 3"),
        ([2], r"does not match the Variable's rank: \[2\] vs. \(10, 4\)"),
        ([0, 1], "zero partitions for some axes"),
        ([2, 2], "only slice a variable along one dimension"),
        ([11, 1], "Cannot create 11 slices for size 10"),
    ],
)
def test_wrong_partitions(graph, partitions, words):
    with pytest.raises(ValueError, match=words):
        get_variable("v", [10, 4], partitioner=lambda **_: partitions)
    assert len(graph) == 0


def test_the_shape_must_be_known(graph):
    with pytest.raises(ValueError, match=r"new partitioned variable \(v\) must be fully defined"):
        get_variable("v", [None, 4], partitioner=fixed_size_partitioner(2))
    with pytest.raises(ValueError, match="must be fully defined"):
        get_variable("v", partitioner=fixed_size_partitioner(2))


def test_the_constructor_checks_its_parts(graph):
    part = Variable(np.zeros((2, 3)))
    loose = Variable(np.zeros((2, 3)))
    part.save_slice_info = Variable.SaveSliceInfo("v", [4, 3], [0, 0], [2, 3])
    for call, error, words in (
        (lambda: PartitionedVariable("v", [4, 3], "float64", part, [2, 1]), TypeError, "variable_list"),
        (lambda: PartitionedVariable("v", [4, 3], "float64", [part], 2), TypeError, "partitions is not"),
        (lambda: PartitionedVariable("v", [4, 3], "float64", [part], [0, 1]), ValueError, "positive"),
        (lambda: PartitionedVariable("v", [4, 3], "float64", [], [2, 1]), ValueError, "empty"),
        (lambda: PartitionedVariable("v", [4, 3], "float64", [loose], [1, 1]), ValueError, "save_slice_info"),
        (lambda: PartitionedVariable("v", [4, 3], "float64", [part], [1]), ValueError, r"len\(shape\)"),
        (lambda: PartitionedVariable("v", [5, 3], "float64", [part], [2, 1]), ValueError, "full shapes"),
    ):
        with pytest.raises(error, match=words):
            call()


# --- create_partitioned_variables ---------------------------------------------------------------------------


def test_create_partitioned_variables(graph):
    parts = create_partitioned_variables([10, 4], [3, 1], constant_initializer(2.0))
    more = create_partitioned_variables([10, 4], [1, 2], VALUE.repeat(2, 0).repeat(2, 1), name="mine")
    whole = create_partitioned_variables([2], [1], zeros_initializer(), trainable=False, collections=["kept"])
    assert [p.name for p in parts] == [f"PartitionedVariable/part_{i}:0" for i in range(3)]
    assert [p.name for p in more] == ["mine/part_0:0", "mine/part_1:0"]
    assert [p.name for p in whole] == ["PartitionedVariable_1/part_0:0"]
    assert [p.shape.as_list() for p in (*parts, *more)] == [[4, 4], [3, 4], [3, 4], [10, 2], [10, 2]]
    assert trainable_variables() == [*parts, *more]
    assert graph.get_collection("kept") == whole
    found = run([*parts, *more])
    assert all((x == 2).all() for x in found[:3])
    np.testing.assert_array_equal(np.concatenate(found[3:], 1), VALUE.repeat(2, 0).repeat(2, 1))
    again = create_partitioned_variables([10, 4], [1, 2], zeros_initializer(), name="mine", reuse=True)
    assert again == more


@pytest.mark.parametrize(
    ("shape", "slicing", "words"),
    [
        ([3], [1, 1], "must have the length"),
        ([], [], "rank at least 1"),
        ([3, 3], [2, 2], "only slice a variable along one dimension"),
        ([3, 3], [4, 1], "Cannot create 4 slices for size 3"),
        ([3, 3], [0, 1], "zero partitions"),
        ([None, 3], [1, 2], "fully defined"),
    ],
)
def test_wrong_slicing(graph, shape, slicing, words):
    with pytest.raises(ValueError, match=words):
        create_partitioned_variables(shape, slicing, zeros_initializer())


# --- using them ---------------------------------------------------------------------------------------------


def five_rows(count=2, **more):
    return get_variable("v", initializer=VALUE, partitioner=fixed_size_partitioner(count), **more)


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_whole_value(graph, count, use_resource):
    v = five_rows(count, use_resource=use_resource)
    first, again = v.as_tensor(), convert(v)
    assert (first.op.name, again.op.name, first.dims) == ("v", "v_1", (5, 2))
    doubled, whole, named = run([v + v, v, "v:0"])
    np.testing.assert_array_equal(doubled, 2 * VALUE)
    np.testing.assert_array_equal(whole, VALUE)
    np.testing.assert_array_equal(named, VALUE)


def test_fetching_adds_no_nodes_twice(graph):
    v = five_rows()
    run(v)
    before = len(graph)
    assert graph.as_graph_element(v).op.name == "v"
    assert len(graph) == before


def test_the_whole_value_does_not_wait(graph):
    v = five_rows()
    with graph.control_dependencies([constant(1.0, name="before")]):
        whole = v.as_tensor()
    names = [n.name for n in whole.op.control_inputs + whole.op.inputs[0].op.control_inputs]
    assert names == []


def test_it_is_no_sequence_of_rows(graph):
    v = five_rows()
    with pytest.raises(TypeError, match=r"list\(v\)\[i\] for a part, or v.as_tensor\(\)\[i\]"):
        v[0]


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_assign(graph, use_resource):
    v = five_rows(use_resource=use_resource)
    new = np.float32(100) + VALUE
    np.testing.assert_array_equal(run(v.assign(new), v), new)
    np.testing.assert_array_equal(run(v.assign_add(new), v), VALUE + new)
    np.testing.assert_array_equal(run(v.assign_sub(constant(new)), v), VALUE - new)
    np.testing.assert_array_equal(run(v.assign([np.zeros((3, 2)), np.ones((2, 2))]), v), [[0, 0]] * 3 + [[1, 1]] * 2)
    other = get_variable("w", initializer=new, partitioner=fixed_size_partitioner(2), use_resource=use_resource)
    np.testing.assert_array_equal(run(v.assign(other), v), new)
    nodes = v.assign(new, read_value=False)
    assert all(n in graph.nodes for n in nodes)
    with pytest.raises(ValueError, match="has 2 parts and needs as many values, not 1"):
        v.assign([new])


def test_its_initializer(graph):
    v = five_rows(3)
    assert v.initializer is v.initializer
    assert v.initializer.name == "v/init"
    interpreter = Interpreter(graph, check=True)
    interpreter.run(v.initializer)
    np.testing.assert_array_equal(interpreter.run(v), VALUE)


def test_initial_values_that_build_on_it(graph):
    v = five_rows()
    w = Variable(v.as_tensor() * 2.0, name="w")
    np.testing.assert_array_equal(run(w), 2 * VALUE)


# --- gradients and training ---------------------------------------------------------------------------------


def test_gradients_of_the_whole_are_cut(graph):
    v = five_rows()
    weight = np.arange(10, dtype=np.float32).reshape(5, 2) - 3
    grads = gradients(reduce_sum(v * weight), v)
    assert [g.dims for g in grads] == [(3, 2), (2, 2)]
    np.testing.assert_array_equal(np.concatenate(run(grads)), weight)
    with pytest.raises(TypeError, match=r"pass list\(v\)"):
        gradients(reduce_sum(v * weight), [v])


@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_gradients_of_a_lookup_are_rows_of_each_part(graph, use_resource):
    v = five_rows(use_resource=use_resource)
    rows = embedding_lookup(v, [4, 1, 3, 4], "div")
    scale = np.float32([[1], [10], [100], [1000]])
    grads = gradients(rows * scale, v)
    assert all(isinstance(g, IndexedSlices) for g in grads)
    found, i0, v0, i1, v1 = run([rows, *(part for g in grads for part in (g.indices, g.values))])
    np.testing.assert_array_equal(found, VALUE[[4, 1, 3, 4]])
    assert (i0.tolist(), i1.tolist()) == ([1], [1, 0, 1])
    np.testing.assert_array_equal(v0, [[10, 10]])
    np.testing.assert_array_equal(v1, [[1, 1], [100, 100], [1000, 1000]])


def test_div_finds_the_rows_and_mod_others(graph):
    v = five_rows()
    ids = [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(run(embedding_lookup(v, ids, "div")), VALUE)
    np.testing.assert_array_equal(run(embedding_lookup(v, ids)), VALUE[[0, 3, 1, 4, 2]])


OPTIMIZERS = {
    "descent": lambda: GradientDescentOptimizer(0.1),
    "momentum": lambda: MomentumOptimizer(0.1, 0.9),
    "adam": lambda: AdamOptimizer(0.1),
}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("use_resource", [False, True], ids=["reference", "resource"])
def test_training_in_parts_is_training(graph, optimizer, use_resource, sparse):
    ids = [4, 1, 3, 4]
    target = np.arange(8, dtype=np.float32).reshape(4, 2)

    def trained(make):
        with Graph().as_default() as g:
            table = make()
            rows = embedding_lookup(table, ids, "div") if sparse else convert(table)
            wanted = target if sparse else VALUE[::-1]
            loss = reduce_sum((rows - wanted) * (rows - wanted))
            opt = optimizer()
            step = opt.minimize(loss, var_list=[[table]])
            interpreter = Interpreter(g)
            interpreter.run(global_variables_initializer())
            for _ in range(3):
                interpreter.run(step)
            return interpreter.run(table), opt, table

    whole, _, _ = trained(lambda: get_variable("v", initializer=VALUE, use_resource=use_resource))
    parts, opt, table = trained(lambda: five_rows(3, use_resource=use_resource))
    np.testing.assert_allclose(parts, whole, rtol=1e-6)
    assert np.abs(whole - VALUE).max() > 0.1
    for name in opt.get_slot_names():
        slots = [opt.get_slot(part, name) for part in table]
        assert [s.shape.as_list() for s in slots] == [[2, 2], [2, 2], [1, 2]]
        assert [s.op.colocation for s in slots] == [(p.op.name,) for p in table]


@pytest.mark.parametrize("scope", ["", "a"])
def test_slots_are_slices_too(graph, scope):
    """Inside a scope the slots' names begin with it once more, as in TensorFlow 1."""
    with variable_scope("a", partitioner=fixed_size_partitioner(2)):
        v = get_variable("v", initializer=Constant(1.0), shape=[3, 2])
    opt = AdamOptimizer(0.1)
    with variable_scope(scope, partitioner=fixed_size_partitioner(2)):
        opt.minimize(reduce_sum(v * v))
    front = f"{scope}/" if scope else ""
    slots = [opt.get_slot(part, "m") for part in v]
    assert [s.op.name for s in slots] == [f"{front}a/v/part_0/Adam", f"{front}a/v/part_1/Adam"]
    assert [s.save_slice_info.full_name for s in slots] == [f"{front}a/v/Adam"] * 2
    assert [s.save_slice_info.spec for s in slots] == ["3 2 0,2:0,2", "3 2 2,1:0,2"]
    assert [opt.get_slot(part, "v").save_slice_info.full_name for part in v] == [f"{front}a/v/Adam_1"] * 2
