"""The progress display of the demo: a live picture in a terminal, or plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .data import Array, Digits
from .watch import Evaluated, Finished, Progress, Report

BARS = "▁▂▃▄▅▆▇█"
# Columns of a curve.
CURVE = 24
# Columns of one drawn digit: 8 pixels and a gap.
DIGIT = 10
# Seconds between two plain lines.
PLAIN_EVERY_S = 1.0


@dataclass(slots=True)
class WorkerState:
    """The state of a worker, from its reports."""

    steps: int = 0
    rate: float = 0.0
    losses: list[float] = field(default_factory=list)
    finished: bool = False


@dataclass(slots=True)
class Training:
    """The state of the training, from all reports."""

    last_step: int
    workers: list[WorkerState]
    global_step: int = 0
    accuracies: list[float] = field(default_factory=list)
    predictions: Any = None
    began: float | None = None

    @classmethod
    def of(cls, workers: int, last_step: int) -> Training:
        """Returns the initial state."""
        return cls(last_step, [WorkerState() for _ in range(workers)])

    @property
    def done(self) -> bool:
        """Whether all workers have stopped."""
        return all(w.finished for w in self.workers)

    @property
    def seconds(self) -> float:
        """Seconds since the first report of progress."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def take(self, report: Report) -> None:
        """Updates the state with a report."""
        if isinstance(report, Progress):
            worker = self.workers[report.worker]
            worker.steps, worker.rate = report.steps, report.rate
            worker.losses.append(report.loss)
            self.global_step = max(self.global_step, report.global_step)
            self.began = time.monotonic() if self.began is None else self.began
        elif isinstance(report, Finished):
            self.workers[report.worker].finished = True
        elif isinstance(report, Evaluated):
            self.accuracies.append(report.accuracy)
            self.predictions = report.predictions


class Display(Protocol):
    """Shows a `Training`. It is a context manager, which restores the terminal at its end."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *exc: object) -> None: ...

    def show(self, training: Training) -> None:
        """Shows the progress."""

    def log(self, line: str) -> None:
        """Shows a permanent line."""


def make_display(console: Console, digits: Digits) -> Display:
    """Returns the display for a console."""
    live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(console, digits) if live else PlainDisplay(console)


class PlainDisplay:
    """Prints a line per second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_at = -math.inf
        self._shown_step = 0

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def show(self, training: Training) -> None:
        """Prints a line, at most one per second unless it is the last one."""
        now = time.monotonic()
        step = training.global_step
        if step == self._shown_step or (now - self._shown_at < PLAIN_EVERY_S and not training.done):
            return
        self._shown_at, self._shown_step = now, step
        last = training.last_step  # the global step may exceed it before the workers notice
        parts = [f"step {min(step, last):>{len(str(last))}}/{last}"]
        for i, w in enumerate(training.workers):
            if w.losses:
                parts.append(f"worker {i}: loss {w.losses[-1]:.4f}, {w.rate:.0f} steps/s")
        if training.accuracies:
            parts.append(f"held-out accuracy {training.accuracies[-1]:.4f}")
        self.log("   ".join(parts))

    def log(self, line: str) -> None:
        """Prints a line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """A picture that is redrawn in place: workers, curves, and some test digits."""

    def __init__(self, console: Console, digits: Digits) -> None:
        self._console = console
        self._digits = digits
        count = max(1, min(10, (console.width + 2) // DIGIT))
        # The first digit of each class.
        self._drawn = [int((digits.test_labels == label).argmax()) for label in range(count)]
        self._live = Live(console=console, refresh_per_second=10, transient=False)

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._live.__exit__(*exc)

    def show(self, training: Training) -> None:
        """Redraws the picture."""
        parts = (self._pictures(training), Text(), _workers(training), Text(), _total(training))
        self._live.update(Group(*parts))

    def log(self, line: str) -> None:
        """Prints a line above the picture."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _pictures(self, training: Training) -> RenderableType:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(*(draw(self._digits.test_images[i]) for i in self._drawn))
        if training.predictions is None:
            grid.add_row(*(Text("?".center(8), style="dim") for _ in self._drawn))
        else:
            labels, found = self._digits.test_labels, training.predictions
            grid.add_row(*(_result(int(found[i]), int(labels[i])) for i in self._drawn))
        return grid


def _result(predicted: int, label: int) -> Text:
    right = predicted == label
    return Text(f"{predicted} {'✓' if right else '✗'}".center(8), style="bold green" if right else "bold red")


def draw(image: Array) -> Text:
    """Draws a digit of 8 by 8 pixels as 4 lines of 8 characters. A character shows two pixels, one above the other."""
    rows = (image.reshape(8, 8) * 255).astype(int)
    text = Text()
    for top, bottom in zip(rows[0::2], rows[1::2], strict=True):
        for above, below in zip(top, bottom, strict=True):
            text.append("▀", style=f"rgb({above},{above},{above}) on rgb({below},{below},{below})")
        text.append("\n")
    text.right_crop(1)
    return text


def _workers(training: Training) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("worker")
    table.add_column("steps", justify="right", min_width=6)
    table.add_column("steps/s", justify="right", min_width=7)
    table.add_column("loss", justify="right", min_width=7)
    table.add_column("", min_width=CURVE)
    for i, w in enumerate(training.workers):
        loss = f"{w.losses[-1]:.4f}" if w.losses else ""
        name = Text(f"{i}", style="cyan") + Text(" ✓" if w.finished else "", style="green")
        # The loss falls by powers of ten, so a linear scale would show only its beginning.
        curve = sparkline([math.log(max(x, 1e-6)) for x in w.losses])
        rate = f"{w.rate:.0f}" if w.losses else ""
        table.add_row(name, f"{w.steps}", rate, loss, Text(curve, style="yellow"))
    return table


def _total(training: Training) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    step = min(training.global_step, training.last_step)
    took = "starting" if training.began is None else f"{training.seconds:.0f} s"
    grid.add_row(
        "global step",
        ProgressBar(total=training.last_step, completed=step, width=CURVE),
        f"{step} of {training.last_step}, {took}",
    )
    if training.accuracies:
        curve = Text(sparkline(training.accuracies), style="green")
        grid.add_row("held-out accuracy", curve, Text(f"{training.accuracies[-1]:.4f}", style="bold green"))
    else:
        grid.add_row("held-out accuracy", "", "")
    return grid


def sparkline(values: Sequence[float], width: int = CURVE) -> str:
    """Returns a curve of at most `width` characters, from the lowest value (▁) to the highest (█).

    >>> sparkline([0.0, 1.0, 2.0], width=3)
    '▁▅█'
    """
    if not values:
        return ""
    count = min(width, len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in zip(edges, edges[1:], strict=False)]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[math.floor((m - low) * scale + 0.5)] for m in means)
