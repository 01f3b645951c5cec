"""Saved models and meta graphs, ours and TensorFlow's."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.build import make
from dovetail.graph.formats.protos import message

pytest.importorskip("google.protobuf")

RECORDED = Path(__file__).parents[4] / "graph" / "tensorflow" / "recorded" / "adam"
ONES = np.ones((2, 4), np.float32)


def test_a_saved_model_of_tensorflow_is_loaded_and_trained_further() -> None:
    told = np.load(RECORDED / "values.npz")
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, [tf.saved_model.tag_constants.SERVING], RECORDED / "saved_model")
        signature = meta.signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/predict"
        x, y = signature.inputs["x"].name, signature.outputs["y"].name
        np.testing.assert_allclose(session.run(y, {x: ONES}), told["first"], 1e-6)
        session.run("Adam", {x: ONES})
        np.testing.assert_allclose(session.run(y, {x: ONES}), told["second"], 1e-5)
        assert [v.name for v in session.graph.get_collection("trainable_variables")] == ["w:0", "v:0"]


def test_a_meta_graph_of_tensorflow_and_its_checkpoint() -> None:
    told = np.load(RECORDED / "values.npz")
    for scope in (None, "old"):
        with tf.Session(graph=tf.Graph()) as session:
            saver = tf.train.import_meta_graph(str(RECORDED / "m.meta"), import_scope=scope)
            assert saver is not None
            prefix = f"{scope}/" if scope else ""
            if scope is None:
                saver.restore(session, str(RECORDED / "m"))
            else:  # names of variables have changed
                saver = tf.train.Saver({v.op.name.removeprefix(prefix): v for v in saver.variables})
                saver.restore(session, str(RECORDED / "m"))
            session.run(f"{prefix}Adam", {f"{prefix}x:0": ONES})
            np.testing.assert_allclose(session.run(f"{prefix}y:0", {f"{prefix}x:0": ONES}), told["second"], 1e-5)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        with tf.variable_scope("p", partitioner=tf.fixed_size_partitioner(2)):
            parts = tf.get_variable("parts", [4, 3])
        w = tf.get_variable("w", [3, 2], use_resource=True)
        y = tf.nn.softmax(tf.matmul(x, parts) @ w, name="y")
        step = tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(y * y), name="step")
        tf.summary.scalar("size", tf.reduce_sum(y))
        tf.train.Saver()
        table = tf.constant([1.0, 2.0])
        ready = tf.get_variable("ready", initializer=0, collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
        session.run(tf.global_variables_initializer())
        session.run(step, {x: ONES})
        first = session.run(y, {x: ONES})
        builder = tf.saved_model.Builder(tmp_path / "model")
        with pytest.raises(AssertionError, match="has not been saved yet"):
            builder.add_meta_graph(["serve"])
        signature = tf.saved_model.predict_signature_def({"x": x}, {"y": y, "table": table})
        builder.add_meta_graph_and_variables(
            session, ["train"], {"serving_default": signature}, main_op=ready.initializer
        )
        builder.add_meta_graph(["serve", "gpu"])
        with pytest.raises(RuntimeError, match="already been saved"):
            builder.add_meta_graph_and_variables(session, ["again"])
        builder.save(as_text=True)
        session.run(step, {x: ONES})
        second = session.run(y, {x: ONES})
        with pytest.raises(AssertionError, match="isn't empty"):
            tf.saved_model.Builder(tmp_path / "model")
    assert tf.saved_model.contains_saved_model(tmp_path / "model") and not tf.saved_model.contains_saved_model(tmp_path)
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, ["train"], tmp_path / "model", import_scope="net")
        assert session.run("net/ready:0") == 0  # by the main op
        session.graph.get_tensor_by_name("net/" + meta.signature_def["serving_default"].outputs["table"].name)
        np.testing.assert_array_equal(session.run("net/y:0", {"net/x:0": ONES}), first)
        session.run("net/step", {"net/x:0": ONES})
        np.testing.assert_array_equal(session.run("net/y:0", {"net/x:0": ONES}), second)
        with pytest.raises(RuntimeError, match="Tags of its graphs: train; gpu, serve"):
            tf.saved_model.load(session, ["serve"], tmp_path / "model")
    with tf.Session(graph=tf.Graph()) as session:
        with pytest.raises(OSError, match="does not exist"):
            tf.saved_model.load(session, ["serve"], tmp_path)
        (tmp_path / "bad").mkdir()
        (tmp_path / "bad" / "saved_model.pb").write_bytes(b"\xff\xff")
        with pytest.raises(OSError, match="Cannot parse"):
            tf.saved_model.load(session, ["serve"], tmp_path / "bad")


def test_signatures() -> None:
    with tf.Graph().as_default():
        text, x = tf.placeholder(tf.string, [None]), tf.placeholder(tf.float32, [None, 2], name="x")
        utils = tf.saved_model.signature_def_utils
        regression = utils.regression_signature_def(text, x)
        classes = utils.classification_signature_def(text, None, x)
        assert utils.is_valid_signature(regression) and utils.is_valid_signature(classes)
        assert not utils.is_valid_signature(utils.build_signature_def())
        info = tf.saved_model.build_tensor_info(x)
        assert (
            info.name == "x:0"
            and info.dtype == tf.float32.as_datatype_enum
            and [d.size for d in info.tensor_shape.dim] == [-1, 2]
        )
        assert tf.saved_model.get_tensor_from_tensor_info(info) is x
        with pytest.raises(ValueError, match="must be serialized strings"):
            utils.regression_signature_def(x, x)
        with pytest.raises(ValueError, match="cannot both be None"):
            utils.classification_signature_def(text, None, None)
        with pytest.raises(ValueError, match="cannot be None or empty"):
            utils.predict_signature_def({}, {"y": x})


def test_what_tensorflow_does_not_have_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2, 2], name="x")
        mixed = make("Attention", (x, x, x), {"scale": 1.0}).outputs[0]
        tf.saved_model.simple_save(session, tmp_path / "plain", {"x": x}, {"y": x + 1.0})
        assert not caplog.records
        tf.saved_model.simple_save(session, tmp_path / "own", {"x": x}, {"mixed": mixed})
        assert "does not have these ops: Attention" in caplog.text
    with tf.Session(graph=tf.Graph()) as session:
        tf.saved_model.load(session, ["serve"], tmp_path / "plain")
        assert "Attention" not in {n.type for n in session.graph.get_operations()}
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, ["serve"], tmp_path / "own")
        mixed = meta.signature_def["serving_default"].outputs["mixed"].name
        np.testing.assert_allclose(session.run(mixed, {"x:0": np.zeros((2, 2))}), np.zeros((2, 2)))
    absent = tf.saved_model.build_signature_def({}, {"y": tf.TensorInfo(name="nobody:0")})
    with (
        tf.Graph().as_default(),
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="names 'nobody'"),
    ):
        tf.constant(1.0)
        tf.saved_model.Builder(tmp_path / "absent").add_meta_graph_and_variables(session, ["serve"], {"s": absent})


def test_graphs_are_written_for_people_and_for_programs(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(2.0, name="two")
        text = tf.train.write_graph(graph, tmp_path / "sub", "graph.pbtxt")
        plain = tf.train.write_graph(graph.as_graph_def(), tmp_path, "graph.pb", as_text=False)
        with pytest.raises(TypeError, match="needs a GraphDef"):
            tf.train.write_graph("graph", str(tmp_path), "x")
    assert 'name: "two"' in Path(text).read_text() and "DT_FLOAT" in Path(text).read_text()
    found = tf.GraphDef()
    found.ParseFromString(Path(plain).read_bytes())
    assert [n.name for n in found.node] == ["two"]


def test_a_damaged_checkpoint_beside_a_model(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "saved_model", tmp_path / "m")
    data = tmp_path / "m" / "variables" / "variables.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-4] + b"\0\0\0\1")
    with tf.Session(graph=tf.Graph()) as session, pytest.raises(tf.errors.DataLossError, match="the checksum differs"):
        tf.saved_model.load(session, ["serve"], tmp_path / "m")


def test_files_of_tables_go_with_the_model(tmp_path: Path) -> None:
    for name, text in (("a", "x\ny\nz\n"), ("b", "one\ntwo\nthree\n"), ("c", "x\ny\nz\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "v.txt").write_text(text)
    lookup = tf.contrib.lookup
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.string, [None], name="x")
        ids = lookup.index_table_from_file(str(tmp_path / "a" / "v.txt")).lookup(x)
        words = lookup.index_to_string_table_from_file(str(tmp_path / "b" / "v.txt")).lookup(ids)
        same = lookup.index_table_from_file(str(tmp_path / "c" / "v.txt"), vocab_size=2).lookup(x)
        fill = tf.tables_initializer()
        outputs = {"words": words, "same": same}
        tf.saved_model.simple_save(session, tmp_path / "simple", {"x": x}, outputs, legacy_init_op=fill)
        builder = tf.saved_model.Builder(tmp_path / "text")
        signature = {"serving_default": tf.saved_model.predict_signature_def({"x": x}, outputs)}
        assets = tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(session, ["train"], signature, assets, main_op=fill)
        builder.add_meta_graph(["serve"], signature, assets, main_op=fill)
        builder.save(as_text=True)
        session.run(fill)
        wanted = session.run(outputs, {x: ["y", "z", "?"]})
        (tmp_path / "b" / "v.txt").unlink()
        gone = tf.saved_model.Builder(tmp_path / "gone")
        with pytest.raises(
            tf.errors.NotFoundError, match=r"created at .*test_saved_model.py:\d+.*b/v.txt: No such file"
        ):
            gone.add_meta_graph_and_variables(session, ["serve"], signature, assets, main_op=fill)
        assert not any((tmp_path / "gone").iterdir())
        for other in (x, tf.constant(["a", "b"]), tf.constant(1), "v.txt"):
            with pytest.raises(TypeError, match="asset"):
                gone.add_meta_graph_and_variables(session, ["serve"], signature, [other])
        for name in "abc":
            shutil.rmtree(tmp_path / name)
    assert wanted["words"].tolist() == [b"two", b"three", b"UNK"] and wanted["same"].tolist() == [1, -1, -1]
    for model in ("simple", "text"):
        (tmp_path / model).rename(tmp_path / f"moved_{model}")
        assert {f.name: f.read_text()[:3] for f in (tmp_path / f"moved_{model}" / "assets").iterdir()} == {
            "v.txt": "x\ny",
            "v.txt_1": "one",
        }
        with tf.Session(graph=tf.Graph()) as session:
            meta = tf.saved_model.load(session, ["serve"], tmp_path / f"moved_{model}", import_scope="net")
            names = {k: f"net/{v.name}" for k, v in meta.signature_def["serving_default"].outputs.items()}
            got = session.run(names, {"net/x:0": ["y", "z", "?"]})
            assert {k: v.tolist() for k, v in got.items()} == {k: v.tolist() for k, v in wanted.items()}
            again = session.graph.get_collection(tf.GraphKeys.ASSET_FILEPATHS)
            assert [Path(f.decode()).name for f in session.run(again)] == ["v.txt", "v.txt_1", "v.txt"]


def test_models_of_one_file_that_has_changed_are_loaded_together(tmp_path: Path) -> None:
    file = tmp_path / "v.txt"
    for text in ("x\ny\n", "y\nx\nz\n"):
        file.write_text(text)
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.string, [None], name="x")
            ids = tf.contrib.lookup.index_table_from_file(str(file)).lookup(x)
            folder = tmp_path / f"model{len(text)}"
            tf.saved_model.simple_save(session, folder, {"x": x}, {"ids": ids}, legacy_init_op=tf.tables_initializer())
    with tf.Session(graph=tf.Graph()) as session:
        for size, wanted in ((4, [0, -1]), (6, [1, 2])):
            meta = tf.saved_model.load(session, ["serve"], tmp_path / f"model{size}", import_scope=f"m{size}")
            ids = f"m{size}/" + meta.signature_def["serving_default"].outputs["ids"].name
            assert session.run(ids, {f"m{size}/x:0": ["x", "z"]}).tolist() == wanted


def test_a_saved_model_of_tensorflow_with_assets(tmp_path: Path) -> None:
    told = np.load(RECORDED.parent / "assets" / "values.npz")
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, ["serve"], RECORDED.parent / "assets" / "saved_model")
        y = meta.signature_def["serving_default"].outputs["y"].name
        assert session.run(y, {"x:0": told["x"].tolist()}).astype(str).tolist() == told["y"].tolist()


@pytest.mark.parametrize("damage", [b"\xff\xff", b"\x0a\x05x"])
def test_a_damaged_asset_is_told(tmp_path: Path, damage: bytes) -> None:
    folder = tmp_path / "model"
    with tf.Session(graph=tf.Graph()) as session:
        builder = tf.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"])
        builder.save()
    file = folder / "saved_model.pb"
    model = message("SavedModel").FromString(file.read_bytes())
    model.meta_graphs[0].collection_def["saved_model_assets"].any_list.value.add().value = damage
    file.write_bytes(model.SerializeToString())
    with (
        tf.Session(graph=tf.Graph()) as session,
        pytest.raises(OSError, match="Cannot parse the saved model in .*model"),
    ):
        tf.saved_model.load(session, ["serve"], folder)
