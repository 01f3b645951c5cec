"""A cluster of one system, Dovetail's or the peer's, driven by a process of its own in that system's interpreter.

The programs are written once in TensorFlow 1's names and run by both. The conversation with the driver is one line of JSON each way:
it begins with `{"version": "2.21.0"}` or `{"missing": why}`; `{"prepare": name, ...}` builds a program and runs it once;
`{"run": count}` answers with the seconds of each run and the processor seconds that all processes of the cluster spent.

Run as `python bench/_clusters.py SYSTEM` by `Driver`, and by the driver itself with more arguments for each server.
The top of this file needs the standard library only.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _switches import turn_off

ROOT = Path(__file__).resolve().parent.parent
MODULES = {"dovetail": "dovetail", "tensorflow": "tensorflow.compat.v1"}
TITLES = {"dovetail": "Dovetail", "tensorflow": "TensorFlow"}
JOBS = {"ps": 2, "worker": 2}
PATIENCE_S = 120  # for one answer


def load(system: str) -> Any:
    """The system's module, in graph mode."""
    if system == "dovetail":
        sys.path.insert(0, str(ROOT))
    tf = importlib.import_module(MODULES[system])
    if system == "dovetail":
        turn_off()
    if system == "tensorflow":
        tf.disable_v2_behavior()
    return tf


# --- programs, each gives a function that runs one step ------------------------------------------------------------------

Run = Callable[[], Any]
WORKER, PS = "/job:worker/task:0", "/job:ps/task:0"


def empty_step(tf: Any, target: str) -> Run:
    """One addition on the task that the session talks to."""
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    return tf.Session(target).make_callable(y, [x])


def variable_read(tf: Any, target: str) -> Run:
    """A scalar variable of a ps, used on a worker."""
    with tf.device(PS):
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer())
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        y = v + x
    session = tf.Session(target)
    session.run(tf.global_variables_initializer())
    return session.make_callable(y, [x])


def variable_update(tf: Any, target: str) -> Run:
    """A fed number added to a scalar variable of a ps."""
    with tf.device(PS):
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer())
        x = tf.placeholder(tf.float32, [])
        up = tf.assign_add(v, x * 1.0).op
    session = tf.Session(target)
    session.run(tf.global_variables_initializer())
    return session.make_callable(up, [x])


def ten_hops(tf: Any, target: str) -> Run:
    """A chain of ten additions that changes task at each."""
    with tf.device(WORKER):
        x = h = tf.placeholder(tf.float32, [])
    for i in range(10):
        with tf.device(PS if i % 2 else WORKER):
            h = h + 1.0
    return tf.Session(target).make_callable(h, [x])


def transfer(tf: Any, target: str, mib: float) -> Run:
    """A variable of so many MiB, from a ps to a worker."""
    n = int(mib * 2**18)
    with tf.device(PS):
        v = tf.get_variable(f"big_{n}", [n], initializer=tf.ones_initializer())
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        w = tf.identity(v)
        y = w[0] + w[n - 1] + x
    session = tf.Session(target)
    session.run(tf.global_variables_initializer())
    return session.make_callable(y, [x])


def many_clients(tf: Any, target: str, clients: int, steps: int) -> Run:
    """So many sessions in threads of one process, each running an addition on the worker so many times."""
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    calls = [tf.Session(target).make_callable(y, [x]) for _ in range(clients)]
    for call in calls:
        call(1.0)

    def run(_: float) -> None:
        threads = [threading.Thread(target=lambda c=call: [c(1.0) for _ in range(steps)]) for call in calls]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    return run


def digits(
    tf: Any, cluster: Any, task: int, wrap: Callable[[Any], Any] = lambda optimizer: optimizer
) -> tuple[Any, Any, Any]:
    """The classifier 64-256-256-10 with its variables spread over the ps tasks: images, labels, training op.

    `wrap` makes the optimizer that is used from the one that applies the gradients.
    """
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{task}")):
        x, y = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
        h, width = x, 64
        for i, n in enumerate((256, 256, 10)):
            w = tf.get_variable(f"w{i}", [width, n], initializer=tf.glorot_uniform_initializer(seed=i))
            b = tf.get_variable(f"b{i}", [n], initializer=tf.zeros_initializer())
            h, width = tf.matmul(h, w) + b, n
            if n != 10:
                h = tf.nn.relu(h)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=h))
        step = tf.train.get_or_create_global_step()
        return x, y, wrap(tf.train.GradientDescentOptimizer(0.1)).minimize(loss, global_step=step)


PROGRAMS = {f.__name__: f for f in (empty_step, variable_read, variable_update, ten_hops, transfer, many_clients)}


# --- the processes -------------------------------------------------------------------------------------------------------


def _start(system: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, __file__, system, *arguments],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def serve(tf: Any, cluster: dict[str, list[str]], job: str, task: int) -> None:
    """One server; on each line of input a worker trains for so many steps and answers with the seconds they took.

    The first line builds the trainer, too.
    """
    server = tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=task)
    print("up", flush=True)
    run = None
    for line in sys.stdin:
        steps = int(line)
        if run is None:
            run = _trainer(tf, server, cluster, task)
        began = time.perf_counter()
        run(steps)
        print(time.perf_counter() - began, flush=True)
    os._exit(0)


def _trainer(tf: Any, server: Any, cluster: dict[str, list[str]], task: int) -> Callable[[int], None]:
    import numpy as np

    tf.set_random_seed(1)
    x, y, train = digits(tf, tf.train.ClusterSpec(cluster), task)
    rng = np.random.default_rng(task)
    images = rng.random((1500, 64), np.float32)
    labels = rng.integers(0, 10, 1500)
    session = tf.Session(server.target)
    session.run(tf.global_variables_initializer())

    def run(steps: int) -> None:
        for _ in range(steps):
            batch = rng.integers(0, 1500, 64)
            session.run(train, {x: images[batch], y: labels[batch]})

    return run


def cpu_seconds(pids: list[int]) -> float:
    """Processor seconds that these processes have spent."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def drive(system: str) -> None:
    """Answer requests until standard input closes."""
    try:
        tf = load(system)
    except ImportError as e:
        print(json.dumps({"missing": str(e)}), flush=True)
        return
    with_ports: dict[str, list[str]] = {}
    held = []
    for job, count in JOBS.items():
        for _ in range(count):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", 0))
            held.append(s)
            with_ports.setdefault(job, []).append(f"localhost:{s.getsockname()[1]}")
    text = json.dumps(with_ports)
    for s in held:
        s.close()
    servers = {(job, i): _start(system, text, job, str(i)) for job, count in JOBS.items() for i in range(count)}
    try:
        for p in servers.values():
            assert p.stdout is not None and p.stdout.readline().strip() == "up", "a server did not start"
        pids = [os.getpid(), *(p.pid for p in servers.values())]
        version = getattr(tf, "__version__", "") or getattr(tf.version, "VERSION", "")
        print(json.dumps({"version": version}), flush=True)
        run: Run | None = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if "prepare" in request:
                    tf.reset_default_graph()
                    run = PROGRAMS[request.pop("prepare")](tf, f"grpc://{with_ports['worker'][0]}", **request)
                    run(1.0)
                    answer: Any = {}
                elif "train" in request:
                    cpu = cpu_seconds(pids)
                    workers = [p for (job, _), p in servers.items() if job == "worker"]
                    for p in workers:
                        print(request["train"], file=p.stdin, flush=True)
                    answer = {"seconds": [float(p.stdout.readline()) for p in workers]}  # type: ignore[union-attr]
                    answer["cpu"] = cpu_seconds(pids) - cpu
                else:
                    assert run is not None
                    cpu, seconds = cpu_seconds(pids), []
                    for _ in range(request["run"]):
                        began = time.perf_counter()
                        run(1.0)
                        seconds.append(time.perf_counter() - began)
                    answer = {"seconds": seconds, "cpu": cpu_seconds(pids) - cpu}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), flush=True)
    finally:
        for p in servers.values():
            p.kill()
            p.wait()


class Driver:
    """A system's cluster. Use it as a context manager; `missing` says why it cannot run. `settings` go into its environment.

    >>> with Driver("dovetail") as cluster:
    ...     cluster.prepare("ten_hops")
    ...     cluster.run(100)["seconds"]
    """

    def __init__(self, system: str, python: str = sys.executable, **settings: str) -> None:
        quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | settings
        self._process = subprocess.Popen(
            [python, __file__, system],
            env=quiet,
            text=True,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        hello = self._answer()
        self.missing: str = hello.get("missing", "")
        self.title = f"{TITLES[system]} {hello.get('version', '')}"

    def prepare(self, program: str, **parameters: Any) -> None:
        """Build a program and run it once."""
        self._ask({"prepare": program, **parameters})

    def run(self, count: int) -> dict[str, Any]:
        """Run the program so often: {"seconds": [...], "cpu": total}."""
        return self._ask({"run": count})

    def train(self, steps: int) -> dict[str, float]:
        """All workers train at once: {"rate": steps per second and worker, "cpu": seconds of all processes per step}."""
        answer = self._ask({"train": steps})
        seconds = answer["seconds"]
        return {
            "rate": sum(steps / s for s in seconds) / len(seconds),
            "cpu": answer["cpu"] / steps / len(seconds),
        }

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"no answer for {PATIENCE_S} s")
        line = self._process.stdout.readline()  # it writes whole lines, and one for each that it reads
        if not line:
            raise RuntimeError("the process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the cluster."""
        if self._process.poll() is None:
            try:
                self._process.communicate(timeout=10)
            except subprocess.TimeoutExpired:  # it hangs; so its servers are not its any more
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.communicate()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        drive(sys.argv[1])
    else:
        serve(load(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
