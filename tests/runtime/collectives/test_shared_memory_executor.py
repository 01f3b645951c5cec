"""Reducing in shared memory, without processes: any number of members, any order of what they do, and what happens when one is gone."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest
from simulated_tasks import TASKS, Machine, Net, Step, member

from dovetail.graph.core.errors import AbortedError, InvalidArgumentError, UnavailableError
from dovetail.runtime.collectives import algorithms, shared_buffer, shared_memory_algorithms
from dovetail.runtime.collectives.shared_buffer import BufferLayout, CollectiveMemory, SharedBuffer
from dovetail.runtime.collectives.shared_memory_algorithms import SharedMemoryAllReduce

TYPES = [np.float32, np.float64, np.int8, np.int64, np.complex64, np.float16]


def _values(rng, count, size, dtype):
    high = 10 if np.dtype(dtype).kind == "i" else 1000
    return [(rng.integers(1, high, size) / (1 if high == 10 else 7)).astype(dtype) for _ in range(count)]


def _expected(values, what):
    total = values[0].copy()
    with np.errstate(all="ignore"):
        for v in values[1:]:
            total = algorithms.REDUCTIONS[what](total, v)
    return algorithms.mean_of(total, len(values)) if what == "mean" else total


@pytest.mark.parametrize("seed", range(30))
def test_any_order_gives_the_sum_in_the_order_of_ranks(monkeypatch, seed):
    monkeypatch.setattr(shared_buffer, "FLAT_BYTES", 1 << 10)
    monkeypatch.setattr(shared_memory_algorithms, "FLAT_BYTES", 1 << 10)
    monkeypatch.setattr(shared_buffer, "MIN_STAGING_BYTES", 1 << 10)
    monkeypatch.setattr(shared_buffer, "STAGING_BYTES", 1 << 12)
    rng, orders = np.random.default_rng(seed), random.Random(seed)
    count = 2 + seed % 4
    net = Net(count, [Machine(limit=1 << (17 + seed % 3 * 6)) for _ in range(count)])
    kept = []
    for run in range(5):
        dtype = TYPES[(seed + run) % len(TYPES)]
        kind = np.dtype(dtype).kind
        what = orders.choice(["sum", "prod"] if kind == "c" else ["sum", "min", "max"] + ["mean"] * (kind == "f"))
        values = _values(rng, count, orders.choice([0, 1, 5, 300, 5_000, 20_000]), dtype)
        steps = [None] * count
        for i in orders.sample(range(count), count):
            steps[i] = net.ask(i, values[i], run, what)
        net.play(steps, orders)
        for step in steps:
            np.testing.assert_array_equal(step.result, _expected(values, what), strict=True)
        if run % 2:  # what is kept stays as it is
            kept.append((steps[0].result, _expected(values, what)))
    for found, expected in kept:
        np.testing.assert_array_equal(found, expected)


def test_small_and_large_values_go_through_shared_memory():
    net = Net(3)
    for run, size in enumerate((10, 100_000, 10, 1_000_000)):
        steps = [net.ask(i, np.full(size, i, np.float32), run) for i in range(3)]
        net.play(steps)
        assert all((s.result == 3).all() and s.result.shape == (size,) for s in steps)
    assert net.events.count("part") == 2 * 3  # the members met, and then sent nothing
    assert "wake" in net.events


def test_areas_are_used_again_when_all_have_let_go_of_them():
    net = Net()
    size = 1 << 18
    addresses = []
    held = None
    steps = []
    for run in range(6):
        steps.clear()
        steps += [net.ask(i, np.full(size, run, np.float32), run) for i in range(2)]
        net.play(steps)
        assert (steps[0].result == 2 * run).all()
        addresses.append(steps[0].result.ctypes.data)
        if run == 1:
            held = steps[1].result[5:7]  # a view of a view counts, too
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3] == addresses[5]
    assert (held == 2).all()


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("why", ["cannot open", "has none", "is on another machine"])
def test_where_there_is_no_shared_memory_parts_are_sent(who, why):
    machines = [Machine() for _ in range(3)]
    machines[who] = {"cannot open": Machine(0, opens=False), "has none": None}.get(why, Machine(0, opens=False))
    net = Net(3, machines)
    for run in range(3):
        steps = [net.ask(i, [float(i), 1.0], run) for i in (2, 0, 1)]
        net.play(steps)
        assert all(list(s.result) == [3.0, 3.0] for s in steps)
    assert "wake" not in net.events


def test_runs_of_one_op_that_overlap_take_turns():
    net = Net()
    steps = [net.ask(0, [float(run)], run) for run in range(4)]
    net.play(steps)
    later = [net.ask(1, [10.0], run) for run in (0, 2, 1, 3)]
    net.play(steps + later)
    assert [s.result[0] for s in steps] == [10.0, 11.0, 12.0, 13.0]
    assert [s.result[0] for s in later] == [10.0, 12.0, 11.0, 13.0]


@pytest.mark.parametrize("first", [True, False])
def test_members_that_differ_fail_everywhere(first):
    net = Net()
    if not first:
        net.play([net.ask(0, [1.0]), net.ask(1, [1.0])])
    steps = [net.ask(0, [1.0, 2.0], 1), net.ask(1, [1.0], 1)]
    net.play(steps)
    for step in steps:
        assert isinstance(step.result, InvalidArgumentError)
        assert "all members must run the same program" in str(step.result)


def test_one_that_sends_parts_and_one_in_shared_memory_differ():
    net = Net()
    a = net.ask(0, [1.0])
    members = [f"{t}/device:CPU:0" for t in net.tasks]
    exchange = algorithms.RingAllReduce(1, 2, np.ones(1), "sum")
    b = Step(
        lambda: net.coordinators[1].take_part(
            member(net.sessions[1], members, 1), "ring", lambda: exchange, lambda x: x
        )
    )
    net.play([a, b])
    for step in (a, b):
        assert "all members must run the same program" in str(step.result)


def test_a_step_that_ends_early_fails_the_others():
    net = Net(3)
    steps = [net.ask(i, np.ones(100_000, np.float32)) for i in range(2)]
    net.play(steps)
    steps[0].result.cancel()
    steps.append(net.ask(2, np.ones(100_000, np.float32)))
    net.play(steps)
    for step in steps[1:]:
        assert isinstance(step.result, AbortedError)
        assert "was ended while it took part" in str(step.result)


def test_a_step_that_was_woken_and_never_went_on_fails_the_others():
    net = Net()
    net.play([net.ask(i, [1.0]) for i in range(2)])
    waiting = net.ask(0, [1.0], 1)
    other = net.ask(1, [1.0], 1)  # it can finish ...
    while net.under_way:
        to, fields, tensors = net.under_way.pop(0)
        net.coordinators[to].message(fields, tensors)
    assert waiting.is_ready()
    waiting.result.cancel()  # ... and this one could have
    again = net.ask(1, [1.0], 2)
    net.play([other, again])
    assert isinstance(again.result, AbortedError)


def test_a_failure_while_a_run_passes_the_buffer_on_leaves_its_result():
    net = Net()
    net.play([net.ask(i, [0.0]) for i in range(2)])
    first, second = (net.ask(0, [float(run)], run) for run in (1, 2))
    net.play([net.ask(1, [1.0], 1)])
    coordinator = net.coordinators[0]
    perform = coordinator.perform

    def fail_first(event):
        coordinator.perform = perform
        (membership,) = coordinator.memberships.active()
        perform(lambda: coordinator.memberships.fail(membership, AbortedError.of("another task was killed")))
        perform(event)

    coordinator.perform = fail_first
    assert first.is_ready()
    first.go_on()
    assert first.result == [2.0]
    second.go_on()
    assert isinstance(second.result, AbortedError)


def test_a_dead_member_is_noticed():
    net = Net()
    net.play([net.ask(i, [0.0]) for i in range(2)])
    step = net.ask(0, [1.0], 1)
    for now in range(12):
        for coordinator in net.coordinators:
            coordinator.tick(float(now))
        net.play([step])
    assert step.result.state.name == "WAITING"
    net.down.add(TASKS[1])
    for now in range(12, 19):
        net.coordinators[0].tick(float(now))
    net.play([step])
    assert isinstance(step.result, UnavailableError)


def test_a_wake_up_that_is_lost_costs_a_tick():
    net = Net()
    net.play([net.ask(i, [0.0]) for i in range(2)])
    step = net.ask(0, [1.0], 1)
    assert net.ask(1, [1.0], 1).result == [2.0]
    net.under_way.clear()
    net.coordinators[0].tick(1.0)
    step.go_on()
    assert step.result == [2.0]


def test_threads_that_wait_for_each_other():
    """Members in threads, on memory as processes have it."""
    machine = CollectiveMemory(lambda: True)
    layout = BufferLayout(3, 64 << 10, 2, 4 << 20)
    place, memory = machine.make(layout.bytes)
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(1 << 20, np.float32) for _ in range(3)]
    errors = []

    def member(rank):
        mine = memory if rank == 0 else machine.open(place, layout.bytes)
        buffer = SharedBuffer(machine.may_sleep, mine, layout, rank, lambda to: None)
        for run in range(6):
            value = values[rank][: 1 << 20 if run % 2 else 100]
            algorithm = SharedMemoryAllReduce(value, "sum")
            algorithm.start(buffer, run, shared_buffer.label_of("it"))
            while not algorithm.drive(lambda: False):
                pass
            if not np.array_equal(algorithm.result, _expected([v[: len(value)] for v in values], "sum")):
                errors.append((rank, run))

    threads = [threading.Thread(target=member, args=(r,)) for r in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert not errors and not any(t.is_alive() for t in threads)


def test_memory_that_is_not_a_shared_buffer():
    machine = CollectiveMemory(lambda: True)
    place, _memory = machine.make(100)
    assert machine.open([0, *place[1:]], 100) is None
    assert machine.open([1, 2, 3], 100) is None
    assert machine.open(place, 1 << 30) is None


def test_there_is_as_much_as_the_setting_says(monkeypatch):
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", "1")
    gc.collect()
    machine = CollectiveMemory(lambda: True)
    assert machine.make(2 << 20) is None
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_MB", "0")
    assert machine.make(100) is None
    assert machine.open([1, 2, 3, 4, 5], 100) is None
