"""What compiled functions refuse or warn of, and what they say then."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_wrong_name_of_a_node_is_answered_with_a_scopes_nodes_or_whole_names():
    plan = dt.compile(lambda x: dt.layers.dense(dt.layers.dense(x, 3, name="hidden"), 2)).plan(X)
    for name, said in (
        ("hidden", r"A scope has that name. Its nodes: lambda/hidden/kernel, .*\(16 in all\)"),
        ("lambda/dense", "A scope has that name. Its nodes: lambda/dense/kernel,"),
        ("MatMul", "Close names: lambda/hidden/MatMul, lambda/dense/MatMul"),
        ("lambda/dense/MatMull", "Close names: lambda/dense/MatMul,"),
        ("qqq", "names of Python's variables are not known"),
    ):
        with pytest.raises(KeyError, match=said):
            plan.explain(name)


def test_comparing_a_tensor_by_identity_is_warned_of_at_the_users_line():
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Holder) and self.held == other.held

        __hash__ = None

    def quiet(x, y):
        assert y in [x, y] and [x, y].index(y) == 1 and y not in {x: 1} and x is not y
        assert Holder(x) != Holder(y) and x != None and x != "text"  # noqa: E711
        ours, theirs = [x], (x, y)
        assert (
            [x] != [y]
            and ours != [y]
            and theirs == (x, y)
            and theirs
            != (
                y,
                x,
            )
        )
        return x

    def loud(x, y):
        w = dt.get_variable("w", [3])
        found = [x == y]
        found += [y != np.ones(3)]
        found += [np.ones(3) == y]
        found += [w == 0]
        assert found == [False, True, False, False]  # as in TensorFlow 1
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        dt.compile(quiet).plan(X, X)
        assert not caught
        step = dt.compile(loud)
        step.plan(X, X), step.plan(X[:2], X[:2])  # noqa: B018  (the second trace says nothing new)
        outside = dt.constant(X)
        assert outside != X  # no function is being traced: TensorFlow's programs may mean it
    first = loud.__code__.co_firstlineno
    assert [w.lineno - first for w in caught] == [2, 3, 4, 5] and caught[0].filename == __file__
    assert "dt.equal(a, b)" in str(caught[0].message)


def test_settings_and_names_of_other_libraries_are_told_where_they_belong():
    step = dt.compile(lambda x: x)
    with pytest.raises(TypeError, match=r"give `strategy` to dt.compile: @dt.compile\(strategy=...\)"):
        step.plan(X, strategy="auto")
    with pytest.raises(AttributeError, match="use variables"):
        step.parameters  # noqa: B018
    with pytest.raises(
        AttributeError, match=r"dovetail.keras.layers' has no attribute 'Linear': use dt.keras.layers.Dense\(units\)"
    ):
        dt.keras.layers.Linear  # noqa: B018
    with pytest.raises(TypeError, match=r"dropout\(\) has no argument 'p': use rate"):
        dt.nn.dropout(dt.ones([2]), p=0.5)


def test_what_cannot_be_compiled_is_refused():
    def generator():
        yield 1

    for wrong in (3, generator):
        with pytest.raises(TypeError, match=r"dt.compile takes a function"):
            dt.compile(wrong)  # type: ignore[call-overload]
    module = type("Module", (), {"__module__": "torch.nn.modules.module", "__call__": lambda self, x: x})
    net = type("Net", (module,), {})()  # what PyTorch's are seen as; PyTorch itself need not be there
    with pytest.raises(
        TypeError, match=r"not a PyTorch module \(Net\): export it with torch.onnx.export.*dt.onnx.load"
    ):
        dt.compile(net)
    step = dt.compile(lambda x: x)
    with pytest.raises(TypeError, match="missing a required argument"):
        step()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="Variables to save|no variables|variable"):
        dt.compile(lambda x: x).save("nowhere")


def test_too_many_traces_are_warned_of():
    step = dt.compile(lambda x: x + 1)
    with step, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for n in range(1, 10):
            step(np.zeros(n, np.float32))
    told = [w for w in seen if "traced" in str(w.message)]
    assert [(str(w.message)[:43], w.filename) for w in told] == [
        ("lambda was traced 8 times for different sha", __file__)
    ]


def test_a_clash_with_the_variables_of_the_first_call_names_the_arguments():
    @dt.compile
    def net(x, n):
        return dt.layers.dense(dt.layers.dense(x, 2, name="dense"), 2), n  # warned of once

    with pytest.warns(UserWarning, match=r"'dense' makes float64 weights.*x\.astype\(np\.float32\)") as caught:
        net.plan(X.astype(np.float64), 1.0)
    assert [w.lineno for w in caught] == [net.__wrapped__.__code__.co_firstlineno + 2] and caught[
        0
    ].filename == __file__
    with pytest.raises(ValueError, match="found dtype float64") as error:
        net.plan(X, 1.0)
    assert error.value.__notes__[0] == "Argument `x` is float32 (4, 3); in the first call it was float64 (4, 3)"


def test_a_float64_argument_beside_a_float32_variable_is_named_in_the_error():
    step = dt.compile(lambda batch: batch["x"] @ dt.get_variable("w", [3, 2]))
    with pytest.raises(TypeError, match="not float64 and float32") as error:
        step.plan({"x": X.astype(np.float64)})
    assert error.value.__notes__[:1] == [
        "Argument `batch_x` is float64, as NumPy makes arrays unless told otherwise: pass it .astype(np.float32)"
    ]
    assert step.plan({"x": X}).fetches
    with pytest.raises(TypeError, match="bool") as error:  # its text lists the types that there could be
        dt.compile(lambda x: dt.mean(x > 0)).plan(X.astype(np.float64))
    assert not any("NumPy makes" in note for note in error.value.__notes__)


def test_gradients_by_a_dict_of_parameters_say_how():
    step = dt.compile(lambda params: dt.gradients(params["w"] * 2.0, params))
    with pytest.raises(TypeError, match="xs is a dict: pass a list"):
        step.plan({"w": X})

    @dt.compile
    def packed(params):
        return dt.nest.pack_sequence_as(params, dt.gradients(params["l"]["w"] * params["b"], dt.nest.flatten(params)))

    with packed:
        assert packed({"l": {"w": 2.0}, "b": 3.0}) == {"l": {"w": 3.0}, "b": 2.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: {x}, "returns a set: return a list"),
        (lambda x: iter([x]), "returns a list_iterator: return a list"),
        (lambda x: dt.TensorArray(dt.float32, 1).write(0, x), r"returns a TensorArray: return its tensor, stack\(\)"),
    ],
)
def test_results_that_no_step_can_return_are_refused(make, message):
    step = dt.compile(lambda x: make(x))
    with pytest.raises(TypeError, match=message):
        step.plan(X)


def test_a_cluster_is_checked_when_the_function_is_compiled(tmp_path: Path):
    path = tmp_path / "cluster.yaml"
    path.write_text("jobs: {worker: 2}\ndevices: {worker: [cpu:0, cpu:1]}\n")
    for cluster, devices in [
        ("worker=2", 2),
        (path, 4),
        (dt.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]}), 2),
    ]:
        plan = dt.compile(lambda x: x + 1, cluster=cluster).plan(1.0)
        assert len(plan.cluster.devices) == devices
    for wrong, message in [
        (3, r"numbers of tasks \(.*'ps=1,worker=2'\), the path of a cluster file.*not 3"),
        (["worker"], "`cluster` must be None, numbers"),
        ({"worker": "two"}, "a whole number of tasks from 0 on, or a list of addresses, not 'two'"),
        (str(tmp_path / "none.yaml"), "none.yaml"),
    ]:
        with pytest.raises((TypeError, ValueError, OSError), match=message):
            dt.compile(lambda x: x, cluster=wrong)


def test_float_indices_are_answered_with_the_integer_type():
    @dt.compile
    def rows(ids):
        return dt.nn.embedding_lookup(dt.get_variable("table", [10, 4]), ids)

    with pytest.raises(TypeError, match="indices must be int32 or int64") as e:
        rows(np.array([3.0, 1.0]))
    assert "Argument `ids` is float64" in e.value.__notes__[0] and ".astype(np.int64)" in e.value.__notes__[0]


def test_variables_of_another_graph_and_of_another_shape_say_where_they_were_made():
    with dt.Graph().as_default():
        w = dt.get_variable("w", [3, 2])
    with pytest.raises(ValueError, match="of another graph.*make a variable inside the function, with dt.get_variable"):
        dt.compile(lambda x: dt.matmul(x, w)).plan(X)
    sizes = iter([4, 5])

    @dt.compile
    def step(x):
        return dt.get_variable("w", [next(sizes)]), x

    step.plan(X)
    with pytest.raises(
        ValueError, match=r"specified shape \(5,\) and found shape \(4,\)\. It was first created at .*test_"
    ):
        step.plan(X[:1])


@pytest.mark.parametrize("shown", ["user", "full"])
def test_errors_show_the_users_frames_alone(shown, monkeypatch):
    monkeypatch.setenv("DOVETAIL_TRACEBACK", shown)

    @dt.compile
    def step(x):
        return dt.matmul(x, x)

    def frames(call):
        with pytest.raises((TypeError, ValueError)) as e:
            call()
        text = "".join(traceback.format_exception(e.value))
        return [f.name for f in traceback.extract_tb(e.value.__traceback__)], text.count("DOVETAIL_TRACEBACK=full")

    for call in (lambda: step(X), lambda: step.plan(X), lambda: step.trace(X)):
        names, notes = frames(call)
        assert ("step" in names and len(names) > 4) if shown == "full" else names == ["frames", "<lambda>", "step"]
        assert notes == (shown == "user")
    assert (frames(lambda: step())[0] == ["frames", "<lambda>"]) == (shown == "user")


def test_names_of_other_libraries_are_answered():
    @dt.compile
    def step(x, scale=1.0):
        return x * scale

    with pytest.raises(AttributeError, match=r"no attribute 'lower': use plan\("):
        step.lower(X)
    with pytest.raises(TypeError, match="has no argument 'static_argnums': leave it out.*functools.partial"):
        dt.compile(step, static_argnums=1)
    with pytest.raises(TypeError, match="has no argument 'dynamic': use symbolic_batch"):
        dt.compile(dynamic=True)
    step.plan(X)
    assert repr(step) == "<dt.compile step(x, scale=1.0): 1 trace, 0 variables>"
    assert (
        repr(dt.compile(lambda: 1, cluster={"ps": 1})) == "<dt.compile lambda(): 0 traces, 0 variables, on {'ps': 1}>"
    )
