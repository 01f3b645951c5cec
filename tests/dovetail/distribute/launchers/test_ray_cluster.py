"""`RayCluster` on a real Ray: three raylets of this machine, all on loopback. Skipped where Ray is not installed; `make test-ray`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.tools.demo.data import load_digits
from dovetail.tools.demo.model import BATCH_SIZE, classifier, make_optimizer, parameters_on_ps

STORE = 80 << 20  # bytes of each raylet's object store
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-ray")
needs_digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
# Ray's own processes and sockets outlive a test that shares them, and its code uses what Python deprecates.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]


class Nodes:
    """Ray's cluster of this machine: a head, where the driver is, and nodes that can be removed."""

    def __init__(self) -> None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's word for: all on loopback
        os.environ["RAY_DEDUP_LOGS"] = "0"
        import ray
        from ray.cluster_utils import Cluster

        common = {"num_cpus": 4, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}
        self.ray = ray
        self._cluster = Cluster()
        self._start({**common, "include_dashboard": False})
        self.address = self._cluster.address
        self._common = {**common, "num_gpus": 2, "resources": {"leaves": 4}}
        self.added: list[Any] = []
        for _ in range(2):
            self.add()
        ray.init(address=self._cluster.address, logging_level="ERROR", log_to_driver=False)

    def remove(self, node_id: str) -> None:
        (node,) = [n for n in self.added if n.node_id == node_id]
        self.added.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def add(self) -> None:
        self.added.append(self._start(self._common))

    def _start(self, arguments: dict[str, Any]) -> Any:
        """Start a node. Ray gives up after 30 s, which a busy machine may need."""
        for _ in range(4):
            with contextlib.suppress(Exception):
                return self._cluster.add_node(**arguments)
        return self._cluster.add_node(**arguments)

    def close(self) -> None:
        self.ray.shutdown()
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with contextlib.closing(Nodes()) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with dt.Graph().as_default():
        yield


def leaf(**more: Any) -> dict[str, Any]:
    """What a task takes that is on a node that can be removed."""
    return {"num_cpus": 1, "resources": {"leaves": 1}, **more}


def eventually(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# Arguments are checked before Ray is asked for anything.


@pytest.mark.parametrize(
    ("jobs", "more", "error", "text"),
    [
        ({"ps": ["localhost:1"]}, {}, TypeError, "numbers of tasks"),
        ({"ps": 0}, {}, ValueError, "at least one task"),
        ({"ps": 1}, {"strategy": "NEAR"}, ValueError, "one of PACK, SPREAD"),
        ({"ps": 1}, {"resources": {"worker": {}}}, ValueError, "not in `jobs`: worker"),
        ({"ps": 1}, {"ps_replicas": 2}, ValueError, "a job ps of 2 tasks or more"),
        ({"ps": 1}, {"resources": {"ps": {"gpus": 1}}}, ValueError, "num_cpus, num_gpus, memory, resources, not gpus"),
    ],
)
def test_malformed_arguments(jobs: Any, more: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        dt.RayCluster(jobs, **more)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray() -> None:
    with pytest.raises(ImportError, match=r"pip install 'dovetail\[ray\]'"):
        dt.RayCluster({"ps": 1})


# What Ray granted is what plans and sessions see.


@needs_ray
def test_devices_and_memory_are_what_ray_granted(nodes: Nodes) -> None:
    asked = {"ps": {"memory": 300 << 20}, "worker": leaf(num_gpus=1)}
    with dt.RayCluster({"ps": 1, "worker": 2}, resources=asked, strategy="SPREAD", emulate_gpus=True) as cluster:
        assert cluster.tasks == [("ps", 0), ("worker", 0), ("worker", 1)]
        assert cluster.cluster_spec.num_tasks("worker") == 2
        names = [str(d.name).replace("/replica:0", "") for d in cluster.list_devices()]
        assert names == [
            "/job:worker/task:0/device:CPU:0", "/job:worker/task:0/device:GPU:0",
            "/job:worker/task:1/device:CPU:0", "/job:worker/task:1/device:GPU:0",
            "/job:ps/task:0/device:CPU:0",
        ]  # fmt: skip
        assert cluster.list_devices()[-1].memory_bytes == 300 << 20
        assert len({cluster.node("worker", 0), cluster.node("worker", 1)}) == 2

        with dt.device("/job:ps"):
            v = dt.Variable(2.0, name="v")
        with dt.device("/job:worker/task:1/gpu:0"):
            y = v * 3.0
        assert "/job:worker/task:1/GPU:0" in str(dt.place(y, cluster))
        with dt.Session(cluster.target()) as session:
            session.run(v.initializer)
            assert session.run(y) == 6.0
        assert cluster.run(lambda server: server.task_index) == [0, 1]
    eventually(lambda: nodes.ray.available_resources().get("leaves") == 8.0)


@needs_ray
def test_a_compiled_function_on_a_ray_cluster(nodes: Nodes) -> None:
    with dt.RayCluster({"ps": 1, "worker": 1}) as cluster:

        @dt.compile(cluster=cluster)
        def double(x: Any) -> Any:
            with dt.device("/job:ps"):
                return x * 2.0

        np.testing.assert_array_equal(double(np.float32([1, 2])), [2, 4])
        double.close()


@needs_ray
def test_only_who_has_the_key_is_let_in(nodes: Nodes) -> None:
    with dt.RayCluster({"ps": 1, "worker": 1}, keys=True) as cluster:
        with dt.device("/job:ps"):
            v = dt.Variable(5.0, name="v")
        with dt.Session(cluster.target()) as session:  # this process has the key that the cluster made
            session.run(v.initializer)
            assert session.run(v) == 5.0
        target, kept = cluster.target(), cluster.keys
        assert kept is not None
        from dovetail.runtime.transport.keys import keys_of_servers

        keys_of_servers.remove(kept)
        try:
            with pytest.raises(dt.errors.OpError, match="no keys"):
                dt.Session(target, config=dt.ConfigProto(wait_for_cluster_s=0.5, peer_timeout_s=1))
        finally:
            keys_of_servers.append(kept)
    assert not kept.folder.exists()


@needs_ray
def test_too_much_is_asked_for(nodes: Nodes) -> None:
    with pytest.raises(dt.errors.UnavailableError, match=r"for Ray to grant 1 tasks .* Ray has .* 4 GPU"):
        dt.RayCluster({"worker": 1}, resources={"worker": {"num_gpus": 40}}, start_timeout_s=2)


# Tasks die, and training goes on.


@needs_ray
@needs_digits
@pytest.mark.timeout(400)
def test_the_digits_are_learned_though_a_node_is_removed_and_the_master_killed(nodes: Nodes, tmp_path: Path) -> None:
    digits, last = load_digits(), 600
    asked = {"ps": leaf(), "worker": leaf()}
    with dt.RayCluster({"ps": 1, "worker": 2}, resources=asked, strategy="SPREAD") as cluster:
        dt.set_random_seed(1)
        with dt.device(parameters_on_ps(cluster.cluster_spec, 0)):
            model = classifier(make_optimizer())
        batches = digits.batches(BATCH_SIZE, seed=0)
        config = dt.ConfigProto(peer_timeout_s=2, wait_for_cluster_s=60)
        removed, killed = None, False
        seen: list[tuple[int, float]] = []  # steps, and when they ended
        with dt.train.MonitoredTrainingSession(
            master=cluster.target(), checkpoint_dir=str(tmp_path), save_checkpoint_steps=50, save_summaries_steps=None,
            log_step_count_steps=None, config=config,
        ) as session:  # fmt: skip
            step = 0
            while step < last:
                images, labels = next(batches)
                _, step = session.run([model.train_op, model.global_step], {model.images: images, model.labels: labels})
                seen.append((int(step), time.monotonic()))
                if step >= 230 and removed is None:  # with it goes the parameter server, and all variables
                    removed = cluster.node("ps", 0)
                    nodes.remove(removed)
                    nodes.add()
                if step >= 430 and removed is not None and not killed:
                    killed = True
                    cluster.kill("worker", 0)
            accuracy = session.run(model.accuracy, {model.images: digits.test_images, model.labels: digits.test_labels})
        assert cluster.node("ps", 0) != removed
        lost = [(a, b, then - at) for (a, at), (b, then) in zip(seen, seen[1:], strict=False) if b <= a]
        print(f"accuracy {accuracy:.3f} after {len(seen)} steps; from step, to step, seconds: {lost}")
        assert len(lost) >= 2, "each loss costs the steps since the last checkpoint"
        assert accuracy >= 0.95


@needs_ray
@pytest.mark.timeout(200)
def test_variables_that_are_kept_twice_outlive_a_parameter_server_and_the_directory(nodes: Nodes) -> None:
    asked = {job: {"num_cpus": 0.5} for job in ("ps", "worker")}
    with dt.RayCluster({"ps": 2, "worker": 1}, resources=asked, strategy="SPREAD", ps_replicas=2) as cluster:
        assert cluster.node("ps", 0) != cluster.node("ps", 1)
        with dt.device(dt.train.replica_device_setter(cluster=cluster.cluster_spec)):
            held = [dt.Variable(0.0, name=name) for name in "vw"]
        adds = [v.assign_add(1.0) for v in held]
        config = dt.ConfigProto(peer_timeout_s=2, wait_for_cluster_s=60)
        with dt.Session(cluster.target(), config=config) as session:
            session.run([v.initializer for v in held])
            session.run(adds)
        nodes.ray.kill(cluster._directory, no_restart=False)  # it has to learn where all tasks are
        for round_ in (1, 2):
            for i in range(2):
                cluster.wait_until_up(60.0)
                cluster.kill("ps", i)
                assert cluster.node("ps", i)  # waits until it is back
            cluster.wait_until_up(60.0)
            with dt.Session(cluster.target(), config=config) as session:
                assert session.run(held) == [round_, round_]
                session.run(adds)


@needs_ray
@pytest.mark.timeout(300)
def test_fit_goes_on_with_workers_that_come_die_and_go(nodes: Nodes) -> None:
    x = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.25).astype(np.float32)
    with dt.RayCluster({"ps": 1, "worker": 1}, resources={"worker": {"num_cpus": 1}}, strategy="SPREAD") as cluster:
        strategy = dt.distribute.experimental.ParameterServerStrategy(cluster.resolver())
        with strategy.scope():
            model = dt.keras.Sequential([dt.keras.layers.Dense(8, activation="tanh"), dt.keras.layers.Dense(1)])
            model.compile(dt.keras.optimizers.Adam(0.02), "mse", metrics=["mae"])

        class Change(dt.keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch in (2, 7):
                    cluster.scale("worker", 3 if epoch == 2 else 2)
                elif epoch == 4:
                    cluster.kill("worker", 2)

        found = model.fit(
            x, y, batch_size=32, epochs=10, validation_data=(x, y), verbose=0, callbacks=[Change()]
        ).history
        assert set(found) == {"loss", "mae", "val_loss", "val_mae"} and found["val_loss"][-1] < found["val_loss"][0] / 2
        loss, mae = model.evaluate(x, y, verbose=0)
        predicted = model.predict(x)
        np.testing.assert_allclose(
            [loss, mae], [np.mean((predicted - y) ** 2), np.abs(predicted - y).mean()], rtol=1e-4
        )


@needs_ray
@pytest.mark.timeout(200)
def test_a_coordinator_gives_the_calls_of_a_dead_worker_to_others(nodes: Nodes) -> None:
    with dt.RayCluster({"ps": 1, "worker": 2}) as cluster:
        resolver = dt.distribute.cluster_resolver.SimpleClusterResolver(cluster.cluster_spec)
        strategy = dt.distribute.experimental.ParameterServerStrategy(resolver)
        with strategy.scope():
            v = dt.get_variable("v", initializer=0.0)
        with dt.distribute.ClusterCoordinator(strategy) as coordinator:

            def add() -> Any:
                return v.assign_add(1.0)

            for n in range(40):
                coordinator.schedule(add)
                if n == 20:
                    cluster.kill("worker", 1)
            coordinator.join()
            assert coordinator.session.run(v) >= 40.0  # each call at least once
            before = cluster.node("worker", 1)  # waits until it is back
            assert before
            for _ in range(40):
                coordinator.schedule(add)
            coordinator.join()
            assert coordinator.session.run(v) >= 80.0


@needs_ray
@pytest.mark.timeout(300)
def test_asynchronous_training_takes_new_workers_up_and_lets_them_go(nodes: Nodes) -> None:
    with dt.RayCluster({"ps": 1, "worker": 1}, resources={"worker": {"num_cpus": 1}}, strategy="SPREAD") as cluster:
        strategy = dt.distribute.experimental.ParameterServerStrategy(cluster.resolver())
        with strategy.scope():
            v = dt.get_variable("v", initializer=dt.zeros([6]))
        with dt.distribute.ClusterCoordinator(strategy) as coordinator:
            numbers = iter(coordinator.create_per_worker_dataset(lambda: dt.data.Dataset.range(1000).repeat()))
            mine = coordinator.create_per_worker_resource(lambda: dt.Variable(1.0, name="w"))

            def add(numbers: Any, mine: Any) -> Any:
                task = int(str(dt.constant(0.0).device).partition("task:")[2].partition("/")[0])
                with dt.control_dependencies([next(numbers)]):
                    return v.scatter_add(dt.IndexedSlices(dt.reshape(mine + 0.0, [1]), dt.constant([task])))

            def counts(calls: int) -> Any:
                before = coordinator.session.run(v)
                for _ in range(calls):
                    coordinator.schedule(add, args=(numbers, mine))
                coordinator.join()
                return coordinator.session.run(v) - before

            coordinator.fetch(coordinator.schedule(add, args=(numbers, mine)))
            assert list(counts(20)) == [20, 0, 0, 0, 0, 0]
            cluster.scale("worker", 4)
            assert cluster.tasks == [("ps", 0), *(("worker", i) for i in range(4))]
            grown = counts(200)
            assert grown.sum() == 200 and (grown[:4] > 0).all()
            # A server that was there before knows the new tasks.
            with dt.Session(cluster.target("worker", 0)) as session:
                assert len(session.list_devices()) == 5
            cluster.kill("worker", 3)
            assert counts(40).sum() >= 40
            cluster.scale("worker", 2)
            shrunk = counts(100)
            assert shrunk.sum() >= 100 and not shrunk[2:].any()
        with pytest.raises(ValueError, match="but ps, not 'ps'"):
            cluster.scale("ps", 2)
        with pytest.raises(dt.errors.UnavailableError, match="for Ray to grant 50 tasks"):
            cluster.scale("worker", 52, timeout_s=2.0)
        assert cluster.cluster_spec.num_tasks("worker") == 2


@needs_ray
@pytest.mark.timeout(300)
def test_dovetail_run_on_ray(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text("jobs: {ps: 1, worker: 1}\nresources: {worker: {cpus: 1}}\n")
    (tmp_path / "program.py").write_text(
        "import os, dovetail as dt\n"
        "with dt.device('/job:ps'):\n"
        "    y = dt.constant(20.0) + 1.0\n"
        "with dt.Session(os.environ['TARGET']) as session:\n"
        "    print(session.run(y), len(session.list_devices()))\n"
        "raise SystemExit(7)\n"
    )
    environment = {**os.environ, "RAY_ADDRESS": nodes.address, "PYTHONPATH": str(Path(__file__).parents[4])}
    command = [sys.executable, "-m", "dovetail", "run", "--on", "ray", "cluster.yaml", "program.py"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 7 and "21.0 2\n" in ran.stdout, ran.stderr
