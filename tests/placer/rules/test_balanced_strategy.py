"""Our own strategy: even in bytes and in traffic, and the same for every client."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, strategies as st

import dovetail as dt
from dovetail.placer.rules.replica_device_setter import MESSAGE_BYTES, BalancedStrategy, expected_traffic


def build(shapes, strategy, tasks, dtype="float32"):
    """The tasks of variables of these shapes."""
    with dt.Graph().as_default() as g, dt.device(dt.train.replica_device_setter(ps_tasks=tasks, ps_strategy=strategy)):
        made = [dt.Variable(np.zeros(s, dtype), name=f"v{i}") for i, s in enumerate(shapes)]
    return [dt.DeviceSpec.from_string(v.device).task for v in made], g


def loads(shapes, chosen, tasks):
    held, moved = [0] * tasks, [0] * tasks
    for s, t in zip(shapes, chosen, strict=True):
        size = int(np.prod(s)) * 4
        held[t] += size
        moved[t] += 2 * (size + MESSAGE_BYTES)
    return held, moved


def test_large_and_small_ones_in_turn():
    shapes = [(1000, 100), (10,)] * 4  # round robin puts all large ones on task 0
    chosen, _ = build(shapes, BalancedStrategy(2), 2)
    held, moved = loads(shapes, chosen, 2)
    assert max(held) == min(held) and max(moved) - min(moved) <= 2 * MESSAGE_BYTES
    chosen, _ = build(shapes, None, 2)
    assert loads(shapes, chosen, 2)[0] == [1_600_000, 160]


def test_many_small_ones_are_spread_though_they_hold_nothing():
    shapes = [(1000, 100)] + [(1,)] * 60  # balancing bytes alone puts all small ones on task 1
    chosen, _ = build(shapes, BalancedStrategy(3), 3)
    _, moved = loads(shapes, chosen, 3)
    assert max(moved) < 1.3 * sum(moved) / 3


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=25), st.integers(1, 6))
def test_no_task_is_far_above_the_mean(shapes, tasks):
    chosen, _ = build(shapes, BalancedStrategy(tasks), tasks)
    for amounts, largest in zip(loads(shapes, chosen, tasks), (1, 2), strict=True):
        one = largest * max(int(np.prod(s)) * 4 + (MESSAGE_BYTES if largest == 2 else 0) for s in shapes)
        # A greedy choice of one amount is at most one item above the mean; of two at once, at most twice that.
        assert max(amounts) <= 2 * (sum(amounts) / tasks + one)


def test_every_client_gets_the_same():
    shapes = [(7, 3), (100, 100), (5,), (64, 64), (1,)] * 5
    strategy = BalancedStrategy(3)
    first, _ = build(shapes, BalancedStrategy(3), 3)
    assert [build(shapes, strategy, 3)[0] for _ in range(3)] == [first] * 3  # one strategy, many graphs
    found = []
    threads = [threading.Thread(target=lambda: found.append(build(shapes, strategy, 3)[0])) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [first] * 8


def test_every_process_gets_the_same():
    code = (
        "import dovetail as dt, numpy as np\n"
        "with dt.device(dt.train.replica_device_setter(ps_tasks=3, ps_strategy=dt.train.BalancedStrategy(3))):\n"
        "    print([dt.Variable(np.zeros([i % 7 + 1, i * i + 1])).device for i in range(20)])"
    )
    answers = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        answers.add(done.stdout)
    assert len(answers) == 1 and "/job:ps/task:2" in answers.pop()


def test_slots_are_where_their_variables_are_and_count_there():
    strategy = BalancedStrategy(2)
    with dt.Graph().as_default() as g, dt.device(dt.train.replica_device_setter(ps_tasks=2, ps_strategy=strategy)):
        a = dt.Variable(np.zeros(1000, "float32"), name="a")
        b = dt.Variable(np.zeros(100, "float32"), name="b")
        dt.train.AdamOptimizer().minimize(dt.reduce_sum(a) + dt.reduce_sum(b))
        c = dt.Variable(np.zeros(800, "float32"), name="c")
    device = {n.name: n.device for n in g.nodes}
    assert device["a"] == device["a/Adam"] == device["a/Adam_1"] == "/job:ps/task:0"
    assert device["b"] == device["b/Adam"] == c.device == "/job:ps/task:1"
    held, moved = zip(*strategy._loads[g].tasks, strict=True)
    assert held[0] == 12_000 and held[1] >= 1_200 + 3_200
    assert moved[0] < 3 * expected_traffic(a.op)


def test_the_same_node_gets_the_same_answer():
    strategy = BalancedStrategy(2)
    with dt.Graph().as_default():
        a, b = dt.Variable(1.0), dt.Variable([1.0, 2.0])
    assert [strategy(v.op) for v in (a, b, a, b)] == [0, 1, 0, 1]


def test_traffic_may_be_told():
    table, wide = (1_000_000, 8), (1000, 1000)
    rows = BalancedStrategy(2, traffic_fn=lambda op: 100.0 if op.name == "v0" else expected_traffic(op))
    # By bytes alone the two `wide` ones would share a server; by traffic they must not.
    chosen, _ = build([table, wide, wide], rows, 2)
    assert sorted(chosen[1:]) == [0, 1]
    with pytest.raises(ValueError, match="must be a number of bytes, not -1"):
        build([table], BalancedStrategy(2, traffic_fn=lambda op: -1), 2)


def test_expected_traffic():
    with dt.Graph().as_default():
        v = dt.Variable(np.zeros((2, 3), "float32"))
        i = dt.Variable(np.zeros((2, 3), "int64"))
        u = dt.Variable(dt.placeholder("float32", [None, 3]), validate_shape=False)
        r = dt.Variable(np.zeros(4, "float64"), use_resource=True)
        q = dt.no_op()
    assert [expected_traffic(x) - k * MESSAGE_BYTES for x, k in ((v.op, 2), (i.op, 1), (r.handle.op, 2), (q, 1))] == [
        48, 48, 64, 0,
    ]  # fmt: skip
    assert expected_traffic(u.op) >= 2 * MESSAGE_BYTES


def test_a_graph_that_is_gone_is_forgotten():
    strategy = BalancedStrategy(2)
    chosen, g = build([(3,), (4,)], strategy, 2)
    assert chosen == [0, 1] and len(strategy._loads) == 1
    del g
    gc.collect()
    assert len(strategy._loads) == 0


def test_a_strategy_needs_a_task():
    with pytest.raises(ValueError, match="at least one task"):
        BalancedStrategy(0)
