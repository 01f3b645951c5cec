"""`dovetail status` and `dovetail top`: what the tasks of a running cluster do."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import errors_explained

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

    from ..runtime.observe import TaskView

PIPE_WIDTH = 200
MOST_WAITING = 20  # waiting steps that are shown

_Target = Annotated[str, typer.Argument(help="Any task of the cluster: zmq://host:port.")]


def status(target: _Target) -> None:
    """Show the tasks of a cluster: whether they answer, their devices, memory, steps, and what waits for what.

    Exit status 1 when a task does not answer.
    """
    with errors_explained():
        from ..runtime.observe import Observer
        from ..runtime.session import address_of

        with Observer(address_of(target)) as observer:
            views = observer.look()
        _console().print(picture(views, {}))
        if any(view.figures is None for view in views):
            raise typer.Exit(1)


def top(
    target: _Target,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    looks: Annotated[int, typer.Option(min=0, help="End after so many looks; 0: Ctrl-C ends it.")] = 0,
) -> None:
    """Watch the tasks of a cluster: steps and bytes per second, memory, waiting steps. Ctrl-C ends it."""
    with errors_explained():
        from rich.live import Live

        from ..runtime.observe import Observer
        from ..runtime.session import address_of

        console = _console()
        with Observer(address_of(target)) as observer:
            before: dict[str, TaskView] = {}
            with Live(console=console, auto_refresh=False, screen=console.is_terminal and not looks) as live:
                try:
                    seen = 0
                    while not looks or seen < looks:
                        if seen:
                            time.sleep(every)
                        views = observer.look()
                        live.update(picture(views, before), refresh=True)
                        before = {view.task: view for view in views}
                        seen += 1
                except KeyboardInterrupt:
                    pass


def _console() -> Console:
    """Where to print; a file or a pipe has room for whole lines."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def picture(views: Sequence[TaskView], before: Mapping[str, TaskView]) -> Group:
    """The tables of one look; rates where there was one before."""
    from rich.console import Group
    from rich.table import Table

    from ..runtime.observe import rates

    tasks = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("task", False), ("at", False), ("state", False), ("up", True), ("devices", False), ("memory", True), ("sessions", True),
        ("steps", True), ("per s", True), ("running", True), ("failed", True), ("stalled", True), ("refused", True),
    ):  # fmt: skip
        tasks.add_column(name, justify="right" if right else "left", no_wrap=True)
    links = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("from", "to", "messages", "bytes", "bytes/s"):
        links.add_column(name, justify="left" if name in ("from", "to") else "right", no_wrap=True)
    waiting = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("step", "age", "task", "waits for"):
        waiting.add_column(name, justify="right" if name == "age" else "left", overflow="fold")
    for view in views:
        f = view.figures
        if f is None:
            tasks.add_row(_short(view.task), view.address, "[red]silent[/]")
            continue
        rate = rates(before.get(view.task), view)
        tasks.add_row(
            _short(view.task), view.address, "[green]up[/]" + (" with keys" if f.get("keys") else ""), _seconds(f["up_s"]),
            _devices(f["devices"]), _size(f["memory"]), str(f["sessions"]), str(f["steps_started"]),
            "" if rate is None else f"{rate.steps:.1f}", str(f["steps_running"]), str(f["steps_failed"]),
            str(f.get("steps_stalled", 0)), str(f["refused"]),
        )  # fmt: skip
        for link in f["links"]:
            speed = "" if rate is None else f"{_size(rate.bytes_to.get(link['to'], 0.0))}/s"
            links.add_row(_short(view.task), _short(link["to"]), str(link["messages"]), _size(link["bytes"]), speed)
        for step in f["steps"]:
            if waiting.row_count < MOST_WAITING and step["waits"]:
                waits = "\n".join(step["waits"])
                waiting.add_row(str(step["step"]), _seconds(step["age_s"]), _short(view.task), waits)
    parts: list[RenderableType] = [tasks]
    for title, table in (("Sent", links), ("Waiting steps", waiting)):
        if table.row_count:
            parts += ["", f"[bold]{title}[/]", table]
    return Group(*parts)


def _short(task: str) -> str:
    return task.replace("/replica:0", "")


def _devices(devices: Sequence[Mapping[str, Any]]) -> str:
    return " ".join(str(d["name"]).rpartition("/device:")[2] + ("*" if d.get("emulated") else "") for d in devices)


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _seconds(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h"
