"""Accumulators: what comes out of what went in, and when."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail as tf
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import CancelledError, InvalidArgumentError
from dovetail.graph.ops.state.accumulators import dequeue_counted
from dovetail.graph.resources.accumulator import AccumulatorKind, DenseAccumulator, SparseAccumulator
from dovetail.graph.resources.async_request import RequestState
from dovetail.graph.resources.queue import Queue, QueueKind

F32 = as_dtype("float32")


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def dense(shape=None, reduction="MEAN"):
    return DenseAccumulator("a", AccumulatorKind(False, F32, shape, reduction))


def sparse(shape=None, reduction="MEAN"):
    return SparseAccumulator("a", AccumulatorKind(True, F32, shape, reduction))


def array(*values):
    return np.array(values, np.float32)


def test_a_take_waits_for_enough_gradients_and_advances_the_step():
    a = dense()
    take = a.take(2)
    a.apply(array(1, 2), 0)
    assert take.state is RequestState.WAITING
    a.apply(array(3, 6), 0)
    np.testing.assert_array_equal(take.result(), [2, 4])
    assert a.global_step == 1 and a.count == 0


def test_a_take_gets_all_that_has_come():
    a = dense(reduction="SUM")
    for _ in range(5):
        a.apply(array(1), 0)
    np.testing.assert_array_equal(a.take(2), [5])


@pytest.mark.parametrize("reduction", ["SUM", "MEAN"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("writeable", [True, False])
def test_what_was_given_stays_as_it_was(reduction, count, writeable):
    a = dense(reduction=reduction)
    given = [array(1, 2), array(3, 6), np.float32([8, 10])][:count]
    for gradient in given:
        gradient.flags.writeable = writeable
        a.apply(gradient, 0)
    kept = [gradient.copy() for gradient in given]
    if writeable:
        given[0][:] = 7  # its owner may do with it what he likes
    total = a.take(1)
    np.testing.assert_array_equal(total, np.sum(kept, 0) / (count if reduction == "MEAN" else 1))
    for gradient, before in zip(given[1:] if writeable else given, kept[1:] if writeable else kept, strict=True):
        np.testing.assert_array_equal(gradient, before)


@pytest.mark.parametrize("reduction", ["SUM", "MEAN"])
def test_scalars_are_summed_as_arrays(reduction):
    a = dense((), reduction)
    for value in (np.float32(1), np.float32(3)):
        a.apply(value, 0)
    total = a.take(2)
    assert total.shape == () and total == (4 if reduction == "SUM" else 2)
    a.apply(np.float32(5), 1)
    assert a.take(1) == 5


def test_stale_gradients_are_dropped(caplog):
    a = dense()
    a.set_global_step(3)
    a.apply(array(1), 2)
    assert a.count == 0
    a.apply(array(1), 3)
    a.apply(array(5), 7)
    np.testing.assert_array_equal(a.take(1), [3])
    assert a.global_step == 4
    with caplog.at_level(logging.WARNING):
        a.set_global_step(1)
    assert "goes back from 4 to 1" in caplog.text and a.global_step == 1


def test_takes_are_served_in_order_and_a_cancelled_one_takes_nothing():
    a = dense()
    first, second, third = a.take(2), a.take(1), a.take(1)
    a.apply(array(1), 0)
    assert second.state is RequestState.WAITING
    first.cancel()
    np.testing.assert_array_equal(second.result(), [1])
    assert third.state is RequestState.WAITING
    a.drop()
    with pytest.raises(CancelledError):
        third.result()


def test_shapes_must_fit():
    a = dense((2,))
    with pytest.raises(InvalidArgumentError, match="Shape mismatch"):
        a.apply(array(1, 2, 3), 0)
    b = dense()
    b.apply(array(1, 2), 0)
    with pytest.raises(InvalidArgumentError, match="Shape mismatch"):
        b.apply(array(1), 0)
    assert b.count == 1
    with pytest.raises(InvalidArgumentError, match="num_required must be >= 1"):
        b.take(0)


def rows(a, indices, values, shape=(), step=0):
    a.apply(np.array(indices, np.int64), array(*values).reshape(len(indices), -1), np.array(shape, np.int64), step)


def test_rows_are_divided_by_the_number_of_gradients_that_had_them():
    a = sparse()
    rows(a, [3, 0], [4, 1])
    rows(a, [2, 3], [3, 8])
    indices, values, _ = a.take(2)
    assert indices.tolist() == [0, 2, 3] and values.ravel().tolist() == [1, 3, 6]
    a = sparse(reduction="SUM")
    rows(a, [3, 0], [4, 1])
    rows(a, [2, 3], [3, 8])
    assert a.take(1)[1].ravel().tolist() == [1, 3, 12]


def test_rows_must_fit():
    a = sparse((4, 1))
    with pytest.raises(InvalidArgumentError, match="outside"):
        rows(a, [4], [1], (4, 1))
    with pytest.raises(InvalidArgumentError, match="Shape mismatch"):
        rows(a, [0], [1], (5, 1))
    with pytest.raises(InvalidArgumentError, match="do not fit values"):
        a.apply(np.array([0, 1]), np.zeros((1, 1), np.float32), np.array([], np.int64), 0)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1, max_size=5), st.booleans())
def test_sparse_agrees_with_sums_over_dictionaries(gradients, mean):
    a = sparse(reduction="MEAN" if mean else "SUM")
    total, had = {}, {}
    for g in gradients:
        rows(a, g, [i + 1 for i in range(len(g))])
        for at, i in enumerate(g):
            total[i] = total.get(i, 0) + at + 1
        for i in set(g):
            had[i] = had.get(i, 0) + 1
    indices, values, _ = a.take(1)
    assert indices.tolist() == sorted(total)
    expected = [total[i] / (had[i] if mean else 1) for i in sorted(total)]
    np.testing.assert_allclose(values.ravel(), expected, rtol=1e-6)


# --- in a graph -------------------------------------------------------------------------------------------------------


def test_nodes_are_named_as_in_tensorflow(graph):
    a = tf.ConditionalAccumulator(tf.float32, shape=[2], shared_name="acc")
    a.apply_grad([1.0, 2.0], 3)
    a.take_grad(2)
    a.num_accumulated()
    names = {n.name: n.type for n in graph.nodes}
    assert names["conditional_accumulator"] == "ResourceConditionalAccumulator"
    assert names["conditional_accumulator_NumAccumulated"] == "ResourceAccumulatorNumAccumulated"
    assert "ResourceAccumulatorTakeGradient/num_required" in names
    s = tf.SparseConditionalAccumulator(tf.float32, shape=[4, 2])
    assert s.take_indexed_slices_grad(1).values.shape.as_list() == [None, 2]


def test_many_steps_add_and_one_takes():
    x = tf.placeholder(tf.float32, [2])
    a = tf.ConditionalAccumulator(tf.float32, shape=[2])
    add, mean, count = a.apply_grad(x, 0), a.take_grad(3), a.num_accumulated()
    taken = []
    with tf.Session() as session:
        thread = threading.Thread(target=lambda: taken.append(session.run(mean)))
        thread.start()
        for i in range(3):
            session.run(add, {x: [i, 10 * i]})
        thread.join(10)
        assert taken[0].tolist() == [1, 10] and session.run(count) == 0
        session.run(add, {x: [1, 1]})
        assert session.run(count) == 0  # its local step is older than the step after the take
        session.run(a.set_global_step(0))
        session.run(add, {x: [1, 1]})
        assert session.run(count) == 1


def test_sparse_gradients_in_a_graph():
    a = tf.SparseConditionalAccumulator(tf.float32, shape=[4, 1])
    g = tf.IndexedSlices(tf.constant([[4.0], [1.0]]), tf.constant([3, 0]), tf.constant([4, 1]))
    adds = [a.apply_indexed_slices_grad(g), a.apply_grad([2, 3], [[3.0], [8.0]], grad_shape=[4, 1])]
    with tf.Session() as session:
        session.run(adds)
        indices, values, shape = session.run(a.take_grad(2))
    assert indices.tolist() == [0, 2, 3] and values.tolist() == [[1], [3], [6]] and shape.tolist() == [4, 1]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="reduction_type must be one of MEAN, SUM"):
        tf.ConditionalAccumulator(tf.float32, reduction_type="MAX")
    with pytest.raises(ValueError, match="must be equal"):
        tf.ConditionalAccumulator(tf.float32, shape=[2]).apply_grad([1.0])
    a = tf.ConditionalAccumulator(tf.float32, shared_name="s").take_grad(0)
    b = tf.ConditionalAccumulator(tf.float64, shared_name="s").num_accumulated()
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be >= 1"):
            session.run(a)
        with pytest.raises(tf.errors.InvalidArgumentError, match="has dtype"):
            session.run(b)


def test_who_is_counted_stands_in_line_already():
    """Whoever waits for the count hands out as many elements, and they go to those who were counted."""
    with tf.device("/cpu:0"):
        tokens = tf.FIFOQueue(-1, tf.int64, shapes=[()])
        counter = tf.ConditionalAccumulator(tf.float32, ())
        token = dequeue_counted(tokens, counter, tf.constant(0, tf.int64))
    assert token.dtype == tf.int64 and token.shape == ()
    queue = Queue("q", QueueKind("FIFOQueueV2", -1, (as_dtype("int64"),), ((),)))
    counted = dense(())
    told: list[int] = []
    take = counted.take(2)
    assert take.when_settled(lambda: told.append(len(list(queue._waiting()))))
    run = token.op.opdef.reference
    first, second = (run(None, queue, counted, 0, component_types=(as_dtype("int64"),)) for _ in range(2))
    assert told == [2] and take.result() == 1
    queue.enqueue([(np.int64(5),), (np.int64(6),)])
    assert (first.result(), second.result()) == (5, 6)
    stale = run(None, queue, counted, 0, component_types=(as_dtype("int64"),))
    assert stale.state is RequestState.WAITING and counted.count == 0  # it is in line, but counts for no update


def test_a_shape_of_sparse_gradients_is_that_of_their_first_axes():
    a = tf.SparseConditionalAccumulator(tf.float32, shape=[2, None])
    b = tf.SparseConditionalAccumulator(tf.float32, shape=(), name="b")
    rows = np.ones([1, 2, 3], np.float32)
    with tf.Session() as session:
        session.run([a.apply_grad([0], rows), b.apply_grad([5], rows[0, :1], [9, 3])])
        assert session.run(a.take_grad(1))[2].tolist() == [2, 2, 3]
        assert session.run(b.take_grad(1))[2].tolist() == [-1, 3]
        session.run(a.apply_grad([0], rows, local_step=1))
        for indices, values in (([3], rows), ([0], rows[0, :1, 0]), ([0], rows[:, :, :1])):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Shape mismatch"):
                session.run(a.apply_grad(indices, values, local_step=1))
