"""Traced steps: what ran when, on one clock, and the forms in which people look at it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from same_plan import assert_transfers_are_planned

import dovetail as tf
from dovetail.placer.critical_path import Span, Transfer as Travel, critical_path
from dovetail.placer.render.text import time_text
from dovetail.runtime.observability import trace as clocks
from dovetail.runtime.observability.step_notes import (
    ArrivalNote,
    CallNote,
    Gathered,
    KernelNote,
    Notes,
    Offset,
    SendNote,
    WaitNote,
    clock,
)
from dovetail.runtime.observability.timeline import Timeline
from dovetail.runtime.observability.trace import Trace, traced as traced_step
from dovetail.runtime.wire.messages import Message

FULL = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


def traced(session: tf.Session, fetches: object, feeds: object = None) -> tuple[object, Trace]:
    metadata = tf.RunMetadata()
    value = session.run(fetches, feeds, FULL, metadata)
    assert metadata.trace is not None
    return value, metadata.trace


@pytest.fixture
def session() -> Iterator[tf.Session]:
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2}, kernel_backend="numpy")) as found:
        yield found


def two_devices() -> tuple[tf.Tensor, tf.Tensor]:
    x = tf.placeholder(tf.float32, [None, 8], name="x")
    with tf.device("/cpu:0"):
        doubled = tf.multiply(x, 2.0, name="doubled")
    with tf.device("/cpu:1"):
        return x, tf.reduce_sum(tf.exp(doubled, name="exp"), name="sum")


def test_every_node_that_ran_is_there_in_an_order_that_its_inputs_allow(session: tf.Session) -> None:
    x, y = two_devices()
    value, trace = traced(session, y, {x: np.zeros((3, 8))})
    assert value == 24.0
    at = {k.node: k for k in trace.kernels}
    assert {"doubled", "exp", "sum"} <= at.keys()
    assert at["doubled"].op == "Mul" and at["doubled"].bytes == 3 * 8 * 4
    assert at["doubled"].device.endswith("CPU:0") and at["exp"].device.endswith("CPU:1")
    assert 0 <= at["doubled"].start <= at["doubled"].finish <= at["exp"].start <= at["sum"].start
    assert at["sum"].finish <= trace.seconds


def test_a_transfer_has_its_tensor_s_name_and_size_and_lies_between_its_ends(session: tf.Session) -> None:
    x, y = two_devices()
    _, trace = traced(session, y, {x: np.zeros((3, 8))})
    (moved,) = trace.transfers
    at = {k.node: k for k in trace.kernels}
    assert (moved.name, moved.bytes) == ("doubled:0", 96)
    assert moved.source.endswith("CPU:0") and moved.destination.endswith("CPU:1")
    assert at["doubled"].finish <= moved.start <= moved.finish <= at["exp"].start


def test_fused_kernels_name_all_their_nodes() -> None:
    x = tf.placeholder(tf.float32, [None], name="x")
    y = tf.reduce_sum(tf.exp(x * 2.0, name="exp"), name="sum")
    with tf.Session(config=tf.ConfigProto(kernel_backend="numba")) as session:
        _, trace = traced(session, y, {x: np.ones(8)})
    (kernel,) = [k for k in trace.kernels if k.op == "Fused"]
    assert kernel.node == "sum" and {"exp", "sum"} <= set(kernel.nodes)


def test_each_iteration_of_a_loop_is_there(session: tf.Session) -> None:
    def body(i: tf.Tensor) -> tf.Tensor:
        with tf.device("/cpu:1"):
            return tf.add(i, 1, name="next")

    with tf.device("/cpu:0"):
        end = tf.while_loop(lambda i: i < 3, body, [tf.constant(0)])
    value, trace = traced(session, end)
    assert value == 3
    assert sum(k.node.endswith("next") for k in trace.kernels) == 3
    rounds = {t.iteration for t in trace.transfers if t.iteration}
    assert {"@0", "@1", "@2"} <= rounds


def test_a_branch_that_is_not_taken_is_not_there(session: tf.Session) -> None:
    p = tf.placeholder(tf.bool, [])
    y = tf.cond(
        p, lambda: tf.exp(tf.constant(1.0) + 0.0, name="yes"), lambda: tf.sqrt(tf.constant(1.0) + 0.0, name="no")
    )
    _, trace = traced(session, y, {p: False})
    names = {k.node for k in trace.kernels} | {n for k in trace.kernels for n in k.nodes}
    assert not any(n.endswith("yes") for n in names)


def test_transfers_have_the_bytes_that_crossed(session: tf.Session) -> None:
    taken = tf.placeholder(tf.bool, [])
    with tf.device("/cpu:0"):
        words = tf.strings.join([tf.placeholder(tf.string, [None], name="words"), "!"])
        ones = tf.ones([5]) * tf.cast(taken, tf.float32)

    def elsewhere() -> tf.Tensor:
        with tf.device("/cpu:1"):
            return tf.negative(ones)

    with tf.device("/cpu:1"):
        lengths = tf.strings.length(words)
    with tf.device("/cpu:0"):
        y = tf.identity(tf.cond(taken, elsewhere, lambda: ones))
    for is_taken in (True, False):
        _, trace = traced(session, [lengths, y], {taken: is_taken, "words:0": ["a" * 99, "b"]})
        moved = {t.name: t.bytes for t in trace.transfers}
        assert moved.pop(words.name) == 102
        assert len(moved) == 2 and set(moved.values()) == {20 if is_taken else 0}
        planned = {c.name: (c.bytes, c.is_exact) for c in trace.plan.channels}
        assert planned.pop(words.name) == (16, False)  # strings of any length
        assert planned == dict.fromkeys(moved, (20, True)) and "≥ 16 B" in str(trace.plan)


def test_a_last_batch_that_is_smaller_is_traced_and_predicted_as_it_was(session: tf.Session) -> None:
    x, y = (
        t
        for t in tf.data.Dataset.from_tensor_slices((np.ones((10, 8)), np.ones(10)))
        .batch(4)
        .make_one_shot_iterator()
        .get_next()
    )
    with tf.device("/cpu:1"):
        total = tf.add(x, y[:, None], name="total")
    for rows in (4, 4, 2):
        _, trace = traced(session, total)
        assert_transfers_are_planned(trace)
        assert session.last_plan is not None and session.last_plan.sizes.of(x).dims == (rows, 8)
        full = session.plan(total)
        found = full.compare(trace)
        assert trace.plan.sizes.of(x).dims == (rows, 8) and trace.plan.sizes.of(y).dims == (rows,)
        assert full.sizes.of(x).dims == (4, 8)
        assert f"less than a full batch, and is predicted for that: '{x.name}' (2, 8)" in str(found) or rows == 4
        assert len(found.batches) == (rows < 4) * 2
        assert found.step.predicted == trace.plan.simulate().makespan


def test_operations_are_those_of_kernels_that_ran() -> None:
    """Constants, and what is computed of them when the step is compiled, cost no step anything."""
    scale = tf.multiply(tf.constant(np.ones(64, np.float32)), 3.0, name="scale")
    x = tf.random_uniform([64], name="x")
    with tf.Session() as session:
        _, trace = traced(session, tf.multiply(x, tf.exp(scale, name="folded"), name="y"))
    run = {n for k in trace.kernels for n in (k.node, *k.nodes)}
    assert "y" in run and not {"scale", "folded"} & run
    (part,) = trace.plan.partitions.values()
    arithmetic = [n for n in part.nodes if n.name in run]
    assert trace.plan.cost[part.device].flops == sum(trace.plan.sizes.cost(n).flops for n in arithmetic) > 64


def test_waiting_for_another_step_is_told(session: tf.Session) -> None:
    import threading

    queue = tf.FIFOQueue(1, tf.float32, shapes=[[]])
    put, take = queue.enqueue(1.0), queue.dequeue()
    later = threading.Timer(0.05, lambda: session.run(put))
    later.start()
    _, trace = traced(session, take)
    later.join()
    (wait,) = trace.waits
    assert wait.finish - wait.start > 0.01 and wait.device.endswith("CPU:0")


def test_without_a_trace_level_or_metadata_nothing_is_recorded(session: tf.Session) -> None:
    x = tf.constant(1.0) + 1.0
    metadata = tf.RunMetadata()
    session.run(x, run_metadata=metadata)
    assert metadata.trace is None and metadata.step_stats.dev_stats == []
    assert session.run(x, options=FULL) == 2.0
    session.run(x, None, FULL, metadata)
    assert metadata.trace is not None
    session.run(x, run_metadata=metadata)  # a trace is of the last step, or is none
    assert metadata.trace is None


def test_a_trace_does_not_include_the_preparation_of_its_step(
    session: tf.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, ended = session._backend.prepare, []

    def watched(*given: Any) -> Any:
        parts = prepare(*given)
        ended.append(time.time())
        return parts

    monkeypatch.setattr(session._backend, "prepare", watched)
    _, trace = traced(session, tf.constant(1.0) + 1.0)
    assert trace.started >= ended[0]


def test_a_callable_can_be_traced(session: tf.Session) -> None:
    x, y = two_devices()
    metadata = tf.RunMetadata()
    session.make_callable(y, [x])(np.zeros((1, 8)), options=FULL, run_metadata=metadata)
    assert metadata.trace is not None and metadata.trace.kernels


def test_the_end_depends_on_a_chain_without_overlaps(session: tf.Session) -> None:
    x, y = two_devices()
    _, trace = traced(session, y, {x: np.zeros((3, 8))})
    chain = trace.timeline.critical
    assert [part.name for part in chain][-4:] == ["doubled", "doubled", "exp", "sum"]  # the second is the transfer
    assert all(a.finish <= b.start + 1e-9 for a, b in zip(chain, chain[1:], strict=False))


def test_the_critical_path_goes_through_a_message_for_which_a_device_waited() -> None:
    """The kernel after the wait need not take the message: a program has one order."""
    early, late, after = Span("early", 0, 0.0, 1.0), Span("late", 1, 1.0, 5.0), Span("after", 0, 6.1, 7.0)
    unrelated, message = Travel("x", 1, 0, 8.0, 0.5, 0.9), Travel("late", 1, 0, 0.0, 5.0, 6.0)
    given = (early, late, after), (unrelated, message)
    assert critical_path(*given, lambda name: (), waits={0: [0.95, 6.05]}) == [late, message, after]
    assert critical_path(*given, lambda name: (), waits={0: [0.95]}) == [early, after]


def test_step_stats_have_tensorflow_s_shape_and_become_a_chrome_trace(session: tf.Session, tmp_path: object) -> None:
    x, y = two_devices()
    metadata = tf.RunMetadata()
    session.run(y, {x: np.zeros((3, 8))}, FULL, metadata)
    stats = {d.device: d.node_stats for d in metadata.step_stats.dev_stats}
    assert all(re.fullmatch(r"/job:localhost/replica:0/task:0/device:CPU:[01]", d) for d in stats)
    (second,) = [rows for device, rows in stats.items() if device.endswith("1")]
    (exp,) = [n for n in second if n.node_name == "exp"]
    assert exp.timeline_label == "exp = Exp(doubled)"
    assert 0 <= exp.op_start_rel_micros <= exp.op_end_rel_micros <= exp.all_end_rel_micros
    (received,) = [n for n in second if n.node_name == "RecvTensor"]
    assert received.timeline_label.startswith("[96B] doubled:0 from /job:localhost")

    events = json.loads(Timeline(metadata.step_stats).generate_chrome_trace_format())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == set(stats)
    (drawn,) = [e for e in events if e["ph"] == "X" and e["args"]["name"] == "exp"]
    assert drawn["name"] == "Exp" and drawn["args"]["input0"] == "doubled" and drawn["dur"] > 0
    assert metadata.trace is not None
    metadata.trace.save(tmp_path / "t.json")  # type: ignore[operator]
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == events  # type: ignore[operator]


def test_its_text_lists_what_took_long(session: tf.Session) -> None:
    x, y = two_devices()
    _, trace = traced(session, y, {x: np.zeros((3, 8))})
    text = str(trace)
    assert "on 1 task: " in text and "1 transfer (96 B)" in text
    client, kernels = time_text(trace.seconds), time_text(trace.timeline.makespan)
    assert text.startswith(f"{client} for the client, {kernels} until the last kernel ended, ")
    beside = str(trace.plan.compare(trace)).splitlines()[0]
    assert beside.endswith(f"measured {kernels} to the end of the last kernel; the client waited {client}")
    assert trace.chart().facts[0] == ("until the last kernel ended", kernels)
    assert re.search(r"exp +\S+ \S+ +Exp +/job:localhost/task:0/CPU:1", text)
    assert re.search(r"doubled:0 +\S+ \S+ +96 B +/job:localhost/task:0/CPU:0 -> /job:localhost/task:0/CPU:1", text)


def test_notes_survive_their_way_and_nothing_malformed_is_believed() -> None:
    import msgpack

    notes = Notes(1, 9, [CallNote("/cpu", "a", "Add", ("a", "b"))], [KernelNote(0, 2, 3, 0, 4)])
    assert Notes.unpack(notes.pack()) == notes
    good = [
        1,
        9,
        [["/cpu", "a", "Add", []]],
        [[0, 2, 3, 0, 4]],
        [[7, 1, 2]],
        [["7@0", 5]],
        [["/cpu", "x", 1, 2]],
    ]
    Notes.unpack(msgpack.packb(good))
    for place, wrong in [
        (0, "x"), (2, [["/cpu", "a", "Add", [1]]]), (3, [[1, 2, 3, 0, 4]]), (3, [[-1, 2, 3, 0, 4]]), (3, [[0, 2]]),
        (3, [[True, 2, 3, 0, 4]]), (4, [[7.5, 1, 2]]), (5, 3), (6, [["/cpu", b"x", 1, 2]]),
    ]:  # fmt: skip
        bad = [*good[:place], wrong, *good[place + 1 :]]
        with pytest.raises(tf.errors.InternalError, match="Malformed trace"):
            Notes.unpack(msgpack.packb(bad))
    assert Notes.unpack(msgpack.packb([1, 2])) == Notes(1, 2)
    for data in (b"", b"\xc1", msgpack.packb([*good, 3]), msgpack.packb(3)):
        with pytest.raises(tf.errors.InternalError, match="Malformed trace"):
            Notes.unpack(data)


def test_a_clock_that_cannot_be_told_from_ours_is_ours() -> None:
    assert clocks.settled(100, -50) == Offset(0, 0)
    assert clocks.settled(101, 60) == Offset(60, 51)


class _Skewed:
    """Connections to a task whose clock is `skew` ahead; it answers after `late`, all of it on the way back. Nanoseconds."""

    def __init__(self, skew: int, late: int = 0, silent: bool = False) -> None:
        self.skew, self.late, self.silent = skew, late, silent
        self.asked: list[int] = []

    def send(self, address: str, message: Message) -> None:
        self.asked.append(message.fields["seq"])
        self.shown = clock() + self.skew

    def poll(self, seconds: float) -> list[tuple[str, Message]]:
        if self.silent:
            time.sleep(seconds)
            return []
        time.sleep(self.late / 1e9)
        stale = Message("pong", {"seq": 0, "incarnation": 1, "clock": 5})
        fresh = Message("pong", {"seq": self.asked[-1], "incarnation": 1, "clock": self.shown})
        return [("other:1", fresh), ("here:1", stale), ("here:1", fresh)]


def test_the_offset_of_a_clock_is_found_within_half_a_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3_600_000_000_000
    for skew in (hour, -hour):
        found = clocks.offset_of(_Skewed(skew, 1_000_000), "here:1")  # type: ignore[arg-type]
        assert found is not None and found.uncertainty_ns > 0 and abs(found.ns - skew) <= found.uncertainty_ns
    assert clocks.offset_of(_Skewed(0, 1_000_000), "here:1") == Offset(0, 0)  # type: ignore[arg-type]
    monkeypatch.setattr(clocks, "ROUND_S", 0.01)
    silent = _Skewed(0, silent=True)
    assert clocks.offset_of(silent, "here:1") is None  # type: ignore[arg-type]
    assert silent.asked == [1]  # who does not answer is not asked again


def test_notes_of_tasks_with_clocks_far_apart_become_one_timeline() -> None:
    with tf.device("/job:a/task:0"):
        x = tf.exp(tf.placeholder(tf.float32, [2], name="in"), name="x")
    with tf.device("/job:b/task:0"):
        y = tf.negative(x, name="y")
    plan = tf.place(None, {"a": 1, "b": 1}, fetches=y)
    (channel,) = plan.channels
    a, b = channel.source, channel.destination
    far = 10**15
    gathered = Gathered(began=1000, ended=9000, epoch_ns=0)
    gathered.offsets = {"/job:a": Offset(far, 20), "/job:b": None}
    gathered.notes = {
        "/job:a": Notes(
            far + 1100, far + 4000, [CallNote(a, "x", "Exp", ())], [KernelNote(0, far + 2000, far + 3000, 0, 8)],
            [SendNote(channel.id, far + 3100, 8), SendNote(999, far + 1, 8)],
        ),
        "/job:b": Notes(
            1200, 8000, [CallNote(b, "y", "Neg", ())], [KernelNote(0, 6000, 7000, 0, 8)],
            arrivals=[ArrivalNote(channel.id, 5000)], waits=[WaitNote(b, f"channel {channel.id}", 1300, 5500)],
        ),
    }  # fmt: skip
    trace = traced_step(gathered, plan)
    assert [(k.node, round(k.start * 1e9), round(k.finish * 1e9)) for k in trace.kernels] == [
        ("x", 1000, 2000), ("y", 5000, 6000),
    ]  # fmt: skip
    (moved,) = trace.transfers
    assert (moved.name, round(moved.start * 1e9), round(moved.finish * 1e9)) == ("x:0", 2100, 4000)
    (wait,) = trace.waits
    assert wait.what == "x:0 from /job:a/task:0/CPU:0"
    assert [(p.task, p.uncertainty) for p in trace.tasks] == [("/job:a", 2e-8), ("/job:b", None)]
    assert "times of /job:a are right within 20 ns" in str(trace) and "/job:b did not tell its clock" in str(trace)
    assert [type(p).__name__ for p in trace.timeline.critical] == ["Span", "Transfer", "Span"]
    assert round(trace.seconds * 1e9) == 8000


@pytest.mark.slow
def test_a_step_over_three_processes_is_on_one_clock(cluster: tf.LocalCluster) -> None:
    x = tf.placeholder(tf.float32, [None, 64])
    with tf.device("/job:ps/task:0"):
        w = tf.Variable(tf.ones([64, 2048]), name="weights")
    parts = []
    for i in range(2):
        with tf.device(f"/job:worker/task:{i}"):
            parts.append(tf.reduce_sum(tf.matmul(x, w), name=f"sum_{i}"))
    with tf.device("/job:ps/task:0"):
        parts.append(tf.reduce_sum(w))
    total = tf.add_n(parts)
    with tf.Session(cluster.target("worker", 1)) as session:
        session.run(tf.global_variables_initializer())
        value, trace = traced(session, total, {x: np.ones((4, 64))})
    assert value == (2 * 4 + 1) * 64 * 2048
    assert [p.task for p in trace.tasks] == [
        "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1",
    ]  # fmt: skip
    assert all(p.uncertainty == 0.0 for p in trace.tasks)  # one machine, one clock
    assert all(0 <= p.start <= p.finish <= trace.seconds for p in trace.tasks)
    assert {k.device.partition("/device")[0] for k in trace.kernels} == {p.task for p in trace.tasks}
    weights = [t for t in trace.transfers if t.bytes == 64 * 2048 * 4]
    assert len(weights) == 2 and all(t.source.startswith("/job:ps") for t in weights)
    assert all(0 <= t.start <= t.finish <= trace.seconds for t in trace.transfers)
    assert {t.source.partition("/device")[0] for t in trace.transfers if not t.direct} == {
        p.task for p in trace.tasks[:2]
    }
    assert all(t.direct for t in weights) and "one-sided read" in str(trace)


@pytest.mark.slow
def test_a_server_of_this_process_is_traced_too() -> None:
    server = tf.train.Server.create_local_server()
    try:
        y = tf.exp(tf.placeholder(tf.float32, [2], name="x"), name="exp")
        with tf.Session(server.target) as session:
            _, trace = traced(session, y, {"x:0": [0.0, 1.0]})
        assert [k.node for k in trace.kernels] == ["exp"] and len(trace.tasks) == 1
    finally:
        server.stop()


def test_a_profile_has_every_node_of_the_step_and_predicts_it(session: tf.Session) -> None:
    x, y = two_devices()
    found = tf.profile(session, y, {x: np.zeros((64, 8))}, steps=3)
    assert {"doubled", "exp", "sum"} <= found.nodes.keys() and found.steps == 3
    ((device, seconds),) = found.nodes["exp"].items()
    assert device.endswith("CPU:1") and 0 < seconds < found.seconds
    plan = session.last_plan
    assert plan is not None
    spans = {s.name: s.finish - s.start for s in tf.simulate(plan, costs=found).spans}
    assert spans["exp"] == pytest.approx(seconds)
    _, trace = traced(session, y, {x: np.zeros((64, 8))})
    beside = {r.name: r for r in plan.compare(trace, costs=found).kernels}
    assert beside["exp"].predicted == pytest.approx(seconds) and beside["exp"].measured > 0
    with pytest.raises(ValueError, match="steps"):
        tf.profile(session, y, {x: np.zeros((64, 8))}, steps=0)


@pytest.mark.slow
def test_a_profile_measures_links(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:ps/task:0"):
        small, large = tf.Variable(tf.ones([4]), name="small"), tf.Variable(tf.ones([1 << 20]), name="large")
    with tf.device("/job:worker/task:0"):
        y = tf.reduce_sum(small) + tf.reduce_sum(large)
    with tf.Session(cluster.target("worker", 0)) as session:
        session.run(tf.global_variables_initializer())
        (link,) = tf.profile(session, y, steps=3).links
    assert (link.a, link.b) == ("/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0")
    assert link.latency is not None and 0 < link.latency < 1
    assert link.bandwidth is None or link.bandwidth > 1e6
