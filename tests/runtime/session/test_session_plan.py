"""`session.plan` says what will run, `session.last_plan` what ran, in this process and on a cluster alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import dovetail as tf
from dovetail.placer.serialize.write import plan_lines
from dovetail.runtime.session import cluster_backend
from dovetail.runtime.wire.messages import Message


@pytest.fixture(params=["in process", "cluster"])
def session(request: pytest.FixtureRequest) -> Iterator[tf.Session]:
    target = ""
    if request.param == "cluster":
        running: tf.LocalCluster = request.getfixturevalue("cluster")
        target = running.target("worker", 0)
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as s:
        yield s


def job(session: tf.Session) -> str:
    """A job of the session that is not its master's, where it has one."""
    return session.list_devices()[-1].name.job


def model(job: str) -> tuple[tf.Tensor, tf.Variable, tf.Tensor]:
    x = tf.placeholder(tf.float32, [2, 2], name="x")
    with tf.device(f"/job:{job}"):
        v = tf.Variable(np.ones((2, 2), np.float32), name="v")
    return x, v, tf.matmul(x, v, name="y")


def text(plan: tf.Plan | None) -> list[str]:
    assert plan is not None
    return list(plan_lines(plan))


def test_the_plan_is_what_place_gives_for_the_sessions_devices(session: tf.Session) -> None:
    x, v, y = model(job(session))
    plan = session.plan(y)
    assert plan.feeds == ("x:0",) and plan.fetches == ("y:0",) and plan.graph is session.graph
    assert text(plan) == text(tf.place(session.graph, session, fetches=y, feeds=[x]))
    assert text(session.plan(y, {x: 0})) == text(session.plan(y, ["x:0"])) == text(plan)
    assert session.plan(y, {v.value(): 0, x: 0}).feeds == (v.value().name, "x:0")
    assert session.plan([y, v.initializer]).targets == (v.initializer.name,)
    assert "test_session_plan.py" in plan.explain("v")


def test_what_ran_is_what_was_planned(session: tf.Session) -> None:
    x, v, y = model(job(session))
    assert session.last_plan is None
    session.run(v.initializer)
    planned = session.plan(y, {x: 0})
    assert text(session.last_plan) == text(session.plan(v.initializer))
    assert session.run(y, {x: np.eye(2)}).tolist() == [[1, 1], [1, 1]]
    assert text(session.last_plan) == text(planned) == text(session.plan(y, {x: 0}))


def test_a_plan_stays_what_ran_when_the_graph_grows(session: tf.Session) -> None:
    with tf.device(f"/job:{job(session)}"):
        far = tf.negative(tf.constant(1.0, name="c"))
    session.run(far)
    before = text(session.last_plan)
    tf.negative(session.graph.get_tensor_by_name("c:0"))  # now the constant's consumers are in two places
    session.run(far)
    assert text(session.last_plan) == text(session.plan(far)) == before


def test_asking_changes_nothing(session: tf.Session) -> None:
    _, v, y = model(job(session))
    session.plan(y)
    session.run(v.initializer)
    with tf.colocate_with(v.op):
        late = tf.constant(2.0, name="late")
    assert session.plan(late).placement["late"] == session.plan(late).placement["v"]
    assert float(session.run(late)) == 2.0
    assert session.plan(late).placement == session.last_plan.placement  # type: ignore[union-attr]


def test_what_is_fed_altogether_runs_nothing(session: tf.Session) -> None:
    x, _, _ = model(job(session))
    plan = session.plan(x, {x: 0})
    assert plan.partitions == {} and plan.channels == []


def test_errors_are_those_of_running(session: tf.Session) -> None:
    _, _, y = model(job(session))
    with pytest.raises(ValueError, match="nothing"):
        session.plan("nothing:0")
    with pytest.raises(TypeError):
        session.plan(y, [3])
    with tf.device("/job:moon"):
        tf.constant(1.0, name="lost")
    with pytest.raises(tf.errors.InvalidArgumentError, match="lost") as e:
        session.plan(y)
    assert e.value.op is session.graph.get_operation_by_name("lost")
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.plan(y)
    with pytest.raises(RuntimeError, match="closed"):
        session.last_plan  # noqa: B018


def test_soft_placement_is_the_sessions() -> None:
    with tf.device("/gpu:7"):
        y = tf.constant(1.0, name="y")
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError):
        session.plan(y)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        (told,) = session.plan(y).relaxations
    assert told.node == "y" and told.requested == "/device:GPU:7" and "no device matches" in told.reason


def test_a_cluster_that_runs_is_a_cluster_to_plan_for(cluster: tf.LocalCluster) -> None:
    y = tf.constant(1.0, name="y")
    plan = tf.place(y.graph, cluster)
    assert plan.cluster.master == "/job:worker/replica:0/task:0" and len(plan.cluster.devices) == 3
    with tf.Session(cluster.target("worker", 0)) as session:
        assert text(session.plan(y)) == text(tf.place(y.graph, cluster, fetches=y))


def test_plans_have_the_sizes_that_steps_were_fed(session: tf.Session) -> None:
    x = tf.placeholder(tf.float32, [None, 8], name="x")
    with tf.device(f"/job:{job(session)}"):
        y = tf.exp(x, name="y")
    assert "≥" in str(session.plan(y).report())
    session.run(y, {x: np.zeros((4096, 8), "float32")})
    last = session.last_plan
    assert (
        last is not None
        and last.sizes.given == {"x:0": (4096, 8)}
        and sum(c.flops for c in last.cost.values()) >= 4096 * 8
    )
    assert session.plan(y).sizes.given == session.plan(y, [x]).sizes.given == {"x:0": (4096, 8)}
    assert session.plan(y * 2.0).sizes.given == {"x:0": (4096, 8)}  # another step, which is fed the same tensor
    assert session.plan(y, {x: np.zeros((3, 8))}).sizes.of(y).dims == (3, 8)
    session.run(y, {x: np.zeros((2, 8), "float32")})
    again = session.last_plan
    assert again is not None and again.sizes.given == {"x:0": (2, 8)}
    metadata = tf.RunMetadata()
    session.run(y, {x: np.zeros((5, 8), "float32")}, tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), metadata)
    assert metadata.trace is not None and metadata.trace.plan.sizes.given == {"x:0": (5, 8)}
    with pytest.raises(ValueError, match="cannot have the shape"):
        session.plan(y, {x: np.zeros((3, 9))})


def test_a_plan_in_another_thread_leaves_a_run_alone(cluster: tf.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both send the master the nodes that it does not have yet."""
    y = tf.constant(1.0) + 2.0
    with tf.Session(cluster.target("worker", 0)) as session:
        backend = session._backend
        assert isinstance(backend, cluster_backend.ClusterBackend)
        call, plans = backend._call, []
        other = threading.Thread(target=lambda: plans.append(session.plan(y)))

        def slow(message: Message, *more: object) -> Message:
            if message.kind == "extend" and not other.ident:
                other.start()
                other.join(0.5)
            return call(message, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(backend, "_call", slow)
        assert session.run(y) == 3.0
        other.join()
        assert text(plans[0])


def test_nodes_that_are_added_while_a_graph_is_sent_are_sent_once(
    cluster: tf.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = cluster_backend.graph_to_bytes
    y = tf.constant(1.0) + 2.0

    def add_and_send(graph: tf.Graph, *more: object) -> bytes:
        monkeypatch.undo()
        with graph.as_default():
            tf.constant(5.0, name="late")
        return send(graph, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster_backend, "graph_to_bytes", add_and_send)
    with tf.Session(cluster.target("worker", 0)) as session:
        assert session.run(y) == 3.0
        assert session.run(y + session.graph.get_tensor_by_name("late:0")) == 8.0


def test_a_graph_whose_answer_was_lost_is_sent_on(cluster: tf.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master has the nodes, and this process does not know: a later run sends those that are missing."""
    y = tf.constant(1.0) + 2.0
    with tf.Session(cluster.target("worker", 0)) as session:
        backend = session._backend
        assert isinstance(backend, cluster_backend.ClusterBackend)
        call = backend._call

        def lose(message: Message, *more: object) -> Message:
            call(message, *more)  # type: ignore[arg-type]
            raise tf.errors.DeadlineExceededError(None, None, "lost")

        monkeypatch.setattr(backend, "_call", lose)
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(y)
        monkeypatch.undo()
        assert session.run(y * 2.0) == 6.0
        assert session.run(y) == 3.0


def test_the_plan_of_what_ran_claims_no_full_batch(session: tf.Session) -> None:
    """A step that was not traced: the batch is what the data set has returned last, or, of another process, not known."""

    def taken(elements: int, **batch: bool) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.device(f"/job:{job(session)}"):
            data = tf.data.Dataset.from_tensor_slices(np.ones((elements, 8), np.float32)).batch(4, **batch)
            x = data.make_one_shot_iterator().get_next()
            return x, tf.reduce_sum(x)

    x, total = taken(10)
    for rows in (4, 4, 2):
        session.run(total)
        last = session.last_plan
        assert last is not None
        assert last.sizes.of(x).dims == (rows if session._steps._backend.is_local else None, 8)
        assert ("≥" in str(last)) == bool(last.unknown_sizes) == (last.sizes.of(x).dims == (None, 8))
        assert last.at(batch=3).sizes.of(x).dims == (3, 8)
    assert session.plan(total).sizes.of(x).dims == (4, 8)
    for elements, dropped in ((12, False), (10, True)):  # no batch is smaller
        x, total = taken(elements, drop_remainder=dropped)
        session.run(total)
        assert session.last_plan is not None and session.last_plan.sizes.of(x).dims == (4, 8)


def test_a_data_set_that_several_sessions_take_from_has_no_last_batch() -> None:
    x = tf.data.Dataset.from_tensor_slices(np.ones(5, np.float32)).batch(4).make_one_shot_iterator().get_next()
    with tf.Session() as one, tf.Session() as other:
        one.run(x)
        assert one.last_plan is not None and one.last_plan.sizes.of(x).dims == (4,)
        other.run(x)
        other.run(x)
        assert one.last_plan.sizes.of(x).dims == (None,)


def test_two_batches_in_a_step_are_not_known(session: tf.Session) -> None:
    data = tf.data.Dataset.from_tensor_slices(np.ones(5, np.float32)).batch(4).make_one_shot_iterator()
    x, y = data.get_next(), data.get_next()
    session.run([x, y])
    assert session.last_plan is not None and {session.last_plan.sizes.of(t).dims for t in (x, y)} == {(None,)}
