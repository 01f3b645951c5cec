"""Barriers: elements come out once they are whole, in the order of their keys."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import dovetail as tf
from dovetail.compat.tf1.ops.barrier_state import Barrier
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from dovetail.graph.resources.async_request import RequestState

F32, I32 = as_dtype("float32"), as_dtype("int32")


def barrier():
    return Barrier("b", (F32, I32), ((), ()))


def put(b, component, **values):
    dtype = (np.float32, np.int32)[component]
    b.insert_many(component, [k.encode() for k in values], np.array(list(values.values()), dtype))


def test_elements_are_ready_when_they_are_whole():
    b = barrier()
    take = b.take_many(2, False)
    put(b, 0, x=1, y=2)
    put(b, 1, y=20)
    assert take.state is RequestState.WAITING and (b.ready_size, b.incomplete_size) == (1, 1)
    put(b, 1, x=10)
    indices, keys, floats, ints = take.result()
    assert keys.tolist() == [b"x", b"y"] and floats.tolist() == [1, 2] and ints.tolist() == [10, 20]
    assert indices.tolist() == [-(2**63), -(2**63) + 1]


def test_in_every_order_of_inserts_the_same_comes_out_in_the_order_of_first_keys():
    inserts = [(0, {"x": 1}), (0, {"y": 2}), (1, {"x": 10, "y": 20})]
    for order in itertools.permutations(inserts):
        b = barrier()
        take = b.take_many(2, False)
        first = list(dict.fromkeys(k.encode() for _, values in order for k in values))
        for component, values in order:
            put(b, component, **values)
        _, keys, floats, ints = take.result()
        assert keys.tolist() == first
        assert dict(zip(keys, zip(floats, ints, strict=True), strict=True)) == {b"x": (1, 10), b"y": (2, 20)}


def test_a_component_comes_once_and_a_wrong_insert_changes_nothing():
    b = barrier()
    put(b, 0, x=1)
    with pytest.raises(InvalidArgumentError, match="already has a value for component 0"):
        put(b, 0, y=1, x=2)
    assert b.incomplete_size == 1
    for keys, values in (([b"a"], np.zeros(2, np.float32)), ([b"a", b"a"], np.zeros(2, np.float32))):
        with pytest.raises(InvalidArgumentError):
            b.insert_many(0, keys, values)
    with pytest.raises(InvalidArgumentError, match="Shape mismatch"):
        b.insert_many(0, [b"a"], np.zeros((1, 3), np.float32))
    with pytest.raises(InvalidArgumentError, match="there is no 2"):
        b.insert_many(2, [b"a"], np.zeros(1, np.float32))
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        b.take_many(0, False)


def test_after_a_close_begun_keys_can_be_completed():
    b = barrier()
    put(b, 0, x=1, y=2)
    waits, small = b.take_many(2, False), b.take_many(3, True)
    b.close(False)
    with pytest.raises(CancelledError, match="is closed, and key b'z' is new"):
        put(b, 0, z=1)
    put(b, 1, x=10)
    assert waits.state is RequestState.WAITING
    put(b, 1, y=20)
    assert waits.result()[1].tolist() == [b"x", b"y"]
    with pytest.raises(OutOfRangeError, match=r"requested 3, total size 0"):
        small.result()


def test_a_small_batch_takes_the_rest():
    b = barrier()
    put(b, 0, x=1, y=2)
    put(b, 1, y=20)
    take = b.take_many(5, True)
    b.close(True)  # x will never be whole
    assert take.result()[1].tolist() == [b"y"]
    with pytest.raises(CancelledError):
        put(b, 1, x=10)
    with pytest.raises(OutOfRangeError):
        b.take_many(1, False)


def test_a_cancelled_take_gives_back_what_nobody_saw():
    b = barrier()
    take = b.take_many(1, False)
    put(b, 0, x=1)
    put(b, 1, x=10)
    assert take.state is RequestState.ANSWERED and b.ready_size == 0
    take.cancel()
    assert b.take_many(1, False)[1].tolist() == [b"x"]
    waits = b.take_many(1, False)
    b.drop()
    with pytest.raises(CancelledError):
        waits.result()


def test_in_a_graph():
    with tf.Graph().as_default() as graph:
        b = tf.Barrier((tf.float32, tf.int32), shapes=((2,), ()))
        puts = [b.insert_many(0, ["k"], [[1.0, 2.0]]), b.insert_many(1, ["k"], [3])]
        indices, keys, values = b.take_many(1)
        assert {n.name for n in graph.nodes} >= {"barrier", "barrier_BarrierInsertMany/keys", "barrier_BarrierTakeMany"}
        assert values[0].shape.as_list() == [None, 2]
        taken = []
        with tf.Session() as session:
            thread = threading.Thread(target=lambda: taken.append(session.run([keys, *values])))
            thread.start()
            session.run(puts[0])
            session.run(puts[1])
            thread.join(10)
            assert taken[0][0].tolist() == [b"k"] and taken[0][1].tolist() == [[1, 2]] and taken[0][2].tolist() == [3]
            assert session.run([b.ready_size(), b.incomplete_size()]) == [0, 0]
            session.run(b.close())
            with pytest.raises(tf.errors.OutOfRangeError, match="insufficient elements"):
                session.run(indices)
        with pytest.raises(ValueError, match="component_index"):
            b.insert_many(2, ["k"], [1])
        with pytest.raises(ValueError, match="complete shapes"):
            tf.Barrier(tf.float32, shapes=[[None]])
