"""`tf.test`: a case of its own is run, and its assertions are seen to fail."""

from __future__ import annotations

import unittest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf


def outcome(body: Any) -> unittest.TestResult:
    """Run one test."""

    class Case(tf.test.TestCase):
        def test_it(self) -> None:
            body(self)

    result = unittest.TestResult()
    Case("test_it").run(result)
    return result


def passes(body: Any) -> None:
    result = outcome(body)
    assert result.wasSuccessful(), (result.errors or result.failures)[0][1]


def fails(body: Any, text: str) -> None:
    result = outcome(body)
    assert len(result.failures) == 1 and text in result.failures[0][1], result.errors or result.failures


def test_each_test_has_a_graph_and_seeds_of_its_own() -> None:
    found = []

    def draw(case: Any) -> None:
        case.assertEqual(len(tf.get_default_graph().get_operations()), 0)
        with case.session() as session:
            found.append((session.run(tf.random_normal([3])).tolist(), np.random.rand()))

    passes(draw)
    passes(draw)
    assert found[0] == found[1]


def test_a_session_of_another_graph_beside_the_cached_one() -> None:
    other = tf.Graph()
    with other.as_default():
        two = tf.constant(2)

    def body(case: Any) -> None:
        with case.test_session() as first:
            case.assertEqual(first.run(tf.constant(1)), 1)
        with case.test_session(graph=other) as second:
            case.assertEqual(second.run(two), 2)
        with case.test_session() as again:
            case.assertIs(again, first)

    passes(body)


def test_test_session_is_no_test() -> None:
    found = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(tf.test.TestCase).run(found)
    assert found.testsRun == 1 and [reason for _, reason in found.skipped] == ["Not a test."]


def test_values_of_tensors_are_compared() -> None:
    def body(case: Any) -> None:
        x = tf.constant([1.0, 2.0])
        with case.cached_session():
            case.assertAllEqual(x, [1, 2])
            case.assertAllClose({"a": x, "b": [x, x * 2]}, {"a": [1, 2], "b": [[1, 2], [2, 4]]})
            case.assertAllCloseAccordingToType(tf.cast(x / 3, tf.float16), [1 / 3, 2 / 3])
            case.assertAllCloseAccordingToType(tf.cast(x / 3, tf.bfloat16), [1 / 3, 2 / 3])
            case.assertNotAllClose(x, [1, 3])
            case.assertNotAllEqual(x, [1, 3])
            case.assertAllGreater(x, 0)
            case.assertAllLess(x, 3)
            case.assertAllGreaterEqual(x, 1)
            case.assertAllLessEqual(x, 2)
            case.assertNDArrayNear(x, [1.1, 2.0], 0.2)
            case.assertDTypeEqual(x, np.float32)
            case.assertAllInRange(x, 1, 2)
            case.assertAllInSet(x, [1, 2, 3])
            assert case.evaluate([x, {"y": x[0]}])[1] == {"y": 1.0}
        case.assertShapeEqual(np.zeros([2]), x)
        case.assertNear(1.0, 1.1, 0.2)
        case.assertArrayNear([1.0], [1.1], 0.2)
        case.assertDeviceEqual("/job:ps/cpu:0", "/job:ps/device:CPU:0")
        case.assertStartsWith("abc", "ab")
        case.assertProtoEquals("dim { size: 2 }", x.shape.as_proto())
        case.assertLen([1, 2], 2)
        case.assertEmpty([])
        case.assertNotEmpty({1})
        case.assertBetween(2, 1, 2)
        case.assertEqual(case.evaluate(x).tolist(), [1.0, 2.0])  # without a session around it

    passes(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (lambda c: c.assertAllEqual([1, 2], [1, 3]), "not equal"),
        (lambda c: c.assertAllClose([1.0], [1.1], 1e-3), "Not equal to tolerance"),
        (lambda c: c.assertAllClose([1.0], [[1.0]]), "(1,) != (1, 1)"),
        (lambda c: c.assertAllClose({"a": 1.0}, {"b": 1.0}), "Items in the first set"),
        (lambda c: c.assertNotAllClose([1.0], [1.0]), "close at all elements"),
        (lambda c: c.assertNotAllEqual([1.0], [1.0]), "equal at all elements"),
        (lambda c: c.assertAllGreater([1.0, 2.0], 1), "not greater than 1"),
        (lambda c: c.assertAllLess([1.0, 2.0], 2), "not less than 2"),
        (lambda c: c.assertAllGreaterEqual([1.0, 2.0], 1.5), "not greater than or equal to 1.5"),
        (lambda c: c.assertAllLessEqual([1.0, 2.0], 1.5), "not less than or equal to 1.5"),
        (lambda c: c.assertNDArrayNear([1.0], [2.0], 0.5), "not less than 0.5"),
        (lambda c: c.assertDTypeEqual([1.0], np.float32), "is not"),
        (lambda c: c.assertProtoEquals("unknown_rank: true", tf.TensorShape([2]).as_proto()), "unknown_rank"),
        (lambda c: c.assertLen([1], 2), "1 != 2"),
        (lambda c: c.assertEmpty([1]), "1 != 0"),
        (lambda c: c.assertNotEmpty([]), "0 == 0"),
        (lambda c: c.assertBetween(3, 1, 2), "3 is not between 1 and 2"),
        (lambda c: c.assertAllInRange([1.0, 5.0], 0, 2), "are not in [0, 2]"),
        (lambda c: c.assertAllInSet([1, 5], [1]), "{5} are not in {1}"),
        (lambda c: c.assertNear(1.0, 2.0, 0.5), "1.0 != 2.0 +/- 0.5"),
        (lambda c: c.assertDeviceEqual("/cpu:0", "/cpu:1"), "CPU:1"),
        (lambda c: c.assertStartsWith("abc", "b"), "does not start with"),
    ],
)
def test_assertions_fail(body: Any, text: str) -> None:
    fails(body, text)


def test_errors_of_steps_are_expected() -> None:
    def run(case: Any, wanted: Any) -> None:
        with case.session() as session, case.assertRaisesOpError(wanted):
            session.run(tf.Assert(False, ["no good"]))

    passes(lambda case: run(case, "assertion failed"))
    passes(lambda case: run(case, lambda e: e.code == "INVALID_ARGUMENT"))
    fails(lambda case: run(case, "something else"), "does not match 'something else'")

    def none(case: Any) -> None:
        with case.assertRaisesWithPredicateMatch(ValueError, "x"):
            pass

    fails(none, "not raised")


def test_a_thread_that_fails_fails_its_test() -> None:
    def body(case: Any, work: Any) -> None:
        thread = case.checkedThread(work, [1], {"b": 0})
        thread.start()
        thread.join()
        assert not thread.is_alive()

    passes(lambda case: body(case, lambda a, b: a + b))
    fails(lambda case: body(case, lambda a, b: a / b), "Error in checkedThread: division by zero")


def test_folders() -> None:
    seen = []

    def body(case: Any) -> None:
        (Path(case.get_temp_dir()) / "x").write_text("")
        seen.append(Path(case.get_temp_dir()))

    passes(body)
    assert not seen[0].exists() and Path(tf.test.get_temp_dir()).is_dir()


def test_gradients_are_compared_with_differences() -> None:
    with tf.Graph().as_default(), tf.Session():
        x = tf.placeholder(tf.float64, [2, 3])
        y = tf.reduce_sum(tf.tanh(x) * x, 1)
        assert tf.test.compute_gradient_error(x, [2, 3], y, [2]) < 1e-6
        rows = tf.gather(x, [1, 1]) ** 2
        analytic, numeric = tf.test.compute_gradient(x, [2, 3], rows, [2, 3], x_init_value=np.ones([2, 3]))
        np.testing.assert_allclose(analytic, numeric, atol=1e-6)
        assert analytic.shape == (6, 6) and analytic[3, 0] == 2.0
        a, b = tf.constant([[2.0], [3.0]]), tf.constant([[4.0]])
        product = tf.reshape(tf.matmul(a, b), [1, 2])
        by_a, by_b = tf.test.compute_gradient([a, b], [[2, 1], [1, 1]], product, [2, 1], [[[2.0], [3.0]], [[4.0]]])
        np.testing.assert_allclose(by_a[0], [[4, 0], [0, 4]])
        np.testing.assert_allclose(by_b[0], [[2, 3]])
        assert tf.test.compute_gradient_error([a, b], [[2, 1], [1, 1]], product, [2, 1]) < 1e-2
        wrong = x + tf.stop_gradient(x)
        assert tf.test.compute_gradient_error(x, [2, 3], wrong, [2, 3]) == pytest.approx(1)


def test_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")
    assert tf.test.is_gpu_available() and tf.test.gpu_device_name().endswith("GPU:0")
    assert isinstance(tf.test.is_built_with_cuda(), bool)


def test_a_cluster_in_this_process() -> None:
    workers, ps = tf.test.create_local_cluster(2, 1)
    try:
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            v = tf.Variable(3.0)
            with tf.device("/job:worker/task:1"):
                y = v * 2
            with tf.Session(workers[0].target) as session:
                session.run(v.initializer)
                assert session.run(y) == 6.0
    finally:
        for server in (*workers, *ps):
            server.stop()


def test_a_case_whose_setup_does_not_call_the_base() -> None:
    class Case(tf.test.TestCase):
        def setUp(self) -> None:
            self.ready = True

        def test_it(self) -> None:
            with self.test_session(use_gpu=True):
                self.assertEqual(tf.constant(3).eval(), 3)
            with self.cached_session(use_gpu=False):
                self.assertTrue(tf.constant(3).device.endswith("CPU:0"))
            self.assertTrue(Path(self.get_temp_dir()).is_dir())

    with tf.Graph().as_default():
        result = unittest.TestResult()
        Case("test_it").run(result)
    assert result.wasSuccessful(), result.errors + result.failures
