"""Queues in the graph: names, rules, what the nodes do, and errors at the user's line."""

from __future__ import annotations

import numpy as np
import pytest
from reference_interpreter import Interpreter

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(fetches, feeds=None, state={}):  # noqa: B006 - one interpreter per graph
    graph = tf.get_default_graph()
    if state.get("graph") is not graph:
        state.update(graph=graph, interpreter=Interpreter(graph, check=True))
    return state["interpreter"].run(fetches, feeds)


def test_nodes_are_named_and_placed_as_in_tensorflow(graph):
    q = tf.FIFOQueue(3, [tf.float32, tf.int32], shapes=[[2], []], names=["a", "b"], shared_name="s")
    q.enqueue({"a": [1.0, 2.0], "b": 1})
    q.enqueue_many({"a": [[1.0, 2.0]], "b": [1]})
    q.dequeue()
    many = q.dequeue_many(2)
    q.dequeue_up_to(2)
    q.close()
    q.size()
    q.is_closed()
    names = [n.name for n in graph.nodes if n.type.startswith(("FIFO", "Queue"))]
    assert names == [
        "fifo_queue", "fifo_queue_enqueue", "fifo_queue_EnqueueMany", "fifo_queue_Dequeue", "fifo_queue_DequeueMany",
        "fifo_queue_DequeueUpTo", "fifo_queue_Close", "fifo_queue_Size", "fifo_queue_Is_Closed",
    ]  # fmt: skip
    assert "fifo_queue_enqueue/component_0" in graph
    assert q.queue_ref.device == "/device:CPU:*" and q.dequeue()["a"].device == ""
    assert many["a"].shape.as_list() == [2, 2] and many["b"].shape.as_list() == [2]
    assert q.names == ["a", "b"] and q.dtypes == [tf.float32, tf.int32] and q.name == "fifo_queue"


def test_elements_go_in_and_come_out():
    q = tf.FIFOQueue(10, [tf.float32, tf.string], shapes=[[2], []])
    run(q.enqueue([[1.0, 2.0], "a"]))
    run(q.enqueue_many([[[3.0, 4.0], [5.0, 6.0]], ["b", "c"]]))
    assert run(q.size()) == 3 and not run(q.is_closed())
    x, s = run(q.dequeue())
    assert x.tolist() == [1, 2] and s == b"a"
    xs, ss = run(q.dequeue_many(2))
    assert xs.tolist() == [[3, 4], [5, 6]] and ss.tolist() == [b"b", b"c"]


def test_what_went_in_does_not_follow_the_fed_array():
    q = tf.FIFOQueue(10, tf.float32, shapes=[2])
    x = tf.placeholder(tf.float32, [2])
    array = np.ones(2, np.float32)
    run(q.enqueue(x), {x: array})
    array[:] = 7
    assert run(q.dequeue()).tolist() == [1, 1]


def test_one_of_several_queues_is_chosen_when_it_runs():
    queues = [tf.FIFOQueue(10, tf.int32, shapes=[[]], name=f"q{i}") for i in range(3)]
    index = tf.placeholder(tf.int32, [])
    chosen = tf.QueueBase.from_list(index, queues)
    put, got = chosen.enqueue(5), queues[2].dequeue()
    run(put, {index: 2})
    assert run(got) == 5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not in \[0, 3\)"):
        run(put, {index: 3})
    with pytest.raises(TypeError, match="matching component dtypes"):
        tf.QueueBase.from_list(0, [queues[0], tf.FIFOQueue(1, tf.float32)])


def test_a_random_queue_follows_the_seed():
    def series():
        with tf.Graph().as_default():
            q = tf.RandomShuffleQueue(100, 0, tf.int32, shapes=[[]], seed=3)
            put, got = q.enqueue_many([list(range(20))]), q.dequeue_many(20)
            interpreter = Interpreter(tf.get_default_graph())
            interpreter.run(put)
            return interpreter.run(got).tolist()

    assert series() == series() != list(range(20))


def test_elements_of_different_sizes_are_padded():
    q = tf.PaddingFIFOQueue(10, tf.int32, shapes=[[None]])
    x = tf.placeholder(tf.int32, [None])
    for value in ([1], [2, 3]):
        run(q.enqueue(x), {x: value})
    many = q.dequeue_many(2)
    assert many.shape.as_list() == [2, None]
    assert run(many).tolist() == [[1, 0], [2, 3]]


def test_priorities_come_first():
    q = tf.PriorityQueue(10, tf.string, shapes=[[]])
    run(q.enqueue_many([np.array([2, 1], np.int64), ["late", "soon"]]))
    assert run(q.dequeue()[1]) == b"soon"


def test_programs_that_share_a_queue_must_agree():
    a = tf.FIFOQueue(3, tf.int32, shared_name="s")
    b = tf.FIFOQueue(4, tf.int32, shared_name="s")
    run(a.enqueue(1))
    with pytest.raises(tf.errors.InvalidArgumentError, match="'s' has capacity 3 but requested capacity was 4"):
        run(b.dequeue())


def test_waiting_alone_is_an_error():
    with pytest.raises(tf.errors.InternalError, match="waits for 1 element of FIFOQueue 'fifo_queue'"):
        run(tf.FIFOQueue(3, tf.int32).dequeue())


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda q: q.enqueue([1.0]), "has 2 components, 1 were given"),
        (lambda q: q.enqueue([[1.0, 2.0, 3.0], 1]), r"shape \(3,\), the queue \(2,\)"),
        (lambda q: q.enqueue({"a": 1}), "must have names"),
        (lambda q: q.enqueue_many([1.0, [1]]), "needs a first axis"),
        (lambda q: tf.FIFOQueue(1, tf.int32, names=["a"]).enqueue(1), "must enqueue a dictionary"),
        (lambda q: tf.FIFOQueue(1, tf.int32, names=["a"]).enqueue({"b": 1}), "do not match names"),
        (lambda q: tf.FIFOQueue(1, [tf.int32, tf.int32], shapes=[[]]), "same length as dtypes"),
        (lambda q: tf.FIFOQueue(1, tf.int32, shapes=[[None]]), "complete shapes"),
        (lambda q: tf.RandomShuffleQueue(3, 3, tf.int32), "min_after_dequeue"),
        (lambda q: tf.PaddingFIFOQueue(3, tf.int32, shapes=None), "rank of every component"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_built(build, words):
    with pytest.raises(ValueError, match=words):
        build(tf.FIFOQueue(3, [tf.float32, tf.int32], shapes=[[2], []]))


def test_a_wrong_type_or_handle_is_refused():
    q = tf.FIFOQueue(3, tf.float32)
    with pytest.raises(TypeError):
        q.enqueue(tf.constant(1))
    from dovetail.graph.core.build import make

    handle = tf.Variable(1.0, use_resource=True).handle
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes the handle of a Queue"):
        run(make("QueueSizeV2", (handle,)).outputs[0])
    with pytest.raises(TypeError, match="must be a handle"):
        make("QueueSizeV2", (tf.constant(1),))
