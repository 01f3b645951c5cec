"""Users' mistakes: each is seen before anything runs, and its error names what is wrong, where, and what to do."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.source_location import HIDDEN


def test_an_error_of_numpy_tells_what_the_kernel_took() -> None:
    x = tf.placeholder(tf.float32, None, name="x")
    with tf.Session() as session:
        for made in (tf.matrix_diag(x), tf.nn.top_k(x, 1)[0]):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"\n  input 0: x:0 float32 \(\)(\n  input .*)?\n  node '.*test_user_errors",
            ):
                session.run(made, {x: 1.0})


@pytest.mark.parametrize("remote", [False, True])
def test_shapes_that_do_not_fit_in_a_step_are_told_with_the_names_of_the_operands(
    remote: bool, cluster: tf.LocalCluster
) -> None:
    """Also where a fused kernel takes them, and a task of another process."""
    with tf.device("/job:worker/task:1" if remote else ""):
        x, y = (tf.placeholder(tf.float32, [None, None], name=name) for name in "xy")
        z = tf.subtract(x, y, name="z")
        fused = (x - y) * 2.0 + x
        product = tf.matmul(x, y)
    feeds = {x: np.zeros((3, 4)), y: np.zeros((2, 5))}
    operands = "\n  input 0: x:0 float32 (3, 4)\n  input 1: y:0 float32 (2, 5)\n  node '"
    with tf.Session(cluster.target("ps") if remote else "") as session:
        for made, says in (
            (z, "operands could not be broadcast together with shapes (3,4) (2,5)"),
            (fused, "operands could not be broadcast together with shapes (3,4) (2,5)"),
            (product, "Matrix sizes do not match: (3, 4) times (2, 5)"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError) as e:
                session.run(made, feeds)
            assert f"{says}{operands}" in e.value.message and "ValueError" not in e.value.message


def test_an_error_of_a_step_is_shown_without_frames_of_dovetail(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tf.placeholder(tf.float32, [2], name="x")
    with tf.Session() as session:
        for feeds in ({}, {x: np.zeros(3)}):
            with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as e:
                session.run(x + 1.0, feeds)
            assert [f.filename for f in traceback.extract_tb(e.value.__traceback__)] == [__file__]
            assert e.value.__notes__ == [HIDDEN]
        monkeypatch.setenv("DOVETAIL_TRACEBACK", "full")
        with pytest.raises(ValueError, match="Cannot feed") as e:
            session.run(x + 1.0, {x: np.zeros(3)})
        assert len(traceback.extract_tb(e.value.__traceback__)) > 1


def test_one_row_for_rows_says_how_to_make_it_a_batch() -> None:
    x = tf.placeholder(tf.float32, [None, 4], name="x")
    with tf.Session() as session:
        with pytest.raises(ValueError, match=r"has shape \(\?, 4\) .*\)\. One row is value\[None\]\n"):
            session.run(x + 1.0, {x: np.zeros(4)})
        with pytest.raises(ValueError, match=r"has shape \(\?, 4\) \(created at [^)]*\)\n"):
            session.run(x + 1.0, {x: np.zeros(3)})


def test_a_malformed_device_is_refused_where_the_block_opens() -> None:
    with pytest.raises(ValueError, match="Unknown attribute.*'jobb'"), tf.device("/jobb:ps"):
        pass
    assert tf.constant(1.0).device == ""


def test_a_device_that_no_task_has_names_the_node_its_line_and_what_exists() -> None:
    with tf.device("/job:nosuch/task:3"):
        lost = tf.constant(1.0, name="lost") + 1.0
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError) as e:
        session.run(lost)
    for part in ("lost", "/job:nosuch/task:3", "/job:localhost/replica:0/task:0/device:CPU:0", Path(__file__).name):
        assert part in str(e.value)


def test_an_unknown_job_on_a_cluster_names_the_cluster_s_devices(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:master"):
        x = tf.constant(1.0) * 2.0
    with tf.Session(cluster.target("ps")) as session, pytest.raises(tf.errors.InvalidArgumentError) as e:
        session.run(x)
    assert "/job:master" in str(e.value) and "/job:ps/replica:0/task:0/device:CPU:0" in str(e.value)
    assert isinstance(e.value.op, tf.Operation) and e.value.op.graph is tf.get_default_graph()


def test_a_cycle_is_shown_and_refused() -> None:
    a = tf.constant(1.0, name="a")
    c = tf.identity(tf.identity(a, name="b"), name="c")
    with pytest.raises(ValueError, match="cycle: .*a.*b.*c"):
        a.op._add_control_input(c.op)
    assert a.op.control_inputs == []


def test_a_missing_feed_names_the_placeholder_and_its_line() -> None:
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"feed a value for placeholder.*'x'.*\(\?, 2\)") as e,
    ):
        session.run(x * 2.0)
    assert Path(__file__).name in str(e.value)


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("x", np.zeros(3), ValueError, r"Cannot feed value of shape \(3,\) for Tensor 'x:0', which has shape \(2,\)"),
        ("x", [[1.0, 2.0]], ValueError, r"shape \(1, 2\)"),
        ("x", "text", TypeError, r"Cannot feed Tensor 'x:0' \(created at .*test_user_errors.py:"),
        ("x", [1.0, [2.0]], ValueError, "unequal lengths"),
        ("op", 1.0, TypeError, "Cannot interpret feed_dict key as Tensor"),
        ("x_by_name", 1.0, TypeError, "it is a node; its output is 'x:0'"),
        (None, 1.0, TypeError, "Cannot interpret feed_dict key as Tensor"),
        ("nosuch:0", 1.0, ValueError, "nosuch"),
    ],
)
def test_a_feed_that_cannot_be_meant(key: Any, value: Any, error: type[Exception], says: str) -> None:
    x = tf.placeholder(tf.float32, [2], name="x")
    y = x + 1.0
    keys = {"x": x, "op": x.op, "x_by_name": "x"}
    with tf.Session() as session, pytest.raises(error, match=says):
        session.run(y, {keys.get(key, key): value})


def test_arrays_of_objects_that_are_numbers_are_fed_as_numbers() -> None:
    x, y = tf.placeholder(tf.int32, [2]), tf.placeholder(tf.float32)
    with tf.Session() as session:
        found = session.run([x + 1, y], {x: np.array([1, 2], object), y: np.array([[1, 0.5]], object)})
        np.testing.assert_array_equal(found[0], [2, 3])
        np.testing.assert_array_equal(found[1], [[1, 0.5]])
        with pytest.raises(TypeError, match="Expected int32, got .*text"):
            session.run(x, {x: np.array(["text", "b"], object)})
        with pytest.raises(TypeError, match="fraction would be lost"):
            session.run(x, {x: np.array([1, 0.5], object)})
    assert tf.constant(np.array([1, 2], object), tf.int64).dtype is tf.int64


def test_a_tensor_cannot_be_fed() -> None:
    x = tf.placeholder(tf.float32)
    with tf.Session() as session, pytest.raises(TypeError, match="cannot be a Tensor"):
        session.run(x, {x: tf.constant(1.0)})


@pytest.mark.parametrize(
    ("fetch", "error", "says"),
    [
        (None, TypeError, "None"),
        (3.5, TypeError, "float"),
        ("nosuch:0", ValueError, "nosuch"),
        ("nosuch", ValueError, "nosuch"),
        ([1], TypeError, "int"),
    ],
)
def test_a_fetch_that_cannot_be_meant(fetch: Any, error: type[Exception], says: str) -> None:
    tf.constant(1.0)
    with tf.Session() as session, pytest.raises(error, match=says):
        session.run(fetch)


def test_a_fetch_from_another_graph_names_the_line_that_made_it() -> None:
    tf.constant(1.0)
    with tf.Graph().as_default():
        foreign = tf.constant(2.0, name="foreign")
    with tf.Session() as session, pytest.raises(ValueError, match="foreign.*: it is not an element of this graph") as e:
        session.run(foreign)
    assert Path(__file__).name in str(e.value) and str(e.value).count("foreign") == 1
    assert "dt.Session(graph=x.graph)" in str(e.value)
    with tf.Session(graph=foreign.graph) as session:
        assert session.run(foreign) == 2.0


def test_operands_of_two_graphs_are_refused() -> None:
    a = tf.constant(1.0)
    with tf.Graph().as_default() as other:
        b = tf.constant(2.0)
        with pytest.raises(ValueError, match="another graph"):
            tf.add(a, b)
        assert len(other) == 1


def test_a_wrong_shape_names_both_operands_and_the_line_and_leaves_the_graph_alone() -> None:
    a, b = tf.constant([1.0, 2.0], name="a"), tf.constant([1.0, 2.0, 3.0], name="b")
    with pytest.raises(ValueError, match=r"(?s)cannot be broadcast.*a:0 float32 \(2,\).*b:0 float32 \(3,\)") as e:
        tf.add(a, b)
    assert Path(__file__).name in str(e.value) and len(tf.get_default_graph()) == 2


def test_a_wrong_type_names_both_operands() -> None:
    a, b = tf.constant([1.0], name="a"), tf.constant([1], name="b")
    with pytest.raises(TypeError, match=r"(?s)a:0 float32.*b:0 int32"):
        tf.add(a, b)


def test_a_finalized_graph_refuses_to_grow() -> None:
    tf.get_default_graph().finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        tf.constant(1.0)


def test_an_empty_graph_cannot_be_run() -> None:
    with tf.Session() as session, pytest.raises(RuntimeError, match="empty"):
        session.run([])


@pytest.mark.parametrize("remote", [False, True])
def test_a_closed_session_says_so(remote: bool, cluster: tf.LocalCluster) -> None:
    x = tf.constant(1.0)
    session = tf.Session(cluster.target("ps") if remote else "")
    session.run(x)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match=r"^Attempted to use a closed Session\. Make a new one"):
        session.run(x)


def test_an_uninitialised_variable_is_named_with_the_remedy() -> None:
    v = tf.Variable(1.0, name="weights")
    with (
        tf.Session() as session,
        pytest.raises(
            tf.errors.FailedPreconditionError, match="uninitialized value weights.*global_variables_initializer"
        ),
    ):
        session.run(v + 1.0)


def test_a_failing_kernel_names_node_line_and_task(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:worker/task:1"):
        y = tf.gather(tf.constant([1.0, 2.0]), tf.placeholder_with_default(5, []), name="pick")
    with tf.Session(cluster.target("worker", 0)) as session:
        with pytest.raises(tf.errors.InvalidArgumentError) as e:
            session.run(y)
        for part in ("pick", Path(__file__).name, "/job:worker/replica:0/task:1"):
            assert part in str(e.value)
        assert e.value.op is y.op
        assert session.run(y, {"PlaceholderWithDefault:0": 1}) == 2  # the session works on


@pytest.mark.parametrize("pick", [lambda x: tf.unstack(x)[1], lambda x: tf.gather(x, 1), lambda x: x[1]])
def test_a_string_picked_out_of_a_tensor_travels(
    pick: Callable[[tf.Tensor], tf.Tensor], cluster: tf.LocalCluster
) -> None:
    words = tf.placeholder(tf.string, [3])
    with tf.device("/job:ps/task:0"):
        picked = pick(words)
    with tf.device("/job:worker/task:1"):
        joined = tf.string_join([picked, "!"])
    with tf.Session(cluster.target("worker", 0)) as session:
        assert session.run([picked, joined], {words: [b"a", b"bc", b""]}) == [b"bc", b"bc!"]


@pytest.mark.parametrize("target", ["nonsense", "http://localhost:1", "localhost:2222"])
def test_a_target_of_unknown_form(target: str) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="zmq://host:port"):
        tf.Session(target)


def test_a_config_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="ConfigProto"):
        tf.Session(config={"device_count": {}})  # type: ignore[arg-type]
