"""A cluster of one system, Dovetail's or the peer's, driven by a process of its own in that system's interpreter.

The programs are written once in TensorFlow 1's names and run by both. The driver is a `Conversation` (`_processes.py`):
`{"prepare": name, ...}` builds a program and runs it once; `{"run": count}` answers with the seconds of each run, the processor
seconds that all processes of the cluster spent, and, of a run of many steps, the seconds of each step.

With `BENCH_MACHINES` in its environment, the parameter servers of Dovetail are on another machine than the workers and the driver, as
far as the kernel can tell: in a network namespace of their own, at the other end of a pair of virtual Ethernet devices. `keys` there
gives all processes keys, `insecure` none. This needs `unshare` and `ip`, and a kernel that lets a user make namespaces.

Run as `python bench/_clusters.py SYSTEM` by `Driver`, and by the driver itself with more arguments for each server.
The top of this file needs the standard library only.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _switches import turn_off

import _processes
from _processes import Conversation, answer, free_ports, version_of

JOBS = {"ps": 2, "worker": 2}
PATIENCE_S = 120  # for one answer
MACHINES = "BENCH_MACHINES"
HERE, THERE = "10.77.0.1", "10.77.0.2"


def load(system: str) -> Any:
    """The system's module, in graph mode, without the mechanism that the environment names."""
    tf = _processes.load(system)
    if system == "dovetail":
        turn_off()
    return tf


# --- programs, each gives a function that runs one step ------------------------------------------------------------------

Run = Callable[[], Any]
WORKER, PS, SECOND_PS = "/job:worker/task:0", "/job:ps/task:0", "/job:ps/task:1"


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


def many_tensors(tf: Any, target: str) -> Run:
    """64 rows of 256 numbers, each computed by a product, go to a ps: as the gradients of a model of many small variables."""
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        h = tf.fill([64, 64], x)
        rows = []
        for _ in range(64):
            h = tf.matmul(h, h) * 1e-3
            rows.append(h[:4])
    with tf.device(PS):
        return tf.Session(target).make_callable(tf.add_n(rows)[0, 0], [x])


def early_send(tf: Any, target: str) -> Run:
    """A number sent to a ps, which then computes as long as the worker does after sending it."""
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        sent = x + 1.0
    parts = []
    for task in (PS, WORKER):
        with tf.device(task), tf.control_dependencies([sent]):
            h = tf.fill([320, 320], sent * 1e-3)
            for _ in range(8):
                h = tf.matmul(h, h) * 1e-3
            parts.append(h[0, 0])
    with tf.device(WORKER):
        return tf.Session(target).make_callable(tf.add_n(parts), [x])


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


def send(tf: Any, target: str, mib: float) -> Run:
    """A result of so many MiB, from a worker to a ps."""
    n = int(mib * 2**18)
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        h = tf.sqrt(tf.fill([n], x) + 1.0)
    with tf.device(PS):
        return tf.Session(target).make_callable(h[0] + h[n - 1], [x])


def constant_update(tf: Any, target: str) -> Run:
    """A constant of the worker's, added to a scalar variable of a ps."""
    with tf.device(PS):
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer())
    with tf.device(WORKER):
        rate = tf.constant(0.5)
    with tf.device(PS):
        x = tf.placeholder(tf.float32, [])
        up = tf.assign_add(v, rate * x).op
    session = tf.Session(target)
    session.run(tf.global_variables_initializer())
    return session.make_callable(up, [x])


def grouped_updates(tf: Any, target: str) -> Run:
    """Updates of variables of two ps, in a group on a worker; then a count on the first."""
    x, updates = tf.placeholder(tf.float32, []), []
    for i, ps in enumerate((PS, SECOND_PS)):
        with tf.device(ps):
            v = tf.get_variable(f"v{i}", [], initializer=tf.zeros_initializer())
            updates.append(tf.assign_add(v, x))
            if i == 0:
                count = tf.get_variable("count", [], initializer=tf.zeros_initializer())
    with tf.device(WORKER):
        both = tf.group(*updates)
    with tf.device(PS), tf.control_dependencies([both]):
        counted = tf.assign_add(count, 1.0).op
    session = tf.Session(target)
    session.run(tf.global_variables_initializer())
    return session.make_callable(counted, [x])


def many_clients(tf: Any, target: str, clients: int, steps: int) -> Run:
    """So many sessions in threads of one process, each running an addition on the worker so many times."""
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [])
        y = x + 1.0
    calls = [tf.Session(target).make_callable(y, [x]) for _ in range(clients)]
    for call in calls:
        call(1.0)

    def run(_: float) -> list[float]:
        seconds: list[float] = []

        def client(call: Callable[[float], Any]) -> None:
            for _ in range(steps):
                began = time.perf_counter()
                call(1.0)
                seconds.append(time.perf_counter() - began)

        threads = [threading.Thread(target=client, args=(call,)) for call in calls]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return seconds

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


PROGRAMS = {
    f.__name__: f
    for f in (
        empty_step,
        variable_read,
        variable_update,
        ten_hops,
        many_tensors,
        early_send,
        transfer,
        send,
        constant_update,
        grouped_updates,
        many_clients,
    )
}


# --- the processes -------------------------------------------------------------------------------------------------------


def serve(tf: Any, cluster: dict[str, list[str]], job: str, task: int) -> None:
    """One server, until its input ends."""
    more = {"insecure": True} if MACHINES in os.environ else {}
    server = tf.train.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=task, **more)
    print("up", flush=True)
    sys.stdin.read()
    del server
    os._exit(0)


def cpu_seconds(pids: list[int]) -> float:
    """Processor seconds that these processes have spent."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def other_machine() -> subprocess.Popen[str]:
    """Make another machine, at `THERE`, of this process's one, which gets the address `HERE`. It lives as long as the returned process."""
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    print(file=holder.stdin, flush=True)
    holder.stdout.readline()  # it is in its namespace
    there = ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    for prefix, words in (
        ([], "link set lo up"),
        ([], f"link add name here type veth peer name there netns {holder.pid}"),
        ([], f"addr add {HERE}/24 dev here"),
        ([], "link set here up"),
        (there, "link set lo up"),
        (there, f"addr add {THERE}/24 dev there"),
        (there, "link set there up"),
    ):
        subprocess.run([*prefix, "ip", *words.split()], check=True)
    return holder


def give_keys(folder: str, cluster: dict[str, list[str]]) -> None:
    """Keys for all tasks and for this process."""
    from dovetail.runtime.transport.keys import part_of, write_cluster
    from dovetail.runtime.transport.zmq_sockets import new_key_pair

    tasks = [(part_of(job, i), address) for job, addresses in cluster.items() for i, address in enumerate(addresses)]
    write_cluster(Path(folder), tasks, ["client"], iter(new_key_pair, None))
    os.environ["DOVETAIL_KEYS"] = folder


def drive(system: str) -> None:
    """Answer requests until standard input closes."""
    servers: list[subprocess.Popen[str]] = []
    undo = contextlib.ExitStack()

    def begin() -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        tf = load(system)
        ports = iter(free_ports(sum(JOBS.values())))
        machines = os.environ.get(MACHINES)
        hosts, prefix = dict.fromkeys(JOBS, "localhost"), dict.fromkeys(JOBS, list[str]())
        if machines:
            holder = other_machine()
            undo.callback(holder.kill)
            hosts, prefix["ps"] = {"ps": THERE, "worker": HERE}, ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
        cluster = {job: [f"{hosts[job]}:{next(ports)}" for _ in range(count)] for job, count in JOBS.items()}
        if machines == "keys":
            give_keys(undo.enter_context(tempfile.TemporaryDirectory()) + "/keys", cluster)
        for job, addresses in cluster.items():
            for i in range(len(addresses)):
                command = [*prefix[job], sys.executable, __file__, system, json.dumps(cluster), job, str(i)]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
                servers.append(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
        for p in servers:
            assert p.stdout is not None and p.stdout.readline().strip() == "up", "a server did not start"
        pids = [os.getpid(), *(p.pid for p in servers)]
        run: list[Run] = []

        def respond(request: dict[str, Any]) -> dict[str, Any]:
            if "prepare" in request:
                tf.reset_default_graph()
                run[:] = [PROGRAMS[request.pop("prepare")](tf, f"grpc://{cluster['worker'][0]}", **request)]
                run[0](1.0)
                return {}
            cpu, seconds, steps = cpu_seconds(pids), [], []
            for _ in range(request["run"]):
                began = time.perf_counter()
                found = run[0](1.0)
                seconds.append(time.perf_counter() - began)
                steps += found if isinstance(found, list) else []
            return {"seconds": seconds, "cpu": cpu_seconds(pids) - cpu, "steps": steps}

        return version_of(tf), respond

    try:
        answer(begin)
    finally:
        for p in servers:
            p.kill()
            p.wait()
        undo.close()


class Driver(Conversation):
    """A system's cluster. `settings` go into its environment.

    >>> with Driver("dovetail") as cluster:
    ...     cluster.prepare("ten_hops")
    ...     cluster.run(100)["seconds"]
    """

    def __init__(self, system: str, python: str = sys.executable, **settings: str) -> None:
        super().__init__(__file__, system, python, PATIENCE_S, **settings)

    def prepare(self, program: str, **parameters: Any) -> None:
        """Build a program and run it once."""
        self.ask(prepare=program, **parameters)

    def run(self, count: int) -> dict[str, Any]:
        """Run the program so often: {"seconds": [...], "cpu": total, "steps": [...]}."""
        return self.ask(run=count)


if __name__ == "__main__":
    if len(sys.argv) == 2 and MACHINES in os.environ and "BENCH_INSIDE" not in os.environ:
        os.environ["BENCH_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "--map-root-user", "--net", sys.executable, *sys.argv])
    elif len(sys.argv) == 2:
        drive(sys.argv[1])
    else:
        serve(load(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
