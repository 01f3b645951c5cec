"""`dovetail cluster`: a cluster of this machine, from a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...graph.core.errors import OpError
from ...placer.cluster import file_format
from .common import FailedError, errors_explained, monitor, read_jobs
from .watch import picture

cluster = typer.Typer(help="Start, watch, restart and stop a cluster of this machine.", no_args_is_help=True)

LOOK_S = 0.5
UP_S = 60.0  # how long a detached cluster may take until all its tasks answer

_File = Annotated[
    Path,
    typer.Argument(
        help="A YAML file with `jobs`: numbers of tasks, or addresses of this machine.", exists=True, dir_okay=False
    ),
]


@cluster.command()
def up(
    file: _File,
    cpus: Annotated[int, typer.Option(min=1, help="CPU devices of each task.")] = 1,
    keys: Annotated[
        Path | None, typer.Option(help="Folder of keys for all tasks. Without it: DOVETAIL_KEYS.", file_okay=False)
    ] = None,
    restart: Annotated[bool, typer.Option(help="Start tasks again that end.")] = True,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Go on in the background once all tasks answer; what they print goes to FILE.log.")
    ] = False,
) -> None:
    """Start a process for each task, show what they do, start those again that end. Ctrl-C, or `cluster down`, stops all."""
    with errors_explained():
        if detach:
            _detach(file, ["--cpus", str(cpus), *(["--keys", str(keys)] if keys else []), *([] if restart else ["--no-restart"])])
            return
        from ...runtime.server.local_cluster import LocalCluster, Supervisor, UpFile  # loads ZeroMQ

        jobs = read_jobs(str(file))

        def end(number: int, frame: Any) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, end)
        with UpFile(file) as here, LocalCluster(jobs, device_count={"CPU": cpus}, keys=keys) as running:
            targets = {f"/job:{job}/task:{i}": running.target(job, i) for job, i in running.tasks}
            _show(targets)
            print(f"Up. Ctrl-C stops it; so does: dovetail cluster down {file}", flush=True)
            keeper = Supervisor(running, _say, restart=restart)
            here.write(targets, keeper.processes())
            try:
                _watch(keeper, here, file, targets)
            except KeyboardInterrupt:
                print("Stopped.")


@cluster.command()
def schema() -> None:
    """Print the JSON schema of cluster files, which editors use for completion and checks."""
    print(json.dumps(file_format.schema(), indent=2))


@cluster.command()
def down(file: _File) -> None:
    """Stop a cluster that is up."""
    with errors_explained():
        from ...runtime.server.local_cluster import stop  # loads ZeroMQ

        stop(file)
        print("Stopped.")


@cluster.command()
def restart(
    file: _File,
    task: Annotated[str, typer.Argument(help="Which: ps:0, or /job:ps/task:0.")],
) -> None:
    """End one task of a cluster that is up, so that it is started again. What it held is lost."""
    with errors_explained():
        from ...runtime.server.local_cluster import restart  # loads ZeroMQ

        restart(file, task)


def _detach(file: Path, options: list[str]) -> None:
    """Run `cluster up` in a process of its own, and wait until its tasks answer."""
    from ...runtime.server.local_cluster import read_up, up_path  # loads ZeroMQ

    with contextlib.suppress(FileNotFoundError):
        read_up(file)
        raise FailedError(f"The cluster of {file} is up already: {up_path(file)}")
    log = file.with_name(f"{file.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "cluster", "up", str(file), *options],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )  # fmt: skip
    deadline = time.monotonic() + UP_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise FailedError(log.read_text(encoding="utf-8", errors="replace").strip().removeprefix("error: "))
        with contextlib.suppress(FileNotFoundError):  # the file is there, and written, when all tasks answer
            _show(read_up(file)["targets"])
            print(f"Up. It ends with: dovetail cluster down {file}")
            return
        time.sleep(0.05)
    process.terminate()
    raise FailedError(f"The tasks of {file} have not answered within {UP_S:.0f} s; {log} has what they printed")


def _show(targets: dict[str, str]) -> None:
    for task, target in targets.items():
        print(f"{task}  {target}")


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _watch(keeper: Any, here: Any, file: Path, targets: dict[str, str]) -> None:
    """Keep the cluster up, and show it where there is a terminal."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    before: dict[str, Any] = {}
    with Live(console=console, auto_refresh=False) as live:
        while True:
            if keeper.look():
                here.write(targets, keeper.processes())
            if keeper.all_ended:
                print("All tasks have ended.", file=sys.stderr)
                raise typer.Exit(1)
            if console.is_terminal:
                with contextlib.suppress(OpError), monitor(str(file)) as observer:
                    views = observer.look()
                    live.update(picture(views, before, console.width), refresh=True)
                    before = {view.task: view for view in views}
            time.sleep(LOOK_S)
