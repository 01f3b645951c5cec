"""Graph programs that TensorFlow 2.21 has answered: build each with Dovetail, and compare.

    python tests/conformance/tf.py FILE [--only SEED ...]

FILE holds a list of `{"program": ..., "result": ...}`: a program is a list of steps (make a constant, open a
device block, ...), a result is what TensorFlow said: what each node asks for, where its placer put it, which
values its partitioner moved, or the error. The last line printed is `agree N of M`.

Compared are, exactly: requested devices of every node that both sides have and of all nodes that have a role
    in the
program; placements; deliveries (value -> receiving device); the number of messages between tasks; and for
errors the phase, the kind and, where the text names it, the node.

One thing is translated. TensorFlow's client hands a fed value to the master's first CPU device, which sends
it on; Dovetail's client sends it straight to whoever needs it. So a feed counts here as a delivery to every
device but that one, and a Switch of a fed value, which runs beside its data, as one on that device.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))  # from a clone, without an install

import numpy as np  # noqa: E402

import dovetail as tf  # noqa: E402
from dovetail.graph.core.graph import Node, Tensor  # noqa: E402
from dovetail.placer.cluster.spec import Cluster, local_devices  # noqa: E402
from dovetail.placer.partition.partition import partition  # noqa: E402
from dovetail.placer.partition.prune import needed  # noqa: E402
from dovetail.placer.rules.place import place  # noqa: E402
from dovetail.placer.rules.placement import Placement  # noqa: E402

DATA = ROOT.parent / "shared" / "conformance" / "tf" / "programs.json"
"""Where the recorded programs lie when they are at hand; they are no part of the project."""

Json = dict[str, Any]


# --- building a program
# ---------------------------------------------------------------------------------------------


@dataclass
class Build:
    """A program under construction: the values its steps have made so far, by step name, and the open
    blocks.
    """

    program: Json
    values: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, dict[str, str | None]] = field(default_factory=dict)
    blocks: list[Any] = field(default_factory=list)

    def run(self, step: Json) -> None:
        """Do one step."""
        kind = step["op"]
        if kind in _BLOCKS:
            block = _BLOCKS[kind](self, step)
            block.__enter__()
            self.blocks.append(block)
        elif kind == "exit":
            self.blocks.pop().__exit__(None, None, None)
        elif kind in _MADE:
            value = _MADE[kind](self, step, step["name"])
            self._keep(step["name"], value)
        else:
            _OTHERS[kind](self, step)

    def _keep(self, name: str, value: Any, **roles: str | None) -> None:
        self.values[name] = value
        self.roles[name] = roles or {"op": _node(value).name}

    def tensor(self, name: str) -> Any:
        """The value of an earlier step, where a tensor is wanted."""
        value = self.values[name]
        if isinstance(value, Node):
            raise TypeError(f"{name} is an operation without a tensor result")
        return value

    def node(self, name: str) -> Node:
        """The node of an earlier step."""
        return _node(self.values[name])

    def leave(self) -> None:
        """Close the blocks that are still open."""
        while self.blocks:
            with contextlib.suppress(Exception):
                self.blocks.pop().__exit__(None, None, None)


def _node(value: Any) -> Node:
    return value if isinstance(value, Node) else value.op


def _device_function(build: Build, step: Json) -> Any:
    rules = step["rules"]
    return tf.device(lambda op: rules.get(op.type, rules.get("*", op.device)))


def _setter(build: Build, step: Json) -> Any:
    names = ("ps_tasks", "ps_device", "worker_device", "merge_devices", "ps_ops")
    arguments = {name: step[name] for name in names if name in step}
    tasks = arguments.get("ps_tasks", 0)
    if "cluster" in step:
        cluster = step["cluster"]
        jobs = (build.program.get("cluster") or {}) if cluster is True else cluster
        if isinstance(jobs, dict):
            cluster = {job: [f"{job}{i}:2222" for i in _task_ids(n)] for job, n in jobs.items()}
            ps_job = tf.DeviceSpec.from_string(arguments.get("ps_device", "/job:ps")).job
            tasks = len(cluster.get(ps_job, ()))
        arguments["cluster"] = cluster
    if "ps_strategy" in step:
        arguments["ps_strategy"] = _strategy(step["ps_strategy"], tasks)
    return tf.device(tf.train.replica_device_setter(**arguments))


def _strategy(name: str | None, tasks: int) -> Any:
    if name is None:
        return None
    if name == "not_callable":
        return 17
    if name.startswith("fixed:"):
        return lambda op: int(name[6:])
    load: Callable[[Any], float] = _byte_size if name == "greedy_bytes" else lambda op: 1
    loads = [0.0] * tasks

    def least_loaded(op: Any) -> int:
        task = min(range(len(loads)), key=lambda i: loads[i])
        loads[task] += load(op)
        return task

    return least_loaded


def _byte_size(op: Any) -> float:
    """As the recorder counts: also on nodes that are no variables, where the program names them as ps_ops."""
    if len(op.outputs) != 1:
        raise ValueError(f"Op {op.name} must have a single output")
    out = op.outputs[0]
    if op.type == "VarHandleOp":
        dims, size = op.get_attr("shape"), op.get_attr("dtype").size
    else:
        dims, size = (
            out.dims if out.dims is not None and None not in out.dims else op.get_attr("shape"),
            out.dtype.size,
        )
    return float(np.prod(dims)) * size


def _task_ids(tasks: int | list[int]) -> list[int]:
    return list(range(tasks)) if isinstance(tasks, int) else tasks


def _colocate(build: Build, step: Json) -> Any:
    reference = None if step.get("ref") is None else build.values[step["ref"]]
    return tf.colocate_with(reference, ignore_existing=step.get("ignore_existing", False))


_BLOCKS: dict[str, Callable[[Build, Json], Any]] = {
    "device": lambda b, s: tf.device(s["spec"]),
    "merge_device": lambda b, s: tf.device(tf.merge_device(s["spec"])),
    "device_fn": _device_function,
    "replica_device_setter": _setter,
    "colocate_with": _colocate,
    "control_dependencies": lambda b, s: tf.control_dependencies([b.node(r) for r in s["refs"]]),
    "name_scope": lambda b, s: tf.name_scope(s["scope"]),
    "container": lambda b, s: tf.container(s["container"]),
}


def _constant(build: Build, step: Json, name: str) -> Tensor:
    return tf.constant(float(step.get("value", 1.0)), shape=step.get("shape", [5, 5]), dtype=tf.float32, name=name)


def _while(build: Build, step: Json, name: str) -> Tensor:
    trips, device = int(step.get("trips", 3)), step.get("body_device")

    def body(i: Any, x: Any) -> Any:
        with tf.device(device) if device else contextlib.nullcontext():
            y = tf.add(x, x, name="dbl")
        return i + 1, y

    return tf.while_loop(lambda i, x: i < trips, body, [tf.constant(0), build.tensor(step["a"])], name=name)[1]


def _cond(build: Build, step: Json, name: str) -> Tensor:
    a = build.tensor(step["a"])

    def branch(function: Any, device: str | None) -> Any:
        def make() -> Any:
            with tf.device(device) if device else contextlib.nullcontext():
                return function(a, a)

        return make

    return tf.cond(
        tf.constant(bool(step.get("pred", True))), branch(tf.add, step.get("then_device")),
        branch(tf.multiply, step.get("else_device")), name=name,
    )  # fmt: skip


def _momentum(build: Build, step: Json, name: str) -> Any:
    var, accum = build.values[step["ref"]], build.values[step["accum"]]
    places = [_place(var), _place(accum)]
    graph = tf.get_default_graph()
    with graph.name_scope(name) as scope:
        rate, momentum = tf.constant(0.1, name="lr"), tf.constant(0.9, name="momentum")
    op = "ResourceApplyMomentum" if step.get("resource") else "ApplyMomentum"
    return graph.create(op, [*places, rate, build.tensor(step["grad"]), momentum], {"use_nesterov": False}, scope)


def _place(variable: Any) -> Tensor:
    """The place or handle behind a variable."""
    return variable.op.outputs[0]


def _shape(build: Build, step: Json, name: str) -> Tensor:
    """The bare op, as recorded: `tf.shape` makes a Const where the shape is known."""
    graph = tf.get_default_graph()
    with graph.name_scope(name) as scope:
        value = tf.convert_to_tensor(build.tensor(step["a"]))
    return graph.create("Shape", [value], {"out_type": tf.int32}, scope).outputs[0]


def _binary(function: str) -> Callable[[Build, Json, str], Any]:
    return lambda b, s, n: getattr(tf, function)(b.tensor(s["a"]), b.tensor(s["b"]), name=n)


_MADE: dict[str, Callable[[Build, Json, str], Any]] = {
    "constant": _constant,
    "placeholder": lambda b, s, n: tf.placeholder(tf.float32, s.get("shape", [5, 5]), name=n),
    "random": lambda b, s, n: tf.random_uniform(s.get("shape", [5, 5]), name=n, seed=1),
    "add": _binary("add"),
    "sub": _binary("subtract"),
    "mul": _binary("multiply"),
    "matmul": _binary("matmul"),
    "add_n": lambda b, s, n: tf.add_n([b.tensor(r) for r in s["inputs"]], name=n),
    "identity": lambda b, s, n: tf.identity(b.tensor(s["a"]), name=n),
    "raw_identity_ref": lambda b, s, n: tf.get_default_graph().create("Identity", [_place(b.values[s["a"]])], {}, n),
    "shape": _shape,
    "reduce_sum": lambda b, s, n: tf.reduce_sum(b.tensor(s["a"]), name=n),
    "assign": lambda b, s, n: tf.assign(b.values[s["ref"]], b.tensor(s["b"]), name=n),
    "assign_add": lambda b, s, n: tf.assign_add(b.values[s["ref"]], b.tensor(s["b"]), name=n),
    "apply_momentum": _momentum,
    "no_op": lambda b, s, n: tf.no_op(name=n),
    "group": lambda b, s, n: tf.group(*[b.node(r) for r in s["refs"]], name=n),
    "while": _while,
    "cond": _cond,
}


def _variable(build: Build, step: Json) -> None:
    initial = step.get("init", 1.0)
    if isinstance(initial, str):
        initial = build.tensor(initial)
    else:
        initial = np.full(step.get("shape", [5, 5]), float(initial), "float32")
    resource = bool(step.get("resource", False))
    v = tf.Variable(initial, name=step["name"], use_resource=resource)
    read = tf.get_default_graph().as_graph_element(v) if resource else v.value()
    build._keep(step["name"], v, var=v.op.name, init=v.initializer.name, read=read.op.name)


def _gradients(build: Build, step: Json) -> None:
    xs = [build.values[r] for r in step["xs"]]
    colocate = bool(step.get("colocate", False))
    grads = tf.gradients(build.tensor(step["y"]), xs, colocate_gradients_with_ops=colocate, name=step["name"])
    roles = {f"grad{i}": None if g is None else g.op.name for i, g in enumerate(grads)}
    build._keep(step["name"], grads[0], **roles)


def _set_class(build: Build, step: Json) -> None:
    """Write colocation groups by hand, past `colocate_with`."""
    build.node(step["ref"]).colocation = tuple(build.node(r).name for r in step["with"])


_OTHERS: dict[str, Callable[[Build, Json], None]] = {
    "variable": _variable,
    "gradients": _gradients,
    "set_attr_class": _set_class,
}


# --- answering
# ------------------------------------------------------------------------------------------------------


def cluster_of(program: Json) -> Cluster:
    """The devices of a program's cluster, and its master."""
    jobs = program.get("cluster") or {"localhost": 1}
    tasks = [(job, task) for job, n in jobs.items() for task in _task_ids(n)]
    job, task = program.get("master") or sorted(tasks)[0]
    count = {"CPU": int(program.get("cpus", 1))}
    devices = [d for j, t in tasks for d in local_devices(f"/job:{j}/task:{t}", count, incarnation=1)]
    cluster = Cluster(tuple(devices), f"/job:{job}/replica:0/task:{task}")
    return cluster.filtered(program.get("device_filters", ()))


def answer(program: Json) -> Json:
    """What Dovetail says: `requested`, `roles`, `placement`, `transfers`, `error`, as in the recorded
    results.
    """
    graph = tf.Graph()
    build = Build(program)
    said: Json = {"requested": {}, "roles": build.roles, "placement": None, "transfers": None, "error": None}
    with graph.as_default():
        tf.set_random_seed(0)
        at = -1
        try:
            for step in program["steps"]:
                at += 1
                build.run(step)
        except Exception as e:  # whatever it is, it is what is compared
            said["error"] = {"phase": "build", "class": type(e).__name__, "message": str(e), "step": at}
        finally:
            build.leave()
    said["requested"] = {n.name: n.device for n in graph.nodes}
    if said["error"] or not graph.nodes:
        return said
    cluster = cluster_of(program)
    try:
        placement = place(graph, cluster, allow_soft_placement=bool(program.get("soft", False)))
    except tf.errors.OpError as e:
        said["error"] = {"phase": "place", "class": type(e).__name__, "message": e.message, "node": e.op.name}
        return said
    said["placement"] = placement.as_dict()
    said["transfers"] = _transfers(graph, build, placement)
    return said


def _transfers(graph: Any, build: Build, placement: Placement) -> Json:
    """What one step moves that runs everything but the initializers, with all placeholders fed."""
    initializers = {r["init"] for r in build.roles.values() if "init" in r}
    targets = [
        n for n in graph.nodes if n.name not in initializers and n.type != "Placeholder" and graph.is_fetchable(n)
    ]
    feeds = [n.outputs[0] for n in graph.nodes if n.type == "Placeholder"]
    run = needed(graph, [], targets, feeds)
    client = f"{placement.cluster.master}/device:CPU:0"

    def device_of(node: Node) -> str:
        beside_feed = node.type in ("Switch", "RefSwitch") and node.inputs[0] in feeds
        return client if beside_feed else placement.device_of(node)

    cut = partition(run, device_of, feeds=feeds)
    deliveries = [f"{c.name if c.control else c.name.rpartition(':')[0]} -> {c.destination}" for c in cut.channels]
    crossing = sum(c.crosses_tasks for c in cut.channels)
    for value, devices in _fed(run, set(feeds), device_of).items():
        remote = sorted(devices - {client})
        deliveries += [f"{value} -> {device}" for device in remote]
        crossing += len({d.rpartition("/device")[0] for d in remote} - {placement.cluster.master})
    return {"deliveries": sorted(deliveries), "cross_task": crossing}


def _fed(run: Iterable[Node], feeds: set[Tensor], device_of: Callable[[Node], str]) -> dict[str, set[str]]:
    """What each device takes from feeds: values, and control edges from placeholders."""
    found: dict[str, set[str]] = {}
    for node in run:
        for t in node.inputs:
            if t in feeds:
                found.setdefault(f"feed({t.name})", set()).add(device_of(node))
        for c in node.control_inputs:
            if c.type == "Placeholder":
                found.setdefault(f"^feed({c.name}:0)", set()).add(device_of(node))
    return found


# --- comparing
# ------------------------------------------------------------------------------------------------------

_KINDS = (
    ("malformed name", r"Malformed device specification"),
    (
        "conflicting reference or resource edge",
        r"reference or resource edge connects|connected by a reference connection",
    ),
    ("conflicting colocation", r"Cannot colocate nodes|was colocated with a group of nodes"),
    ("unknown or impossible device", r"was explicitly assigned to|Could not satisfy|No OpKernel"),
)


def kind_of(error: Json) -> str:
    """The situation that an error tells of; for one while building, the step and the class."""
    if error["phase"] == "build":
        return f"construction error {error['class']} at step {error['step']}"
    text = error.get("core") or error["message"]
    return next((kind for kind, pattern in _KINDS if re.search(pattern, text)), f"other: {text[:80]}")


def _failing_node(error: Json) -> str | None:
    if "node" in error:
        return str(error["node"])
    text = error.get("core") or error["message"]
    found = re.search(
        r"Cannot assign a device for operation (\S+): |in node: \{name:'([^']+)'|in node: \{\{node (\S+)\}\}",
        text,
    )
    return next((g for g in found.groups() if g), None) if found else None


def compare(said: Json, expected: Json) -> list[str]:
    """The differences, in words; none when both agree."""
    error, wanted = said["error"], expected["error"]
    if wanted and wanted["phase"] == "run":
        wanted = None  # placed, then a kernel complained: not what is compared
    if bool(error) != bool(wanted):
        return [f"error: {_short(error)} instead of {_short(wanted)}"]
    differences = []
    if error and wanted:
        if (error["phase"], kind_of(error)) != (wanted["phase"], kind_of(wanted)):
            differences.append(f"error: {_short(error)} instead of {_short(wanted)}")
        elif _failing_node(wanted) and _failing_node(error) != _failing_node(wanted):
            differences.append(f"error at {_failing_node(error)} instead of {_failing_node(wanted)}")
    differences += _differences("role", _flat(said["roles"]), _flat(expected["roles"]), both=False)
    role_nodes = {name for roles in expected["roles"].values() for name in roles.values() if name}
    for what in ("requested", "placement"):
        ours, theirs = said[what], expected[what]
        if ours is None or theirs is None:
            continue
        differences += _differences(what, ours, theirs, both=True)
        differences += [f"{what}: no node {name}" for name in sorted(role_nodes & theirs.keys() - ours.keys())]
    ours, theirs = said["transfers"], expected["transfers"]
    if ours is not None and theirs is not None:
        if ours["deliveries"] != theirs["deliveries"]:
            extra, missing = (
                _minus(ours["deliveries"], theirs["deliveries"]),
                _minus(theirs["deliveries"], ours["deliveries"]),
            )
            differences += [f"delivery too many: {d}" for d in extra] + [f"delivery missing: {d}" for d in missing]
        if ours["cross_task"] != theirs["cross_task"]:
            differences.append(f"messages between tasks: {ours['cross_task']} instead of {theirs['cross_task']}")
    return differences


def _flat(roles: Json) -> Json:
    return {f"{step}.{role}": name for step, found in roles.items() for role, name in found.items()}


def _differences(what: str, ours: Json, theirs: Json, *, both: bool) -> list[str]:
    names = ours.keys() & theirs.keys() if both else ours.keys() | theirs.keys()
    return [
        f"{what} of {name}: {ours.get(name)!r} instead of {theirs.get(name)!r}"
        for name in sorted(names)
        if ours.get(name) != theirs.get(name)
    ]


def _minus(a: list[str], b: list[str]) -> list[str]:
    """What `a` holds more often than `b`."""
    left = list(b)
    out = []
    for x in a:
        if x in left:
            left.remove(x)
        else:
            out.append(x)
    return out


def _short(error: Json | None) -> str:
    if not error:
        return "none"
    text = (error.get("core") or error["message"])[:160]
    return f"[{error['phase']}] {kind_of(error)} ({error['class']}: {text})"


def check(pair: Json) -> list[str]:
    """The differences between Dovetail and a recorded answer."""
    return compare(answer(pair["program"]), pair["result"])


def main(arguments: list[str] | None = None) -> int:
    """The command: print disagreements and `agree N of M`; 0 when all agree."""
    parser = argparse.ArgumentParser(description="Compare Dovetail with recorded answers of TensorFlow.")
    parser.add_argument("file", type=Path, help="JSON: a list of programs with results")
    parser.add_argument("--only", type=int, nargs="*", help="positions in the file")
    options = parser.parse_args(arguments)
    pairs = [p for p in json.loads(options.file.read_text()) if "result" in p]
    chosen = options.only if options.only is not None else range(len(pairs))
    agree = 0
    for i in chosen:
        differences = check(pairs[i])
        agree += not differences
        if differences:
            print(f"{i} (seed {pairs[i]['program'].get('seed')}): " + "\n    ".join(differences[:12]))
    print(f"agree {agree} of {len(list(chosen))}")
    return 0 if agree == len(list(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
