"""Templates: one set of variables for all calls of one, another for each template."""

import pytest

from dovetail.compat.tf1.names.variables import get_local_variable, make_template
from dovetail.graph.core.build import constant
from dovetail.graph.core.graph import Graph
from dovetail.graph.variables.initializers import ones_initializer
from dovetail.graph.variables.scope import get_variable, variable_scope
from dovetail.graph.variables.store import global_variables
from dovetail.graph.variables.variable import Variable


def test_calls_share_variables_and_templates_do_not() -> None:
    with Graph().as_default():

        def scaled(x: object, by: str = "w") -> object:
            return x * get_variable(by, [], initializer=ones_initializer())

        one, other = make_template("scale", scaled), make_template("scale", scaled, by="v")
        one(constant(1.0))
        with variable_scope("elsewhere"):
            one(constant(2.0))
        other(constant(1.0))
        other(constant(1.0))
        assert [v.name for v in global_variables()] == ["scale/w:0", "scale_1/v:0"]
        with pytest.raises(ValueError, match="scale/new"):
            one(constant(1.0), "new")


def test_a_name_can_be_taken_before_the_first_call() -> None:
    with Graph().as_default():
        late = make_template("part", lambda: get_variable("w", []), create_scope_now_=True)
        make_template("part", lambda: get_variable("w", []))()
        late()
        assert [v.name for v in global_variables()] == ["part_1/w:0", "part/w:0"]


def test_a_graph_tells_its_scopes_and_collections() -> None:
    with Graph().as_default() as graph:
        assert graph.get_name_scope() == ""
        with graph.name_scope("a"), variable_scope("b"):
            assert graph.get_name_scope() == "a/b"
        graph.add_to_collection("kept", 1)
        assert "kept" in graph.collections


def test_a_template_tells_its_variables() -> None:
    def module(trainable: bool) -> None:
        get_variable("w", [], trainable=trainable)
        get_local_variable("l", [])

    with Graph().as_default():
        now, later = make_template("now", module, True, trainable=True), make_template("later", module, trainable=False)
        assert (now.variable_scope_name, later.variable_scope_name, now.variables) == ("now/", None, [])
        now()
        later()
        told = [now.variables, later.global_variables, now.trainable_variables, later.trainable_variables]
        told += [later.local_variables, later.non_trainable_variables]
        assert [[v.op.name for v in kept] for kept in told] == [
            ["now/w", "now/l"], ["later/w"], ["now/w"], [], ["later/l"], ["later/w", "later/l"]
        ]  # fmt: skip
        careless = make_template("careless", lambda: Variable(1.0))
        careless()
        with pytest.raises(ValueError, match="made trainable variables"):
            careless()
        with pytest.raises(ValueError, match="name cannot be None"):
            make_template(None, module)


def test_the_first_call_has_the_name_scope_of_the_variables() -> None:
    with Graph().as_default():
        f = make_template("f", lambda: constant(1.0, name="c"), create_scope_now_=True)
        assert [f().op.name for _ in range(2)] == ["f/c", "f_1/c"]
