"""`dovetail status` and `dovetail top`: the state of the tasks of a running cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...placer.render.text import short, size_text, time_text
from .common import errors_explained, monitor

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

    from ...runtime.server.running_cluster import TaskStatus

# Width of lines that are written to a file or a pipe.
PIPE_WIDTH = 200
# Maximum number of waiting steps that are shown.
MAX_WAITING = 20

_COLUMNS = (
    "task", "at", "state", "up", "devices", "load", "memory", "sessions", "steps", "per s", "p50", "p90", "p99", "running", "failed",
    "stalled", "refused",
)  # fmt: skip
_LEFT = frozenset(("task", "at", "state", "devices"))
# The columns that are dropped if rows are too wide, the least important one first.
_OPTIONAL = ("devices", "sessions", "up", "at", "p90", "refused", "stalled", "p99", "p50", "load", "failed")

_Cluster = Annotated[str, typer.Argument(help="Cluster file, or the address of any task: zmq://host:port.")]


def status(cluster: _Cluster) -> None:
    """Show the state of a cluster's tasks: load, memory, steps and their times, queues, and the reasons why steps wait.

    Load is the number of CPU cores that a task keeps busy. p50, p90 and p99 are percentiles of the times of its last 1000 steps.
    Exit status: 1 if a task does not answer.
    """
    with errors_explained():
        with monitor(cluster) as observer:
            views = observer.look()
        console = _console()
        console.print(picture(views, {}, console.width))
        if any(view.figures is None for view in views):
            raise typer.Exit(1)


def top(
    cluster: _Cluster,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between refreshes.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="Number of refreshes. 0: until Ctrl-C.")] = 0,
) -> None:
    """Show the state of a cluster's tasks continuously, with steps and bytes per second, until Ctrl-C."""
    with errors_explained():
        from rich.live import Live

        console = _console()
        with monitor(cluster) as observer:
            before: dict[str, TaskStatus] = {}
            with Live(console=console, auto_refresh=False, screen=console.is_terminal and not count) as live:
                try:
                    seen = 0
                    while not count or seen < count:
                        if seen:
                            time.sleep(interval)
                        views = observer.look()
                        live.update(picture(views, before, console.width), refresh=True)
                        before = {view.task: view for view in views}
                        seen += 1
                except KeyboardInterrupt:
                    pass


def _console() -> Console:
    """Returns the console for the output. Lines for a file or a pipe are wider."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a task between two queries: steps per second, and bytes per second that it sends to each task."""

    steps: float
    bytes_to: dict[str, float]


def rates(before: TaskStatus | None, now: TaskStatus) -> Rates | None:
    """Returns the rates between two queries. None: the task has restarted, or did not answer both."""
    if before is None or before.figures is None or now.figures is None or now.at <= before.at:
        return None
    if before.figures["incarnation"] != now.figures["incarnation"]:
        return None
    seconds = now.at - before.at
    sent = {link["to"]: link["bytes"] for link in before.figures["links"]}
    return Rates(
        (now.figures["steps_started"] - before.figures["steps_started"]) / seconds,
        {link["to"]: (link["bytes"] - sent.get(link["to"], 0)) / seconds for link in now.figures["links"]},
    )


def picture(views: Sequence[TaskStatus], before: Mapping[str, TaskStatus], width: int) -> Group:
    """Returns the tables of one query of all tasks.

    Args:
        views: the state of each task.
        before: the states at the previous query, for rates.
        width: number of columns of the screen.
    """
    from rich.console import Group
    from rich.table import Table

    rows: list[dict[str, str]] = []
    links = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("from", "to", "messages", "bytes", "bytes/s"):
        links.add_column(name, justify="left" if name in ("from", "to") else "right", no_wrap=True)
    queues = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("queue", "task", "elements", "capacity", "waiting"):
        queues.add_column(name, justify="left" if name in ("queue", "task") else "right", no_wrap=True)
    waiting = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "age", "task", "waits for"):
        waiting.add_column(name, justify="right" if name == "age" else "left", overflow="fold")
    for view in views:
        f = view.figures
        if f is None:
            rows.append({"task": short(view.task), "at": view.address, "state": "[red]silent[/]"})
            continue
        rate = rates(before.get(view.task), view)
        rows.append({
            "task": short(view.task), "at": view.address, "state": "[green]up[/]" + (" with keys" if f.get("keys") else ""),
            "up": _seconds(f["up_s"]), "devices": _devices(f["devices"]), "memory": size_text(f["memory"]), "sessions": str(f["sessions"]),
            "load": f"{f['load']:.2f}" if "load" in f else "", **{p: time_text(s) for p, s in f.get("step_s", {}).items()},
            "steps": str(f["steps_started"]), "per s": "" if rate is None else f"{rate.steps:.1f}",
            "running": str(f["steps_running"]), "failed": str(f["steps_failed"]), "stalled": str(f.get("steps_stalled", 0)),
            "refused": str(f["refused"]),
        })  # fmt: skip
        for link in f["links"]:
            speed = "" if rate is None else f"{size_text(rate.bytes_to.get(link['to'], 0.0))}/s"
            links.add_row(short(view.task), short(link["to"]), str(link["messages"]), size_text(link["bytes"]), speed)
        for q in f.get("queues", ()):
            queues.add_row(
                q["name"], short(view.task), str(q["elements"]), str(q["capacity"] or "-"), str(q["waiting"])
            )
        for step in f["steps"]:
            if waiting.row_count < MAX_WAITING and step["waits"]:
                waits = "\n".join(map(short, step["waits"]))
                waiting.add_row(str(step["step"]), _seconds(step["age_s"]), short(view.task), waits)
    parts: list[RenderableType] = [_tasks(rows, width)]
    for title, table in (("Queues", queues), ("Sent", links), ("Waiting steps", waiting)):
        if table.row_count:
            parts += ["", f"[bold]{title}[/]", table]
    return Group(*parts)


def _tasks(rows: Sequence[Mapping[str, str]], width: int) -> Table:
    """Returns a table with a row per task. If rows are too wide, empty columns are dropped first, and then the least important ones."""
    from rich.markup import render
    from rich.table import Table

    def cells(name: str) -> list[str]:
        return [row.get(name, "") for row in rows]

    shown = [name for name in _COLUMNS if name not in ("load", "per s", "p50", "p90", "p99") or any(cells(name))]
    widest = {name: max(len(render(cell)) for cell in (name, *cells(name))) for name in shown}
    silent = [name for name in ("refused", "stalled", "failed") if not any(cell.strip("0") for cell in cells(name))]
    for name in (*silent, *_OPTIONAL):
        if sum(widest[n] + 2 for n in shown) - 2 <= width:
            break
        if name in shown:
            shown.remove(name)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[row.get(name, "") for name in shown])
    return table


def _devices(devices: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(str(d["name"]).rpartition("/device:")[2] + ("*" if d.get("emulated") else "") for d in devices)


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h"
