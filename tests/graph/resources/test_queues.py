"""The rules of queues, without steps or threads: requests are put, settled and cancelled in any order."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import (
    CancelledError,
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
)
from dovetail.graph.resources import async_request
from dovetail.graph.resources.async_request import Request, RequestState
from dovetail.graph.resources.queue import Queue, QueueKind

INT = as_dtype("int32")


def queue(capacity=-1, op="FIFOQueueV2", dtypes=(INT,), shapes=((),), **more):
    return Queue("q", QueueKind(op, capacity, dtypes, shapes, **more))


def put(q, *values):
    return q.enqueue([[np.asarray(v, np.int32)] for v in values])


def told(request):
    """A list that gets an entry when the request is settled."""
    assert isinstance(request, Request)
    calls = []
    assert request.when_settled(lambda: calls.append(1))
    return calls


def test_elements_come_out_in_order():
    q = queue()
    assert put(q, 1, 2, 3) == ()
    assert [int(q.dequeue()) for _ in range(3)] == [1, 2, 3]


def test_a_take_from_an_empty_queue_waits_for_the_next_element():
    q = queue()
    first, second = q.dequeue(), q.dequeue()
    calls = told(first), told(second)
    put(q, 7)
    assert [len(c) for c in calls] == [1, 0]
    assert first.result() == 7 and second.state is RequestState.WAITING
    put(q, 8)
    assert second.result() == 8


def test_an_enqueue_of_more_than_fits_goes_in_as_room_appears():
    q = queue(capacity=2)
    waits = put(q, 1, 2, 3, 4, 5)
    assert len(q) == 2
    assert [int(q.dequeue()) for _ in range(2)] == [1, 2] and waits.state is RequestState.WAITING
    assert int(q.dequeue()) == 3
    assert waits.result() == () and len(q) == 2


def test_a_take_of_many_may_drain_more_than_the_capacity():
    q = queue(capacity=2)
    take = q.dequeue_many(5)
    assert put(q, 1, 2) == () and put(q, 3, 4) == () and put(q, 5, 6) == ()
    np.testing.assert_array_equal(take.result(), [1, 2, 3, 4, 5])
    assert len(q) == 1


def test_requests_are_served_in_the_order_of_arrival():
    q = queue()
    many, one = q.dequeue_many(2), q.dequeue()
    put(q, 1)
    assert one.state is RequestState.WAITING  # though there would have been one for it
    put(q, 2, 3)
    np.testing.assert_array_equal(many.result(), [1, 2])
    assert one.result() == 3


def test_what_a_cancelled_take_held_goes_back_in_order():
    q = queue()
    many, later = q.dequeue_many(3), q.dequeue_many(3)
    put(q, 1, 2)
    many.cancel()
    put(q, 3)
    np.testing.assert_array_equal(later.result(), [1, 2, 3])
    with pytest.raises(CancelledError):
        many.result()


def test_an_answer_that_nobody_saw_goes_back_before_younger_elements():
    q = queue()
    first, second = q.dequeue(), q.dequeue()
    put(q, 1, 2, 3)
    second.cancel()  # both are answered; the second one's step ends first
    first.cancel()
    assert [int(q.dequeue()) for _ in range(3)] == [1, 2, 3]


def test_a_close_waits_for_the_enqueues_before_it():
    q = queue(capacity=1)
    put(q, 1)
    waits, close, late = put(q, 2), q.close(), put(q, 3)
    assert not q.is_closed
    assert int(q.dequeue()) == 1
    assert waits.result() == () and close.result() == () and q.is_closed
    with pytest.raises(CancelledError, match="is closed"):
        late.result()
    assert int(q.dequeue()) == 2
    with pytest.raises(
        OutOfRangeError, match=r"is closed and has insufficient elements \(requested 1, current size 0\)"
    ):
        q.dequeue()


def test_a_close_may_cancel_the_enqueues_that_wait():
    q = queue(capacity=1)
    put(q, 1)
    waits, close = put(q, 2), q.close()
    q.close(cancel_pending_enqueues=True)
    with pytest.raises(CancelledError, match="Enqueue operation was cancelled"):
        waits.result()
    assert close.result() == () and int(q.dequeue()) == 1


def test_a_closed_queue_gives_what_is_left_only_to_those_who_take_fewer():
    q = queue()
    many, rest, none = q.dequeue_many(3), q.dequeue_many(3, fewer=True), q.dequeue_many(1, fewer=True)
    put(q, 1, 2)
    q.close()
    with pytest.raises(OutOfRangeError, match=r"requested 3, current size 2"):
        many.result()
    np.testing.assert_array_equal(rest.result(), [1, 2])
    with pytest.raises(OutOfRangeError, match=r"requested 1, current size 0"):
        none.result()


def test_no_elements_are_there_at_once():
    assert queue().dequeue_many(0).shape == (0,)
    with pytest.raises(InvalidArgumentError, match="negative"):
        queue().dequeue_many(-1)
    with pytest.raises(InvalidArgumentError, match="without shapes"):
        queue(shapes=None).dequeue_many(1)


def test_a_shuffled_queue_keeps_some_back_and_repeats_with_a_seed():
    def series():
        q = queue(op="RandomShuffleQueueV2", min_after_dequeue=10, seed=(1, 2))
        put(q, *range(50))
        taken = [int(q.dequeue()) for _ in range(40)]
        waits = q.dequeue()
        assert isinstance(waits, Request) and len(q) == 10
        q.close()
        return [*taken, int(waits.result()), *(int(q.dequeue()) for _ in range(9))]

    first = series()
    assert sorted(first) == list(range(50)) and first != sorted(first)
    assert series() == first


def test_a_padding_queue_fills_up_with_zeros():
    text = as_dtype("string")
    q = queue(op="PaddingFIFOQueueV2", dtypes=(INT, text), shapes=((None,), (None,)))
    q.enqueue([[np.array([1, 2], np.int32), np.array([b"a"], object)], [np.array([3], np.int32), np.array([], object)]])
    numbers, words = q.dequeue_many(2)
    np.testing.assert_array_equal(numbers, [[1, 2], [3, 0]])
    assert words.tolist() == [[b"a"], [b""]]


def test_a_priority_queue_gives_the_lowest_first_and_equal_ones_in_order():
    long = as_dtype("int64")
    q = queue(op="PriorityQueueV2", dtypes=(long, INT), shapes=((), ()))
    pairs = [(3, 0), (1, 1), (2, 2), (1, 3)]
    q.enqueue([[np.asarray(p, np.int64), np.asarray(v, np.int32)] for p, v in pairs])
    assert [int(q.dequeue()[1]) for _ in pairs] == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("capacity", "puts", "count", "found", "left"),
    [
        (-1, [[9], [5], [7, 1]], 3, [1, 5, 7], 1),
        (3, [[9, 5], [7, 1]], 3, [5, 7, 9], 1),  # 1 finds no room before the three are taken
        (2, [[9], [3, 8], [1]], 4, [1, 3, 8, 9], 0),  # more than fit come in turns
    ],
)
def test_a_priority_queue_sorts_what_comes_while_a_dequeue_waits(capacity, puts, count, found, left):
    q = queue(capacity, "PriorityQueueV2", (as_dtype("int64"), INT), ((), ()))
    request = q.dequeue_many(count)
    calls = told(request)
    for values in puts:
        assert not calls
        q.enqueue([[np.asarray(v, np.int64), np.asarray(v, np.int32)] for v in values])
    assert [a.tolist() for a in request.result()] == [found, found]
    assert len(q) == left


def test_components_must_fit():
    q = queue(shapes=((2,),))
    with pytest.raises(InvalidArgumentError, match=r"Expected \(2,\), got \(3,\)"):
        q.enqueue([[np.zeros(3, np.int32)]])
    with pytest.raises(InvalidArgumentError, match="holds elements of types"):
        q.enqueue([[np.zeros(2, np.float32)]])
    assert len(q) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"capacity": 4}, "capacity 3 but requested capacity was 4"),
        (
            {"dtypes": (as_dtype("float32"),)},
            r"component types \[int32\] but requested component types was \[float32\]",
        ),
        ({"shapes": ((2,),)}, "component shapes"),
        ({"op": "RandomShuffleQueueV2"}, "has type FIFOQueueV2"),
        ({"min_after_dequeue": 1}, "min_after_dequeue"),
    ],
)
def test_sharing_needs_the_same_kind(change, words):
    mine = {"op": "FIFOQueueV2", "capacity": 3, "dtypes": (INT,), "shapes": ((),)}
    with pytest.raises(InvalidArgumentError, match=words):
        QueueKind(**mine).check_same(QueueKind(**{**mine, **change}), "q")


def test_bounds_are_errors(monkeypatch):
    monkeypatch.setenv("DOVETAIL_QUEUE_MB", "1")
    q = queue(shapes=((1 << 16,),))
    block = [np.zeros(1 << 16, np.int32)]
    for _ in range(4):
        q.enqueue([block])
    with pytest.raises(ResourceExhaustedError, match="pass its limit of 1 MiB"):
        q.enqueue([block])
    q.dequeue()
    assert q.enqueue([block]) == ()
    monkeypatch.setattr(async_request, "MAX_WAITING", 3)
    empty = queue()
    for _ in range(3):
        empty.dequeue()
    with pytest.raises(ResourceExhaustedError, match="3 requests wait"):
        empty.dequeue()


def test_clearing_away_cancels_all_that_waits():
    q = queue(capacity=1)
    put(q, 0)
    waits, closes = put(q, 1), q.close()
    empty = queue()
    take = empty.dequeue()
    q.drop()
    empty.drop()
    for request in (waits, closes, take):
        with pytest.raises(CancelledError, match="container was cleared"):
            request.result()


# --- all interleavings -----------------------------------------------------------------------------------------------


def interleavings(lines):
    """All orders of events that keep the order within each line."""
    slots = [i for i, line in enumerate(lines) for _ in line]
    for order in sorted(set(itertools.permutations(slots))):
        left = [deque(line) for line in lines]
        yield [left[i].popleft() for i in order]


def test_in_every_interleaving_each_element_comes_out_once_and_in_order():
    """Two givers, a taker of many, one that gives up, one that takes single ones, and a close behind it all."""
    count = 0
    for order in interleavings([["g1", "g2"], ["g3"], ["m", "cancel m"], ["t", "t"]]):
        count += 1
        q = queue(capacity=2)
        open_requests, out, mixed = {}, [], False

        def ask(name, result, requests=open_requests, seen=out):
            if isinstance(result, Request):
                requests[name] = result
            elif name[0] in "tm":
                seen.extend(np.atleast_1d(result).tolist())

        for at, event in enumerate(order):
            if event == "cancel m":
                if "m" in open_requests:
                    m = open_requests.pop("m")
                    mixed = m.state is RequestState.ANSWERED  # younger elements may have come out before these go back
                    m.cancel()
            elif event == "m":
                ask("m", q.dequeue_many(2))
            elif event == "t":
                ask(f"t{at}", q.dequeue())
            else:
                number = int(event[1])
                ask(event, put(q, number, number + 10))
        takes_waiting = [r for n, r in open_requests.items() if n[0] == "t"]
        q.close()
        for name, request in open_requests.items():
            if request.state is RequestState.ANSWERED and name[0] == "t":
                out.append(int(request.result()))
        while True:
            try:
                got = q.dequeue()
            except OutOfRangeError:
                break
            out.append(int(got))
        assert sorted(out) == [1, 2, 3, 11, 12, 13], (order, out)
        for number in (1, 2, 3):
            assert out.index(number) < out.index(number + 10) or takes_waiting or mixed, (order, out)
        assert all(r.state is not RequestState.WAITING for r in open_requests.values())
    assert count > 100


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 4)),
        st.tuples(st.just("take"), st.integers(0, 4)),
        st.tuples(st.just("up to"), st.integers(0, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("see"), st.integers(0, 9)),
    ),
    max_size=25,
)


@given(OPERATIONS, st.integers(-1, 4))
def test_nothing_is_lost_or_doubled_whatever_is_cancelled(operations, capacity):
    q = queue(capacity=capacity)
    numbers, put_in, out, waiting = itertools.count(), {}, [], []
    for what, n in operations:
        if what == "put":
            values = [next(numbers) for _ in range(n)]
            result = put(q, *values)
            put_in[tuple(values)] = result
        elif what in ("take", "up to"):
            result = q.dequeue_many(n, fewer=what == "up to")
            if isinstance(result, Request):
                waiting.append(result)
            else:
                out.extend(result.tolist())
        elif waiting and what == "cancel":
            waiting.pop(n % len(waiting)).cancel()
        elif waiting and what == "see":
            request = waiting[n % len(waiting)]
            if request.state is RequestState.ANSWERED:
                waiting.remove(request)
                out.extend(request.result().tolist())
    for request in waiting:
        request.cancel()
    q.close()  # behind the enqueues that still wait
    while True:
        try:
            out.append(int(q.dequeue()))
        except OpError as e:
            assert isinstance(e, OutOfRangeError)
            break
    assert sorted(out) == sorted(v for values in put_in for v in values)
