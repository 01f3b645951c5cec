"""Models that are loaded: names, weights, what is refused, control flow, training; PyTorch's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from typer.testing import CliRunner

import dovetail as dt
from dovetail.onnx import messages
from dovetail.onnx.importers import recurrent
from dovetail.tools.cli import app

onnx = pytest.importorskip("onnx")
helper = pytest.importorskip("onnx.helper")

MODELS = sorted((Path(__file__).parent / "models").glob("*.onnx"))
FLOAT = 1  # ONNX's number of float32


def value(name: str, *dims: Any, dtype: int = FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, dtype, list(dims))


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int = 18, **weights: Any) -> Any:
    """A model of nodes, with weights by name."""
    arrays = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def dense(name: str = "layer") -> Any:
    """y = x w + b."""
    return model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name)], [value("x", "batch", 3)], [value("y", "batch", 2)],
        w=np.arange(6, dtype=np.float32).reshape(3, 2), b=np.array([1.0, -1.0], np.float32),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def graph() -> Any:
    with dt.Graph().as_default() as made:
        yield made


def run(fetches: Any, feeds: Any = None) -> Any:
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        return session.run(fetches, feeds)


def test_a_model_has_its_inputs_outputs_and_variables_by_name() -> None:
    made = dt.onnx.load(dense())
    assert list(made.inputs) == ["x"]
    assert made.inputs["x"].dims == (None, 3)
    assert made.outputs["y"].dims == (None, 2)
    assert sorted(made.variables) == ["b", "w"]
    got = run(made.outputs["y"], {made.inputs["x"]: [[1.0, 0.0, 1.0]]})
    np.testing.assert_array_equal(got, [[5.0, 5.0]])


def test_device_blocks_and_name_scopes_apply(graph: Any) -> None:
    with dt.device("/job:worker/task:1"):
        made = dt.onnx.load(dense("a b/c:d"), name="mine")
    names = [n.name for n in graph.get_operations()]
    assert all(n.startswith("mine/") for n in names)
    assert any(n.startswith("mine/a_b/c_d/") for n in names)
    assert made.outputs["y"].device == "/job:worker/task:1"


def test_two_models_from_one_file_have_weights_of_their_own() -> None:
    one, two = dt.onnx.load(dense()), dt.onnx.load(dense())
    assert one.variables["w"] is not two.variables["w"]
    assert one.variables["w"].name != two.variables["w"].name


@pytest.mark.parametrize(
    ("how", "trained"),
    [({}, ["b", "w"]), ({"trainable": False}, []), ({"trainable": lambda name: name == "w"}, ["w"])],
)
def test_which_weights_are_trained(how: Any, trained: list[str]) -> None:
    made = dt.onnx.load(dense(), **how)
    assert sorted(n for n, v in made.variables.items() if v.trainable) == trained


def test_weights_as_constants() -> None:
    made = dt.onnx.load(dense(), {"x": [[1.0, 0.0, 1.0]]}, weights="constants")
    assert not made.variables
    np.testing.assert_array_equal(run(made.outputs["y"]), [[5.0, 5.0]])
    with pytest.raises(ValueError, match="'variables' or 'constants'"):
        dt.onnx.load(dense(), weights="none")


def test_running_statistics_are_not_trained_and_what_must_be_known_is_constant() -> None:
    two = np.ones(2, np.float32)
    net = model(
        [helper.make_node("BatchNormalization", ["x", "s", "o", "m", "v"], ["n"]),
         helper.make_node("Resize", ["n", "", "scales"], ["y"])],
        [value("x", 1, 2, 3, 3)], [value("y", 1, 2, 6, 6)], s=two, o=two, m=two, v=two,
        scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    made = dt.onnx.load(net)
    assert {n: v.trainable for n, v in made.variables.items()} == {"s": True, "o": True, "m": False, "v": False}


def test_only_what_the_wanted_outputs_need_is_built(graph: Any) -> None:
    net = model(
        [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Exp", ["h"], ["y"])],
        [value("x", 2)], [value("y", 2)],
    )  # fmt: skip
    made = dt.onnx.load(net, outputs=["h"])
    assert list(made.outputs) == ["h"]
    assert "Exp" not in {n.type for n in graph.get_operations()}


# --- what is refused ------------------------------------------------------------------------------------------


def test_all_missing_ops_are_named_with_their_nodes_and_nothing_is_added(graph: Any) -> None:
    net = model(
        [helper.make_node("Det", ["x"], ["d"], "first"), helper.make_node("Relu", ["x"], ["r"]),
         helper.make_node("Det", ["r"], ["e"], "second"), helper.make_node("Mystery", ["r"], ["m"], domain="my.own")],
        [value("x", 2, 2)], [value("d"), value("e"), value("m", 2, 2)],
    )  # fmt: skip
    net.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(dt.errors.UnimplementedError) as e:
        dt.onnx.load(net)
    assert "Det: 'first' (Det), 'second' (Det)" in str(e.value)
    assert "my.own.Mystery: Mystery with the output 'm'" in str(e.value)
    assert not graph.get_operations()


def test_all_nodes_that_ask_for_too_much_are_named_and_nothing_is_added(graph: Any) -> None:
    net = model(
        [helper.make_node("MaxPool", ["x"], ["p", "i"], "pool", kernel_shape=[2, 2]),
         helper.make_node("LRN", ["x"], ["n"], "norm", size=2), helper.make_node("Relu", ["n"], ["r"])],
        [value("x", 1, 2, 4, 4)], [value("p", 1, 2, 3, 3), value("i", 1, 2, 3, 3, dtype=7), value("r", 1, 2, 4, 4)],
    )  # fmt: skip
    with pytest.raises(dt.errors.UnimplementedError, match="nothing was added") as e:
        dt.onnx.load(net)
    assert "'pool' (MaxPool): the output Indices" in str(e.value)
    assert "'norm' (LRN): an even size" in str(e.value)
    assert "Relu" not in str(e.value)
    assert not graph.get_operations()


@pytest.mark.parametrize(
    ("inputs", "outputs", "error", "text"),
    [
        ({"z": 1.0}, None, ValueError, "no input 'z'. Its inputs: 'x'"),
        (None, ["z"], ValueError, "no value 'z'. Its outputs: 'y'"),
        ({"x": np.ones((1, 4), np.float32)}, None, ValueError, r"has shape \(\?, 3\), not \(1, 4\)"),
    ],
)
def test_inputs_and_outputs_that_do_not_fit(graph: Any, inputs: Any, outputs: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        dt.onnx.load(dense(), inputs, outputs=outputs)


def test_an_input_of_another_type() -> None:
    with pytest.raises(TypeError, match="Input 'x' of the model is float32, not float64"):
        dt.onnx.load(dense(), {"x": dt.placeholder("float64", [None, 3])})


def test_files_that_are_no_models(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model at all")
    with pytest.raises(dt.errors.InvalidArgumentError, match="not a valid ONNX model"):
        dt.onnx.load(bad)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        dt.onnx.load(tmp_path / "none.onnx")


def test_versions_that_are_too_old() -> None:
    net = model([helper.make_node("Relu", ["x"], ["y"])], [value("x", 2)], [value("y", 2)], opset=6)
    with pytest.raises(dt.errors.InvalidArgumentError, match="opset 6, but only opsets 7 to"):
        dt.onnx.load(net)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'onnx'", name="onnx")

    monkeypatch.setattr(messages, "import_module", missing)
    with pytest.raises(dt.errors.UnimplementedError, match=r"pip install 'dovetail\[onnx\]'"):
        dt.onnx.load("model.onnx")


# --- control flow, functions ----------------------------------------------------------------------------------


def test_branches_see_the_values_around_them() -> None:
    def branch(op: str) -> Any:
        return helper.make_graph([helper.make_node(op, ["h"], [f"{op}_out"])], op, [], [value(f"{op}_out", 2)])

    net = model(
        [helper.make_node("Add", ["x", "x"], ["h"]),
         helper.make_node("If", ["c"], ["y"], then_branch=branch("Neg"), else_branch=branch("Abs"))],
        [value("x", 2), value("c", dtype=9)], [value("y", 2)],
    )  # fmt: skip
    made = dt.onnx.load(net)
    for condition, wanted in ((True, [-2.0, 4.0]), (False, [2.0, 4.0])):
        feeds = {made.inputs["x"]: [1.0, -2.0], made.inputs["c"]: condition}
        np.testing.assert_array_equal(run(made.outputs["y"], feeds), wanted)


def test_a_loop_is_differentiable_and_stacks_what_it_puts_out() -> None:
    body = helper.make_graph(
        [helper.make_node("Mul", ["s", "x"], ["t"]), helper.make_node("Identity", ["k"], ["l"])], "body",
        [value("i", dtype=7), value("k", dtype=9), value("s", 2)], [value("l", dtype=9), value("t", 2), value("t", 2)],
    )  # fmt: skip
    net = model(
        [helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=body)],
        [value("x", 2), value("n", dtype=7)], [value("y", 2), value("all", None, 2)],
    )  # fmt: skip
    made = dt.onnx.load(net)
    x = made.inputs["x"]
    (slope,) = dt.gradients(made.outputs["y"], x)
    y, every, slopes = run([made.outputs["y"], made.outputs["all"], slope], {x: [2.0, 3.0], made.inputs["n"]: 2})
    np.testing.assert_allclose(y, [8.0, 27.0])
    np.testing.assert_allclose(every, [[4.0, 9.0], [8.0, 27.0]])
    np.testing.assert_allclose(slopes, [12.0, 27.0])


def test_functions_of_a_model_are_put_in() -> None:
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    net = model([helper.make_node("Twice", ["x"], ["y"], domain="own")], [value("x", 2)], [value("y", 2)])
    net.opset_import.append(helper.make_opsetid("own", 1))
    net.functions.append(function)
    made = dt.onnx.load(net, {"x": np.array([1.0, 2.0], np.float32)})
    np.testing.assert_array_equal(run(made.outputs["y"]), [2.0, 4.0])


# --- unknown sizes --------------------------------------------------------------------------------------------


@given(
    batch=st.integers(1, 3), size=st.tuples(st.integers(5, 9), st.integers(5, 9)), stride=st.integers(1, 3),
    dilation=st.integers(1, 2), pads=st.lists(st.integers(0, 2), min_size=4, max_size=4), groups=st.sampled_from([1, 2, 4]),
)  # fmt: skip
def test_convolutions_of_pictures_of_any_size(
    batch: int, size: tuple[int, int], stride: int, dilation: int, pads: list[int], groups: int
) -> None:
    reference = pytest.importorskip("onnx.reference")
    w = np.arange(4 * (4 // groups) * 6, dtype=np.float32).reshape(4, 4 // groups, 3, 2) % 7
    how = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads, "group": groups}
    net = model([helper.make_node("Conv", ["x", "w"], ["y"], **how)], [value("x", *"nchw")], [value("y", *"nchw")], w=w)
    net.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    x = np.random.default_rng(0).normal(size=(batch, 4, *size)).astype(np.float32)
    with dt.Graph().as_default():
        made = dt.onnx.load(net)
        got = run(made.outputs["y"], {made.inputs["x"]: x})
    (wanted,) = reference.ReferenceEvaluator(net).run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epsilon", [None, 1e-8, 0.0])
def test_batch_normalization_adds_the_models_own_epsilon(epsilon: float | None) -> None:
    how = {} if epsilon is None else {"epsilon": epsilon}
    names = ["x", "scale", "shift", "mean", "variance"]
    node = helper.make_node("BatchNormalization", names, ["y"], **how)
    one, variance = np.ones(2, np.float32), np.array([1e-6, 4e-7], np.float32)
    net = model(
        [node], [value("x", 1, 2, 1, 1)], [value("y", 1, 2, 1, 1)], scale=one, shift=one, mean=one, variance=variance
    )
    made = dt.onnx.load(net, {"x": np.array([2.0, 3.0], np.float32).reshape(1, 2, 1, 1)}, weights="constants")
    wanted = 1 + np.array([1.0, 2.0]) / np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
    np.testing.assert_allclose(run(made.outputs["y"]).ravel(), wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int16", "int32", "float32"])
@pytest.mark.parametrize("numbers", [(5, 2, 2), (2, 5, 2), (-1, 3, -1), (3, -1, -3)])
def test_a_range_is_empty_where_its_steps_lead_away_from_the_limit(dtype: str, numbers: Any) -> None:
    arrays = {k: np.array(n, dtype) for k, n in zip("abc", numbers, strict=True)}
    types = {k: value(k, dtype=helper.np_dtype_to_tensor_dtype(a.dtype)) for k, a in arrays.items()}
    end = value("y", None, dtype=helper.np_dtype_to_tensor_dtype(arrays["a"].dtype))
    made = dt.onnx.load(model([helper.make_node("Range", list("abc"), ["y"])], list(types.values()), [end]))
    got = run(made.outputs["y"], {made.inputs[k]: a for k, a in arrays.items()})
    np.testing.assert_array_equal(got, np.arange(*numbers, dtype=dtype))


def test_activations_of_a_layer_take_their_own_parameters() -> None:
    weights = {"w": np.array([[[2.0]], [[1.0]]], np.float32), "r": np.zeros((2, 1, 1), np.float32)}
    how = {"activations": ["Affine", "HardSigmoid"], "activation_alpha": [3.0, 0.5], "activation_beta": [7.0, 0.125]}
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=1, direction="bidirectional", **how)
    made = dt.onnx.load(model([node], [value("x", 1, 1, 1)], [value("y", 1, 2, 1, 1)], **weights))
    got = run(made.outputs["y"], {made.inputs["x"]: [[[0.25]]]})
    np.testing.assert_allclose(got.ravel(), [3 * 0.5 + 7, 0.5 * 0.25 + 0.125])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [0.5, -2.0])
def test_celu_is_by_its_formula_in_all_types(dtype: str, alpha: float) -> None:
    x = np.array(-0.75, dtype), np.array(1.5, dtype)
    for each in x:
        kind = helper.np_dtype_to_tensor_dtype(each.dtype)
        net = model(
            [helper.make_node("Celu", ["x"], ["y"], alpha=alpha)], [value("x", dtype=kind)], [value("y", dtype=kind)]
        )
        made = dt.onnx.load(net)
        got = run(made.outputs["y"], {made.inputs["x"]: each})
        np.testing.assert_allclose(got, max(0, each) + min(0, alpha * np.expm1(each / alpha)), rtol=1e-5)
        assert (got.shape, got.dtype) == ((), np.dtype(dtype))


@pytest.mark.parametrize(
    ("op", "how", "slope"), [("Elu", {"alpha": 0.5}, 0.5), ("Selu", {"alpha": 2.0, "gamma": 1.5}, 3.0)]
)
def test_exponential_units_keep_small_numbers(op: str, how: dict[str, float], slope: float) -> None:
    made = dt.onnx.load(model([helper.make_node(op, ["x"], ["y"], **how)], [value("x", 2)], [value("y", 2)]))
    x = np.array([-1e-9, -3e-5], np.float32)
    np.testing.assert_allclose(run(made.outputs["y"], {made.inputs["x"]: x}), slope * np.expm1(x), rtol=1e-5)


def test_a_picture_is_resized_to_nothing() -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    scales = np.array([1, 1, 0.8, 2], np.float32)
    net = model([node], [value("x", 1, 1, 1, 3)], [value("y", 1, 1, 0, 6)], scales=scales)
    assert run(dt.onnx.load(net, {"x": np.ones((1, 1, 1, 3), np.float32)}).outputs["y"]).shape == (1, 1, 0, 6)


# --- PyTorch's models -----------------------------------------------------------------------------------------


def _check_pytorch(path: Path) -> None:
    """Its numbers, and a loss that falls."""
    known = np.load(path.with_suffix(".npz"))
    made = dt.onnx.load(path)
    x, y = made.inputs["x"], made.outputs["y"]
    loss = dt.reduce_mean(dt.square(y))
    step = dt.train.GradientDescentOptimizer(0.01).minimize(loss)
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        np.testing.assert_allclose(session.run(y, {x: known["x"]}), known["y"], rtol=1e-4, atol=1e-5)
        losses = [session.run([loss, step], {x: known["x"]})[0] for _ in range(3)]
    assert losses[2] < losses[0]


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_models_of_pytorch_give_its_numbers_and_learn(path: Path) -> None:
    _check_pytorch(path)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_long_sequences_are_loops(kind: str, graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "MAX_UNROLLED", 0)
    _check_pytorch(next(p for p in MODELS if p.stem == kind))
    assert "LoopCond" in {n.type for n in graph.get_operations()}


@pytest.mark.slow
def test_the_command_line_plans_a_model(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("jobs: {worker: 2}\ndevices: {worker: [{name: cpu:0, flops: 1e6}]}\n")
    resnet = next(p for p in MODELS if p.stem == "resnet")
    words = ["plan", str(resnet), "--cluster", str(cluster)]
    told = CliRunner().invoke(app, [*words, "--strategy", "auto"])
    assert told.exit_code == 0, told.output
    assert told.stdout.startswith("Plan: ")
    assert "main_graph/" in told.output
    assert CliRunner().invoke(app, [*words, "--strategy", "best"]).exit_code == 2
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    told = CliRunner().invoke(app, ["plan", str(bad)])
    assert (told.exit_code, "not a valid ONNX model" in told.output) == (2, True)


@pytest.mark.slow
def test_a_model_is_spread_over_two_unequal_devices() -> None:
    made = dt.onnx.load(next(p for p in MODELS if p.stem == "resnet"))
    devices = {
        "worker": [{"name": "cpu:0", "flops": 1e6, "memory": 3000}, {"name": "cpu:1", "flops": 2e6, "memory": 1e6}]
    }
    plan = dt.place(None, {"worker": 1}, devices=devices, fetches=made.outputs["y"], strategy="auto", budget_s=0.2)
    assert len(plan.partitions) == 2
