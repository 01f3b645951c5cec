"""Several sessions and several clients at once, and the state that they share."""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import dovetail as tf

PS = "/job:ps/replica:0/task:0/device:CPU:0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    with tf.LocalCluster({"ps": 1, "worker": 2}) as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test finds the shared cluster without variables."""
    yield
    if "cluster" in request.fixturenames:
        tf.Session.reset(request.getfixturevalue("cluster").target("ps"), ["ps", "worker", "mine"])


def together(loops: Sequence[Callable[[], None]]) -> None:
    """Run functions in threads at the same time; the first error of any of them is raised."""
    failures: list[BaseException] = []
    ready = threading.Barrier(len(loops), timeout=20)

    def run(loop: Callable[[], None]) -> None:
        try:
            ready.wait()
            loop()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(loop,), daemon=True) for loop in loops]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    if failures:
        raise failures[0]
    assert not any(t.is_alive() for t in threads), "a thread still waits for its session"


# --- several at once ------------------------------------------------------------------------------------


def test_one_client_has_sessions_on_several_servers_in_threads(
    cluster: tf.LocalCluster, where_it_runs: Callable
) -> None:
    with tf.device("/job:ps"):
        total = tf.Variable(0.0, name="total")
    x = tf.placeholder(tf.float32, name="x")
    add = tf.assign_add(total, tf.reduce_sum(x * [1.0, 2.0]))  # the product is made by the session's own server
    init = tf.global_variables_initializer()
    graph = tf.get_default_graph()

    def client(target: str, home: str) -> Callable[[], None]:
        def loop() -> None:
            with tf.Session(target, graph=graph) as sess:
                for i in range(40):
                    sess.run(add.op, {x: [i, 1.0]})
                assert where_it_runs(sess, add, {x: [1.0, 2.0, 3.0]}) == home

        return loop

    homes = {cluster.target(job, i): f"/job:{job}/replica:0/task:{i}/device:CPU:0" for job, i in cluster.tasks}
    with tf.Session(cluster.target("ps"), graph=graph) as sess:
        sess.run(init)
        together([client(target, home) for target, home in homes.items()])
        assert sess.run(total) == 3 * sum(i + 2 for i in range(40))


def test_threads_share_one_session(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:worker/task:1"):
        count = tf.Variable(0, name="count")
        up = tf.assign_add(count, 1)
    x = tf.placeholder(tf.int32)
    answers: dict[int, list[int]] = {}

    with tf.Session(cluster.target("worker", 0)) as sess:
        sess.run(tf.global_variables_initializer())
        doubled = x * 2

        def asks(thread: int) -> Callable[[], None]:
            def loop() -> None:
                answers[thread] = [sess.run([doubled, up.op], {x: thread * 1000 + i})[0] for i in range(50)]

            return loop

        together([asks(t) for t in range(4)])
        assert answers == {t: [2 * (t * 1000 + i) for i in range(50)] for t in range(4)}  # nobody got another's answer
        assert sess.run(count) == 200


@pytest.mark.slow
def test_one_server_has_many_clients(cluster: tf.LocalCluster, start: Callable) -> None:
    """Three more processes, each with a session of its own on the same server."""
    with tf.device("/job:ps"):
        visits = tf.Variable(0, name="visits")
    with tf.Session(cluster.target("ps")) as sess:
        sess.run(visits.initializer)
        clients = [start("client.py", cluster.target("ps"), "100") for _ in range(3)]
        seen = []
        for c in clients:
            out, err = c.communicate(timeout=30)
            assert (c.returncode, err) == (0, "")
            seen.append(int(out))
        assert sess.run(visits) == 300
        assert max(seen) == 300
        assert min(seen) >= 100


def test_one_client_per_task_and_one_client_for_all_are_the_same(cluster: tf.LocalCluster) -> None:
    """What several clients do, each on its own task, one client can do for all of them."""

    def build(task: int) -> tuple[tf.Operation, tf.Operation, tf.Variable]:
        with tf.device("/job:ps"):
            v = tf.Variable(np.full(3, 2.0), name=f"v{task}")
        with tf.device(f"/job:worker/task:{task}"):
            change = v * (task + 2.0)
        return v.initializer, tf.assign(v, change).op, v

    with tf.Graph().as_default(), tf.Session(cluster.target("ps")) as sess:
        built = [build(task) for task in range(2)]
        sess.run([init for init, _, _ in built])
        for _ in range(3):
            sess.run([step for _, step, _ in built])
        for_all = sess.run([v for _, _, v in built])

    for task in range(2):
        with tf.Graph().as_default(), tf.Session(cluster.target("worker", task)) as sess:
            init, step, v = build(task)
            sess.run(init)
            for _ in range(3):
                sess.run(step)
            np.testing.assert_array_equal(sess.run(v), for_all[task])
    assert [list(v) for v in for_all] == [[16.0] * 3, [54.0] * 3]


def test_closing_one_session_leaves_the_others_alone(cluster: tf.LocalCluster) -> None:
    x = tf.constant(1.0) + 1.0
    kept = tf.Session(cluster.target("worker", 0))
    with tf.Session(cluster.target("worker", 0)) as closed:
        assert closed.run(x) == kept.run(x) == 2.0
    with pytest.raises(RuntimeError, match="closed Session"):
        closed.run(x)
    assert kept.run(x) == 2.0
    kept.close()


def test_closing_a_session_ends_the_steps_of_its_threads(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:worker/task:1"):
        x = tf.constant(1.0) + 1.0
    sess, other = tf.Session(cluster.target("worker", 0)), tf.Session(cluster.target("worker", 0))
    graph, running = tf.get_default_graph(), threading.Event()

    def runs_on() -> None:
        with (
            graph.as_default(),
            pytest.raises((RuntimeError, tf.errors.CancelledError)),
        ):
            while True:
                sess.run(x)
                running.set()

    def closes() -> None:
        assert running.wait(10)
        sess.close()

    together([runs_on, closes])
    assert other.run(x) == 2.0
    other.close()


# --- shared state ---------------------------------------------------------------------------------------


def variable(value: object, name: str = "shared", device: str = "/job:ps") -> tf.Variable:
    with tf.device(device):
        return tf.Variable(value, name=name)


@pytest.mark.parametrize("resource", [False, True], ids=["reference", "resource"])
def test_variables_are_shared_by_name(cluster: tf.LocalCluster, resource: bool) -> None:
    """Another client with another graph finds the value, and starts over only with its own initializer."""
    with tf.Graph().as_default(), tf.device("/job:ps"):
        mine = tf.Variable([1.0, 2.0], name="shared", use_resource=resource)
        sess = tf.Session(cluster.target("worker", 0))
    with tf.Graph().as_default(), tf.device("/job:ps"):
        theirs = tf.Variable([7.0, 7.0], name="shared", use_resource=resource)
        more = tf.assign_add(theirs, [1.0, 1.0])
        other = tf.Session(cluster.target("worker", 1))
    with sess, other:
        with pytest.raises(tf.errors.FailedPreconditionError, match="shared"):
            other.run(theirs)
        sess.run(mine.initializer)
        assert other.run(theirs).tolist() == [1.0, 2.0]
        other.run(more.op)
        assert sess.run(mine).tolist() == [2.0, 3.0]
        other.run(theirs.initializer)
        assert sess.run(mine).tolist() == [7.0, 7.0]


def test_state_outlives_its_sessions_and_belongs_to_its_task(cluster: tf.LocalCluster) -> None:
    first = variable(5.0, "v")
    with tf.Session(cluster.target("ps")) as sess:
        sess.run(first.initializer)
    with tf.Graph().as_default():
        again, elsewhere = variable(0.0, "v"), variable(0.0, "v", "/job:worker/task:0")
        assert again.op.name == "v"
        assert elsewhere.op.name == "v_1"
        with tf.Session(cluster.target("worker", 1)) as sess:
            assert sess.run(again) == 5.0
    with tf.Graph().as_default():
        same_name_other_task = variable(0.0, "v", "/job:worker/task:0")
        with (
            tf.Session(cluster.target("worker", 1)) as sess,
            pytest.raises(tf.errors.FailedPreconditionError, match="/job:worker/replica:0/task:0"),
        ):
            sess.run(same_name_other_task)


def test_an_isolated_session_has_variables_of_its_own(cluster: tf.LocalCluster) -> None:
    v = variable(1.0)
    up = tf.assign_add(v, 1.0)
    config = tf.ConfigProto(isolate_session_state=True)
    with tf.Session(cluster.target("ps")) as sess, tf.Session(cluster.target("ps"), config=config) as alone:
        sess.run(v.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError):
            alone.run(v)
        alone.run(v.initializer)
        alone.run(up.op)
        assert (alone.run(v), sess.run(v)) == (2.0, 1.0)


def test_containers_keep_variables_apart(cluster: tf.LocalCluster) -> None:
    """One name, two containers: two variables, in the same task."""
    with tf.Graph().as_default():
        in_default = variable(1.0)
        sess = tf.Session(cluster.target("worker", 0))
    with tf.Graph().as_default():
        with tf.container("mine"):
            in_mine = variable(2.0)
        other = tf.Session(cluster.target("worker", 0))
    with sess, other:
        sess.run(in_default.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError):
            other.run(in_mine)
        other.run(in_mine.initializer)
        assert (sess.run(in_default), other.run(in_mine)) == (1.0, 2.0)


def test_reset_clears_the_containers_it_names_and_closes_all_sessions(cluster: tf.LocalCluster) -> None:
    plain = variable(1.0, "plain")
    with tf.container("mine"):
        contained = variable(2.0, "contained")
    target = cluster.target("ps")
    sess, other = tf.Session(target), tf.Session(target)
    on_another_server = tf.Session(cluster.target("worker", 0))
    sess.run([plain.initializer, contained.initializer])
    assert other.run([plain, contained]) == [1.0, 2.0]
    assert on_another_server.run(plain) == 1.0

    tf.Session.reset(target, ["mine"])
    for s in sess, other:
        with pytest.raises(tf.errors.AbortedError, match="not found|does not know"):
            s.run(plain)
        s.close()
    assert on_another_server.run(plain) == 1.0  # another master's session goes on
    on_another_server.close()

    with tf.Session(target) as sess:
        assert sess.run(plain) == 1.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="contained"):
            sess.run(contained)
    tf.Session.reset(target)  # the default container of each task
    with tf.Session(target) as sess, pytest.raises(tf.errors.FailedPreconditionError, match="plain"):
        sess.run(plain)


def test_reset_of_an_unknown_container_keeps_all_state(cluster: tf.LocalCluster) -> None:
    v = variable(4.0)
    with tf.Session(cluster.target("ps")) as sess:
        sess.run(v.initializer)
        tf.Session.reset(cluster.target("ps"), ["nobody's"])
    with tf.Session(cluster.target("ps")) as sess:
        assert sess.run(v) == 4.0


def test_reset_says_what_is_wrong_with_its_target(addresses: Callable) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        tf.Session.reset("nowhere")
    with pytest.raises((tf.errors.UnavailableError, tf.errors.DeadlineExceededError)):
        tf.Session.reset(f"zmq://{addresses(1)[0]}", config=tf.ConfigProto(peer_timeout_s=0.5))
