"""Names of TensorFlow 1.15 that programs use: each is there, and says so under `tf.compat.v1` too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dovetail as tf


def names() -> Iterator[tuple[str, list[str]]]:
    """(module, names in it)."""
    module = ""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "names.txt").read_text().splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            found.setdefault(module, []).extend(line.split())
    return iter(found.items())


def resolved(root: Any, path: str) -> Any:
    for part in path.split("."):
        root = getattr(root, part)
    return root


@pytest.mark.parametrize(("module", "wanted"), [pytest.param(m, w, id=m) for m, w in names()])
def test_names_are_there(module, wanted):
    root = tf if module == "tf" else resolved(tf, module)
    assert [n for n in wanted if not hasattr(root, n)] == []
    v1 = tf.compat.v1 if module == "tf" else resolved(tf.compat.v1, module)
    assert [n for n in wanted if getattr(v1, n) is not getattr(root, n)] == []


def test_a_program_for_two_versions():
    import dovetail.compat.v1 as tf1
    from dovetail.compat import v1

    assert v1 is tf1
    tf1.disable_v2_behavior()
    tf1.disable_eager_execution()
    assert not tf1.executing_eagerly()
    with tf1.Graph().as_default(), tf1.Session() as session:
        assert session.run(tf1.constant(2) + 1) == 3
    assert "Session" in dir(v1)
    with pytest.raises(AttributeError, match=r"dovetail\.compat\.v1.*no attribute 'nonsense'"):
        tf1.nonsense  # noqa: B018


@pytest.mark.parametrize(
    "switch", ["enable_eager_execution", "enable_v2_behavior", "enable_v2_tensorshape", "enable_tensor_equality"]
)
def test_what_is_tensorflow_2s_is_an_error_that_says_what_to_do(switch):
    with pytest.raises(tf.errors.UnimplementedError, match=switch):
        getattr(tf, switch)()


@pytest.mark.parametrize("where", [tf.distribute, tf.distribute.experimental, tf.contrib.distribute])
def test_there_is_no_tpu(where):
    with pytest.raises(tf.errors.UnimplementedError, match="MirroredStrategy"):
        where.TPUStrategy()


def test_text_and_bytes():
    assert tf.compat.as_bytes("é") == "é".encode()
    assert tf.compat.as_text("é".encode()) == tf.compat.as_str("é") == "é"
    assert tf.compat.as_str_any(1.5) == "1.5"
    assert tf.compat.path_to_str(Path("/a")) == "/a"
    with pytest.raises(TypeError, match="Expected binary or unicode"):
        tf.compat.as_bytes(1)


def test_errors_by_number():
    assert tf.errors.NOT_FOUND == 5
    assert tf.errors.exception_type_from_error_code(tf.errors.ABORTED) is tf.errors.AbortedError
    assert tf.errors.error_code_from_exception_type(tf.errors.UnavailableError) == 14


def test_small_functions():
    with tf.Graph().as_default() as g:
        x, v = tf.constant([1, 2]), tf.Variable(1.0)
        assert tf.get_static_value(x).tolist() == [1, 2]
        assert tf.get_static_value(tf.placeholder(tf.int32)) is None
        assert [tf.is_tensor(t) for t in (x, v, 1, g)] == [True, True, False, False]
        assert tf.tables_initializer().type == "NoOp"
        with tf.control_dependencies([x]), tf.init_scope():
            assert tf.constant(1).op.control_inputs == []
        tf.add_to_collections(["a", "b"], x)
        assert tf.get_collection("a") == tf.get_collection("b") == [x]


def test_files(tmp_path):
    folder = str(tmp_path / "a" / "b")
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(tf.io.gfile.join(folder, "f"), "w") as f:
        f.write("text")
    assert tf.io.gfile.stat(f"{folder}/f").length == 4
    assert tf.io.gfile.listdir(folder) == ["f"]
    assert list(tf.io.gfile.walk(str(tmp_path / "a"))) == [(str(tmp_path / "a"), ["b"], []), (folder, [], ["f"])]
    tf.io.gfile.rmtree(folder)
    assert not tf.io.gfile.exists(folder)
    with pytest.raises(tf.errors.NotFoundError):
        tf.io.gfile.stat(folder)


def test_messages_now_and_then(caplog):
    caplog.set_level("INFO", logger="dovetail")
    for i in range(5):
        tf.logging.log_every_n(tf.logging.INFO, "every %d", 2, i)
        tf.logging.log_first_n(tf.logging.INFO, "first %d", 2, i)
        tf.logging.log_if(tf.logging.INFO, "if %d", i == 3, i)
    assert [r.getMessage() for r in caplog.records] == ["every 0", "first 0", "first 1", "every 2", "if 3", "every 4"]


def test_a_summary_made_by_hand(tmp_path):
    value = tf.Summary.Value(tag="a", simple_value=1.0)
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        writer.add_summary(tf.Summary(value=[value]), 1)
    assert list(tmp_path.glob("events*"))


def test_it_says_whose_names_they_are():
    import dovetail.compat.v1 as v1

    assert v1.VERSION == v1.__version__ == "1.15.0" != tf.__version__
