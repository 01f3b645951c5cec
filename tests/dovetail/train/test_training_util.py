"""The global step."""

import pytest
from reference_interpreter import Interpreter

from dovetail.graph.core import dtypes
from dovetail.graph.core.build import constant
from dovetail.graph.core.default_graph import GraphKeys
from dovetail.graph.core.graph import Graph
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes
from dovetail.graph.ops import all as _all_ops  # noqa: F401  registers every op
from dovetail.graph.variables.scope import variable_scope
from dovetail.graph.variables.store import global_variables, trainable_variables
from dovetail.graph.variables.variable import Variable
from dovetail.train import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
    global_step,
)


@pytest.fixture
def graph():
    with Graph().as_default() as g:
        yield g


def test_it_is_made_once(graph):
    assert get_global_step() is None
    step = get_or_create_global_step()
    assert get_or_create_global_step() is step is get_global_step()
    assert (step.name, step.dtype.base, step.shape.as_list()) == ("global_step:0", dtypes.int64, [])
    assert global_variables() == [step]
    assert trainable_variables() == []
    with pytest.raises(ValueError, match='"global_step" already exists'):
        create_global_step()


def test_name_scopes_do_not_prefix_it(graph):
    with graph.name_scope("a"):
        assert create_global_step().name == "global_step:0"


def test_another_graph_than_the_default_one(graph):
    other = Graph()
    step = get_or_create_global_step(other)
    assert step.graph is other
    assert get_global_step() is None


def test_its_value_in_a_session(graph):
    step = create_global_step()
    run = Interpreter(graph)
    run.run(step.initializer)
    run.run(step.assign_add(3))
    value = global_step(run, step)
    assert (value, type(value)) == (3, int)


def test_it_is_found_in_a_graph_that_was_loaded(graph):
    create_global_step()
    copy = Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    assert get_global_step(copy).name == "global_step:0"
    assert get_or_create_global_step(copy).graph is copy


def test_it_must_be_an_integer_scalar(graph):
    with pytest.raises(TypeError, match="does not have integer type"):
        assert_global_step(constant(1.0))
    with pytest.raises(TypeError, match="is not scalar"):
        assert_global_step(constant([1, 2]))
    with pytest.raises(TypeError, match="integer"):
        with variable_scope(""):
            Variable(1.0, collections=[GraphKeys.GLOBAL_STEP])
        get_global_step()


def test_there_must_be_one(graph):
    for _ in range(2):
        Variable(1, collections=[GraphKeys.GLOBAL_STEP])
    with pytest.raises(ValueError, match="2 global steps"):
        get_global_step()
