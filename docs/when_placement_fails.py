"""The page "When placement fails": every way in which placing can fail, with the message that it gives.

    python docs/when_placement_fails.py           # writes docs/when-placement-fails.md

Each case is a small program that is run here; the page shows the program and what it raised. A test sees that
the page is what this makes, so a message that changes changes the page.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout needs no install

import dovetail as tf  # noqa: E402
from dovetail.placer.cluster.load import make_cluster  # noqa: E402

PAGE = ROOT / "docs" / "when-placement-fails.md"
FILE = "train.py"  # what the programs are called in the messages
CLUSTER = {"ps": 2, "worker": 2}
DEVICES = {"worker": ["cpu:0", "gpu:0", "gpu:1"]}

HEAD = """# When placement fails

Placing gives every node a device, or says why it cannot. This page shows every way in which it can fail, with
the message. The messages are real: the page is made by running the programs (`python
docs/when_placement_fails.py`), and a test sees that it is up to date.

All programs are placed on this cluster, whose master is `/job:worker/task:0`, by `tf.place(graph, cluster)`;
a session gives the same errors from `session.run`, before anything runs.

```yaml
jobs: {ps: 2, worker: 2}
devices: {worker: [cpu:0, gpu:0, gpu:1]}      # ps: one CPU each
```

How to read a message: the first line says what cannot be. Then come the requests that contradict each other,
no more of them than needed, each with the line that made the node and the device blocks around it; an arrow
marks the block that asked for what is in question. Then what would work, the smallest change first. Last, who
else is in the colocation group, and the devices that exist.
"""


@dataclass(frozen=True)
class Case:
    """A program that cannot be placed.

    Attributes:
        title, text: what the page says about it. code: the program. arguments: more arguments of `place`.
        cluster: jobs, or the text of a cluster file.
    """

    title: str
    text: str
    code: str
    arguments: dict[str, Any] | None = None
    cluster: Any = None


PLACING = [
    Case(
        "No such device",
        "The request is well formed, but the cluster has nothing like it. A missing task, job, type or "
        "index looks the same.",
        """
        with tf.device("/job:ps"):
            with tf.device("/task:2"):
                table = tf.Variable([1.0, 2.0], name="table")
        """,
    ),
    Case(
        "A malformed request",
        "`tf.device` accepts some names that no device can have, as TensorFlow does; placing refuses them.",
        """
        with tf.device("/job:my-job"):
            c = tf.constant(1.0, name="c")
        """,
    ),
    Case(
        "No kernel on the device that is asked for",
        "The device exists, but the op cannot run on its type.",
        """
        with tf.device("/job:worker/task:0/gpu:0"):
            values, index = tf.unique([4, 4, 2], name="unique")
        """,
    ),
    Case(
        "No kernel anywhere",
        "No device of the cluster has a type that the op runs on. Here: a cluster of GPUs only.",
        """
        values, index = tf.unique([4, 4, 2], name="unique")
        """,
        {"devices": {"worker": ["gpu:0"]}},
        {"worker": 1},
    ),
    Case(
        "Colocated nodes that ask for different devices",
        "Nodes of one colocation group share a device. Only the two requests that contradict each other are "
        "shown, however many nodes are in between.",
        """
        with tf.device("/job:ps/task:0"):
            v = tf.get_variable("v", [2], use_resource=False)
        with tf.colocate_with(v.op):
            half = tf.multiply(v, 0.5, name="half")
        with tf.device("/job:ps/task:1"):
            w = tf.get_variable("w", [2], use_resource=False)
        with tf.colocate_with(v.op), tf.colocate_with(w.op):
            both = tf.add(half, half, name="both")
        """,
    ),
    Case(
        "Colocated nodes of which none may be where the others can",
        "Each request alone can be met, but not all of them by one device: the group needs a GPU, and an op "
        "in it has no kernel for GPUs.",
        """
        with tf.device("/gpu:0"):
            x = tf.negative([4, 4, 2], name="x")
        with tf.colocate_with(x.op):
            values, index = tf.unique(x, name="unique")
        """,
    ),
    Case(
        "A variable that is used from another device",
        "A node that changes a variable takes its place, not its value, and must be where the variable is. A "
        "request of its own yields (`plan.relaxations` tells it). But it cannot be with another variable at "
        "the same time, if that is elsewhere.",
        """
        with tf.device("/job:ps/task:0"):
            v = tf.Variable([1.0], use_resource=True, name="v")
        with tf.device("/job:ps/task:1"):
            w = tf.Variable([1.0], use_resource=True, name="w")
        with tf.colocate_with(w.handle.op):
            change = tf.assign_add(v, [1.0], name="change")
        """,
    ),
    Case(
        "A parameter server that does not exist",
        "A strategy's answer is not checked while the graph is built: a wrong one shows when it is placed.",
        """
        setter = tf.train.replica_device_setter(ps_tasks=3, worker_device="/job:worker/task:1")
        with tf.device(setter):
            a = tf.get_variable("a", [2])
            b = tf.get_variable("b", [2])
            c = tf.get_variable("c", [2])
        """,
    ),
    Case(
        "Bound to the client's process",
        "A Python function runs in the process that built the graph: its node must be on the master's task.",
        """
        with tf.device("/job:ps/task:0"):
            y = tf.py_func(lambda x: x + 1, [1.0], tf.float32, name="y")
        """,
    ),
    Case(
        "Soft placement does not move nodes to other tasks",
        "With `allow_soft_placement=True` a device type or index that cannot be had is given up, and "
        "`plan.relaxations` tells each one. A job or task is never given up: that would send data where "
        "nobody expects it.",
        """
        with tf.device("/job:worker/task:7/gpu:0"):
            c = tf.constant(1.0, name="c")
        """,
        {"allow_soft_placement": True},
    ),
    Case(
        "A master that is no task of the cluster",
        "",
        """
        c = tf.constant(1.0)
        """,
        {"master": "/job:chief/task:0"},
    ),
    Case(
        "Devices for a job that is not there",
        "",
        """
        c = tf.constant(1.0)
        """,
        {"devices": {"wroker": ["cpu:0", "gpu:0"]}},
    ),
    Case(
        "A cluster file with a mistake",
        "",
        """
        c = tf.constant(1.0)
        """,
        {"devices": None},
        "jobs: {worker: 2}\ndevices:\n  worker: [{name: gpu:0, memory: 80 gigs}]\n",
    ),
]

BUILDING = [
    Case("A device name with an unknown part", "", 'with tf.device("/job:ps/fpga:0"):\n    c = tf.constant(1.0)'),
    Case("Two device types", "", 'with tf.device("/cpu:0/gpu:0"):\n    c = tf.constant(1.0)'),
    Case(
        "A device function that gives no device",
        "What a device function raises itself comes through as it is.",
        """
        with tf.device(lambda op: 7):
            c = tf.constant(1.0, name="c")
        """,
    ),
    Case(
        "Device blocks left in the wrong order",
        "",
        """
        job, device = tf.device("/job:ps"), tf.device("/cpu:0")
        job.__enter__()
        device.__enter__()
        job.__exit__(None, None, None)
        """,
    ),
    Case(
        "Colocation with nothing",
        "`colocate_with(None, ignore_existing=True)` leaves all colocation; without it there is nothing to do.",
        """
        with tf.colocate_with(None):
            c = tf.constant(1.0)
        """,
    ),
    Case(
        "A strategy that is no function",
        "",
        """
        tf.train.replica_device_setter(ps_tasks=2, ps_strategy="greedy")
        """,
    ),
    Case(
        "A variable whose size nobody knows",
        "A strategy that balances bytes must know them.",
        """
        by_size = tf.train.GreedyLoadBalancingStrategy(2, tf.train.byte_size_load_fn)
        with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=by_size)):
            v = tf.Variable(tf.placeholder(tf.float32), validate_shape=False, use_resource=False, name="v")
        """,
    ),
    Case(
        "Parts along two axes",
        "",
        """
        table = tf.get_variable("table", [4, 6], partitioner=lambda shape, dtype: [2, 3])
        """,
    ),
    Case(
        "Parts along an axis that is not there",
        "",
        """
        table = tf.get_variable("table", [4, 6], partitioner=tf.fixed_size_partitioner(2, axis=3))
        """,
    ),
]

CUTTING = [
    Case(
        "Fetching a tensor from inside a loop",
        "A tensor inside a loop has one value per iteration, and nobody could say which is meant.",
        """
        kept = []

        def body(i):
            kept.append(tf.multiply(i, 2, name="twice"))
            return i + 1

        tf.while_loop(lambda i: i < 3, body, [0])
        tf.place(None, cluster, fetches=kept)
        """,
    ),
    Case("A strategy that does not exist", "", 'tf.place(None, cluster, strategy="best")'),
    Case("An objective that does not exist", "", 'tf.place(None, cluster, strategy="auto", objective="cost")'),
    Case(
        "More state than memory",
        "Where the memory of devices is known, variables must fit it, by the rules and by a [search](automatic-placement.md) alike. "
        "The error names the tightest set of variables.",
        """
        with tf.device("/job:ps/task:0"):
            table = tf.get_variable("table", [1000, 1000], initializer=tf.zeros_initializer())
        small = {"ps": [{"name": "cpu:0", "memory": "1 MiB"}]}
        tf.place(None, cluster, devices=small, fetches=table)
        """,
    ),
    Case(
        "More values at once than memory",
        "What is alive at any moment of a step must fit, too. The error names the moment, and what is alive then.",
        """
        x = tf.placeholder(tf.float32, [256, 256], name="x")
        layers = [tf.exp(x * (i + 1.0), name=f"layer_{i}") for i in range(4)]
        joined = tf.concat(layers, 0, name="joined")
        small = {job: [{"name": "cpu:0", "memory": "1.5 MiB"}] for job in ("ps", "worker")}
        tf.place(None, cluster, devices=small, fetches=tf.reduce_sum(joined), strategy="auto")
        """,
    ),
    Case(
        "A strategy of one's own that puts a node where it may not be",
        "",
        """
        with tf.device("/job:ps/task:1"):
            c = tf.negative(1.0, name="c")
        tf.place(None, cluster, fetches=c, strategy=lambda problem: [0] * problem.nodes)
        """,
    ),
    Case(
        "Asking a plan about a node that is not there",
        "",
        """
        tf.constant(1.0, name="weights")
        tf.place(None, cluster).explain("wieghts")
        """,
    ),
    Case(
        "Asking why a node is not on several devices at once",
        "",
        """
        tf.constant(1.0, name="c")
        tf.place(None, cluster).why_not("c", "/job:ps")
        """,
    ),
    Case(
        "A file that is no plan",
        "",
        """
        with open("old.plan", "w") as file:
            file.write("not a plan")
        tf.Plan.load("old.plan")
        """,
    ),
]

PARTS = [
    ("While placing", PLACING),
    ("While the graph is built", BUILDING),
    ("While a step is cut, a search runs, or a plan is asked", CUTTING),
]


def page() -> str:
    """The page's text."""
    lines = [HEAD]
    for title, cases in PARTS:
        lines.append(f"## {title}\n")
        lines += [line for case in cases for line in section(case)]
        if cases is PLACING:
            lines += soft_section()
    return "\n".join(lines)


def section(case: Case) -> Iterator[str]:
    """What the page says about one case."""
    yield f"### {case.title}\n"
    if case.text:
        yield f"{textwrap.fill(case.text, 110)}\n"
    code = textwrap.dedent(case.code).strip()
    given = {k: v for k, v in (case.arguments or {}).items() if v is not None}
    cluster = case.cluster or "cluster"
    if isinstance(cluster, str) and cluster != "cluster":
        yield f"```yaml\n{cluster}```\n"
        cluster = '"cluster.yaml"'
    arguments = "".join(f", {k}={v!r}" for k, v in given.items())
    if case in PLACING:
        code += f"\ntf.place(None, {cluster}{arguments})"
    yield f"```py\n{code}\n```\n"
    yield f"```text\n{wrapped(message(case))}\n```\n"


def message(case: Case) -> str:
    """The error that the program raises; it must raise one."""
    code = textwrap.dedent(case.code).strip() + "\n"
    arguments = {"devices": DEVICES, **(case.arguments or {})}
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
        cluster = case.cluster or CLUSTER
        if isinstance(cluster, str):
            path = Path(folder) / "cluster.yaml"
            path.write_text(cluster, encoding="utf-8")
            cluster = path
        elif case.cluster is not None and "devices" not in (case.arguments or {}):
            del arguments["devices"]
        try:
            with contextlib.chdir(folder):
                execute(
                    code,
                    {"cluster": make_cluster(CLUSTER, DEVICES)} if "devices=" not in code else {"cluster": CLUSTER},
                )
            if case in PLACING:
                tf.place(None, cluster, **arguments)
        except (tf.errors.OpError, ValueError, TypeError, KeyError, RuntimeError) as e:
            told = e.args[0] if isinstance(e, KeyError) else e
            return f"{type(e).__name__}: {told}".replace(f"{folder}/", "")
    raise AssertionError(f"{case.title}: the program was placed")


def execute(code: str, known: dict[str, Any] | None = None) -> None:
    """Run a program under the name that messages give it."""
    linecache.cache[FILE] = len(code), None, code.splitlines(keepends=True), FILE
    exec(compile(code, FILE, "exec"), {"tf": tf, **(known or {})})


def soft_section() -> Iterator[str]:
    """Not an error: what the plan says when soft placement gave something up."""
    code = 'with tf.device("/job:worker/gpu:5"):\n    c = tf.constant(1.0, name="c")\n'
    code += '    d = tf.negative(c, name="d")\n'
    with tf.Graph().as_default():
        execute(code)
        plan = tf.place(None, CLUSTER, devices=DEVICES, allow_soft_placement=True)
    yield "### When soft placement gives something up\n"
    yield "This is no error. `print(plan)` ends with what is not as requested, and why.\n"
    yield f"```py\n{code}print(tf.place(None, cluster, allow_soft_placement=True))\n```\n"
    yield f"```text\n{plan}\n```\n"


def wrapped(text: str) -> str:
    """Long lines broken, so that the page needs no sideways scrolling."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines.append(textwrap.fill(line, 110, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
