"""Training whose processes are killed at random, under `dovetail run`: is its loss that of training without kills, and does it end?

    python bench/soak.py chaos --seconds 1800              each worker runs the program (`dovetail run --each`)
    python bench/soak.py chaos --client                    one client, in-graph (`dovetail run`); the client is killed, too
    python bench/soak.py chaos --on ray                    one client on a real Ray with three raylets, all on 127.0.0.1
    python bench/soak.py chaos --replicas 2                with replicated parameter servers: no acknowledged update may be lost

Every `--every` seconds (20) a process is chosen and killed with -9: a task, the client that `dovetail run` has started, or on Ray the
directory of the cluster, or a raylet with all that runs there, as if its machine were lost; another machine takes its place. Not killed
are the head of Ray's cluster and `dovetail run` itself: nothing watches over them. With replicas, a parameter server may be killed when
each parameter server says that another one has all of its variables, which is what `/ready` says, too: a loss of both copies is a loss of
variables. So a raylet that runs two parameter servers is not killed. Each worker writes to a file how many of its
updates were acknowledged; each update adds 1 to the global step. So what the final checkpoint lacks of their sum was lost. The same
program runs without kills to the same step, and both losses are of the same examples.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FEATURES, CLASSES, HIDDEN, BATCH = 64, 10, 128, 32
RATE = 0.02
PAUSE_S = 0.005  # between two steps of a worker, so that a long run's loss still falls
STALLED_S = 240.0  # without a step that counts as hanging
ANSWER_S = 3.0
STOP = "stop"  # the file that ends the training; its text is the global step at which
JOBS = {"ps": 2, "worker": 2}


def examples(seed: int, count: int) -> tuple[Any, Any]:
    """Inputs, and the classes that a fixed random network gives them, of which a tenth are wrong."""
    teacher = np.random.RandomState(0)
    first, second = teacher.randn(FEATURES, HIDDEN), teacher.randn(HIDDEN, CLASSES)
    rng = np.random.RandomState(seed)
    x = rng.randn(count, FEATURES)
    y = np.tanh(x @ first / 8.0) @ second
    labels = np.where(rng.rand(count) < 0.1, rng.randint(0, CLASSES, count), y.argmax(1))
    return x.astype(np.float32), labels.astype(np.int64)


def train(folder: Path) -> None:
    """The program: as one of the workers, or as the one client."""
    sys.path.insert(0, str(ROOT))
    import dovetail as tf

    described = json.loads(os.environ["TF_CONFIG"])
    task, cluster = described.get("task"), tf.train.ClusterSpec(described["cluster"])
    config = tf.ConfigProto(wait_for_cluster_s=90, peer_timeout_s=5)
    is_chief, index, target = True, 0, os.environ.get("TARGET", "")
    if task is not None:
        index = int(task["index"])
        is_chief = index == 0
        target = tf.train.Server(cluster, "worker", index).target
        config.device_filters = ["/job:ps", f"/job:worker/task:{index}"]
    with tf.device(tf.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", cluster=cluster)):
        tf.set_random_seed(1)
        step = tf.train.get_or_create_global_step()
        x, y = tf.placeholder(tf.float32, [None, FEATURES], name="x"), tf.placeholder(tf.int64, [None], name="y")
        w1 = tf.get_variable("w1", [FEATURES, HIDDEN], initializer=tf.random_normal_initializer(stddev=0.1, seed=1))
        b1 = tf.get_variable("b1", [HIDDEN], initializer=tf.zeros_initializer())
        w2 = tf.get_variable("w2", [HIDDEN, CLASSES], initializer=tf.random_normal_initializer(stddev=0.1, seed=2))
        logits = tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        update = tf.train.GradientDescentOptimizer(RATE).minimize(loss, global_step=step)
    held_out = examples(1, 2000)
    batches = np.random.RandomState(os.getpid() + index)
    inputs, labels = examples(2, 50_000)
    made = 0
    acknowledged = os.open(folder / f"acknowledged-{index}-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    with tf.train.MonitoredTrainingSession(
        target, is_chief, str(folder / "checkpoint"), save_checkpoint_steps=200, save_checkpoint_secs=None, save_summaries_steps=None,
        log_step_count_steps=None, config=config,
    ) as session:  # fmt: skip
        at, told = 0, 0.0
        while not (stop := folder / STOP).exists() or at < int(stop.read_text() or 0):
            chosen = batches.randint(0, len(labels), BATCH)
            at, _ = session.run([step, update], {x: inputs[chosen], y: labels[chosen]})
            made += 1
            # Numbers only get longer: a kill leaves the old one or the new one.
            os.pwrite(acknowledged, b"%d" % made, 0)
            if is_chief and time.monotonic() - told > 5.0:
                told = time.monotonic()
                found = session.run(loss, {x: held_out[0], y: held_out[1]})
                with (folder / "losses").open("a") as file:
                    file.write(f"{time.time():.1f} {int(at)} {found:.5f}\n")
            time.sleep(PAUSE_S)
        if is_chief:
            time.sleep(2.0)  # the others' last updates
            found, last = session.run([loss, step], {x: held_out[0], y: held_out[1]})
            (folder / "final").write_text(json.dumps({"step": int(last), "loss": float(found)}))


def killable(folder: Path, ray: Any, replicas: int) -> dict[str, int]:
    """What may be killed now: name -> process."""
    if ray is not None:
        processes, is_whole = ray.tasks()
    else:
        try:
            up = json.loads((folder / "cluster.yaml.up").read_text())
        except (OSError, ValueError):
            return {}
        processes, is_whole = up["processes"], replicas < 2 or has_copies(up["targets"])
    return {name: pid for name, pid in processes.items() if "ps" not in name or replicas < 2 or is_whole}


def has_copies(targets: dict[str, str]) -> bool:
    """Whether each parameter server's variables are in another one, too."""
    from dovetail.graph.core.errors import UnavailableError
    from dovetail.placer.cluster.spec import ClusterSpec
    from dovetail.runtime.server.running_cluster import RunningCluster

    cluster = RunningCluster()
    cluster.cluster_spec = ClusterSpec(
        {"ps": [at.removeprefix("zmq://") for task, at in targets.items() if "/job:ps" in task]}
    )
    cluster.keys = None
    try:
        cluster.wait_until_up(ANSWER_S)
    except UnavailableError:
        return False
    return True


def kill(pid: int) -> None:
    """Kill a process."""
    os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Ray:
    """A Ray of this machine: a head and two more raylets."""

    def __init__(self) -> None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": 3, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
        self._cluster = Cluster(initialize_head=True, head_node_args={**self._node, "include_dashboard": False})
        for _ in range(2):
            self._cluster.add_node(**self._node)
        os.environ["RAY_ADDRESS"] = self._cluster.address
        import ray

        ray.init(address=self._cluster.address, logging_level="ERROR", log_to_driver=False)
        self._ray = ray

    def tasks(self) -> tuple[dict[str, int], bool]:
        """The processes of the tasks that answer, of the directory and of raylets, and whether all variables have two copies."""
        from dovetail import train

        asked = {}
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            if actor["name"].startswith("/job:"):
                handle = self._ray.get_actor(actor["name"], actor["namespace"])
                asked[actor["name"].partition(" ")[0]] = handle.call.remote(train.Server.figures)
        self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWER_S) if asked else None
        figures = {}
        for task, answer in asked.items():
            try:
                figures[task] = self._ray.get(answer, timeout=0.1)
            except Exception:  # it is being started again
                continue
        incarnations = {f["incarnation"] for f in figures.values()}
        is_whole = len(figures) == len(asked) and all(
            f.get("replicated_by") in (None, *incarnations) for f in figures.values()
        )
        processes = {task: f["pid"] for task, f in figures.items()}
        return processes | self._directory() | self._raylets(processes), is_whole

    def _raylets(self, tasks: dict[str, int]) -> dict[str, int]:
        """The raylets that do not run two parameter servers, named by their tasks."""
        found = {}
        for node in self._cluster.worker_nodes:
            raylet = node.all_processes["raylet"][0].process.pid
            here = [task for task, pid in tasks.items() if _parent(pid) == raylet]
            if sum("ps" in task for task in here) < 2:
                found[f"raylet of {', '.join(here) or 'nothing'}"] = raylet
        return found

    def kill(self, pid: int) -> None:
        """Kill a process. Another raylet takes the place of a raylet."""
        for node in list(self._cluster.worker_nodes):
            if node.all_processes["raylet"][0].process.pid == pid:
                self._cluster.remove_node(node, allow_graceful=False)
                self._cluster.add_node(wait=False, **self._node)
                return
        kill(pid)

    @staticmethod
    def _directory() -> dict[str, int]:
        """The process of the directory: Ray calls it by the actor's class; it is below this process."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit():
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    names[int(entry.name)] = (
                        (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").strip()
                    )
            except OSError:
                continue

        def is_mine(pid: int) -> bool:
            while pid > 1:
                if pid == os.getpid():
                    return True
                pid = parents.get(pid, 0)
            return False

        return {
            f"directory {pid}": pid for pid, name in names.items() if name.startswith("ray::Directory") and is_mine(pid)
        }

    def close(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()


def last_step(folder: Path) -> int:
    try:
        return int((folder / "losses").read_text().splitlines()[-1].split()[1])
    except (OSError, IndexError, ValueError):
        return -1


def one_run(
    folder: Path, seconds: float, every: float, on: str, each: bool, seed: int, until_step: int, replicas: int
) -> dict[str, Any]:
    """Train under `dovetail run`, with kills if `every`; else until `until_step`."""
    (folder / "cluster.yaml").write_text(json.dumps({"jobs": JOBS, "ps_replicas": replicas}))
    rng = random.Random(seed)
    ray = Ray() if on == "ray" else None
    kill_one = kill if ray is None else ray.kill
    options = ["--on", on, *(["--each"] if each else []), *(["--restarts", "100000"] if on == "local" else [])]
    command = [
        sys.executable,
        "-m",
        "dovetail",
        "run",
        *options,
        str(folder / "cluster.yaml"),
        str(Path(__file__)),
        str(folder),
    ]
    kills: list[str] = []
    stalls: list[float] = []
    if not every:
        (folder / STOP).write_text(str(until_step))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        began = time.monotonic()
        advanced, step, next_kill = began, -1, began + 2 * every
        try:
            while process.poll() is None:
                now = time.monotonic()
                if (new := last_step(folder)) != step:
                    if step >= 0:
                        stalls.append(now - advanced)
                    advanced, step = now, new
                if now - advanced > STALLED_S:
                    raise RuntimeError(
                        f"no step for {now - advanced:.0f} s at step {step} after {kills[-3:]}; {folder} has the log"
                    )
                if every and now - began > seconds and not (folder / STOP).exists():
                    (folder / STOP).write_text("0")
                elif every and now >= next_kill and now - began < seconds:
                    next_kill = now + every
                    found = killable(folder, ray, replicas)
                    if found:
                        name = rng.choice(sorted(found))
                        try:
                            kill_one(found[name])
                            kills.append(name.partition(" ")[0])
                            print(f"{now - began:.0f} s, step {step}: killed {name} of {len(found)}", flush=True)
                        except ProcessLookupError:
                            pass
                time.sleep(0.2)
            if process.returncode:
                raise RuntimeError(f"dovetail run ended with status {process.returncode}; {folder} has the log")
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
            if ray is not None:
                ray.close()
    import dovetail as tf

    path = tf.train.latest_checkpoint(str(folder / "checkpoint"))
    kept = int(tf.train.load_checkpoint(path).get_tensor("global_step"))
    acknowledged = sum(int(f.read_text() or 0) for f in folder.glob("acknowledged-*"))
    final = json.loads((folder / "final").read_text())
    return {
        "seconds": time.monotonic() - began, "kills": len(kills),
        "killed": {k: kills.count(k) for k in sorted(set(kills))},
        "acknowledged": acknowledged, "in_final_checkpoint": kept, "lost": max(0, acknowledged - kept), "loss": final["loss"],
        "step": final["step"], "longest_pause_s": max(stalls, default=0.0),
    }  # fmt: skip


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--on", choices=("local", "ray"), default="local")
    parser.add_argument("--client", action="store_true", help="one client; else each worker runs the program")
    parser.add_argument("--replicas", type=int, choices=(1, 2), default=1, help="ps_replicas of the cluster")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    each = not given.client and given.on == "local"
    sys.path.insert(0, str(ROOT))
    root = Path(tempfile.mkdtemp(prefix="dovetail-chaos-"))
    print(f"files in {root}", flush=True)
    folders = [root / part for part in ("kills", "calm")]
    for folder in folders:
        folder.mkdir()
    chaos = one_run(folders[0], given.seconds, given.every, given.on, each, given.seed, 0, given.replicas)
    print(json.dumps({"with kills": chaos}), flush=True)
    calm = one_run(folders[1], 0.0, 0.0, given.on, each, given.seed, chaos["step"], given.replicas)
    print(json.dumps({"without": calm}), flush=True)
    print(
        f"loss {chaos['loss']:.4f} with {chaos['kills']} kills, {calm['loss']:.4f} without, at steps {chaos['step']} and {calm['step']}"
    )
    assert chaos["loss"] < calm["loss"] * 1.1 + 0.01, "kills cost more than noise"
    assert given.replicas < 2 or not chaos["lost"], (
        f"{chaos['lost']} acknowledged updates are not in the final checkpoint"
    )


if __name__ == "__main__":
    train(Path(sys.argv[1]))
