"""variable_scope and get_variable: names, sharing, defaults."""

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.compat.tf1.names.variables import get_local_variable, no_regularizer, variable_op_scope
from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant
from dovetail.graph.core.default_graph import GraphKeys
from dovetail.graph.core.graph import Graph
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.variables.initializers import zeros_initializer
from dovetail.graph.variables.ref_and_resource import ResourceVariable
from dovetail.graph.variables.scope import AUTO_REUSE, get_variable, get_variable_scope, variable_scope
from dovetail.graph.variables.store import global_variables, local_variables, trainable_variables
from dovetail.graph.variables.variable import VariableAggregation, VariableSynchronization


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def test_the_nodes_have_tensorflows_names(graph):
    w = get_variable("w", [2], initializer=zeros_initializer())
    found = [n.name for n in graph.nodes]
    assert found == ["w/Initializer/zeros", "w", "w/Assign", "w/read"]
    assert (w.name, w.shape.as_list(), w.dtype.base) == ("w:0", [2], dtypes.float32)
    assert graph.get_operation_by_name("w/Initializer/zeros").colocation == ("w",)


def test_a_value_as_initializer(graph):
    w = get_variable("w", initializer=np.float32([1, 2]))
    assert w.initial_value.name == "w/initial_value:0"
    assert w.shape.as_list() == [2]


def test_a_function_as_initializer(graph):
    v = get_variable("v", initializer=lambda: constant([1, 2]))
    assert (v.dtype.base, v.shape.as_list()) == (dtypes.int32, [2])
    w = get_variable("w", [3], initializer=lambda shape, dtype: constant(np.full(shape, 5), dtype))
    run = Interpreter(graph)
    run.run(w.initializer)
    assert run.run(w).tolist() == [5, 5, 5]
    assert get_variable("z", [2], initializer=zeros_initializer).shape.as_list() == [2]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_the_default_initializer_depends_on_the_type(graph, dtype):
    w = get_variable("w", [3, 4], dtype=dtype)
    run = Interpreter(graph)
    run.run(w.initializer)
    value = run.run(w)
    assert value.dtype == np.dtype(dtype)
    if dtype.startswith("float"):
        limit = np.sqrt(6 / (3 + 4))  # Glorot's
        assert np.all(np.abs(value) <= limit)
        assert len(np.unique(value)) > 1
    else:
        assert not value.any()


def test_scopes_prefix_names(graph):
    with variable_scope("a") as a:
        assert get_variable_scope() is a
        with variable_scope("b"):
            w = get_variable("w", [1])
            c = constant(1.0, name="c")
        with graph.name_scope("only_nodes"):
            u = get_variable("u", [1])
            d = constant(1.0, name="d")
    assert [x.name for x in (w, c, u, d)] == ["a/b/w:0", "a/b/c:0", "a/u:0", "a/only_nodes/d:0"]
    assert get_variable_scope().name == ""


def test_entering_a_name_twice_shares_variables_but_not_node_names(graph):
    with variable_scope("a"):
        w = get_variable("w", [1])
    with variable_scope("a", reuse=True):
        assert get_variable("w", [1]) is w
        assert get_variable("w") is w
        assert constant(1.0, name="c").name == "a_1/c:0"


def test_a_scope_object_enters_its_own_name_again(graph):
    with variable_scope("a") as a:
        w = get_variable("w", [1])
    with variable_scope("b"), variable_scope(a, reuse=True) as again:
        assert again.name == "a"
        assert again.original_name_scope == "a/"
        assert get_variable("w") is w
        assert constant(1.0, name="c").name == "b/a/c:0"


def test_making_a_variable_twice_is_an_error_that_shows_the_first(graph):
    get_variable("w", [1])
    with pytest.raises(ValueError, match=r"Variable w already exists, disallowed. Did you mean") as e:
        get_variable("w", [1])
    assert "test_variable_scope.py" in str(e.value)


def test_finding_what_does_not_exist_is_an_error(graph):
    with (
        variable_scope("a", reuse=True),
        pytest.raises(ValueError, match=r"Variable a/w does not exist, or was not created with tf.get_variable\(\)"),
    ):
        get_variable("w", [1])
    assert len(graph) == 0


def test_auto_reuse_makes_and_then_finds(graph):
    with variable_scope("a", reuse=AUTO_REUSE):
        assert get_variable("w", [1]) is get_variable("w", [1])
    with variable_scope("a", reuse=AUTO_REUSE), variable_scope("b", reuse=False):
        assert get_variable("w", [1]) is get_variable("w", [1])  # reuse that is on outside stays on


def test_reuse_variables_switches_the_open_scope(graph):
    with variable_scope("a") as a:
        w = get_variable("w", [1])
        a.reuse_variables()
        assert get_variable("w") is w


def test_what_is_shared_must_fit(graph):
    with variable_scope("a", reuse=AUTO_REUSE):
        get_variable("w", [2])
        with pytest.raises(ValueError, match=r"specified shape \(3,\) and found shape \(2,\)"):
            get_variable("w", [3])
        with pytest.raises(ValueError, match="specified dtype int32 and found dtype float32"):
            get_variable("w", [2], dtype="int32")


def test_default_names_are_made_unique(graph):
    for expected in ("dense", "dense_1", "dense_2"):
        with variable_scope(None, "dense"):
            assert get_variable("w", [1]).name == f"{expected}/w:0"
            assert constant(1.0, name="c").name == f"{expected}/c:0"


def test_default_names_start_again_when_a_scope_is_entered_again(graph):
    for reuse in (False, True):
        with variable_scope("net", reuse=reuse):
            names = []
            for _ in range(2):
                with variable_scope(None, "dense"):
                    names.append(get_variable("w", [1]).name)
        assert names == ["net/dense/w:0", "net/dense_1/w:0"]


def test_defaults_come_from_the_scope(graph):
    with variable_scope("a", initializer=zeros_initializer(), dtype="float64", use_resource=True):
        w = get_variable("w", [2])
        with variable_scope("b", dtype="float32"):
            u = get_variable("u", [2], use_resource=False)
    assert isinstance(w, ResourceVariable)
    assert (w.dtype, u.dtype.base) == (dtypes.float64, dtypes.float32)
    assert w.initial_value.op.name == "a/w/Initializer/zeros"
    assert not isinstance(u, ResourceVariable)


def test_regularizers(graph):
    def half(v):
        return v * 0.5

    with graph.device("/job:ps"), variable_scope("a", regularizer=half):
        w = get_variable("w", [2])
        get_variable("u", [2], regularizer=no_regularizer)
    (loss,) = graph.get_collection(GraphKeys.REGULARIZATION_LOSSES)
    assert loss.name == "a/w/Regularizer/mul:0"
    assert loss.op.colocation == ("a/w",)
    assert loss.device == w.device == "/job:ps"


def test_custom_getters_are_told_how_copies_are_kept(graph):
    told = []

    def getter(get, name, **arguments):
        told.append((arguments["synchronization"], arguments["aggregation"]))
        return get(name, **arguments)

    with variable_scope("a", custom_getter=getter):
        get_variable("plain", [1])
        get_variable("kept", [1], synchronization=VariableSynchronization.ON_READ, aggregation=VariableAggregation.MEAN)
    assert told == [
        (VariableSynchronization.AUTO, VariableAggregation.NONE),
        (VariableSynchronization.ON_READ, VariableAggregation.MEAN),
    ]
    assert VariableAggregation.ONLY_FIRST_TOWER is VariableAggregation.ONLY_FIRST_REPLICA  # the name of older programs


def test_a_custom_getter_gets_the_name_by_keyword(graph):
    def getter(real, **kwargs):
        return real(**{**kwargs, "name": kwargs["name"] + "_too"})

    with variable_scope("a", custom_getter=getter):
        assert get_variable("w", [1]).op.name == "a/w_too"


def test_custom_getters_nest(graph):
    asked = []

    def getter(who):
        def ask(get, name, *args, **kwargs):
            asked.append((who, name))
            return get(name, *args, **kwargs)

        return ask

    with (
        variable_scope("a", custom_getter=getter("outer")),
        variable_scope("b", custom_getter=getter("inner")),
    ):
        get_variable("w", [1], custom_getter=getter("call"))
    assert asked == [("call", "a/b/w"), ("inner", "a/b/w"), ("outer", "a/b/w")]


def test_collections(graph):
    a = get_variable("a", [1], trainable=False)
    b = get_local_variable("b", [1])
    c = get_variable("c", [1], collections=["mine"])
    assert global_variables() == [a]
    assert local_variables() == [b]
    assert trainable_variables() == [c]
    assert graph.get_collection("mine") == [c]
    with variable_scope("s") as s:
        d = get_variable("d", [1])
    assert s.global_variables() == [d] == s.trainable_variables()
    assert s.local_variables() == []


def test_old_spelling(graph):
    with variable_op_scope([constant(1.0)], None, "x"):
        assert get_variable("w", [1]).name == "x/w:0"


def test_each_graph_has_its_own(graph):
    get_variable("w", [1])
    with Graph().as_default():
        get_variable("w", [1])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: get_variable("w"), ValueError, r"Shape of a new variable \(w\) must be fully defined"),
        (lambda: get_variable("w", [None, 2]), ValueError, "must be fully defined"),
        (lambda: get_variable("w", [2], initializer=[1.0, 2.0]), ValueError, "do not specify shape"),
        (lambda: get_variable("w", initializer=np.float32([1]), dtype="int32"), ValueError, "don't match"),
        (lambda: get_variable("w", [2], custom_getter=3), ValueError, "custom_getter must be callable"),
        (lambda: variable_scope("a", custom_getter=3).__enter__(), ValueError, "custom_getter must be callable"),
        (lambda: variable_scope("a", auxiliary_name_scope="b").__enter__(), TypeError, "auxiliary_name_scope"),
        (lambda: get_variable("w", [2], partitioner=3), ValueError, "Partitioner must be callable"),
        (lambda: variable_scope("a", partitioner=3).__enter__(), ValueError, "Partitioner must be callable"),
        (lambda: variable_scope(None).__enter__(), TypeError, "name_or_scope is required"),
        (lambda: variable_scope(3).__enter__(), TypeError, "string or a VariableScope"),
        (lambda: variable_scope("a", reuse="yes").__enter__(), ValueError, "reuse parameter"),
        (lambda: variable_scope(None, "a", reuse=True).__enter__(), ValueError, "without a name_or_scope"),
    ],
)
def test_wrong_arguments(graph, call, error, words):
    with pytest.raises(error, match=words):
        call()
    assert global_variables() == []
    assert get_variable_scope().name == ""
    assert get_variable("w", [1]).name == "w:0"


def test_a_scope_is_left_when_its_block_fails(graph):
    with pytest.raises(KeyError), variable_scope("a"):
        raise KeyError
    assert get_variable("w", [1]).name == "w:0"


def test_default_names_go_on_after_the_open_scope_was_entered_again(graph):
    with variable_scope("d", reuse=AUTO_REUSE) as d:
        with variable_scope(None, "layer"):
            first = get_variable("w", [1])
        with variable_scope(d), variable_scope(None, "layer"):
            inside = get_variable("w", [1])
        with variable_scope(None, "layer"):
            second = get_variable("w", [1])
    assert [v.op.name for v in (first, inside, second)] == ["d/layer/w", "d/layer_1/w", "d/layer_1/w"]
    with variable_scope(d), variable_scope(None, "layer"):
        third = get_variable("w", [1])
    with variable_scope("d"), variable_scope(None, "layer"), pytest.raises(ValueError, match="already exists"):
        get_variable("w", [1])
    assert third is first


def test_reuse_of_a_scope_object_cannot_be_turned_off(graph):
    with variable_scope("a") as a:
        w = get_variable("w", [1])
        a.reuse_variables()
    with variable_scope(a, reuse=False) as again:
        assert again.reuse
        assert get_variable("w", [1]) is w


def test_a_local_variable_may_be_in_collections_of_its_own(graph):
    for v in (get_local_variable("a", [1], collections=["mine"]), get_local_variable("b", [1], None, None, None, True)):
        assert not v.trainable
        assert v in graph.get_collection("local_variables")
        assert (v in graph.get_collection("mine")) == (v.op.name == "a")


def test_a_variable_of_text_is_empty_at_first(graph):
    text = get_variable("text", [2], dtype="string")
    interpreter = Interpreter(graph)
    interpreter.run(text.initializer)
    assert interpreter.run(text.value()).tolist() == [b"", b""]


def test_scopes_are_left_in_order(graph):
    outer, inner = variable_scope("outer"), variable_scope("inner")
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="Improper nesting of variable_scope: 'outer'"):
        outer.__exit__(None, None, None)
