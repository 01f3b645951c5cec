"""Collectives without processes: any number of members, any order in which parts arrive."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dovetail.runtime.collectives import algorithms
from dovetail.runtime.collectives.algorithms import RecursiveDoubling, RingAllReduce, TreeBroadcast


def play(members, seed=0, fifo=False):
    """Deliver all parts in a random order; gives the results, and how many bytes each member sent."""
    rng = random.Random(seed)
    sent = [0] * len(members)
    under_way = []

    def put(rank, parts):
        for to, tag, array in parts:
            assert to != rank
            sent[rank] += array.nbytes
            under_way.append((rank, to, tag, array.copy()))

    for m in members:
        put(m.rank, m.begin())
    while under_way:
        sender, to, tag, array = under_way.pop(0 if fifo else rng.randrange(len(under_way)))
        assert sender in members[to].expects() or not fifo or not isinstance(members[to], TreeBroadcast)
        put(to, members[to].receive(sender, tag, array))
    assert all(m.is_done and not m.expects() for m in members)
    return [m.result for m in members], sent


WAYS = {
    "doubling": lambda rank, size, x, op: RecursiveDoubling(rank, size, x, op),
    "ring": lambda rank, size, x, op: RingAllReduce(rank, size, x, op, chunk_bytes=32),
}
ORACLES = {
    "sum": lambda xs: xs.sum(0), "mean": lambda xs: xs.mean(0), "prod": lambda xs: xs.prod(0),
    "min": lambda xs: xs.min(0), "max": lambda xs: xs.max(0),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reduction", ORACLES)
@settings(deadline=None)
@given(size=st.integers(2, 9), length=st.integers(0, 70), seed=st.integers(0, 1000))
def test_all_reduce(way, reduction, size, length, seed):
    values = np.random.default_rng(seed).normal(size=(size, length))
    before = values.copy()
    found, _ = play([WAYS[way](r, size, values[r], reduction) for r in range(size)], seed)
    np.testing.assert_array_equal(values, before)  # members' own values are not touched
    for x in found:
        np.testing.assert_array_equal(x, found[0])  # the same bits everywhere
    np.testing.assert_allclose(found[0], ORACLES[reduction](values), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_arrival_changes_no_bit(way):
    values = (np.random.default_rng(1).normal(size=(5, 40)) * 10.0 ** (np.arange(40) % 9)).astype(np.float32)
    runs = [play([WAYS[way](r, 5, values[r], "sum") for r in range(5)], seed)[0][0] for seed in range(20)]
    for run in runs:
        np.testing.assert_array_equal(run, runs[0])


def test_a_ring_sends_the_least_possible():
    size, length = 4, 64
    _, sent = play([RingAllReduce(r, size, np.ones(length), "sum", chunk_bytes=32) for r in range(size)])
    assert sent == [2 * (size - 1) * length * 8 // size] * size


def test_a_ring_is_not_far_ahead_of_what_comes_in():
    ring = RingAllReduce(0, 2, np.ones(10_000), "sum", chunk_bytes=80)
    assert len(ring.begin()) == algorithms.WINDOW
    assert len(ring.receive(1, 0, np.ones(10))) == 1


@given(size=st.integers(1, 9), root=st.integers(0, 8), seed=st.integers(0, 100))
def test_broadcast(size, root, seed):
    root %= size
    found, sent = play([TreeBroadcast(r, size, np.full(3, float(r)), root) for r in range(size)], seed)
    assert all((x == root).all() for x in found)
    assert sum(sent) == (size - 1) * 24
    assert max(sent) <= 24 * (size - 1).bit_length()


@given(lengths=st.lists(st.integers(0, 4), min_size=2, max_size=6), seed=st.integers(0, 100))
def test_all_gather(lengths, seed):
    values = [np.full((n, 2), float(r)) for r, n in enumerate(lengths)]
    found, _ = play([algorithms.all_gather(r, len(values), v) for r, v in enumerate(values)], seed)
    for x in found:
        np.testing.assert_array_equal(x, np.concatenate(values))


@given(size=st.integers(2, 6), rows=st.integers(0, 3), seed=st.integers(0, 100))
def test_reduce_scatter(size, rows, seed):
    values = np.random.default_rng(seed).integers(0, 100, (size, rows * size, 2))
    found, _ = play([algorithms.reduce_scatter(r, size, values[r], "sum") for r in range(size)], seed)
    np.testing.assert_array_equal(np.concatenate(found), values.sum(0))


def test_size_decides_how():
    small, large = np.zeros(10), np.zeros(algorithms.DOUBLING_BYTES // 8 + 1)
    assert isinstance(algorithms.all_reduce(0, 2, small, "sum", "auto"), RecursiveDoubling)
    assert isinstance(algorithms.all_reduce(0, 2, large, "sum", "auto"), RingAllReduce)
    assert isinstance(algorithms.all_reduce(0, 2, small, "sum", "ring"), RingAllReduce)
    assert isinstance(algorithms.all_reduce(0, 2, large, "sum", "doubling"), RecursiveDoubling)


def test_results_are_not_written_while_somebody_holds_them():
    x = np.arange(1 << 18, dtype=np.float64)

    def once(factor):
        return play([RingAllReduce(r, 2, x * factor, "sum") for r in range(2)])[0]

    held = once(1.0)
    part = held[1][10:20]
    held = held[0]
    for factor in range(2, 12):
        np.testing.assert_array_equal(once(float(factor))[0], 2 * factor * x)
    np.testing.assert_array_equal(held, 2 * x)
    np.testing.assert_array_equal(part, 2 * x[10:20])
    place = once(1.0)[0].ctypes.data
    assert place in {y.ctypes.data for y in once(1.0)}  # and they are, when nobody does
