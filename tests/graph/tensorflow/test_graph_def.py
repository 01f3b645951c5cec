"""`GraphDef`, written and read: what TensorFlow recorded, round trips of our own graphs, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dovetail as tf

pytest.importorskip("google.protobuf")

from dovetail.graph.formats.protos import message
from dovetail.graph.formats.values import MisfitError, make_ndarray, make_tensor_proto, read_attr, write_attr

RECORDED = Path(__file__).parent / "recorded"


def graph_def(data: bytes) -> Any:
    found = tf.GraphDef()
    found.ParseFromString(data)
    return found


@pytest.mark.parametrize("name", ["functions", "images", "loops", "many", "gradients"])
def test_what_tensorflow_wrote_computes_what_tensorflow_did(name: str) -> None:
    told = np.load(RECORDED / f"{name}.npz")
    names = [str(n) for n in told["names"]]
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = tf.import_graph_def(graph_def((RECORDED / f"{name}.pb").read_bytes()), return_elements=names, name="")
        got = session.run(outputs, {k[5:]: told[k] for k in told.files if k.startswith("feed_")})
    for i, value in enumerate(got):
        wanted = told[f"value{i}"]
        if value.dtype == object:
            assert [bytes(v) for v in value.ravel()] == list(wanted.ravel()), names[i]
        elif wanted.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, 1e-4, 1e-5, err_msg=names[i])
        else:
            np.testing.assert_array_equal(value, wanted, err_msg=names[i])
            assert value.dtype == wanted.dtype


def training_graph() -> tuple[tf.Graph, dict[str, str]]:
    """A graph with a bit of everything; names of nodes to run."""
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, [None, 8, 8, 1], name="x")
        with tf.device("/job:worker/task:1/gpu:0"):
            y = tf.layers.conv2d(x, 3, 3, activation=tf.nn.relu)
        y = tf.layers.batch_normalization(tf.layers.max_pooling2d(y, 2, 2), training=True)
        with tf.variable_scope("v", use_resource=True):
            z = tf.layers.dense(tf.layers.flatten(y), 10)
        loss = tf.losses.sparse_softmax_cross_entropy(tf.argmax(z, 1), z)
        _, doubled = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), [0, loss])
        branch = tf.cond(loss > 0.0, lambda: loss * 3.0, lambda: -loss)
        rows = tf.nn.embedding_lookup(tf.get_variable("table", [5, 2]), [1, 3])
        step = tf.train.AdamOptimizer(0.01).minimize(loss + tf.reduce_sum(rows * rows))
        with tf.colocate_with(z):
            tf.summary.scalar("loss", loss)
            tf.summary.histogram("rows", rows)
            tf.summary.image("pictures", x, max_outputs=2)
        merged = tf.summary.merge_all()
        tf.train.Saver()
        start = tf.global_variables_initializer()
    return graph, {
        "start": start.name, "step": step.name, "loss": loss.name, "loop": doubled.name, "branch": branch.name, "summary": merged.name,
    }  # fmt: skip


def results(graph: tf.Graph, names: dict[str, str], scope: str = "") -> list[Any]:
    images = np.random.default_rng(0).standard_normal((4, 8, 8, 1)).astype(np.float32)
    feeds = {f"{scope}x:0": images}
    config = tf.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
    for node in graph.get_operations():
        node._set_device("")
    with tf.Session(graph=graph, config=config) as session:
        session.run(f"{scope}{names['start']}")
        out = session.run([f"{scope}{names[k]}" for k in ("loop", "branch", "summary")], feeds)
        for _ in range(2):
            session.run(f"{scope}{names['step']}", feeds)
        return [*out, session.run(f"{scope}{names['loss']}", feeds)]


def test_a_graph_comes_back_as_it_was() -> None:
    graph, names = training_graph()
    written = graph.as_graph_def()
    with tf.Graph().as_default() as again:
        tf.import_graph_def(written.SerializeToString(), name="")
    for node in graph.get_operations():
        other = again.get_operation_by_name(node.name)
        if node.type not in ("HistogramSummary", "ImageSummary", "ScalarSummary"):  # their tags are constants there
            assert [t.name for t in other.inputs] == [t.name for t in node.inputs], node.name
        assert other.type == node.type and other.device == node.device and other.colocation == node.colocation
        assert [(t.dtype, t.dims) for t in other.outputs] == [(t.dtype, t.dims) for t in node.outputs], node.name
        controls = [c.name for c in other.control_inputs]
        if "Apply" in node.type:  # waits for what reads its variable
            controls = controls[: len(node.control_inputs)]
        assert controls == [c.name for c in node.control_inputs]
    with tf.Graph().as_default() as scoped:
        tf.import_graph_def(written)
        tf.import_graph_def(written)
    assert "import/x" in scoped and "import_1/x" in scoped
    mine = results(graph, names)
    for mirrored in (results(again, names), results(scoped, names, "import_1/")):
        for a, b in zip(mine, mirrored, strict=True):
            assert a == b or np.array_equal(a, b)


def test_inputs_are_mapped_and_devices_of_blocks_apply() -> None:
    with tf.Graph().as_default() as source:
        x = tf.placeholder(tf.float32, [2], name="x")
        with tf.device("/gpu:1"):
            y = tf.add(x, 1.0, name="y")
        with tf.control_dependencies([tf.no_op(name="first")]):
            tf.multiply(y, y, name="z")
    written = source.as_graph_def()
    with tf.Graph().as_default():
        given, before = tf.constant([1.0, 2.0], name="given"), tf.no_op(name="before")
        with tf.device("/job:ps/task:2"):
            z, op = tf.import_graph_def(written, {"x": given, "^first": before}, ["z:0", "y"], name="net")
    assert op.device == "/job:ps/task:2/device:GPU:1" and z.op.device == "/job:ps/task:2"
    assert op.inputs[0] is given and [c.name for c in z.op.control_inputs] == ["before"] and z.name == "net/z:0"
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        z = tf.import_graph_def(written, {"x:0": [1.0, 2.0]}, ["z:0"])[0]
        assert session.run(z).tolist() == [4.0, 9.0]


def _loop(x: Any) -> Any:
    return tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * x), [0, x])[1]


def _list(x: Any) -> Any:
    array = tf.TensorArray(tf.float64, 3, clear_after_read=False).unstack(tf.stack([x, x * x, x]))
    return array.read(0) * array.read(1) + array.read(1)


@pytest.mark.parametrize(
    ("build", "slopes"),
    [
        (_loop, [4.0 * 1.5**3, 12.0 * 1.5**2]),  # of x ** 4
        (_list, [3.0 * 1.5**2 + 2.0 * 1.5, 6.0 * 1.5 + 2.0]),  # of x ** 3 + x ** 2
    ],
)
def test_loops_and_gradients_beside_imported_ones_are_others(build: Any, slopes: list[float]) -> None:
    with tf.Graph().as_default() as source:
        x = tf.placeholder(tf.float64, [], name="x")
        y = tf.identity(build(x), name="y")
        tf.identity(tf.gradients(y, x)[0], name="slope")
    with tf.Graph().as_default(), tf.Session() as session:
        x, y, slope = tf.import_graph_def(source.as_graph_def(), None, ["x:0", "y:0", "slope:0"], name="")
        value, mine, *found = session.run([y, build(x), slope, tf.gradients(y, x)[0]], {x: 1.5})
        assert value == mine and found == pytest.approx([slopes[0]] * 2)
        if build is _list:  # TensorFlow has no second gradient of a loop
            assert session.run(tf.gradients(slope, x)[0], {x: 1.5}) == pytest.approx(slopes[1])


def test_gradients_in_one_scope_are_of_their_own_calls() -> None:
    x = tf.placeholder(tf.float64, [])
    y = _list(x)
    found = [tf.gradients(y, x, name="slopes/")[0] for _ in range(2)]
    with tf.Session() as session:
        assert session.run(found, {x: 1.0}) == [5.0, 5.0]


def test_what_is_refused_changes_nothing() -> None:
    wrong = tf.GraphDef()
    wrong.node.add(name="a", op="Nonsense")
    wrong.node.add(name="b", op="Placeholder").attr["dtype"].type = 1
    wrong.node.add(name="c", op="MatrixExponential", input=["b"])
    with tf.Graph().as_default() as graph:
        with pytest.raises(
            tf.errors.UnimplementedError, match=r"MatrixExponential \(1; such as 'c'\), Nonsense \(1; such as 'a'\)"
        ):
            tf.import_graph_def(wrong)
        for change, text in (
            (lambda d: d.node.add(name="y", op="Neg", input=["nobody"]), "takes 'nobody', which is not in it"),
            (lambda d: d.node.add(name="y", op="Neg", input=["x:3"]), "takes 'x:3', which does not exist"),
            (lambda d: d.node.add(name="y", op="MatMul", input=["x", "x"]), "'y' \\(MatMul\\)"),
            (lambda d: d.node.add(name="x", op="NoOp"), "several nodes called 'x'"),
            (
                lambda d: d.node.extend([message("NodeDef")(name=a, op="Neg", input=[b]) for a, b in ("yz", "zy")]),
                "form a cycle",
            ),
            (lambda d: d.node.add(name="y", op="Placeholder"), "attribute dtype is missing"),
        ):
            found = tf.GraphDef()
            x = found.node.add(name="x", op="Placeholder")
            write_attr(x.attr["dtype"], "type", tf.float32)
            write_attr(x.attr["shape"], "shape", (2,))
            change(found)
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                tf.import_graph_def(found)
        good = tf.GraphDef()
        good.node.add(name="x", op="NoOp")
        with pytest.raises(ValueError, match="input_map names what the graph_def does not take: q:0"):
            tf.import_graph_def(good, {"q": tf.constant(1.0)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="This is not a GraphDef"):
            tf.import_graph_def(b"\xff\xff\xff")
        with pytest.raises(TypeError, match="must be a GraphDef"):
            tf.import_graph_def("graph.pb")
        assert [n.name for n in graph.get_operations()] == ["Const"]


def test_an_attribute_that_is_not_supported_is_told() -> None:
    with tf.Graph().as_default() as source:
        tf.image.resize_bilinear(tf.placeholder(tf.float32, [1, 2, 2, 1], name="x"), [4, 4])
    found = tf.GraphDef()
    found.node.add(name="x", op="Placeholder")
    write_attr(found.node[0].attr["dtype"], "type", tf.float32)
    size = found.node.add(name="size", op="Const")
    write_attr(size.attr["dtype"], "type", tf.int32)
    write_attr(size.attr["value"], "tensor", np.array([4, 4], np.int32))
    resize = found.node.add(name="big", op="ResizeBilinear", input=["x", "size"])
    resize.attr["half_pixel_centers"].b = True
    with (
        tf.Graph().as_default(),
        pytest.raises(tf.errors.InvalidArgumentError, match="half_pixel_centers=True is not supported"),
    ):
        tf.import_graph_def(found)
    assert len(source)


@pytest.mark.parametrize(("producer", "dims"), [(0, None), (21, None), (22, [])])
def test_a_scalar_placeholder_of_an_old_graph_has_any_shape(producer, dims) -> None:
    with tf.Graph().as_default() as source:
        x = tf.placeholder(tf.float32, [], name="x")
        tf.placeholder(tf.float32, [2], name="pair")
        tf.add(x, 1.0, name="y")
    found = source.as_graph_def()
    found.versions.producer = producer
    with tf.Graph().as_default(), tf.Session() as session:
        x, y, pair = tf.import_graph_def(found, return_elements=["x:0", "y:0", "pair:0"])
        assert [t.shape.ndims if dims is None else t.shape.as_list() for t in (x, y)] == [dims, dims]
        assert pair.shape.as_list() == [2]
        value = 2.0 if dims == [] else [2.0, 3.0]
        np.testing.assert_array_equal(session.run(y, {x: value}), np.add(value, 1.0))


def test_python_functions_belong_to_the_process() -> None:
    with tf.Graph().as_default() as graph:
        tf.py_func(lambda x: x + 1.0, [tf.constant(1.0)], tf.float32, name="mine")
        found = graph.as_graph_def()
    assert found.node[-1].op == "PyFunc" and "_dovetail" in found.node[-1].attr
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.import_graph_def(found, return_elements=["mine:0"])[0]
        assert session.run(y) == 2.0


TYPES = [
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int8",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint64",
    "bool",
    "complex64",
]


@settings(max_examples=60)
@given(st.sampled_from(TYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 2**32 - 1))
def test_tensors_come_back_as_they_were(name: str, shape: list[int], seed: int) -> None:
    dtype = tf.as_dtype(name)
    numbers = np.random.default_rng(seed).integers(0, 100, shape)
    array = numbers.astype(dtype.np) if not dtype.is_bool else numbers > 50
    again = make_ndarray(make_tensor_proto(array))
    assert (
        again.dtype == array.dtype
        and again.shape == array.shape
        and again.tobytes() == np.ascontiguousarray(array).tobytes()
    )


def test_short_forms_of_tensors() -> None:
    proto = message("TensorProto")(dtype=1, float_val=[1.5, 2.0])
    proto.tensor_shape.dim.add(size=4)
    assert make_ndarray(proto).tolist() == [1.5, 2.0, 2.0, 2.0]  # the last one stands for the rest
    assert make_ndarray(message("TensorProto")(dtype=3, tensor_shape=proto.tensor_shape)).tolist() == [0, 0, 0, 0]
    assert make_ndarray(message("TensorProto")(dtype=19, half_val=[15360])).item() == 1.0
    assert make_ndarray(make_tensor_proto(["a", b"bc"])).tolist() == [b"a", b"bc"]
    assert make_ndarray(make_tensor_proto(7.0, shape=[2, 2])).tolist() == [[7.0, 7.0], [7.0, 7.0]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="malformed"):
        make_ndarray(message("TensorProto")(dtype=1, float_val=[1, 2]))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", -3), ("float", 0.1), ("bool", True), ("string", "text"), ("string", b"\xff"), ("type", tf.float64), ("shape", (None, 3)),
        ("shape", None), ("list(int)", (1, 2)), ("list(string)", ("a", "b")), ("list(type)", (tf.int32,)), ("list(shape)", ((1,), None)),
        ("list(float)", ()), ("list(bool)", (True, False)),
    ],
)  # fmt: skip
def test_attributes_come_back_as_they_were(kind: str, value: Any) -> None:
    proto = message("AttrValue")()
    write_attr(proto, kind, value)
    assert read_attr(message("AttrValue").FromString(proto.SerializeToString()), kind) == value
    with pytest.raises(MisfitError):
        read_attr(proto, "list(float)" if kind != "list(float)" else "int") if kind[:4] != "list" else read_attr(
            proto, "int"
        )


def test_graph_util() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        w = tf.get_variable("w", [4, 3], use_resource=True)
        table = tf.get_variable("table", [6, 3], use_resource=True)
        y = tf.identity(tf.identity(tf.layers.dense(x, 4)) @ w + tf.nn.embedding_lookup(table, [5]), name="y")
        tf.add(y, 1.0, name="unused")
        session.run(tf.global_variables_initializer())
        ones = np.ones((2, 4), np.float32)
        wanted = session.run(y, {x: ones})
        frozen = tf.graph_util.convert_variables_to_constants(session, session.graph_def, ["y"])
        partly = tf.graph_util.convert_variables_to_constants(
            session, session.graph_def, ["y"], variable_names_blacklist=["w"]
        )
        with pytest.raises(AssertionError, match="nobody is not in graph"):
            tf.graph_util.extract_sub_graph(graph.as_graph_def(), ["nobody"])
        with pytest.raises(TypeError, match="must be a list"):
            tf.graph_util.extract_sub_graph(graph.as_graph_def(), "y")
    slim = tf.graph_util.remove_training_nodes(frozen, ["y"])
    assert "unused" not in {n.name for n in frozen.node} and not {"VarHandleOp", "VariableV2"} & {
        n.op for n in frozen.node
    }
    assert [n.name for n in partly.node if n.op == "VarHandleOp"] == ["w"]
    assert [n.name for n in slim.node if n.op == "Identity"] == ["y"]
    for found in (frozen, slim):
        with tf.Graph().as_default(), tf.Session() as session:
            y = tf.import_graph_def(found, {"x": tf.constant(ones)}, ["y:0"])[0]
            np.testing.assert_array_equal(session.run(y), wanted)


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_in_branches_and_loops_become_constants(use_resource: bool) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [], name="x")
        v = tf.get_variable("v", initializer=[2.0, 3.0], use_resource=use_resource)
        table = tf.get_variable("t", initializer=[[5.0], [7.0]], use_resource=use_resource)
        chosen = tf.cond(x > 0.0, lambda: v * x, lambda: tf.nn.embedding_lookup(table, [1, 0])[:, 0])
        looped = tf.while_loop(
            lambda a: a[0] < 50.0, lambda a: tf.cond(x > 1.0, lambda: a * v, lambda: a + v), [chosen]
        )
        tf.identity(looped, name="y")
        session.run(tf.global_variables_initializer())
        wanted = [session.run("y:0", {x: at}) for at in (-1.0, 0.5, 1.5)]
        frozen = tf.graph_util.convert_variables_to_constants(session, session.graph_def, ["y"])
    assert not {"VarHandleOp", "VariableV2", "ReadVariableOp", "ResourceGather"} & {n.op for n in frozen.node}
    with tf.Graph().as_default(), tf.Session() as session:
        tf.import_graph_def(frozen, name="")
        for at, value in zip((-1.0, 0.5, 1.5), wanted, strict=True):
            np.testing.assert_array_equal(session.run("y:0", {"x:0": at}), value)
