"""Collectives between tasks, without processes: messages are delivered by hand, and time passes when we say so."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
from simulated_tasks import Session, member

import dovetail as dt
from dovetail.graph.core.errors import AbortedError, InvalidArgumentError, ResourceExhaustedError, UnavailableError
from dovetail.graph.ops.state import collectives as ops
from dovetail.graph.resources.async_request import Request
from dovetail.graph.resources.collective_context import LinkIdentity
from dovetail.runtime.collectives import algorithms, executors, membership
from dovetail.runtime.collectives.algorithms import flatten, unflatten
from dovetail.runtime.collectives.coordinator import Coordinator
from dovetail.runtime.collectives.device_link import LinkAgreement, LinkRefused, RefusalReason

TASKS = ["/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1", "/job:worker/replica:0/task:2"]


class Net:
    """Tasks, and the messages between them."""

    def __init__(self, count=2):
        self.tasks = TASKS[:count]
        self.under_way = []
        self.down = set()
        self.coordinators = {t: self.coordinator(t) for t in self.tasks}
        self.sessions = {t: Session() for t in self.tasks}

    def coordinator(self, task):
        return Coordinator(task, lambda to, fields, tensors: self.send(task, to, fields, tensors), 5.0)

    def send(self, sender, to, fields, tensors):
        if to not in self.tasks:
            raise KeyError(to)
        if to not in self.down and sender not in self.down:
            self.under_way.append((to, dict(fields), tensors))

    def deliver(self, most=1000):
        while self.under_way and most:
            to, fields, tensors = self.under_way.pop(0)
            if to not in self.down:
                self.coordinators[to].message(fields, tensors)
            most -= 1

    def tick(self, now):
        for task, coordinator in self.coordinators.items():
            if task not in self.down:
                coordinator.tick(now)
        self.deliver()

    def ask(self, i, value, instance="g", run=0, what="sum"):
        task = self.tasks[i]
        exchange = algorithms.all_reduce(i, len(self.tasks), np.asarray(value, np.float32), what, "auto")
        members = [f"{t}/device:CPU:0" for t in self.tasks]
        signature = f"{what} {np.shape(value)}"
        session = self.sessions[task]
        return self.coordinators[task].take_part(
            member(session, members, i, instance, run), signature, lambda: exchange, lambda x: x
        )


def test_a_member_that_waits_tells_for_whom():
    net = Net(2)
    first = net.ask(0, [1.0])
    assert first.waits_for() == f"the all_reduce 'g' of 2 members: not joined by member 1 ({TASKS[1]})"
    net.ask(1, [2.0], instance="another")
    net.deliver()
    assert first.waits_for() == f"the all_reduce 'g' of 2 members: awaiting member 1 ({TASKS[1]})"


def test_whoever_comes_first_waits():
    net = Net()
    first = net.ask(0, [1.0])
    assert isinstance(first, Request)
    net.deliver()
    net.ask(1, [2.0])
    told = []
    assert first.when_settled(lambda: told.append(True))
    net.deliver()
    assert told == [True]
    assert first.result() == [3.0]


def test_parts_that_come_early_are_kept():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    requests = [net.ask(0, [float(run)], run=run) for run in range(1, 4)]  # the other one has not got there yet
    net.deliver()
    for run in (3, 1, 2):
        assert net.ask(1, [10.0], run=run) == [10.0 + run]  # what it needs is there: it need not wait
    net.deliver()
    assert [r.result()[0] for r in requests] == [11.0, 12.0, 13.0]


def test_members_that_differ_fail_everywhere():
    net = Net()
    a, b = net.ask(0, [1.0, 2.0]), net.ask(1, [1.0])
    net.deliver()
    for request in (a, b):
        with pytest.raises(InvalidArgumentError, match="all members must run the same program"):
            request.result()


def test_a_step_that_ends_early_fails_the_others():
    net = Net(3)
    a, b = net.ask(0, [1.0]), net.ask(1, [1.0])
    net.ask(2, [1.0], instance="other")
    net.deliver(6)  # the joins
    b.cancel()
    net.deliver()
    with pytest.raises(AbortedError, match="was ended while it took part"):
        a.result()
    with pytest.raises(AbortedError):  # and it stays so in this session
        net.ask(0, [1.0], run=1)


def test_a_new_session_starts_anew():
    net = Net()
    net.ask(0, [1.0]).cancel()
    net.ask(1, [1.0]).cancel()
    net.deliver()
    for task in net.tasks:
        net.sessions[task] = Session()
    a = net.ask(0, [1.0])
    net.deliver()
    net.ask(1, [5.0])
    net.deliver()
    assert a.result() == [6.0]


def test_a_task_that_begins_anew_fails_who_needs_it():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    request = net.ask(0, [1.0], run=1)
    net.coordinators[TASKS[1]] = net.coordinator(TASKS[1])  # killed and started again
    net.ask(1, [1.0])
    net.deliver()
    with pytest.raises(AbortedError, match="begun anew"):
        request.result()


def test_parts_of_a_session_that_has_ended_are_not_taken_for_new_ones():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    net.ask(0, [100.0], run=1)  # its part is there, and is never used
    net.deliver()
    net.sessions[TASKS[1]] = Session()
    net.ask(1, [1.0]).cancel()
    net.deliver()
    for task in net.tasks:
        net.sessions[task] = Session()
    for run in (0, 1):
        a = net.ask(0, [1.0], run=run)
        net.ask(1, [2.0], run=run)
        net.deliver()
        assert a.result() == [3.0]


def test_a_session_that_is_closed_tells_so():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    request = net.ask(0, [1.0], run=1)
    net.sessions[TASKS[1]] = None
    net.tick(1.0)
    with pytest.raises(AbortedError, match="task:1 has closed its session"):
        request.result()


def test_a_dead_member_is_noticed():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    net.tick(0.0)
    request = net.ask(0, [1.0], run=1)
    for now in range(1, 12):
        net.tick(float(now))
    assert request.state.name == "WAITING"  # it is slow, but it lives
    net.down.add(TASKS[1])
    for now in range(12, 19):
        net.tick(float(now))
    with pytest.raises(UnavailableError, match="task:1 has given no sign of life"):
        request.result()


def test_a_restarted_member_is_noticed():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    request = net.ask(0, [1.0], run=1)
    for now in (1.0, 2.0):
        net.tick(now)
    net.coordinators[TASKS[1]] = net.coordinator(TASKS[1])
    for now in (3.0, 4.0):
        net.tick(now)
    with pytest.raises(AbortedError, match="task:1: takes part no longer: it was restarted"):
        request.result()


def test_late_answers_of_an_ended_process_do_not_fail_a_new_membership():
    net = Net()
    for i in (0, 1):
        net.ask(i, [0.0])
    net.deliver()
    net.ask(0, [1.0], run=1)
    for now in (1.0, 2.0, 3.0):
        net.coordinators[TASKS[0]].tick(now)
    late = []
    while net.under_way:
        to, fields, tensors = net.under_way.pop(0)
        if to == TASKS[0]:
            late.append((to, fields, tensors))
        else:
            net.coordinators[to].message(fields, tensors)
    assert late
    net.coordinators[TASKS[1]] = net.coordinator(TASKS[1])  # killed and started again
    net.sessions = {task: Session() for task in TASKS}
    request = net.ask(0, [1.0])
    net.tick(4.0)
    net.ask(1, [9.0], instance="another")
    net.tick(5.0)
    net.under_way += late
    net.deliver()
    net.tick(6.0)
    net.ask(1, [2.0])
    net.deliver()
    assert request.result() == [3.0]


def test_who_has_not_started_is_waited_for_and_named(caplog):
    net = Net()
    net.down.add(TASKS[1])
    request = net.ask(0, [1.0])
    for now in range(40):
        net.tick(float(now))
    assert request.state.name == "WAITING"
    assert 5 <= len(caplog.records) <= 8
    assert "waits at the all_reduce 'g' of 2 members for /job:worker/replica:0/task:1" in caplog.text
    net.down.clear()
    net.ask(1, [2.0])  # its join is answered, though the first one's was lost
    net.deliver()
    assert request.result() == [3.0]


def test_groups_that_cannot_be():
    net = Net()
    here = net.coordinators[TASKS[0]]
    for coordinator, members, rank, text in (
        (here, TASKS[:2], 1, "its op runs on"),
        (here, [TASKS[0], "/job:x/replica:0/task:0"], 0, "no task of the server's cluster"),
        (Coordinator(), ["", TASKS[1]], 0, "without servers"),
    ):
        exchange = algorithms.RecursiveDoubling(rank, 2, np.zeros(1), "sum")
        with pytest.raises(InvalidArgumentError, match=text):
            coordinator.take_part(member(Session(), members, rank), "", lambda e=exchange: e, id)


def test_malformed_messages_are_ignored():
    net = Net()
    request = net.ask(0, [1.0])
    net.ask(1, [1.0])
    token = net.under_way[-1][1]["token"]
    net.deliver(2)  # the joins
    head = {
        "event": "part",
        "task": TASKS[1],
        "group": next(iter(net.coordinators[TASKS[0]].memberships.groups)),
        "token": token,
        "instance": "g",
        "run": 1,
        "tag": 0,
        "what": "",
    }
    for more in ({"sender": -1, "to": 0}, {"sender": 1, "to": 7}, {"sender": 0, "to": 0}, {"sender": 1, "to": 0}):
        net.coordinators[TASKS[0]].message(head | more, ())
    assert request.state.name == "WAITING"


def test_a_member_that_runs_too_far_ahead(monkeypatch):
    monkeypatch.setattr(executors, "MAX_EARLY_PARTS", 10)
    net = Net()

    def send(run):
        exchange = algorithms.TreeBroadcast(0, 2, np.zeros(1), 0)  # a root of broadcasts waits for nobody
        members = [f"{t}/device:CPU:0" for t in net.tasks]
        return net.coordinators[TASKS[0]].take_part(
            member(net.sessions[TASKS[0]], members, 0, "b", run), "", lambda e=exchange: e, lambda x: x
        )

    first = send(0)
    net.deliver()
    assert first.state.name == "WAITING"  # before all have joined, even it waits
    net.ask(1, [0.0])
    net.deliver()
    for run in range(1, 20):
        assert send(run) == [0.0]
    net.deliver()
    with pytest.raises(ResourceExhaustedError, match="runs too far ahead"):
        net.ask(1, [0.0], run=1)


def test_groups_that_nobody_joins_are_forgotten(monkeypatch):
    monkeypatch.setattr(membership, "MAX_GROUPS", 10)
    net = Net()
    net.ask(0, [1.0])
    for i in range(100):
        net.coordinators[TASKS[0]].message({"event": "join", "task": TASKS[1], "group": f"g{i}", "token": 1}, ())
    assert len(net.coordinators[TASKS[0]].memberships.groups) <= 11
    request = net.ask(0, [1.0], run=1)
    net.deliver()
    net.ask(1, [0.0])
    net.ask(1, [0.0], run=1)
    net.deliver()
    assert request.result() == [1.0]


def test_flat():
    a = [np.arange(6.0).reshape(2, 3), np.array(7.0), np.zeros((0, 2))]
    for x, y in zip(unflatten(flatten(a), [x.shape for x in a]), a, strict=True):
        np.testing.assert_array_equal(x, y)


# --- in a graph ---------------------------------------------------------------------------------------------------------


def _in_one_process(build, count=2):
    members = [f"/cpu:{i}" for i in range(count)]
    with dt.Graph().as_default():
        nodes = []
        for rank, m in enumerate(members):
            with dt.device(m):
                nodes.append(build(members, rank))
        with dt.Session(config=dt.ConfigProto(device_count={"CPU": count})) as session:
            first = session.run(nodes)
            again = session.run(nodes)
    for x, y in zip(first, again, strict=True):
        np.testing.assert_array_equal(x, y)
    return first


def test_members_in_one_graph():
    x = np.arange(6, dtype=np.float32)
    for way in ("ring", "doubling", "auto"):
        for found in _in_one_process(lambda m, r, way=way: ops.all_reduce(x * (r + 1), m, r, "mean", way, "i"), 3):
            np.testing.assert_allclose(found, x * 2)
    for found in _in_one_process(lambda m, r: ops.all_gather(dt.constant([[r]] * (r + 1)), m, r, "i"), 3):
        np.testing.assert_array_equal(found, [[0], [1], [1], [2], [2], [2]])
    a, b = _in_one_process(lambda m, r: ops.reduce_scatter(dt.constant([1, 2, 3, 4]), m, r, "sum", "i"))
    np.testing.assert_array_equal([a, b], [[2, 4], [6, 8]])
    for found in _in_one_process(lambda m, r: ops.broadcast(dt.constant([r, r]), m, r, 1, "i"), 3):
        np.testing.assert_array_equal(found, [1, 1])
    members = ["/cpu:0"]
    with dt.Graph().as_default(), dt.Session() as session:
        session.run(ops.barrier(members, 0))
        one, two = ops.all_reduce([dt.constant([1.0]), dt.constant(2.0)], members, 0)
        assert session.run([one, two]) == [[1.0], 2.0]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ops.all_reduce([1.0], ["/cpu:0"], 1), "rank"),
        (lambda: ops.all_reduce([1.0], ["/cpu:0", "/cpu:0"], 0), "twice"),
        (lambda: ops.all_reduce(1.0, ["/cpu:0"], 0, "median"), "reduction"),
        (lambda: ops.all_reduce(1.0, ["/cpu:0"], 0, communication="tree"), "way"),
        (lambda: ops.all_reduce(1, ["/cpu:0"], 0, "mean"), "no mean"),
        (lambda: ops.all_reduce("a", ["/cpu:0"], 0), "cannot be reduced"),
        (lambda: ops.all_reduce([dt.constant(1), dt.constant(1.0)], ["/cpu:0"], 0), "one type"),
        (lambda: ops.all_gather(1.0, ["/cpu:0"], 0), "first axis"),
        (lambda: ops.reduce_scatter([1, 2, 3], ["/cpu:0", "/cpu:1"], 0), "a multiple of 2"),
        (lambda: ops.broadcast(1.0, ["/cpu:0"], 0, root=2), "root"),
    ],
)
def test_what_a_graph_refuses(build, text):
    with dt.Graph().as_default(), pytest.raises((ValueError, TypeError), match=text):
        build()


def test_nccl_is_refused_with_advice():
    with dt.Graph().as_default(), dt.Session() as session:
        y = ops.all_reduce(1.0, ["/cpu:0"], 0, communication="NCCL")
        with pytest.raises(
            dt.errors.FailedPreconditionError, match="not all of its members are GPUs.*'auto' or 'ring'"
        ):
            session.run(y)


def test_gpus_without_nccl_say_so_or_go_on_by_messages(monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "2")
    members = ["/gpu:0", "/gpu:1"]
    with dt.Graph().as_default(), dt.Session() as session:
        values = [np.array([1.0, 2.0], np.float32), np.array([10.0, 20.0], np.float32)]
        for way in ("auto", "ring"):
            made = [ops.all_reduce(v, members, i, "sum", way, instance=way) for i, v in enumerate(values)]
            assert [m.op.device for m in made] == ["/device:GPU:0", "/device:GPU:1"]
            for _ in range(2):
                assert [m.tolist() for m in session.run(made)] == [[11.0, 22.0]] * 2
        others = [
            (ops.all_gather(v, members, i, instance="g"), ops.reduce_scatter(v, members, i, instance="s"),
             ops.broadcast(v, members, i, root=1, instance="b"), ops.barrier(members, i, instance="w"))
            for i, v in enumerate(values)
        ]  # fmt: skip
        for i, (gathered, scattered, sent, _) in enumerate(session.run(others)):
            assert gathered.tolist() == [1.0, 2.0, 10.0, 20.0]
            assert scattered.tolist() == [[11.0], [22.0]][i]
            assert sent.tolist() == [10.0, 20.0]
        made = [ops.all_reduce(v, members, i, "sum", "nccl", instance="n") for i, v in enumerate(values)]
        with pytest.raises(dt.errors.FailedPreconditionError, match=r"member 0 \(/device:GPU:0\) has no NCCL"):
            session.run(made)


# --- links -----------------------------------------------------------------------------------------------------------


class FakeLink:
    """A link that does what the test says."""

    def __init__(self, rank):
        self.identity, self.started, self.stopped, self.numbers = (
            LinkIdentity(7, (1, rank)),
            [],
            False,
            itertools.count(),
        )

    def invitation(self):
        return b"find me!" * 16

    def next_number(self):
        return next(self.numbers)

    def start(self, number, invitation, job, rows, tell):
        self.started.append((number, invitation, job, rows))
        self.tell = tell

    def stop(self):
        self.stopped = True


class Linking(Net):
    """Tasks that have links."""

    def __init__(self, count=2):
        super().__init__(count)
        self.links = [FakeLink(i) for i in range(count)]

    def begin(self, i, run=0, instance="g"):
        exchange = LinkAgreement(i, len(self.tasks), self.links[i], f"job {run}", 10 + i)
        members, session = [f"{t}/device:GPU:0" for t in self.tasks], self.sessions[self.tasks[i]]
        coordinator = self.coordinators[self.tasks[i]]
        return coordinator.take_part(member(session, members, i, instance, run), "sum", lambda: exchange, lambda x: x)


def test_a_link_starts_when_all_are_there_and_in_one_order():
    net = Linking(3)
    requests = [net.begin(0), net.begin(2), net.begin(1, instance="h"), net.begin(0, instance="h")]
    net.deliver()
    assert not any(link.started for link in net.links)
    requests += [net.begin(2, instance="h"), net.begin(1)]
    net.deliver()
    for i, link in enumerate(net.links):
        assert [s[0] for s in link.started] == [0, 1], i
        assert link.started[0] == (0, b"find me!" * 16, "job 0", [10, 11, 12])
    assert all(r.state.name == "WAITING" for r in requests)
    net.links[0].tell("done")  # of the run that was started last
    assert requests[0].result() == "done"


@pytest.mark.parametrize("how", ["silent", "begun anew", "cancelled", "failed"])
def test_who_runs_on_a_link_is_stopped_when_another_is_gone(how):
    net = Linking()
    requests = [net.begin(i) for i in range(2)]
    net.deliver()
    net.tick(0.0)
    kind = AbortedError
    if how == "silent":
        net.down.add(TASKS[1])
        for now in range(1, 10):
            net.tick(float(now))
        kind = UnavailableError
    elif how == "begun anew":
        net.coordinators[TASKS[1]] = net.coordinator(TASKS[1])
        net.sessions[TASKS[1]] = Session()
        net.begin(1, run=5)
    elif how == "cancelled":
        requests[1].cancel()
    else:
        net.links[1].tell(UnavailableError(None, None, "a cable was pulled"))
        kind = UnavailableError
    net.deliver()
    assert net.links[0].stopped
    with pytest.raises(
        kind, match={"silent": "no sign of life", "begun anew": "anew", "cancelled": "ended", "failed": "cable"}[how]
    ):
        requests[0].result()


def test_who_has_done_his_part_of_a_link_may_leave():
    net = Linking()
    requests = [net.begin(i) for i in range(2)]
    net.deliver()
    net.links[1].tell("done")
    assert requests[1].result() == "done"
    del net.sessions[TASKS[1]], requests[1]
    gc.collect()
    net.tick(1.0)
    assert not net.links[0].stopped
    net.links[0].tell("done, too")
    assert requests[0].result() == "done, too"
    with pytest.raises(AbortedError, match="has closed its session"):
        net.begin(0, run=1)


def test_what_no_link_says_is_left_alone():
    exchange = LinkAgreement(1, 2, FakeLink(1), None)
    exchange.begin()
    for array in (np.zeros(3), np.zeros((2, 2), np.int64), np.zeros(3, np.int64)):
        assert exchange.receive(0, LinkAgreement.GO, array) == [] and not exchange.is_under_way
    assert exchange.expects() == {0}
    exchange.receive(0, LinkAgreement.GO, np.array([-77, 5, 0, 0]))
    assert exchange.result == LinkRefused(RefusalReason.MISSING, 1)
