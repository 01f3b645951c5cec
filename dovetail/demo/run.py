"""The demo from start to end."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

import dovetail as tf

from ..graph.errors import OpError
from ..placer.plan import Plan
from .data import load_digits
from .display import Display, Training, make_display
from .replicas import BetweenGraph, InGraph, Replicas
from .reports import Evaluated, Failed, Progress, Report, Said
from .summary import leave, plan_of_step, wires
from .watch import DemoError, Evaluator, Processes

STEPS = 3000  # some 140 passes over the training digits, a few seconds on two cores
LAST_WORDS_S = 0.5  # after a failure, how long to listen to what the processes still say


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decides."""

    steps: int = STEPS
    ps: int = 2
    workers: int = 2
    in_graph: bool = False
    directory: Path = Path()


def run(settings: Settings, console: Console) -> float:
    """Start the cluster, train, show it, take the cluster down, and leave two files.

    Returns:
        The accuracy on the digits that were held out.

    Raises:
        DataMissing: scikit-learn is not installed; nothing was started.
        DemoError: a process ended, or a worker failed. OpError: the cluster did not start. OSError: the files could not be
            written. All processes are down then.
    """
    began = time.monotonic()
    digits = load_digits()
    settings.directory.mkdir(parents=True, exist_ok=True)  # better now than after the training
    console.print(
        f"[bold]Dovetail[/] learns to read handwritten digits: {len(digits.train_labels)} to train on, "
        f"{len(digits.test_labels)} held out.\n"
        f"[dim]{_count(settings.ps, 'parameter server')} and {_count(settings.workers, 'worker')}, each a process; "
        f"{'in-graph' if settings.in_graph else 'between-graph'} replication, asynchronous.[/]\n",
        highlight=False,
    )
    reports: queue.Queue[Report] = queue.Queue()
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(settings))
        processes = Processes(cluster, reports)
        replicas: Replicas
        if settings.in_graph:
            replicas = InGraph(cluster, settings.workers, digits, settings.steps, reports)
        else:
            replicas = BetweenGraph(cluster)
        stack.callback(replicas.stop)  # after the session is closed, so that no step keeps a thread
        try:
            session = stack.enter_context(tf.Session(cluster.target("worker", 0), graph=replicas.graph))
            evaluator = Evaluator(session, replicas.replicas[0], digits, reports)
            stack.callback(evaluator.stop)
            training = Training.of(settings.workers, settings.steps)
            with make_display(console, digits) as display:
                replicas.start(session)
                _follow(training, reports, processes, evaluator, display)
                trained_s = training.seconds
                accuracy, predictions = evaluator.evaluate()
                training.take(Evaluated(accuracy, predictions))
                display.show(training)
            plan = plan_of_step(session, replicas.replicas)
        except OpError as e:
            if processes.ended():
                raise DemoError(_trouble(processes, [])) from e
            raise
    _summarize(console, settings, plan)
    right = round(accuracy * len(digits.test_labels))
    console.print(
        f"\n[bold green]{accuracy:.2%}[/] of the held-out digits are read correctly "
        f"({right} of {len(digits.test_labels)}), after {training.global_step} steps in {trained_s:.1f} s; "
        f"{time.monotonic() - began:.1f} s in all.",
        highlight=False,
    )
    return accuracy


def _cluster(settings: Settings) -> tf.LocalCluster:
    program = [*BetweenGraph.program, "--steps", str(settings.steps)]
    return tf.LocalCluster(
        {"ps": settings.ps, "worker": settings.workers},
        programs={} if settings.in_graph else {"worker": program},
        piped=("ps", "worker"),
    )


def _follow(
    training: Training, reports: queue.Queue[Report], processes: Processes, evaluator: Evaluator, display: Display
) -> None:
    """Show what is reported until all workers have finished; DemoError when one cannot."""
    display.show(training)
    failures: list[Failed] = []
    while not training.done:
        for report in _arrived(reports, 0.1):
            if isinstance(report, Failed):
                failures.append(report)
            elif isinstance(report, Said):
                display.say(f"{report.task}: {report.line}")
            else:
                training.take(report)
                if isinstance(report, Progress):  # so the variables have values
                    evaluator.start()
        display.show(training)
        if failures or processes.ended():
            for report in _arrived(reports, LAST_WORDS_S):
                if isinstance(report, Failed):
                    failures.append(report)
                elif isinstance(report, Said):
                    display.say(f"{report.task}: {report.line}")
            raise DemoError(_trouble(processes, failures))


def _arrived(reports: queue.Queue[Report], seconds: float) -> Iterator[Report]:
    """The reports of the next so many seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            yield reports.get(timeout=left)
        except queue.Empty:
            return


def _trouble(processes: Processes, failures: list[Failed]) -> str:
    """What went wrong. A process that ended without a word is the cause; what its peers say then only follows from it."""
    told = {f"/job:worker/task:{f.worker}": f for f in failures}
    silent = [f"The process of {task} {how}" for task, how in processes.ended() if task not in told]
    return "\n".join(silent or [f"Worker {f.worker} failed: {f.message}" for f in failures])


def _summarize(console: Console, settings: Settings, plan: Plan) -> None:
    whose = "all replicas" if settings.in_graph else "worker 0"
    for title, text in (
        (f"Where one training step of {whose} runs", str(plan)),
        ("What crosses which wire in that step", wires(plan)),
    ):
        console.print()
        console.rule(f"[bold]{title}[/]", align="left", style="dim")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    files = ", ".join(str(f) for f in leave(plan, settings.directory))
    console.print(f"\nLeft for you: {files}", markup=False, highlight=False, soft_wrap=True)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
