"""Files and checkpoints in another file system: `memory://`, by fsspec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.formats.tensor_bundle import write_bundle

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")

ROOT = "memory://test_remote_files"


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    yield
    fs = fsspec.filesystem("memory")
    if fs.exists("/test_remote_files"):
        fs.rm("/test_remote_files", recursive=True)


def test_files_of_another_system(tmp_path: Path) -> None:
    files = dt.gfile
    files.MakeDirs(f"{ROOT}/a/b")
    with files.GFile(f"{ROOT}/a/x.txt", "w") as file:
        file.write("größe")
    with files.GFile(f"{ROOT}/a/x.txt", "rb") as file:
        assert file.read() == "größe".encode()
    assert files.Exists(f"{ROOT}/a/x.txt") and files.IsDirectory(f"{ROOT}/a") and not files.Exists(f"{ROOT}/y")
    assert files.ListDirectory(f"{ROOT}/a") == ["b", "x.txt"]
    assert files.Stat(f"{ROOT}/a/x.txt").length == 7
    files.Copy(f"{ROOT}/a/x.txt", str(tmp_path / "x.txt"))
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == "größe"
    files.Copy(str(tmp_path / "x.txt"), f"{ROOT}/a/b/z.txt")
    files.Rename(f"{ROOT}/a/b/z.txt", f"{ROOT}/a/y.txt")
    assert [Path(p).name for p in files.Glob(f"{ROOT}/a/*.txt")] == ["x.txt", "y.txt"]
    assert all(files.Exists(p) for p in files.Glob(f"{ROOT}/a/*.txt"))
    assert [(folders, names) for _, folders, names in files.Walk(f"{ROOT}/a")] == [
        (["b"], ["x.txt", "y.txt"]),
        ([], []),
    ]
    with pytest.raises(dt.errors.AlreadyExistsError):
        files.Copy(f"{ROOT}/a/x.txt", f"{ROOT}/a/y.txt")
    files.Remove(f"{ROOT}/a/y.txt")
    with pytest.raises(dt.errors.NotFoundError):
        files.Remove(f"{ROOT}/a/y.txt")
    with pytest.raises(dt.errors.NotFoundError):
        files.GFile(f"{ROOT}/none")
    files.DeleteRecursively(f"{ROOT}/a")
    assert not files.Exists(f"{ROOT}/a")
    assert dt.io.gfile.join(ROOT, "a", "b") == f"{ROOT}/a/b"


def test_checkpoints_in_another_system() -> None:
    with dt.Graph().as_default():
        v = dt.get_variable("v", [3], initializer=dt.ones_initializer())
        dt.Variable(np.array([b"a", b"bc"], object), name="words")
        saver = dt.train.Saver(max_to_keep=2)
        with dt.Session() as session:
            session.run(dt.global_variables_initializer())
            saved = [saver.save(session, f"{ROOT}/run/model.ckpt", global_step=i) for i in range(3)]
            session.run(v.assign(v * 5))
            saver.restore(session, saved[-1])
            assert session.run(v).tolist() == [1, 1, 1]
    assert dt.train.latest_checkpoint(f"{ROOT}/run") == saved[-1] == f"{ROOT}/run/model.ckpt-2"
    state = dt.train.get_checkpoint_state(f"{ROOT}/run")
    assert state is not None and state.all_model_checkpoint_paths == saved[1:]
    assert [dt.train.checkpoint_exists(p) for p in saved] == [False, True, True]
    assert dt.train.load_variable(f"{ROOT}/run", "words").tolist() == [b"a", b"bc"]
    with dt.Graph().as_default(), dt.Session() as session:
        again = dt.train.import_meta_graph(f"{saved[-1]}.meta")
        again.restore(session, saved[-1])
        assert session.run("v:0").tolist() == [1, 1, 1]
    dt.train.remove_checkpoint(saved[-1])
    assert not dt.train.checkpoint_exists(saved[-1])
    with pytest.raises(dt.errors.NotFoundError):
        dt.train.load_variable(saved[-1], "v")


def test_checkpoint_state_with_relative_paths() -> None:
    dt.gfile.MakeDirs(f"{ROOT}/run")
    dt.train.update_checkpoint_state(f"{ROOT}/run", f"{ROOT}/run/m-1", save_relative_paths=True)
    with dt.gfile.GFile(f"{ROOT}/run/checkpoint") as file:
        assert 'model_checkpoint_path: "m-1"' in file.read()
    state = dt.train.get_checkpoint_state(f"{ROOT}/run")
    assert state is not None and state.model_checkpoint_path == f"{ROOT}/run/m-1"


def test_a_checkpoint_in_tensorflows_format() -> None:
    pytest.importorskip("google.protobuf")
    write_bundle(f"{ROOT}/tf/model", [("x", np.arange(3, dtype=np.float32))])
    assert dt.train.load_variable(f"{ROOT}/tf/model", "x").tolist() == [0, 1, 2]


def test_an_estimator_in_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.float32([[0], [1], [2], [3]])

    def inputs() -> dt.data.Dataset:
        return dt.data.Dataset.from_tensor_slices(({"x": rows}, 2 * rows)).repeat().batch(4)

    def receive() -> object:
        return dt.estimator.export.build_raw_serving_input_receiver_fn({"x": dt.placeholder(dt.float32, [None, 1])})()

    def made() -> dt.estimator.Estimator:
        columns = [dt.feature_column.numeric_column("x")]
        return dt.estimator.LinearRegressor(columns, f"{ROOT}/run", optimizer=dt.train.GradientDescentOptimizer(0.05))

    exporter = dt.estimator.LatestExporter("newest", receive, exports_to_keep=1)
    for steps in (20, 40):  # the second goes on where the first has ended
        dt.estimator.train_and_evaluate(
            made(), dt.estimator.TrainSpec(inputs, steps), dt.estimator.EvalSpec(inputs, 1, exporters=[exporter])
        )
    assert made().get_variable_value("global_step") == 40
    names = dt.gfile.ListDirectory(f"{ROOT}/run")
    assert {"checkpoint", "eval", "export"} <= set(names) and any(name.startswith("events.") for name in names)
    assert any(name.startswith("events.") for name in dt.gfile.ListDirectory(made().eval_dir()))
    (export,) = dt.gfile.ListDirectory(f"{ROOT}/run/export/newest")
    assert "saved_model.pb" in dt.gfile.ListDirectory(f"{ROOT}/run/export/newest/{export}")
    found = next(made().predict(lambda: dt.data.Dataset.from_tensor_slices({"x": rows}).batch(4)))
    assert found["predictions"].shape == (1,)
    warm = dt.estimator.LinearRegressor(
        [dt.feature_column.numeric_column("x")], f"{ROOT}/other", warm_start_from=f"{ROOT}/run"
    )
    warm.train(inputs, max_steps=1)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_model_in_another_system() -> None:
    pytest.importorskip("google.protobuf")
    with dt.gfile.GFile(f"{ROOT}/words.txt", "w") as file:
        file.write("a\nb\n")
    with dt.Graph().as_default(), dt.Session() as session:
        x = dt.placeholder(dt.string, [None], name="x")
        ids = dt.contrib.lookup.index_table_from_file(f"{ROOT}/words.txt").lookup(x)
        y = dt.cast(ids, dt.float32) * dt.get_variable("v", initializer=2.0)
        session.run(dt.global_variables_initializer())
        fill = dt.tables_initializer()
        dt.saved_model.simple_save(session, f"{ROOT}/model", {"x": x}, {"y": y}, legacy_init_op=fill)
    dt.gfile.Remove(f"{ROOT}/words.txt")
    assert dt.saved_model.contains_saved_model(f"{ROOT}/model")
    with dt.Session(graph=dt.Graph()) as session:
        meta = dt.saved_model.load(session, ["serve"], f"{ROOT}/model")
        y_name = meta.signature_def["serving_default"].outputs["y"].name
        assert session.run(y_name, {"x:0": ["b", "c"]}).tolist() == [2, -2]


def test_keras_keeps_its_files_in_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks = dt.keras.callbacks
    x = np.float32([[0], [1], [2], [3]])

    class Stop(callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    def fit(*more: object) -> object:
        with dt.Graph().as_default():
            model = dt.keras.Sequential([dt.keras.layers.Dense(1, input_shape=(1,))])
            model.compile(dt.keras.optimizers.Adam(0.1), "mse")
            kept = callbacks.BackupAndRestore(f"{ROOT}/backup", delete_checkpoint=False)
            best = callbacks.ModelCheckpoint(f"{ROOT}/models/best.keras")
            board = callbacks.TensorBoard(f"{ROOT}/logs")
            history = model.fit(x, 2 * x, epochs=4, verbose=0, callbacks=[kept, best, board, *more])
            again = dt.keras.models.load_model(f"{ROOT}/models/best.keras")
            np.testing.assert_array_equal(again.predict(x), model.predict(x))
            return history

    with pytest.raises(KeyboardInterrupt):
        fit(Stop())
    assert len(fit().history["loss"]) == 2  # the other two epochs
    assert dt.gfile.ListDirectory(f"{ROOT}/backup") == ["training.safetensors"]
    assert any(name.startswith("events.") for name in dt.gfile.ListDirectory(f"{ROOT}/logs/train"))
    assert list(tmp_path.iterdir()) == []
