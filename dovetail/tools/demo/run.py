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

from ...graph.core.errors import OpError
from ...placer.plan import Plan
from .data import Digits, load_digits
from .display import Display, Training, make_display
from .replicas import BetweenGraph, InGraph, Replicas
from .reports import Evaluated, Failed, Progress, Report, Said
from .summary import WIRES, leave, plan_of_step, wires
from .watch import DemoError, Evaluator, Processes

STEPS = 2000  # nearly a hundred passes over the training digits: some 10 s on two cores
LAST_WORDS_S = 0.5  # after a failure, how long to listen to what the processes still say


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line decides."""

    steps: int = STEPS
    ps: int = 2
    workers: int = 2
    in_graph: bool = False
    directory: Path = Path()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. The accuracy is the share of the held-out digits that are read correctly."""

    accuracy: float
    steps: int
    seconds: float  # of training
    plan: Plan
    apart: Plan


def run(settings: Settings, console: Console) -> Outcome:
    """Start the cluster, train, show it, take the cluster down, and leave two files.

    Raises:
        DataMissingError: scikit-learn is not installed; nothing was started.
        DemoError: a process ended, or a worker failed. OpError: the cluster did not start. OSError: the files
            could not be written. All processes are down then.
    """
    began = time.monotonic()
    digits = load_digits()
    settings.directory.mkdir(parents=True, exist_ok=True)  # better now than after the training
    trained, tested = len(digits.train_labels), len(digits.test_labels)
    processes = f"{_count(settings.ps, 'parameter server')} and {_count(settings.workers, 'worker')}"
    how = "in-graph" if settings.in_graph else "between-graph"
    console.print(
        f"[bold]Dovetail[/] learns to read handwritten digits: {trained} to train on, {tested} held out.\n"
        f"[dim]{processes}, each a process; {how}, asynchronous.[/]\n",
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
    """Show reports until all workers have finished. DemoError: a worker failed."""
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
    """The reports of the next `seconds` seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            yield reports.get(timeout=left)
        except queue.Empty:
            return


def _trouble(processes: Processes, failures: list[Failed]) -> str:
    """What went wrong. A process that ended without a word is the cause of what its peers say."""
    told = {f"/job:worker/task:{f.worker}": f for f in failures}
    silent = [f"The process of {task} {how}" for task, how in processes.ended() if task not in told]
    return "\n".join(silent or [f"Worker {f.worker} failed: {f.message}" for f in failures])


def _summarize(console: Console, settings: Settings, plan: Plan, apart: Plan) -> None:
    whose = "all replicas" if settings.in_graph else "worker 0"
    for title, text in (
        (f"Where one training step of {whose} runs", str(plan)),
        (WIRES, wires(apart)),
    ):
        console.print()
        console.rule(f"[bold]{title}[/]", align="left", style="dim")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    files = ", ".join(str(f) for f in leave(plan, apart, settings.directory))
    console.print(f"\nWrote {files}", markup=False, highlight=False, soft_wrap=True)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
