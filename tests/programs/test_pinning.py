"""Operations pinned to tasks and devices, in part or not at all.

Machine A runs `/job:ps/task:0` and `/job:worker/task:0`, machine B runs `/job:worker/task:1`; the workers
have two GPUs each (emulated).
"""

from collections.abc import Callable, Iterator

import pytest

import dovetail as tf

PS = "/job:ps/replica:0/task:0/device:"
A = "/job:worker/replica:0/task:0/device:"
B = "/job:worker/replica:0/task:1/device:"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    with tf.LocalCluster({"ps": 1, "worker": 2}, emulate_gpus={"worker": 2}) as started:
        yield started


def pinned() -> list[tf.Tensor]:
    with tf.device("/job:ps/task:0/cpu:0"):
        a = tf.constant(3.0, name="a")
    with tf.device("/job:worker/task:0/gpu:1"):
        b = tf.add(a, 2.0, name="b")
    c = tf.add(a, b, name="c")
    return [a, b, c]


@pytest.mark.parametrize(("gpus", "default"), [(("cpu:0", "gpu:0", "gpu:1"), "GPU:0"), (("cpu:0", "cpu:1"), "CPU:0")])
def test_an_unpinned_node_is_on_the_default_device_of_the_sessions_server(gpus: tuple[str, ...], default: str) -> None:
    if default == "GPU:0":
        pinned()
    else:
        with tf.device("/job:ps/task:0/cpu:0"):
            a = tf.constant(3.0, name="a")
        tf.add(a, 5.0, name="c")
    plan = tf.place(None, {"ps": 1, "worker": 2}, devices={"worker": gpus}, master="/job:worker/task:1")
    assert plan.placement["a"] == PS + "CPU:0"
    assert plan.placement["c"] == B + default
    if default == "GPU:0":
        assert plan.placement["b"] == A + "GPU:1"
        (crossing,) = plan.channels  # so small a constant as `a` is copied
        assert (crossing.name, crossing.source, crossing.destination) == ("b:0", A + "GPU:1", B + "GPU:0")


@pytest.mark.parametrize("master", [0, 1])
def test_pinned_nodes_give_their_numbers_from_any_server(cluster: tf.LocalCluster, master: int) -> None:
    with tf.Session(cluster.target("worker", master)) as sess:
        assert sess.run(pinned()) == [3.0, 5.0, 8.0]


def test_pinned_nodes_run_where_they_were_pinned(cluster: tf.LocalCluster, where_it_runs: Callable) -> None:
    """The same program on values of shapes known only when it runs, so that each node can be made to fail."""
    with tf.device("/job:ps/task:0/cpu:0"):
        a = tf.add(tf.placeholder(tf.float32), tf.placeholder(tf.float32), name="a")
    with tf.device("/job:worker/task:0/gpu:1"):
        b = tf.add(a, tf.placeholder(tf.float32), name="b")
    c = tf.add(a, b, name="c")
    two, three = [1.0, 2.0], [1.0, 2.0, 3.0]
    for target, home in (("worker", 0), A), (("worker", 1), B), (("ps", 0), PS):
        with tf.Session(cluster.target(*target)) as sess:
            assert where_it_runs(sess, a, dict(zip(a.op.inputs, (two, three), strict=True))) == PS + "CPU:0"
            assert where_it_runs(sess, c, {a: two, b.op.inputs[1]: three}) == A + "GPU:1"
            assert where_it_runs(sess, c, {a: two, b: three}) == home + ("CPU:0" if home == PS else "GPU:0")


@pytest.mark.parametrize(
    ("request_", "ps_devices", "expected"),
    [
        ("/job:ps/task:0", ("cpu:0",), PS + "CPU:0"),
        ("/job:ps/task:0", ("cpu:0", "gpu:0", "gpu:1"), PS + "GPU:0"),
        ("/job:ps", ("cpu:0",), PS + "CPU:0"),
        ("/job:ps/gpu:1", ("cpu:0", "gpu:0", "gpu:1"), PS + "GPU:1"),
        (
            "/task:1",
            ("cpu:0",),
            B + "CPU:0",
        ),  # no job: the session's task is preferred, if the request admits it
        ("", ("cpu:0",), B + "CPU:0"),
        ("/cpu:0", ("cpu:0",), B + "CPU:0"),
    ],
)
def test_what_a_partial_name_leaves_open_is_filled_in(
    request_: str, ps_devices: tuple[str, ...], expected: str
) -> None:
    with tf.device(request_):
        tf.constant(1.0, name="x")
    plan = tf.place(None, {"ps": 2, "worker": 2}, devices={"ps": ps_devices}, master="/job:worker/task:1")
    assert plan.placement["x"] == expected


def test_partial_names_on_running_servers(cluster: tf.LocalCluster, where_it_runs: Callable) -> None:
    x = tf.placeholder(tf.float32)
    expected = {
        "/job:ps/task:0": PS + "CPU:0",
        "/job:ps": PS + "CPU:0",
        "/job:worker": B + "GPU:0",  # the session's own task is in the job
        "/job:worker/task:0": A + "GPU:0",
        "/job:worker/task:0/cpu:0": A + "CPU:0",
        "/gpu:1": B + "GPU:1",
        "": B + "GPU:0",
    }
    fetches = {}
    for request in expected:
        with tf.device(request):
            fetches[request] = x + [1.0, 2.0]
    with tf.Session(cluster.target("worker", 1)) as sess:
        assert {r: where_it_runs(sess, t, {x: [1.0, 2.0, 3.0]}) for r, t in fetches.items()} == expected


def test_emulated_gpus_say_so(cluster: tf.LocalCluster) -> None:
    with tf.Session(cluster.target("ps", 0)) as sess:
        listed = {str(d.name): d.emulated for d in sess.list_devices()}
    assert listed == {
        PS + "CPU:0": False,
        A + "CPU:0": False, A + "GPU:0": True, A + "GPU:1": True,
        B + "CPU:0": False, B + "GPU:0": True, B + "GPU:1": True,
    }  # fmt: skip


def test_a_single_process_can_emulate_gpus_too(monkeypatch: pytest.MonkeyPatch, where_it_runs: Callable) -> None:
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "2")
    x = tf.placeholder(tf.float32)
    on_default = x + [1.0, 2.0]
    with tf.device("/gpu:1"):
        on_second = on_default * 2.0
    with tf.device("/cpu:0"):
        on_cpu = on_second - [1.0, 2.0]
    local = "/job:localhost/replica:0/task:0/device:"
    with tf.Session() as sess:
        assert [str(d) for d in sess.list_devices()] == [
            local + "CPU:0",
            local + "GPU:0 (emulated)",
            local + "GPU:1 (emulated)",
        ]
        assert sess.run(on_cpu, {x: 1.0}).tolist() == [3.0, 4.0]
        assert where_it_runs(sess, on_default, {x: [1.0, 2.0, 3.0]}) == local + "GPU:0"
        assert where_it_runs(sess, on_cpu, {on_second: [1.0, 2.0, 3.0]}) == local + "CPU:0"


def test_a_gpu_that_is_not_there_is_an_error_until_soft_placement_is_asked_for(
    cluster: tf.LocalCluster, where_it_runs: Callable
) -> None:
    x = tf.placeholder(tf.float32)
    with tf.device("/job:ps/task:0/gpu:0"):
        y = tf.add(x, [1.0, 2.0], name="y")
    with (
        tf.Session(cluster.target("worker", 0)) as sess,
        pytest.raises(tf.errors.InvalidArgumentError, match="y.*available devices") as caught,
    ):
        sess.run(y, {x: 1.0})
    assert PS + "CPU:0" in str(caught.value)
    with tf.Session(cluster.target("worker", 0), config=tf.ConfigProto(allow_soft_placement=True)) as sess:
        assert sess.run(y, {x: 1.0}).tolist() == [2.0, 3.0]
        assert where_it_runs(sess, y, {x: [1.0, 2.0, 3.0]}) == PS + "CPU:0"
