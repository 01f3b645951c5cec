"""The whole demo, and its final summary: the plan, the traffic of each link, and two files."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console

import dovetail as tf

from ...graph.core.errors import OpError
from ...placer.cluster.spec import Cluster
from ...placer.partition.partitioned_graph import Channel
from ...placer.plan import Plan
from ...placer.render.text import count_text, short, size_text
from .data import Digits, load_digits
from .display import Display, Training, make_display
from .model import BATCH_SIZE, Replica
from .replicas import BetweenGraph, InGraph, Replicas
from .watch import DemoError, Evaluated, Evaluator, Failed, Processes, Progress, Report, Said

# Default number of updates: almost 100 epochs, which take about 10 s on two cores.
STEPS = 2000
# Seconds to wait for further reports after a failure.
LAST_REPORTS_S = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command."""

    steps: int = STEPS
    ps: int = 2
    workers: int = 2
    in_graph: bool = False
    directory: Path = Path()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the training.

    Attributes:
        accuracy: the share of test digits that are classified correctly.
        steps: number of updates.
        seconds: duration of the training.
        plan: the plan of a training step.
        apart: the same plan if each task were on its own machine.
    """

    accuracy: float
    steps: int
    seconds: float
    plan: Plan
    apart: Plan


def run(settings: Settings, console: Console) -> Outcome:
    """Starts the cluster, trains, shows the progress, stops the cluster, and writes two files. All processes end in any case.

    Raises:
        DataMissingError: scikit-learn is not installed.
        DemoError: a process ended, or a worker failed.
        OpError: the cluster did not start.
        OSError: the files could not be written.
    """
    began = time.monotonic()
    digits = load_digits()
    settings.directory.mkdir(parents=True, exist_ok=True)  # fail before the training if it cannot be created
    trained, tested = len(digits.train_labels), len(digits.test_labels)
    processes = f"{count_text(settings.ps, 'parameter server')} and {count_text(settings.workers, 'worker')}"
    how = "in-graph" if settings.in_graph else "between-graph"
    console.print(
        f"[bold]Dovetail[/] learns to read handwritten digits: {trained} to train on, {tested} held out.\n"
        f"[dim]{processes}, each in a process; {how} replication, asynchronous.[/]\n",
        highlight=False,
    )
    outcome = _train(settings, digits, console)
    _summarize(console, settings, outcome.plan, outcome.apart)
    console.print(
        f"\nHeld-out accuracy [bold green]{outcome.accuracy:.2%}[/] "
        f"({round(outcome.accuracy * tested)} of {tested} digits), {outcome.steps} steps in "
        f"{outcome.seconds:.1f} s, {time.monotonic() - began:.1f} s in all",
        highlight=False,
        soft_wrap=True,
    )
    return outcome


def _train(settings: Settings, digits: Digits, console: Console) -> Outcome:
    reports: queue.Queue[Report] = queue.Queue()
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(settings))
        processes = Processes(cluster, reports)
        replicas: Replicas
        if settings.in_graph:
            replicas = InGraph(cluster, settings.workers, digits, settings.steps, reports)
        else:
            replicas = BetweenGraph(cluster)
        try:
            session = tf.Session(cluster.target("worker", 0), graph=replicas.graph)
            evaluator = Evaluator(session, replicas.replicas[0], digits, reports)
            # Threads are joined after the session is closed, which ends their steps.
            for undo in (replicas.join, evaluator.join, session.close, evaluator.stop):
                stack.callback(undo)
            training = Training.of(settings.workers, settings.steps)
            with make_display(console, digits) as display:
                replicas.start(session)
                _follow(training, reports, processes, evaluator, display)
                seconds = training.seconds
                accuracy, predictions = evaluator.evaluate()
                training.take(Evaluated(accuracy, predictions))
                display.show(training)
            plans = [plan_of_step(session, replicas.replicas, shared) for shared in (None, False)]
            return Outcome(accuracy, training.global_step, seconds, *plans)
        except OpError as e:
            if processes.ended():
                raise DemoError(_trouble(processes, [])) from e
            raise


def _cluster(settings: Settings) -> tf.LocalCluster:
    program = [*BetweenGraph.program, "--steps", str(settings.steps)]
    return tf.LocalCluster(
        {"ps": settings.ps, "worker": settings.workers},
        programs={} if settings.in_graph else {"worker": program},
        piped=("ps", "worker"),
    )


def _follow(
    training: Training,
    reports: queue.Queue[Report],
    processes: Processes,
    evaluator: Evaluator,
    display: Display,
) -> None:
    """Shows reports until all workers have finished. DemoError: a worker failed."""
    display.show(training)
    failures: list[Failed] = []

    def progress(seconds: float) -> Iterator[Report]:
        """Yields the reports of the next `seconds` seconds. Failures are collected, and lines of output are shown."""
        for report in _arrived(reports, seconds):
            if isinstance(report, Failed):
                failures.append(report)
            elif isinstance(report, Said):
                display.log(f"{report.task}: {report.line}")
            else:
                yield report

    while not training.done:
        for report in progress(0.1):
            training.take(report)
            if isinstance(report, Progress):  # the variables are initialized
                evaluator.start()
        display.show(training)
        if failures or processes.ended():
            list(progress(LAST_REPORTS_S))
            raise DemoError(_trouble(processes, failures))


def _arrived(reports: queue.Queue[Report], seconds: float) -> Iterator[Report]:
    """Yields the reports of the next `seconds` seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            yield reports.get(timeout=left)
        except queue.Empty:
            return


def _trouble(processes: Processes, failures: list[Failed]) -> str:
    """Returns the cause of a failure. If a process ended without a report, it is the cause of the failures that its peers report."""
    failed = {f"/job:worker/task:{f.worker}": f for f in failures}
    silent = [f"The process of {task} {how}" for task, how in processes.ended() if task not in failed]
    return "\n".join(silent or [f"Worker {f.worker} failed: {f.message}" for f in failures])


def _summarize(console: Console, settings: Settings, plan: Plan, apart: Plan) -> None:
    whose = "all replicas" if settings.in_graph else "worker 0"
    for title, text in ((f"Where one training step of {whose} runs", str(plan)), (WIRES, wires(apart))):
        console.print()
        console.rule(f"[bold]{title}[/]", align="left", style="dim")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    files = ", ".join(str(f) for f in leave(plan, apart, settings.directory))
    console.print(f"\nWrote {files}", markup=False, highlight=False, soft_wrap=True)


PLAN_FILE, GRAPH_FILE = "plan.txt", "graph.dtg"
WIRES = "What each link carries if each task is on a machine of its own"


def plan_of_step(session: tf.Session, replicas: Iterable[Replica], shared_memory: bool | None = None) -> Plan:
    """Returns the plan of one training step of some replicas, on the devices of a session.

    Args:
        session: the session.
        replicas: the replicas.
        shared_memory: False: plan as if each task were on its own machine, without shared memory.
    """
    devices = session.list_devices()  # the master's devices come first
    cluster = Cluster(tuple(devices), devices[0].name.task_name)
    replicas = list(replicas)
    return tf.place(
        session.graph,
        cluster,
        fetches=[f for r in replicas for f in (r.train_op, r.loss, r.global_step)],
        feeds=[f for r in replicas for f in (r.images, r.labels)],
        shapes={f: [BATCH_SIZE, *f.shape[1:]] for r in replicas for f in (r.images, r.labels)},
        shared_memory=shared_memory,
    )


def wires(plan: Plan) -> str:
    """Returns the tensors that a step sends between tasks, with their shapes and sizes, grouped by link."""
    crossing = [c for c in plan.channels if c.crosses_tasks]
    crossing.sort(key=lambda c: (c.source, c.destination, -c.bytes, c.name))
    parts = []
    for (source, destination), found in groupby(crossing, key=lambda c: (c.source, c.destination)):
        channels = list(found)
        scalars = [c for c in channels if c.dims == () and not c.control]
        rows = [(c.name, _value(c), size_text(c.bytes)) for c in channels if c.dims != ()]
        if scalars:
            names = scalars[0].name if len(scalars) == 1 else f"{scalars[0].name} and {len(scalars) - 1} more"
            rows.append((names, "scalars" if len(scalars) > 1 else "scalar", size_text(_bytes(scalars))))
        control = sum(c.control for c in channels)
        if control:
            rows.append((f"{control} control edge{'s' if control > 1 else ''}", "", size_text(0)))
        heading = f"{short(source)} -> {short(destination)}: {size_text(_bytes(channels))} per step"
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [f"    {a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        parts.append("\n".join([heading, *lines]))
    return "\n".join(parts)


def _bytes(channels: list[Channel]) -> int:
    return sum(c.bytes for c in channels)


def _value(channel: Channel) -> str:
    name = channel.dtype.name if channel.dtype is not None else ""
    dims = "?" if channel.dims is None else ", ".join("?" if d is None else str(d) for d in channel.dims)
    return f"{name} [{dims}]"


def leave(plan: Plan, apart: Plan, directory: Path) -> list[Path]:
    """Writes the plan and the traffic of `apart` as text, and the graph for `dt.load_graph`. Returns the paths of the files."""
    directory.mkdir(parents=True, exist_ok=True)
    plan_file, graph_file = directory / PLAN_FILE, directory / GRAPH_FILE
    plan_file.write_text(f"{plan}\n\n{WIRES}\n\n{wires(apart)}\n", encoding="utf-8")
    tf.save_graph(plan.graph, graph_file)
    return [plan_file, graph_file]
