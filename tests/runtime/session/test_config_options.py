"""Options that TensorFlow 1's programs pass in a ConfigProto: which have a meaning, which are taken, which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError


@pytest.fixture
def server() -> Iterator[tf.train.Server]:
    with tf.train.Server.create_local_server() as running:
        yield running


def test_a_cluster_travels_in_a_config() -> None:
    spec = tf.train.ClusterSpec({"ps": ["a:1", "b:2"], "worker": {3: "c:4"}})
    for said in (spec, spec.as_cluster_def(), spec.as_dict()):
        assert tf.ConfigProto.from_fields(tf.ConfigProto(cluster_def=said).to_fields()).cluster_def == spec
    assert tf.ConfigProto.from_fields(tf.ConfigProto().to_fields()).cluster_def is None


@pytest.mark.parametrize("bad", [["ps"], {"ps": ["a:1"]}, {"ps": {"first": "a:1"}}, {"ps": {"-1": "a:1"}}])
def test_a_malformed_cluster_is_refused(bad: object) -> None:
    with pytest.raises(TypeError, match="cluster_def"):
        tf.ConfigProto.from_fields({"cluster_def": bad})


def test_a_session_may_say_on_which_cluster_it_is_and_has_state_of_its_own(server: tf.train.Server) -> None:
    v = tf.Variable(1.0, name="v")
    config = tf.ConfigProto(cluster_def=tf.train.ClusterSpec({"local": [server.address]}).as_cluster_def())
    with tf.Session(server.target) as shared, tf.Session(server.target, config=config) as own:
        shared.run(v.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError):
            own.run(v)
        own.run([v.initializer])
        own.run(v.assign_add(1.0))
        assert (shared.run(v), own.run(v)) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("cluster", "what"),
    [
        ({"local": ["localhost:1"]}, "/job:local/replica:0/task:0 is localhost:1 in cluster_def, and localhost:"),
        ({"local": [None, "localhost:1"]}, "/job:local/replica:0/task:1 is localhost:1 in cluster_def, and no task"),
        ({"ps": ["localhost:1"]}, "/job:local/replica:0/task:0 is not there in cluster_def, and localhost:"),
    ],
)
def test_a_session_on_another_cluster_is_refused(
    server: tf.train.Server, cluster: dict[str, list[str | None]], what: str
) -> None:
    said = {job: {i: a or server.address for i, a in enumerate(tasks)} for job, tasks in cluster.items()}
    with pytest.raises(InvalidArgumentError, match="cluster_def is not the cluster of the server") as e:
        tf.Session(server.target, config=tf.ConfigProto(cluster_def=said))
    assert what in str(e.value)


@pytest.mark.parametrize(
    "config",
    [
        tf.ConfigProto(use_per_session_threads=True),
        tf.ConfigProto(session_inter_op_thread_pool=[tf.ThreadPoolOptionProto(num_threads=2, global_name="mine")]),
    ],
)
def test_threads_of_a_session_s_own_are_for_this_process(server: tf.train.Server, config: tf.ConfigProto) -> None:
    with tf.Session(config=config) as session:
        assert session.run(tf.constant(1.0) + 1.0, options=tf.RunOptions(inter_op_thread_pool=0)) == 2.0
    with pytest.raises(InvalidArgumentError, match="for sessions in this process"):
        tf.Session(server.target, config=config)


def test_a_session_in_this_process_takes_options_of_clusters() -> None:
    config = tf.ConfigProto(
        cluster_def={"ps": ["localhost:1"]},
        inter_op_parallelism_threads=2,
        intra_op_parallelism_threads=1,
        placement_period=1,
    )
    with tf.Session(config=config) as session:
        assert session.run(tf.constant(1.0) + 1.0) == 2.0


def test_what_is_no_cluster_is_refused_where_the_session_is_made(server: tf.train.Server) -> None:
    with pytest.raises(TypeError, match="cluster"):
        tf.Session(server.target, config=tf.ConfigProto(cluster_def="localhost:1"))  # type: ignore[arg-type]


def test_options_print_what_differs_from_the_defaults() -> None:
    assert repr(tf.ConfigProto()) == "ConfigProto()"
    config = tf.ConfigProto(allow_soft_placement=True, gpu_options=tf.GPUOptions(allow_growth=True))
    assert repr(config) == "ConfigProto(allow_soft_placement=True, gpu_options=GPUOptions(allow_growth=True))"


def test_numbers_may_stand_for_booleans(server: tf.train.Server) -> None:
    """As TensorFlow's programs write them; a session in this process takes them, too."""
    config = tf.ConfigProto(allow_soft_placement=1, graph_options=tf.GraphOptions(place_pruned_graph=1))  # type: ignore[arg-type]
    assert tf.ConfigProto.from_fields(config.to_fields()).allow_soft_placement is True
    for target in ("", server.target):
        with tf.Session(target, config=config) as session:
            assert session.run(tf.constant(1.0) + 2.0) == 3.0


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("allow_soft_placement", 7), ("operation_timeout_in_ms", 1.5), ("device_count", {"CPU": "many"}), ("graph_options", 3),
        ("graph_options", {"place_pruned_graph": []}), ("peer_timeout_s", "soon"),
    ],
)  # fmt: skip
def test_a_malformed_option_is_refused_by_its_name(name: str, bad: object) -> None:
    with pytest.raises(TypeError, match=name):
        tf.ConfigProto.from_fields({name: bad})
    assert tf.ConfigProto.from_fields({"an option of a newer client": bad}) == tf.ConfigProto()
