"""A cluster whose tasks are machines of their own, as far as the kernel can tell: each in a network namespace, joined by a bridge.

    unshare --map-root-user --net python tests/runtime/namespaces.py FOLDER

This process is the client's machine, 10.77.0.1, and has the bridge. Each task is at an address of its own that others can reach, so it
needs keys. What must hold:

- the demo's model trains across them;
- a client without a key gets nothing, nor does one whose key nobody has allowed, and the log of the server says so;
- a machine whose cable is pulled, or whose packets are dropped, in the middle of a step: the call ends within the peer timeout and a
  little and names the task, the others are served all the while, and the same session goes on when the machine is back;
- a link that is slow, or loses packets now and then, changes no results.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # run as a script in a checkout

from fault_schedules import ERRORS, Call  # noqa: E402

import dovetail as tf  # noqa: E402
from dovetail.runtime.server.running_cluster import ClusterMonitor  # noqa: E402
from dovetail.tools.demo.data import load_digits  # noqa: E402
from dovetail.tools.demo.replicas import InGraph  # noqa: E402
from dovetail.tools.demo.watch import Failed, Finished  # noqa: E402

HERE = "10.77.0.1"
TASKS = {("ps", 0): "10.77.0.2", ("worker", 0): "10.77.0.3", ("worker", 1): "10.77.0.4"}
PORT = 2222
PEER_TIMEOUT_S = 5.0  # where machines are cut off
PATIENCE_S = 30.0  # where none is: a busy machine may be silent for long
BOUND_S = 20.0  # for a call that ends after the peer timeout, on a machine that has much else to do
WAIT_S = 60.0  # for what must come to pass
STEPS = 300


def run(*command: str, **more: Any) -> str:
    """Run a command and give its output."""
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **more)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
    return done.stdout


def until(true: Callable[[], Any], what: str) -> None:
    """Wait for something."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


class Machines:
    """The bridge, and a machine for each task: a namespace that lives as long as the process in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[tuple[str, int], subprocess.Popen[str]] = {}
        cluster: dict[str, list[str]] = {}
        for (job, _), address in TASKS.items():
            cluster.setdefault(job, []).append(f"{address}:{PORT}")
        self.spec = tf.train.ClusterSpec(cluster)
        self.file = folder / "cluster.json"
        self.file.write_text(json.dumps(cluster))
        self.keys = folder / "keys"
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "name", "bridge", "type", "bridge")
        run("ip", "addr", "add", f"{HERE}/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")

    def dovetail(self, *words: str) -> list[str]:
        """A command line."""
        return [sys.executable, "-m", "dovetail", *words]

    def log(self, task: tuple[str, int]) -> str:
        """What a task has said so far."""
        return (self.folder / f"{task[0]}-{task[1]}.log").read_text()

    def cable(self, task: tuple[str, int]) -> str:
        """Name of the bridge's end of a machine's cable."""
        return f"{task[0]}-{task[1]}"

    def start(self, task: tuple[str, int]) -> None:
        """Make a machine, join it to the bridge, start its server."""
        (job, index), address = task, TASKS[task]
        command = self.dovetail("server", f"--cluster={self.file}", "-j", job, "-i", str(index), f"--keys={self.keys}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "DOVETAIL_LOG_LEVEL": "INFO"}
        with (self.folder / f"{job}-{index}.log").open("w") as log:
            process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", 'echo; read go; exec "$@"', "sh", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=self.folder,
            )  # fmt: skip
        self.processes[task] = process
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()  # it is in its namespace
        cable = self.cable(task)
        run("ip", "link", "add", "name", cable, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
        run("ip", "link", "set", cable, "master", "bridge", "up")
        inside = ("nsenter", f"--net=/proc/{process.pid}/ns/net", "ip")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        process.stdin.write("\n")
        process.stdin.flush()

    def close(self) -> None:
        """End all. The namespaces go with the processes."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.communicate()

    @contextlib.contextmanager
    def disturbed(self, task: tuple[str, int], how: str) -> Iterator[None]:
        """Do something to a machine's cable: `down` pulls it, `lost` lets all packets vanish, anything else is what `tc` makes of it."""
        cable = self.cable(task)
        if how == "down":
            begin, end = ("ip", "link", "set", cable, "down"), ("ip", "link", "set", cable, "up")
        elif how == "lost":  # a cable that ends nowhere
            begin, end = ("ip", "link", "set", cable, "nomaster"), ("ip", "link", "set", cable, "master", "bridge")
        else:
            begin, end = (
                ("tc", "qdisc", "add", "dev", cable, "root", *how.split()),
                ("tc", "qdisc", "del", "dev", cable, "root"),
            )
        run(*begin)
        try:
            yield
        finally:
            run(*end)


def can(how: str) -> bool:
    """Whether this kernel knows a way to disturb a link."""
    command = ["tc", "qdisc", "add", "dev", "lo", "root", *how.split()]
    if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
        return False
    run("tc", "qdisc", "del", "dev", "lo", "root")
    return True


def config(*filters: str, peer_timeout_s: float = PEER_TIMEOUT_S) -> tf.ConfigProto:
    return tf.ConfigProto(peer_timeout_s=peer_timeout_s, wait_for_cluster_s=WAIT_S, device_filters=list(filters))


def answers(target: str) -> bool:
    """Whether the server of the target has started."""
    with contextlib.suppress(tf.errors.UnavailableError):
        tf.Session(target, config=config(peer_timeout_s=PATIENCE_S)).close()
        return True
    return False


def train(machines: Machines, target: str) -> None:
    """The demo's model, its parameters on the ps, a copy of the compute on each worker."""
    digits = load_digits()
    reports: queue.Queue[Any] = queue.Queue()
    cluster: Any = SimpleNamespace(cluster_spec=machines.spec)
    replicas = InGraph(cluster, 2, digits, STEPS, reports)
    with tf.Session(target, graph=replicas.graph, config=config(peer_timeout_s=PATIENCE_S)) as session:
        replicas.start(session)
        finished = 0
        while finished < 2:
            report = reports.get(timeout=WAIT_S)
            assert not isinstance(report, Failed), report
            finished += isinstance(report, Finished)
        replicas.join()
        first = replicas.replicas[0]
        accuracy = session.run(first.accuracy, {first.images: digits.test_images, first.labels: digits.test_labels})
    assert accuracy > 0.85, accuracy
    print(f"trained {STEPS} steps, accuracy {accuracy:.3f}")


STRANGER = """
import sys, dovetail as tf
try:
    tf.Session(sys.argv[1], config=tf.ConfigProto(peer_timeout_s=2.0, wait_for_cluster_s=60.0, keys=sys.argv[2]))
except tf.errors.PermissionDeniedError as e:
    print("refused:", e)
"""


def strangers(machines: Machines, target: str) -> None:
    """Who has no key, and who has one that nobody has allowed, gets nothing, and the server's log says so."""
    run(*machines.dovetail("keys", "new", str(machines.folder / "mallory"), "--name=mallory"))
    expected = machines.folder / "mallory" / "servers"  # the server's key is no secret
    expected.mkdir(exist_ok=True)
    for public in (machines.keys / "client" / "servers").glob("*.pub"):
        (expected / public.name).write_text(public.read_text())
    without = {name: value for name, value in os.environ.items() if name != "DOVETAIL_KEYS"}
    for keys, says in (("", "it has no key"), (str(machines.folder / "mallory"), "is not allowed")):
        environment = {**without, "PYTHONPATH": str(ROOT)}
        said = run(sys.executable, "-c", STRANGER, target, keys, env=environment, cwd=machines.folder)
        assert said.startswith("refused: "), said
        log = machines.log(("worker", 0))
        # A peer that hangs up at once has no address any more when the refusal is written.
        refusals = [
            line
            for line in log.splitlines()
            if re.search(rf"refused a connection from ({re.escape(HERE)}|a host that)", line)
        ]
        assert any("/job:worker/task:0" in line for line in refusals), log
        print(said.strip()[:100])
        if says not in log:  # it is told once in a while for each address; the figures count all
            with ClusterMonitor(target.removeprefix("zmq://")) as observer:
                assert max(v.figures["refused"] for v in observer.look() if v.figures) >= 2
    print(refusals[-1])


def faults(machines: Machines, target: str) -> None:
    """A machine disappears in the middle of a step, and comes back."""
    far, cut = "/job:worker/replica:0/task:1", ("worker", 1)
    graph = tf.Graph()
    with graph.as_default():
        rounds = tf.placeholder(tf.int32, [])

        def around(i: Any, x: Any) -> tuple[Any, Any]:
            for place in ("/job:ps", "/job:worker/task:1", "/job:worker/task:0"):
                with tf.device(place):
                    x = x + 1.0
            return i + 1, x

        with tf.device("/job:worker/task:0"):
            visits = tf.while_loop(lambda i, x: i < rounds, around, [tf.constant(0), tf.constant(0.0)])[1]
        with tf.device("/job:worker/task:1"):
            large = tf.ones([1 << 21]) * tf.placeholder_with_default(2.0, [], name="two")
        with tf.device("/job:ps"):
            total = tf.reduce_sum(large)
    neighbours = tf.Graph()
    with neighbours.as_default(), tf.device("/job:ps"):
        near = tf.constant(20.0) + 1.0
    with (
        tf.Session(target, graph=graph, config=config()) as session,
        tf.Session(target, graph=neighbours, config=config("/job:ps", "/job:worker/task:0")) as others,
        ClusterMonitor(target.removeprefix("zmq://")) as observer,
    ):
        assert session.run(visits, {rounds: 3}) == 9
        assert session.run(total) == 1 << 22
        assert others.run(near) == 21

        def goes_round() -> bool:
            return any(v.figures and v.figures["steps_running"] for v in observer.look() if v.task == far)

        for how in ("down", "lost"):
            call = Call(lambda: session.run(visits, {rounds: 10_000_000}))
            until(goes_round, "the step runs")
            with machines.disturbed(cut, how):
                began = time.monotonic()
                assert call.ended(BOUND_S), f"{how}: the step hangs"
                took = time.monotonic() - began
                assert isinstance(call.error, ERRORS) and far in str(call.error), f"{how}: {call.error!r}"
                print(f"{how}: {took:.1f} s, {type(call.error).__name__}: {str(call.error).splitlines()[-1][:110]}")
                again = Call(lambda: session.run(total))
                assert again.ended(BOUND_S) and isinstance(again.error, ERRORS), f"{how}: {again.error!r}"
                assert others.run(near) == 21  # who does not need it is served

            def works() -> bool:
                with contextlib.suppress(*ERRORS):
                    return session.run(total) == 1 << 22 and session.run(visits, {rounds: 3}) == 9
                return False

            back = time.monotonic()
            until(works, "the session works again")
            print(f"{how}: the session works again after {time.monotonic() - back:.1f} s")
        for how in ("tbf rate 100mbit burst 64kbit latency 20ms", "netem delay 5ms loss 5%"):
            if not can(how):
                print(f"{how}: left out, this kernel cannot do it")
                continue
            with machines.disturbed(cut, how):
                assert session.run(visits, {rounds: 20}) == 60
                assert session.run(total) == 1 << 22
            print(f"{how}: right")


def main() -> None:
    machines = Machines(Path(sys.argv[1]).resolve())
    try:
        run(*machines.dovetail("keys", "new", str(machines.keys), f"--cluster={machines.file}", "--client=client"))
        os.environ["DOVETAIL_KEYS"] = str(machines.keys)
        for task in TASKS:
            machines.start(task)
        target = f"zmq://{TASKS['worker', 0]}:{PORT}"
        until(lambda: answers(target), "the servers have started")
        train(machines, target)
        strangers(machines, target)
        faults(machines, target)
        assert all(process.poll() is None for process in machines.processes.values()), "a server has ended"
        print("all holds")
    except BaseException:
        for task in machines.processes:
            print(f"--- {task}:\n{machines.log(task)[-3000:]}")
        raise
    finally:
        machines.close()


if __name__ == "__main__":
    main()
